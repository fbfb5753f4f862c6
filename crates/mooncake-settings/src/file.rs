//! Files of settings: YAML or JSON by their ending, one value a key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::setting::SettingError;

/// Largest file of settings, in bytes.
const LARGEST: u64 = 1 << 20;

/// Keys and values of a file, nested keys joined by dots.
pub(crate) fn read(path: &str) -> Result<BTreeMap<String, String>, SettingError> {
    let bad = |reason: String| SettingError::File { path: path.to_owned(), reason };
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    if !matches!(ending.as_str(), "yaml" | "yml" | "json") {
        return Err(bad("a file of settings ends with .yaml, .yml or .json".into()));
    }
    let text = text(path).map_err(|error| bad(error.to_string()))?;
    parse(&text, ending == "json").map_err(bad)
}

/// The same of a text.
pub(crate) fn parse(text: &str, is_json: bool) -> Result<BTreeMap<String, String>, String> {
    // The mark that some editors begin a file with.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let node: Node = match is_json {
        true => serde_json::from_str(text).map_err(|error| error.to_string())?,
        false => serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?,
    };
    let mut found = BTreeMap::new();
    match node {
        // An empty YAML file says nothing.
        Node::Nothing => {}
        Node::Entries(_) => flatten("", node, &mut found)?,
        Node::Value(_) | Node::List => return Err("names with values are needed, as in rpc_port: 50051".into()),
    }
    Ok(found)
}

/// The text of a file. A pipe may never have a writer, and a device no end.
pub(crate) fn text(path: &str) -> io::Result<String> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    // What it has grown to by now does not matter.
    File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LARGEST {
        true => Err(io::Error::other(format!("a file of settings has at most {LARGEST} bytes"))),
        false => Ok(text),
    }
}

fn flatten(prefix: &str, node: Node, found: &mut BTreeMap<String, String>) -> Result<(), String> {
    let text = match node {
        Node::Entries(entries) => {
            for (key, node) in entries {
                if key == "<<" {
                    return Err("<< (a YAML merge key) is not known here; write the names and values out".into());
                }
                let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&name, node, found)?;
            }
            return Ok(());
        }
        Node::List => return Err(format!("{prefix}: one value is needed, not a list")),
        Node::Nothing => String::new(),
        Node::Value(text) => text,
    };
    if found.insert(prefix.to_owned(), text).is_some() {
        return Err(format!("{prefix} is given twice, nested and with dots"));
    }
    Ok(())
}

/// What a file holds. Readers of YAML and of JSON alike take the last of two values of a key without a word; this one
/// does not.
enum Node {
    Nothing,
    Value(String),
    List,
    Entries(Vec<(String, Node)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names with values")
    }

    /// A text of nothing but blanks.
    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Value(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Value(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Value(value.to_string()))
    }

    /// 5.0 stays 5.0: no whole number.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Value(format!("{value:?}")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Value(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Node::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("{name} is given twice")));
            }
            entries.push((name, map.next_value()?));
        }
        Ok(Node::Entries(entries))
    }
}
