//! The flags of a command.

use mooncake_settings::{CommandLine, Given, Program, SettingError, parse};

use crate::logging::say;

/// Reads a command's flags. None where they ask for a text, `--help` or `--version`: that has been printed, and there
/// is nothing else to do.
pub fn read(program: &'static Program, args: impl IntoIterator<Item = String>) -> Result<Option<Given>, SettingError> {
    match parse(program, args)? {
        CommandLine::Run(given) => Ok(Some(given)),
        CommandLine::Help(text) | CommandLine::Version(text) => {
            say(&format!("{}\n", text.trim_end()));
            Ok(None)
        }
    }
}
