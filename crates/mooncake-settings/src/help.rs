//! The text of `--help`.

use std::fmt::Write;

use crate::programs::Program;
use crate::setting::{Setting, Support, Type};

/// Longest flag beside which its text begins in the same line.
const BESIDE: usize = 34;

/// Columns of a terminal.
const WIDTH: usize = 100;

/// What works, by what it is for.
pub(crate) fn help(program: &Program) -> String {
    let mut out = head(program);
    let mut told: Vec<&str> = Vec::new();
    for (title, names) in program.groups {
        let _ = writeln!(out, "\n{title}:");
        for setting in names.iter().filter_map(|name| program.find(name)) {
            tell(&mut out, setting);
            told.push(setting.name);
        }
    }
    let works = |setting: &&Setting| setting.support == Support::Supported && !told.contains(&setting.name);
    let others: Vec<&Setting> = program.settings.iter().filter(works).collect();
    if !others.is_empty() {
        let _ = writeln!(out, "\n{}:", if told.is_empty() { "Flags" } else { "Other" });
        others.iter().for_each(|setting| tell(&mut out, setting));
    }
    let rest = program.settings.iter().filter(|setting| setting.support != Support::Supported).count();
    if rest > 0 {
        let _ = writeln!(out, "\n{rest} more flags of Mooncake's are accepted without effect, or refused: --help-all.");
    }
    out
}

/// What works first, then the rest with its reasons.
pub(crate) fn help_all(program: &Program) -> String {
    let mut out = head(program);
    let mut section = |title: &str, with: fn(&Support) -> bool| {
        let mut found: Vec<&Setting> = program.settings.iter().filter(|setting| with(&setting.support)).collect();
        if found.is_empty() {
            return;
        }
        if title != "Flags:" {
            found.sort_by_key(|setting| setting.name);
        }
        let _ = writeln!(out, "\n{title}");
        found.iter().for_each(|setting| tell(&mut out, setting));
    };
    section("Flags:", |support| *support == Support::Supported);
    section("Accepted without effect:", |support| matches!(support, Support::NoEffect));
    section("Settings of what it does not have, accepted without effect:", |support| {
        matches!(support, Support::Inactive)
    });
    section("What it does not have; refused when switched on:", |support| matches!(support, Support::Refused { .. }));
    out
}

fn head(program: &Program) -> String {
    let written = if program.settings.is_empty() {
        ""
    } else {
        "\n\nFlags are --name=value or --name value; switches also --name and --noname."
    };
    format!("{}{written}\n", program.about)
}

/// One flag: what its value looks like, what it does, its default.
fn tell(out: &mut String, setting: &Setting) {
    let value = match setting.value {
        Type::Bool => String::new(),
        Type::OneOf(choices) => format!("={}", choices.join("|")),
        Type::Text => "=TEXT".to_owned(),
        other => format!("={}", other.name().to_uppercase().replace(" TO ", "-").replace(' ', "-")),
    };
    let flag = format!("--{}{value}", setting.name);
    let default = match setting.default {
        "" => String::new(),
        // A switch is off unless it is said to be on.
        "false" if setting.value == Type::Bool => String::new(),
        default => format!(" (default {default})"),
    };
    let indent = BESIDE + 4;
    let mut line = format!("  {flag}");
    match flag.len() > BESIDE {
        true => {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(indent);
        }
        false => line = format!("{line:<indent$}"),
    }
    for word in format!("{}{default}", setting.help).split(' ') {
        let is_first = line.trim().is_empty() || line.len() == indent;
        if !is_first && line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(indent);
        } else if !is_first {
            line.push(' ');
        }
        line += word;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::PROGRAMS;

    #[test]
    fn each_flag_that_works_is_told_once_and_fits_a_terminal() {
        for program in PROGRAMS {
            let short = help(program);
            for setting in program.settings {
                let lines = short.lines().filter(|line| {
                    let rest = line.strip_prefix("  --").and_then(|line| line.strip_prefix(setting.name));
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '=']))
                });
                let wanted = usize::from(setting.support == Support::Supported);
                assert_eq!(lines.count(), wanted, "{} {}", program.name, setting.name);
                assert!(help_all(program).contains(&format!("--{}", setting.name)), "{}", setting.name);
            }
            for (title, names) in program.groups {
                for name in *names {
                    assert!(program.find(name).is_some(), "{} {title}: {name}", program.name);
                }
            }
            let longest = short.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(120), "{} {longest:?}", program.name);
        }
    }
}
