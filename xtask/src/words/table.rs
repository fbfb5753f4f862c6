//! `xtask/words.toml`: retired names, and what is excepted.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// Where it lies, from the repository's root.
pub const PATH: &str = "xtask/words.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    #[serde(default)]
    pub retired: Vec<Retired>,
    /// Files with lines that cannot be wrapped, and how many of them.
    #[serde(default)]
    pub long_lines: BTreeMap<String, usize>,
    /// Paths that are named and lie elsewhere.
    #[serde(default)]
    pub elsewhere: Vec<String>,
    #[serde(skip)]
    text: String,
}

/// A name that is in use no more.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    pub name: String,
    #[serde(rename = "use")]
    pub instead: String,
    /// Files or folders in which it is retired; all, where none is given.
    #[serde(default, rename = "in")]
    pub within: Vec<String>,
    /// Files or folders in which it stays.
    #[serde(default)]
    pub except: Vec<String>,
}

impl Table {
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(PATH)).map_err(|error| format!("{PATH}: {error}"))?;
        let table: Self = basic_toml::from_str(&text).map_err(|error| format!("{PATH}: {error}"))?;
        Ok(Self { text, ..table })
    }

    /// The line at which an entry stands.
    pub fn line_of(&self, entry: &str) -> usize {
        let entry = format!("\"{entry}\"");
        self.text.lines().position(|line| line.contains(&entry)).map_or(0, |at| at + 1)
    }
}
