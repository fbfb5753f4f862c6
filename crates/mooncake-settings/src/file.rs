//! Files of settings: YAML or JSON by their ending, one value a key.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::setting::SettingError;

/// Keys and values of a file, nested keys joined by dots.
pub(crate) fn read(path: &str) -> Result<BTreeMap<String, String>, SettingError> {
    let bad = |reason: String| SettingError::File { path: path.to_owned(), reason };
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    if !matches!(ending.as_str(), "yaml" | "yml" | "json") {
        return Err(bad("a file of settings ends with .yaml, .yml or .json".into()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let value: Value = match ending.as_str() {
        "json" => serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?,
        _ => serde_yaml_ng::from_str(&text).map_err(|error| bad(error.to_string()))?,
    };
    let mut found = BTreeMap::new();
    match value {
        // An empty YAML file says nothing.
        Value::Null => {}
        Value::Object(_) => flatten("", value, &mut found).map_err(bad)?,
        _ => return Err(bad("names with values are needed, as in rpc_port: 50051".into())),
    }
    Ok(found)
}

fn flatten(prefix: &str, value: Value, found: &mut BTreeMap<String, String>) -> Result<(), String> {
    let text = match value {
        Value::Object(entries) => {
            for (key, value) in entries {
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
