//! `xtask/layers.toml`: layers, edges and exceptions as data.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// Where it lies, from the repository's root.
pub const PATH: &str = "xtask/layers.toml";

#[derive(Debug)]
pub struct Table {
    pub machines: Machines,
    pub crates: BTreeMap<String, Section>,
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parsed {
    #[serde(default)]
    machines: Machines,
    crates: BTreeMap<String, Section>,
}

/// What files of `machine` folders may name, and never may.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machines {
    /// Words that are nowhere in them; macros end with `!`.
    pub never: Vec<String>,
    /// By crate, as it is written in a path, what of it: names of its root, `*` for all. `crate` is their own.
    pub may: BTreeMap<String, Vec<String>>,
}

/// One crate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// The crates of this workspace that it is linked with.
    pub uses: Vec<String>,
    pub layers: Layers,
    /// `a.rs -> b.rs`: imports that are still against the rules.
    #[serde(default)]
    pub exceptions: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Layers {
    /// `"open"`: in no layers yet, but without circles.
    Open(String),
    /// From the lowest up; files and folders from `src`, with `{a,b}` for several.
    Listed(Vec<Vec<String>>),
}

impl Table {
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(PATH)).map_err(|error| format!("{PATH}: {error}"))?;
        let Parsed { machines, crates } = basic_toml::from_str(&text).map_err(|error| format!("{PATH}: {error}"))?;
        for (name, section) in &crates {
            if let Layers::Open(word) = &section.layers
                && word != "open"
            {
                return Err(format!("{PATH}: layers of {name} are a list of lists, or \"open\", not {word:?}"));
            }
        }
        Ok(Self { machines, crates, text })
    }

    /// The line at which a crate's section has an entry, or begins.
    pub fn line_of(&self, name: &str, entry: &str) -> usize {
        let head = format!("[crates.{name}]");
        let mut lines = self.text.lines().enumerate().skip_while(|(_, line)| line.trim() != head);
        let Some((begin, _)) = lines.next() else { return 0 };
        let entry = format!("\"{entry}\"");
        let found = lines.take_while(|(_, line)| !line.starts_with('[')).find(|(_, line)| line.contains(&entry));
        1 + found.map_or(begin, |(at, _)| at)
    }
}

/// The paths that an entry with `{a,b}` stands for.
pub fn expand(entry: &str) -> Vec<String> {
    let Some((before, rest)) = entry.split_once('{') else { return vec![entry.trim_end_matches('/').to_owned()] };
    let Some((inner, after)) = rest.split_once('}') else { return vec![entry.to_owned()] };
    inner.split(',').flat_map(|one| expand(&format!("{before}{}{after}", one.trim()))).collect()
}
