//! Settings as they were given, checked against a program's table.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::file;
use crate::programs::Program;
use crate::setting::{Setting, SettingError, Support, Type, boolean, duration_ms};
use crate::similar::close_to;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// No value was given.
    Default,
    /// A file of settings.
    File(String),
    /// The command line, or a file of flags.
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => f.write_str(path),
            Source::CommandLine => f.write_str("command line"),
        }
    }
}

/// Settings as given.
#[derive(Debug, Clone)]
pub struct Given {
    program: &'static Program,
    values: BTreeMap<&'static str, (String, Source)>,
    /// Lines to say at start.
    pub notes: Vec<String>,
    /// Words without dashes.
    pub operands: Vec<String>,
}

impl Given {
    /// Nothing given: defaults.
    pub fn none(program: &'static Program) -> Given {
        Given { program, values: BTreeMap::new(), notes: Vec::new(), operands: Vec::new() }
    }

    /// Lays a file under what has been given so far. A key that is no setting is an error, as an unknown flag is.
    pub fn lay_under(&mut self, path: &str) -> Result<(), SettingError> {
        for (key, value) in file::read(path)? {
            // The one key that is called otherwise in a file.
            let name = if key == "client_live_ttl_sec" { "client_ttl" } else { &key };
            let Some(setting) = self.program.find(name) else {
                let (path, program, close) = (path.to_owned(), self.program.name, close_to(self.program, name));
                return Err(SettingError::UnknownKey { path, key, program, close });
            };
            if !self.values.contains_key(setting.name) {
                self.set(setting, value, Source::File(path.to_owned()))?;
            }
        }
        Ok(())
    }

    /// The text of a setting if it was given. Panics for names that are not in the table.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.setting(name);
        self.values.get(name).map(|(value, _)| value.as_str())
    }

    /// The text of a setting, or its default.
    pub fn text_or_default(&self, name: &str) -> &str {
        self.text(name).unwrap_or(self.setting(name).default)
    }

    /// The value of a switch, or its default.
    pub fn boolean(&self, name: &str) -> bool {
        boolean(self.text_or_default(name)).expect("checked when it was set")
    }

    /// The value of a number if it was given.
    pub fn number<N: FromStr>(&self, name: &str) -> Option<N> {
        self.text(name).map(|value| value.trim().parse().ok().expect("checked when it was set"))
    }

    /// The value of a number, or its default.
    pub fn number_or_default<N: FromStr>(&self, name: &str) -> N {
        self.text_or_default(name).trim().parse().ok().expect("checked when it was set")
    }

    /// The value of a duration in milliseconds if it was given.
    pub fn milliseconds(&self, name: &str) -> Option<u64> {
        self.text(name).map(|value| duration_ms(value).expect("checked when it was set"))
    }

    /// An error about the value of a setting, which says where that was given.
    pub fn unfit(&self, name: &str, reason: impl Into<String>) -> SettingError {
        SettingError::Unfit {
            setting: self.label(name),
            value: self.text_or_default(name).to_owned(),
            reason: reason.into(),
        }
    }

    /// A setting for messages: `flag --NAME`, or `PATH: NAME` where a file gives its value.
    pub fn label(&self, name: &str) -> String {
        let source = self.values.get(name).map_or(&Source::Default, |(_, source)| source);
        label(self.setting(name), source)
    }

    /// Each setting that does something, with its value and where that comes from.
    pub fn effective(&self) -> impl Iterator<Item = (&'static str, &str, Source)> {
        self.program.settings.iter().filter(|setting| setting.support == Support::Supported).map(|setting| {
            match self.values.get(setting.name) {
                Some((value, source)) => (setting.name, value.as_str(), source.clone()),
                None => (setting.name, setting.default, Source::Default),
            }
        })
    }

    pub(crate) fn set(&mut self, setting: &'static Setting, value: String, source: Source) -> Result<(), SettingError> {
        let label = label(setting, &source);
        if let Err(expected) = setting.value.check(&value) {
            return Err(SettingError::BadValue { setting: label, value, expected });
        }
        let note = match setting.support {
            Support::Supported => None,
            Support::NoEffect => Some(format!("{label} has no effect: {}", setting.help)),
            Support::Inactive => {
                Some(format!("{label} has no effect: {} does not have {}", self.program.noun, setting.help))
            }
            Support::Refused { off } => {
                let switched_off = match setting.value {
                    Type::Bool => boolean(&value) == Some(false),
                    _ => off.contains(&value.as_str()),
                };
                if !switched_off {
                    let (noun, missing) = (self.program.noun, setting.help);
                    return Err(SettingError::Missing { noun, setting: label, value, missing });
                }
                None
            }
        };
        if self.values.insert(setting.name, (value, source)).is_none() {
            self.notes.extend(note);
        }
        Ok(())
    }

    fn setting(&self, name: &str) -> &'static Setting {
        self.program.find(name).unwrap_or_else(|| panic!("{name} is no setting of {}", self.program.name))
    }
}

fn label(setting: &Setting, source: &Source) -> String {
    match source {
        Source::File(path) => format!("{path}: {}", setting.name),
        Source::Default | Source::CommandLine => format!("flag --{}", setting.name),
    }
}
