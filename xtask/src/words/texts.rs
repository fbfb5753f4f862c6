//! The repository's own files: all of them by path, and the texts of those that people write.

use std::path::Path;

/// A text file.
#[derive(Debug)]
pub struct Text {
    /// From the repository's root, with slashes.
    pub path: String,
    pub text: String,
}

impl Text {
    /// Whether it is this file, or lies in this folder.
    pub fn is_below(&self, place: &str) -> bool {
        self.path.strip_prefix(place.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The lines, numbered from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    pub fn is_of(&self, endings: &[&str]) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, ending)| endings.contains(&ending))
    }
}

const WRITTEN: &[&str] = &["rs", "py", "pyi", "md", "toml", "sh", "proto", "yaml"];

/// What builds and tools leave in a checkout.
const MADE: &[&str] = &["target", "build", "dist", "__pycache__", "node_modules"];

/// Its texts, and the paths of all files.
pub fn read(root: &Path) -> Result<(Vec<Text>, Vec<String>), String> {
    let mut files = Vec::new();
    list(root, "", &mut files)?;
    let mut texts = Vec::new();
    for path in &files {
        if path.rsplit_once('.').is_some_and(|(_, ending)| WRITTEN.contains(&ending)) {
            let text = std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
            texts.push(Text { path: path.clone(), text });
        }
    }
    Ok((texts, files))
}

fn list(root: &Path, below: &str, files: &mut Vec<String>) -> Result<(), String> {
    let folder = root.join(below);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    for name in names {
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let is_folder = root.join(&path).is_dir();
        // A virtual environment, a cache, the history.
        let is_hidden = name.starts_with('.') && is_folder && !matches!(path.as_str(), ".cargo" | ".config" | ".ci");
        if is_hidden || is_folder && (MADE.contains(&name.as_str()) || name.ends_with(".egg-info")) {
            continue;
        }
        if is_folder {
            list(root, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
