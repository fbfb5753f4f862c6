//! `mooncake explain`: what an error code means, and what to do.

use std::process::ExitCode;

use mooncake_codes::{CODES, Code};
use mooncake_settings::{EXPLAIN, SettingError};

use crate::flags;
use crate::logging::{print_stderr, say};

/// Explains one, or lists all.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<ExitCode, SettingError> {
    let Some(given) = flags::read(&EXPLAIN, args)? else { return Ok(ExitCode::SUCCESS) };
    let Some(asked) = given.operands.first() else {
        say(&CODES
            .iter()
            .map(|code| format!("{:>5}  {:<28} {}\n", code.number, code.name, code.meaning))
            .collect::<String>());
        return Ok(ExitCode::SUCCESS);
    };
    match find(asked) {
        Some(code) => {
            say(&whole(code));
            Ok(ExitCode::SUCCESS)
        }
        None => {
            print_stderr(&format!(
                "mooncake explain: {asked} is no code that a call of this version returns; mooncake explain lists all\n"
            ));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// By its number, with or without the minus, or by its name or exception.
fn find(asked: &str) -> Option<&'static Code> {
    let is = |code: &&Code| match asked.parse::<i64>() {
        Ok(number) => code.number == number || code.number == -number,
        Err(_) => [code.name, code.exception].iter().any(|name| !name.is_empty() && name.eq_ignore_ascii_case(asked)),
    };
    CODES.iter().find(is)
}

fn whole(code: &Code) -> String {
    let mut out = format!("{} {}: {}\n", code.number, code.name, code.meaning);
    if !code.remedy.is_empty() {
        out += &format!("  -> {}\n", code.remedy);
    }
    if !code.exception.is_empty() {
        out += &format!("In Python: mooncake.errors.{}\n", code.exception);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_as_people_write_it() {
        for asked in ["-706", "706", "OBJECT_HAS_LEASE", "object_has_lease", "Protected"] {
            assert_eq!(find(asked).map(|code| code.number), Some(-706), "{asked}");
        }
        assert!(find("-7").is_none() && find("").is_none());
    }

    #[test]
    fn each_code_that_is_no_success_says_what_to_do() {
        for code in CODES.iter().filter(|code| code.number != 0) {
            assert!(whole(code).contains("  -> "), "{}", code.name);
        }
    }
}
