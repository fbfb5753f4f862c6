//! Command lines in gflags syntax: `--x=v`, `--x v`, `-x=v`, `--flag`,
//! `--noflag`, `--flagfile=PATH`, `--help`, `--help-all`, `--version`.

use std::collections::VecDeque;

use crate::file;
use crate::given::{Given, Source};
use crate::help::{help, help_all};
use crate::programs::Program;
use crate::setting::{Setting, SettingError, Type, boolean};
use crate::similar::{close_to, meant_by};

/// Files of flags that name one another end here.
const FLAG_FILES_MAX: u32 = 16;

/// What a command line asks for.
#[derive(Debug)]
pub enum CommandLine {
    /// `--help`: print this, exit with 0.
    Help(String),
    /// `--version`: print this, exit with 0.
    Version(String),
    /// Run with these.
    Run(Given),
}

/// Parses a command line without the program's name, and the file of settings
/// that it names: what stands on the command line wins.
pub fn parse(program: &'static Program, args: impl IntoIterator<Item = String>) -> Result<CommandLine, SettingError> {
    let mut given = Given::none(program);
    let mut args: VecDeque<String> = args.into_iter().collect();
    let mut flag_files = 0;
    let mut are_operands = false;
    while let Some(arg) = args.pop_front() {
        if arg == "--" {
            // Behind it a key may begin with a dash.
            are_operands = program.operands.most > 0;
            continue;
        }
        let written = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).unwrap_or("");
        let is_operand = are_operands || written.is_empty() || is_number(&arg);
        if is_operand && given.operands.len() < program.operands.most {
            given.operands.push(arg);
            continue;
        }
        if written.is_empty() || are_operands {
            let meant = meant_by(program, &arg);
            return Err(SettingError::Stray { word: arg, meant });
        }
        let (name, value) = match written.split_once('=') {
            Some((name, value)) => (name.replace('-', "_"), Some(value.to_owned())),
            None => (written.replace('-', "_"), None),
        };
        match name.as_str() {
            "help" | "h" | "helpshort" => return Ok(CommandLine::Help(help(program))),
            "help_all" | "helpfull" => return Ok(CommandLine::Help(help_all(program))),
            "version" => {
                let version = env!("CARGO_PKG_VERSION");
                return Ok(CommandLine::Version(format!("{} (mooncake-rs) {version}", program.name)));
            }
            "flagfile" => {
                let path = value.or_else(|| args.pop_front()).ok_or(SettingError::NoValue("flagfile", "PATH"))?;
                flag_files += 1;
                for line in flag_file(&path, flag_files)?.into_iter().rev() {
                    args.push_front(line);
                }
                continue;
            }
            _ => {}
        }
        if let Some(setting) = program.find(&name) {
            let value = match value {
                Some(value) => value,
                None if setting.value == Type::Bool => {
                    // Of a command that takes words, that is one.
                    let takes_words = program.operands.most > 0;
                    if let Some(next) = args.front().filter(|next| !takes_words && boolean(next).is_some()) {
                        given.notes.push(format!(
                            "--{name} {next}: a switch takes no separate value and is now true; write --{name}={next}"
                        ));
                        args.pop_front();
                    }
                    "true".to_owned()
                }
                None => args.pop_front().ok_or(SettingError::NoValue(setting.name, example(setting)))?,
            };
            given.set(setting, value, Source::CommandLine)?;
        } else if let Some(setting) = name.strip_prefix("no").and_then(|name| program.find(name))
            && setting.value == Type::Bool
            && value.is_none()
        {
            given.set(setting, "false".to_owned(), Source::CommandLine)?;
        } else {
            let close = close_to(program, &name);
            return Err(SettingError::Unknown { name, close });
        }
    }
    if given.operands.len() < program.operands.least {
        return Err(SettingError::Lacks { program: program.name, what: program.operands.name });
    }
    if program.find("config_path").is_some()
        && let Some(path) = given.text("config_path").filter(|path| !path.is_empty()).map(str::to_owned)
    {
        given.lay_under(&path)?;
    }
    Ok(CommandLine::Run(given))
}

/// A number below 0 is no flag.
fn is_number(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Flags of a file, one a line; empty lines and lines that begin with # say nothing.
fn flag_file(path: &str, count: u32) -> Result<Vec<String>, SettingError> {
    let bad = |reason: String| SettingError::File { path: path.to_owned(), reason };
    if count > FLAG_FILES_MAX {
        return Err(bad(format!("more than {FLAG_FILES_MAX} files of flags; do they name one another?")));
    }
    let text = file::text(path).map_err(|error| bad(error.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn example(setting: &Setting) -> &'static str {
    if setting.default.is_empty() { "VALUE" } else { setting.default }
}
