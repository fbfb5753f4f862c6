//! One setting: what it is called, what its values look like, what it does.

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
    pub kind: Kind,
}

/// Whether a setting does anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It does what it says.
    Done,
    /// Tuning without a meaning here: accepted, one line says so.
    Accepted,
    /// A setting of a capability that is missing: accepted, one line says so.
    Idle,
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
    /// 32-bit integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit integer.
    I64,
    /// 64-bit unsigned integer.
    U64,
    /// A number.
    F64,
    /// A number from 0 to 1.
    Ratio,
    /// 0 to 65535.
    Port,
    /// Milliseconds, or a number with ms, s, m or h.
    Duration,
    /// Bytes, or a number with KB, MB, GB or TB (powers of 1024). Whoever reads it parses it.
    Size,
    /// A whole number of milliseconds, from 1 on.
    Milliseconds,
    /// An IPv4 or IPv6 address.
    Address,
    /// TRACE, DEBUG, INFO, WARNING, ERROR or OFF.
    LogLevel,
    /// Anything.
    Text,
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Not in the table.
    #[error("unknown flag --{name}{}; --help lists all", suggestion(close))]
    Unknown {
        /// As given.
        name: String,
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

fn suggestion(close: &[&str]) -> String {
    match close {
        [] => String::new(),
        names => format!("; did you mean --{}?", names.join(" or --")),
    }
}

impl Setting {
    /// It works, and this is what it does.
    pub(crate) const fn done(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Setting {
        Setting { name, value, default, help, kind: Kind::Done }
    }

    /// Tuning without a meaning here, and why.
    pub(crate) const fn accepted(
        name: &'static str,
        value: Type,
        default: &'static str,
        help: &'static str,
    ) -> Setting {
        Setting { name, value, default, help, kind: Kind::Accepted }
    }

    /// A setting of a capability that is missing: harmless by itself.
    pub(crate) const fn idle(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Setting {
        Setting { name, value, default, help, kind: Kind::Idle }
    }

    /// A capability that is missing.
    pub(crate) const fn refused(name: &'static str, value: Type, default: &'static str, help: &'static str) -> Setting {
        Setting { name, value, default, help, kind: Kind::Refused { off: &["", "false"] } }
    }
}

impl Type {
    /// What a good value looks like; `Ok` if this is one.
    pub(crate) fn check(self, text: &str) -> Result<(), &'static str> {
        let trimmed = text.trim();
        let (good, expected) = match self {
            Type::Bool => (boolean(text).is_some(), "true or false"),
            Type::I32 => (trimmed.parse::<i32>().is_ok(), "a whole number of 32 bits"),
            Type::U32 => (trimmed.parse::<u32>().is_ok(), "a whole number from 0 to 4294967295"),
            Type::I64 => (trimmed.parse::<i64>().is_ok(), "a whole number of 64 bits"),
            Type::U64 => (trimmed.parse::<u64>().is_ok(), "a whole number, not negative"),
            Type::F64 => (trimmed.parse::<f64>().is_ok_and(f64::is_finite), "a number"),
            Type::Ratio => (trimmed.parse::<f64>().is_ok_and(|r| (0.0..=1.0).contains(&r)), "a number from 0 to 1"),
            Type::Port => (trimmed.parse::<u16>().is_ok(), "a port from 0 to 65535"),
            Type::Duration => {
                (duration_ms(text).is_some(), "milliseconds, or a whole number with ms, s, m or h, as in 5s")
            }
            Type::Milliseconds => {
                (trimmed.parse::<u64>().is_ok_and(|ms| ms > 0), "a whole number of milliseconds, from 1 on")
            }
            Type::Address => (trimmed.parse::<IpAddr>().is_ok(), "an IP address, as in 10.0.0.5 or ::1"),
            Type::LogLevel => (log_level(text).is_some(), "one of TRACE, DEBUG, INFO, WARNING, ERROR, OFF"),
            Type::Size | Type::Text => (true, ""),
        };
        if good { Ok(()) } else { Err(expected) }
    }

    /// In a table for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::Bool => "switch",
            Type::I32 | Type::U32 | Type::I64 | Type::U64 => "integer",
            Type::F64 => "number",
            Type::Ratio => "0 to 1",
            Type::Port => "port",
            Type::Duration => "duration",
            Type::Size => "size",
            Type::Milliseconds => "milliseconds",
            Type::Address => "address",
            Type::LogLevel => "level",
            Type::Text => "text",
        }
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
    use crate::PROGRAMS;

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
