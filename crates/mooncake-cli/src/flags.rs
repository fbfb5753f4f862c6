//! Flags of a storage node in the syntax of gflags: `--x=v`, `--x v`, `-x=v`,
//! and for switches `--x`, `--nox`, `--x=true`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::client_flags::CLIENT_FLAGS;

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// true or false; given without a value it is true.
    Switch,
    /// A whole number.
    Integer,
    /// Anything.
    Text,
}

/// What a flag does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It works.
    Done,
    /// Accepted so that existing command lines run; the text says why it has no effect.
    NoEffect(&'static str),
    /// A capability that is not there, refused when switched on; the text says what to do.
    Missing(&'static str),
}

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// What it takes.
    pub value: Value,
    /// Default, as a user would write it.
    pub default: &'static str,
    /// What it does here.
    pub kind: Kind,
    /// A line for `--help`.
    pub help: &'static str,
}

/// Why a command line was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No such flag.
    #[error("unknown flag --{name}{hint}; --help lists the flags")]
    Unknown {
        /// As written.
        name: String,
        /// ", did you mean ..." or nothing.
        hint: String,
    },
    /// A flag without the value that it needs.
    #[error("flag --{0} needs a value, as in --{0}=VALUE")]
    NoValue(&'static str),
    /// A value of the wrong kind.
    #[error("flag --{name}={value}: expected {expected}")]
    BadValue {
        /// The flag.
        name: &'static str,
        /// As written.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A capability that is missing.
    #[error("flag --{name}={value} asks for what this storage node does not have: {advice}")]
    Missing {
        /// The flag.
        name: &'static str,
        /// As written.
        value: String,
        /// What to do.
        advice: &'static str,
    },
    /// Something that is no flag.
    #[error("unexpected argument {0:?}: flags look like --name=value")]
    Stray(String),
}

/// What a command line asks for.
#[derive(Debug)]
pub enum CommandLine {
    /// Print the flags.
    Help,
    /// Print the version.
    Version,
    /// Run with these.
    Run(Given),
}

/// Flags as given, checked against the table.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<&'static str, String>);

/// Parses a command line without the program's name.
pub fn parse(args: impl IntoIterator<Item = String>) -> Result<CommandLine, FlagError> {
    let mut given = Given::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|body| !body.is_empty())
        else {
            return Err(FlagError::Stray(arg));
        };
        let (written, value) =
            body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value.to_owned())));
        let name = written.replace('-', "_");
        match name.as_str() {
            "help" | "h" | "helpfull" | "helpshort" => return Ok(CommandLine::Help),
            "version" => return Ok(CommandLine::Version),
            _ => {}
        }
        let (flag, value) = match (find(&name), name.strip_prefix("no").and_then(find), value) {
            (Some(flag), _, Some(value)) => (flag, value),
            (Some(flag), _, None) if flag.value == Value::Switch => (flag, "true".to_owned()),
            (Some(flag), _, None) => (flag, args.next().ok_or(FlagError::NoValue(flag.name))?),
            (None, Some(flag), None) if flag.value == Value::Switch => (flag, "false".to_owned()),
            _ => return Err(FlagError::Unknown { name: written.to_owned(), hint: closest(&name) }),
        };
        check(flag, &value)?;
        given.0.insert(flag.name, value);
    }
    Ok(CommandLine::Run(given))
}

impl Given {
    /// The flag's text, or its default. Panics for names that are not in the table.
    pub fn text(&self, name: &str) -> &str {
        let default = || find(name).map(|flag| flag.default).expect("a flag of the table");
        self.0.get(name).map_or_else(default, String::as_str)
    }

    /// True when the flag stood on the command line.
    pub fn is_given(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A line for each given flag that has no effect here.
    pub fn notices(&self) -> Vec<String> {
        self.0
            .iter()
            .filter_map(|(name, value)| match find(name)?.kind {
                Kind::NoEffect(why) => Some(format!("--{name}={value} has no effect: {why}")),
                _ => None,
            })
            .collect()
    }
}

/// The text of `--help`: what works first.
pub fn help(usage: &str) -> String {
    let mut out = format!("{usage}\n\nFlags (--name=value or --name value; switches also --name and --noname):\n");
    for flag in CLIENT_FLAGS.iter().filter(|flag| flag.kind == Kind::Done) {
        let _ = writeln!(out, "  --{} (default {:?})\n      {}", flag.name, flag.default, flag.help);
    }
    for (title, wanted) in [("Accepted without effect", true), ("Not there; refused when switched on", false)] {
        let _ = writeln!(out, "\n{title}:");
        for flag in CLIENT_FLAGS {
            match flag.kind {
                Kind::NoEffect(why) if wanted => writeln!(out, "  --{}: {why}", flag.name),
                Kind::Missing(advice) if !wanted => writeln!(out, "  --{}: {advice}", flag.name),
                _ => Ok(()),
            }
            .expect("writing to a string");
        }
    }
    out
}

fn find(name: &str) -> Option<&'static Flag> {
    CLIENT_FLAGS.iter().find(|flag| flag.name == name)
}

fn check(flag: &'static Flag, value: &str) -> Result<(), FlagError> {
    let (good, expected) = match flag.value {
        Value::Switch => (switch(value).is_some(), "true or false"),
        Value::Integer => (value.trim().parse::<i64>().is_ok(), "a whole number"),
        Value::Text => (true, "anything"),
    };
    if !good {
        return Err(FlagError::BadValue { name: flag.name, value: value.to_owned(), expected });
    }
    match flag.kind {
        Kind::Missing(advice) if switch(value) != Some(false) => {
            Err(FlagError::Missing { name: flag.name, value: value.to_owned(), advice })
        }
        _ => Ok(()),
    }
}

fn switch(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "n" | "no" => Some(false),
        _ => None,
    }
}

/// The flag that shares most letters in order with what was written.
fn closest(name: &str) -> String {
    let shared = |flag: &&Flag| {
        let mut rest = name.chars();
        flag.name.chars().filter(|c| rest.clone().position(|r| r == *c).map(|at| rest.nth(at)).is_some()).count()
    };
    match CLIENT_FLAGS.iter().max_by_key(shared) {
        Some(flag) if shared(&flag) * 4 >= name.len().max(flag.name.len()) * 3 => {
            format!(", did you mean --{}?", flag.name)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<Given, FlagError> {
        match parse(line.split_whitespace().map(str::to_owned))? {
            CommandLine::Run(given) => Ok(given),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_gflags_spelling_is_understood() {
        for line in ["--host=a", "--host a", "-host=a", "-host a"] {
            assert_eq!(given(line).unwrap().text("host"), "a");
        }
        for line in ["--noenable_offload", "--enable_offload=false", "--enable-offload=0"] {
            assert!(given(line).unwrap().is_given("enable_offload"));
        }
        assert_eq!(given("").unwrap().text("global_segment_size"), "4 GB");
        assert!(matches!(parse(["--help".to_owned()]), Ok(CommandLine::Help)));
        assert!(matches!(parse(["--version".to_owned()]), Ok(CommandLine::Version)));
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_what_has_no_effect_is_said() {
        assert!(matches!(given("--enable_offload"), Err(FlagError::Missing { .. })));
        assert!(matches!(given("--enable_http_server=true"), Err(FlagError::Missing { .. })));
        assert_eq!(given("--threads=9 --port 1 --host=a").unwrap().notices().len(), 2);
    }

    #[test]
    fn mistakes_name_the_flag_and_the_remedy() {
        let text = |line: &str| given(line).unwrap_err().to_string();
        assert!(text("--globalsegmentsize=1").contains("did you mean --global_segment_size"));
        assert!(!text("--xyz=1").contains("did you mean"));
        assert!(text("--port=x").contains("a whole number"));
        assert!(text("--host").contains("needs a value"));
        assert!(text("stray").contains("stray"));
    }
}
