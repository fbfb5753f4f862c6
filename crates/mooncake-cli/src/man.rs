//! `mooncake man`: manual pages, made of the registry of settings.

use std::fmt::Write;

use mooncake_settings::{MAN, PROGRAMS, Program, SettingError, Support, Type};

use crate::commands;
use crate::flags;
use crate::logging::say;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ManError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Another program.
    #[error("no page for {0:?}; mooncake man lists those that there are")]
    Program(String),
}

/// Prints one, or their names.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ManError> {
    let Some(given) = flags::read(&MAN, args)? else { return Ok(()) };
    let Some(asked) = given.operands.first() else {
        say(&PROGRAMS.iter().map(|program| format!("{}\n", name(program))).collect::<String>());
        return Ok(());
    };
    let found = PROGRAMS.iter().find(|program| name(program) == *asked || program.name == asked);
    say(&page(found.ok_or_else(|| ManError::Program(asked.clone()))?));
    Ok(())
}

/// As files of pages are called: `mooncake-tier-list`.
fn name(program: &Program) -> String {
    program.name.replace(' ', "-")
}

/// Text in the form that man reads: a dash that is one, and no line that begins a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines: Vec<String> = text
        .lines()
        .map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() })
        .collect();
    lines.join("\n")
}

fn page(program: &Program) -> String {
    let about = commands::all().find(|command| command.program.is_some_and(|it| std::ptr::eq(it, program)));
    let mut out = format!(
        ".TH {} 1 \"\" \"mooncake {}\"\n.SH NAME\n{} \\- {}\n.SH DESCRIPTION\n.nf\n{}\n.fi\n",
        escaped(&name(program).to_uppercase()),
        env!("CARGO_PKG_VERSION"),
        escaped(&name(program)),
        escaped(about.map_or("", |command| command.about)),
        escaped(program.about)
    );
    let works = |support: &Support| *support == Support::Supported;
    let mut section = |title: &str, is_one: &dyn Fn(&Support) -> bool| {
        let mut settings = program.settings.iter().filter(|setting| is_one(&setting.support)).peekable();
        if settings.peek().is_none() {
            return;
        }
        let _ = writeln!(out, ".SH {title}");
        for setting in settings {
            let value = if setting.value == Type::Bool { "" } else { "=VALUE" };
            let default = if setting.default.is_empty() { "\"\"" } else { setting.default };
            let (name, help) = (escaped(setting.name), escaped(setting.help));
            let _ = writeln!(out, ".TP\n.B \\-\\-{name}{value}\n{help} (default {})", escaped(default));
        }
    };
    section("OPTIONS", &works);
    section("ACCEPTED WITHOUT EFFECT, OR REFUSED", &|support| !works(support));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_man_wants_and_each_flag() {
        for program in PROGRAMS {
            let page = page(program);
            assert!(page.starts_with(".TH ") && page.contains("\n.SH NAME\n"), "{page}");
            for setting in program.settings {
                assert!(page.contains(&format!(".B \\-\\-{}", setting.name)), "{} {}", program.name, setting.name);
            }
        }
        assert_eq!(escaped(".a-b\n'c\\d"), "\\&.a\\-b\n\\&'c\\ed");
    }
}
