//! Files of settings: YAML or JSON by their ending, one value a key.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use serde_json::Value;

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
    let value: Value = match is_json {
        true => serde_json::from_str(text).map_err(|error| error.to_string())?,
        false => serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?,
    };
    let mut found = BTreeMap::new();
    match value {
        // An empty YAML file says nothing.
        Value::Null => {}
        Value::Object(_) => flatten("", value, &mut found)?,
        _ => return Err("names with values are needed, as in rpc_port: 50051".into()),
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

fn flatten(prefix: &str, value: Value, found: &mut BTreeMap<String, String>) -> Result<(), String> {
    let text = match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                if key == "<<" {
                    return Err("<< (a YAML merge key) is not known here; write the names and values out".into());
                }
                let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&name, value, found)?;
            }
            return Ok(());
        }
        Value::Array(_) => return Err(format!("{prefix}: one value is needed, not a list")),
        Value::Null => String::new(),
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    };
    found.insert(prefix.to_owned(), text);
    Ok(())
}
