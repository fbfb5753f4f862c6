//! One setting: what it is called, what its values look like, what it does.

use std::borrow::Cow;
use std::net::IpAddr;

/// A setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name, without the dashes of a flag.
    pub name: &'static str,
    /// What its values look like.
    pub value: Type,
    /// Its default, as a user would write it.
    pub default: &'static str,
    /// What it does; for the other kinds: why it does nothing, or what is missing.
    pub help: &'static str,
    /// Whether it does anything.
    pub support: Support,
}

/// Settings of one kind, for the help of a program with many: its title, and their names.
pub(crate) type HelpGroup = (&'static str, &'static [&'static str]);

/// Whether a setting does anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does what it says.
    Supported,
    /// Tuning without a meaning here: accepted, one line says so.
    NoEffect,
    /// A setting of a capability that is missing: accepted, one line says so.
    Inactive,
    /// A capability that is missing: refused unless the value is one of these.
    Refused {
        /// Values that leave it switched off.
        off: &'static [&'static str],
    },
}

/// What a setting's values look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// true, false, 1, 0, yes, no, on, off, t, f, y, n.
    Bool,
    /// A whole number from the first to the second.
    Whole(i128, i128),
    /// A number.
    F64,
    /// A number from 0 to 1.
    Ratio,
    /// 0 to 65535.
    Port,
    /// Milliseconds, or a number with ms, s, m or h; at most `DURATION_MAX_MS`.
    Duration,
    /// Bytes, or a number with KB, MB, GB or TB (powers of 1024). The reader of the setting parses it.
    Size,
    /// A whole number of milliseconds, from 1 to `DURATION_MAX_MS`.
    Milliseconds,
    /// An IPv4 or IPv6 address.
    Address,
    /// TRACE, DEBUG, INFO, WARNING, ERROR or OFF.
    LogLevel,
    /// 1 to 128 letters, digits, dots, underscores and dashes.
    Name,
    /// One of these, in any case.
    OneOf(&'static [&'static str]),
    /// Anything.
    Text,
}

/// Longest time that a setting may name.
const DURATION_MAX_MS: u64 = 366 * 24 * 3_600_000;
/// Longest [`Type::Name`].
const NAME_MAX: usize = 128;

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Not in the table.
    #[error("unknown flag --{name}{}; --help lists all", suggestion("--", close))]
    Unknown {
        /// As given.
        name: String,
        /// Names that look like it.
        close: Vec<&'static str>,
    },
    /// A word where a flag was expected: no program takes any.
    #[error("unexpected argument {word:?}{}; --help lists all flags", suggestion("", meant.as_slice()))]
    Stray {
        /// As given.
        word: String,
        /// The flag that it may have been meant for.
        meant: Option<String>,
    },
    /// A command without what it is about.
    #[error("{program}: which {what}? --help tells more")]
    Lacks {
        /// The command.
        program: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// A key of a file that is not in the table.
    #[error("{path}: {key} is no setting of {program}{}", suggestion("", close))]
    UnknownKey {
        /// The file.
        path: String,
        /// The key, nested ones joined by dots.
        key: String,
        /// The program.
        program: &'static str,
        /// Names that look like it.
        close: Vec<&'static str>,
    },
    /// No value.
    #[error("flag --{0} needs a value, as in --{0}={1}")]
    NoValue(&'static str, &'static str),
    /// A value of the wrong kind.
    #[error("{setting}={value}: expected {expected}")]
    BadValue {
        /// The setting, as `flag --NAME` or `PATH: NAME`.
        setting: String,
        /// As given.
        value: String,
        /// What it should look like.
        expected: String,
    },
    /// A value that does not fit this machine, this version or another setting.
    #[error("{setting}={value}: {reason}")]
    Unfit {
        /// The setting, as `flag --NAME` or `PATH: NAME`.
        setting: String,
        /// As given.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// A capability that is missing.
    #[error("{setting}={value} asks for what {noun} does not have: {missing}. Remove it to start without")]
    Missing {
        /// The program.
        noun: &'static str,
        /// The setting, as `flag --NAME` or `PATH: NAME`.
        setting: String,
        /// As given.
        value: String,
        /// The capability.
        missing: &'static str,
    },
    /// A file of settings.
    #[error("{path}: {reason}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn suggestion<S: AsRef<str>>(dashes: &str, close: &[S]) -> String {
    let names: Vec<String> = close.iter().map(|name| format!("{dashes}{}", name.as_ref())).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

impl Setting {
    /// It works, and this is what it does.
    pub(crate) const fn supported(
        name: &'static str,
        value: Type,
        default: &'static str,
        help: &'static str,
    ) -> Setting {
        Setting { name, value, default, help, support: Support::Supported }
    }

    /// Tuning without a meaning here, and why.
    pub(crate) const fn no_effect(
        name: &'static str,
        value: Type,
        default: &'static str,
        help: &'static str,
    ) -> Setting {
        Setting { name, value, default, help, support: Support::NoEffect }
    }

    /// A setting of a capability that is missing: harmless by itself.
    pub(crate) const fn inactive(
        name: &'static str,
        value: Type,
        default: &'static str,
        help: &'static str,
    ) -> Setting {
        Setting { name, value, default, help, support: Support::Inactive }
    }

    /// A capability that is missing.
    pub(crate) const fn refused(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Setting {
        Setting { name, value, default, help, support: Support::Refused { off: &["", "false"] } }
    }
}

impl Type {
    /// 32-bit integer.
    pub(crate) const I32: Type = Type::Whole(i32::MIN as i128, i32::MAX as i128);
    /// 32-bit unsigned integer.
    pub(crate) const U32: Type = Type::Whole(0, u32::MAX as i128);
    /// 64-bit integer.
    pub(crate) const I64: Type = Type::Whole(i64::MIN as i128, i64::MAX as i128);
    /// 64-bit unsigned integer.
    pub(crate) const U64: Type = Type::Whole(0, u64::MAX as i128);

    /// `Ok` if this is a good value; else what one looks like.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        let trimmed = text.trim();
        let is_whole = |least: i128, most: i128| trimmed.parse().is_ok_and(|n: i128| (least..=most).contains(&n));
        let good = match self {
            Type::Bool => boolean(text).is_some(),
            Type::Whole(least, most) => is_whole(least, most),
            Type::F64 => trimmed.parse::<f64>().is_ok_and(f64::is_finite),
            Type::Ratio => trimmed.parse::<f64>().is_ok_and(|ratio| (0.0..=1.0).contains(&ratio)),
            Type::Port => is_whole(0, u16::MAX.into()),
            Type::Duration => duration_ms(text).is_some_and(|ms| ms <= DURATION_MAX_MS),
            Type::Milliseconds => is_whole(1, DURATION_MAX_MS.into()),
            Type::Address => trimmed.parse::<IpAddr>().is_ok(),
            Type::LogLevel => log_level(text).is_some(),
            Type::Name => {
                let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
                (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(legal)
            }
            Type::OneOf(choices) => choices.iter().any(|choice| choice.eq_ignore_ascii_case(text)),
            Type::Size | Type::Text => true,
        };
        if good { Ok(()) } else { Err(self.expected()) }
    }

    /// What a good value looks like.
    fn expected(self) -> String {
        match self {
            Type::Bool => "true or false".to_owned(),
            Type::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Type::F64 => "a number".to_owned(),
            Type::Ratio => "a number from 0 to 1".to_owned(),
            Type::Port => "a port from 0 to 65535".to_owned(),
            Type::Duration => {
                "milliseconds, or a whole number with ms, s, m or h, as in 5s, of at most 366 days".to_owned()
            }
            Type::Milliseconds => format!("a whole number of milliseconds from 1 to {DURATION_MAX_MS}"),
            Type::Address => "an IP address, as in 10.0.0.5 or ::1".to_owned(),
            Type::LogLevel => "one of TRACE, DEBUG, INFO, WARNING, ERROR, OFF".to_owned(),
            Type::Name => format!("1 to {NAME_MAX} of A-Z a-z 0-9 . _ -"),
            Type::OneOf(choices) => format!("one of {}", choices.join(", ")),
            Type::Size | Type::Text => String::new(),
        }
    }

    /// In a table for people.
    pub(crate) fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Type::Bool => "switch",
            Type::I32 | Type::U32 | Type::I64 | Type::U64 => "integer",
            Type::Whole(least, most) => return format!("{least} to {most}").into(),
            Type::F64 => "number",
            Type::Ratio => "0 to 1",
            Type::Port => "port",
            Type::Duration => "duration",
            Type::Size => "size",
            Type::Milliseconds => "milliseconds",
            Type::Address => "address",
            Type::LogLevel => "level",
            Type::Name => "name",
            Type::OneOf(choices) => return choices.join(", ").into(),
            Type::Text => "text",
        })
    }
}

/// true or false in the spellings of gflags and of configuration files.
pub fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" => Some(true),
        "0" | "f" | "false" | "n" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Milliseconds of `1500`, `1500ms`, `2s`, `5m`, `1h`.
pub fn duration_ms(text: &str) -> Option<u64> {
    let text = text.trim_ascii().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].trim_ascii() {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

/// What `MC_LOG_LEVEL` names, in the spelling of log filters; information for
/// an empty text, `None` for none of them.
pub fn log_level(text: &str) -> Option<&'static str> {
    Some(match text.trim().to_ascii_uppercase().as_str() {
        "" | "INFO" => "info",
        "TRACE" => "trace",
        "DEBUG" => "debug",
        "WARNING" | "WARN" => "warn",
        "ERROR" => "error",
        "OFF" => "off",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::PROGRAMS;

    #[test]
    fn durations_read_as_the_reference_reads_them() {
        for (text, ms) in [("1500", 1500), ("10ms", 10), (" 2S ", 2000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(duration_ms(text), Some(ms), "{text}");
        }
        for text in ["", "s", "-1", "1.5s", "5d", "18446744073709551615s"] {
            assert_eq!(duration_ms(text), None, "{text}");
        }
    }

    #[test]
    fn every_name_is_there_once_and_every_default_passes_its_own_check() {
        for program in PROGRAMS {
            for setting in program.settings {
                let same = program.settings.iter().filter(|other| other.name == setting.name).count();
                assert_eq!(same, 1, "{} {}", program.name, setting.name);
                if !setting.default.is_empty() {
                    assert_eq!(setting.value.check(setting.default), Ok(()), "{} {}", program.name, setting.name);
                }
            }
        }
    }
}
