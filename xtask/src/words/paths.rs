//! Paths of this repository in documents and comments: what they name is there.

use std::collections::BTreeSet;

use super::table::{PATH, Table};
use super::texts::Text;
use crate::fault::Fault;

/// Finds paths that lead nowhere.
pub fn check(texts: &[Text], files: &[String], table: &Table, faults: &mut Vec<Fault>) {
    let places = Places::of(files);
    let mut met = BTreeSet::new();
    for text in texts {
        let comments = Comments::of(text);
        for (number, line) in text.lines() {
            let Some(said) = comments.in_line(number, line) else { continue };
            for name in places.missing(said, text) {
                if table.elsewhere.contains(&name) {
                    met.insert(name);
                    continue;
                }
                let what = format!("`{name}` is not in this repository");
                let remedy = format!("name what is there; what lies elsewhere is listed in {PATH}");
                faults.push(Fault::new(&text.path, number, what, remedy));
            }
        }
    }
    for name in table.elsewhere.iter().filter(|name| !met.contains(*name)) {
        let line = table.line_of(name);
        faults.push(Fault::new(PATH, line, format!("nothing names \"{name}\" any more"), "delete this line"));
    }
}

/// Which parts of a text speak to people.
struct Comments {
    mark: Option<&'static str>,
    /// Lines within a docstring.
    docstrings: BTreeSet<usize>,
}

impl Comments {
    fn of(text: &Text) -> Self {
        let mark = match () {
            () if text.is_of(&["md"]) => None,
            () if text.is_of(&["rs", "proto"]) => Some("//"),
            () => Some("#"),
        };
        let mut docstrings = BTreeSet::new();
        let mut is_within = false;
        for (number, line) in text.lines().filter(|_| text.is_of(&["py", "pyi"])) {
            let marks = line.matches("\"\"\"").count();
            if is_within || marks > 0 && line.trim_start().trim_start_matches('r').starts_with("\"\"\"") {
                docstrings.insert(number);
            }
            is_within ^= marks % 2 == 1;
        }
        Self { mark, docstrings }
    }

    fn in_line<'a>(&self, number: usize, line: &'a str) -> Option<&'a str> {
        match self.mark {
            Some(_) if self.docstrings.contains(&number) => Some(line),
            Some(mark) => line.match_indices(mark).map(|(at, _)| line.split_at(at)).find_map(|(code, rest)| {
                let quotes = code.matches('"').count() - code.matches("\\\"").count();
                (quotes % 2 == 0).then_some(rest)
            }),
            None => Some(line),
        }
    }
}

const ENDINGS: &[&str] = &["rs", "py", "pyi", "md", "toml", "sh", "proto", "yaml", "h", "c", "json", "jsonl", "txt"];

struct Places<'a> {
    files: BTreeSet<&'a str>,
    /// Every folder, and every ending of a path from a folder on.
    folders: BTreeSet<&'a str>,
    endings: BTreeSet<&'a str>,
    top: BTreeSet<&'a str>,
}

impl<'a> Places<'a> {
    fn of(files: &'a [String]) -> Self {
        let mut places = Self {
            files: files.iter().map(String::as_str).collect(),
            folders: BTreeSet::new(),
            endings: BTreeSet::new(),
            top: BTreeSet::new(),
        };
        for file in files {
            places.endings.insert(file);
            for (at, _) in file.match_indices('/') {
                places.folders.insert(&file[..at]);
                places.endings.insert(&file[at + 1..]);
            }
            if let Some((top, _)) = file.split_once('/') {
                places.top.insert(top);
            }
        }
        places
    }

    /// Paths of this repository that a line names although they are not there.
    fn missing(&self, line: &str, text: &Text) -> Vec<String> {
        let mut missing = Vec::new();
        let is_of_path = |char: char| char.is_ascii_alphanumeric() || "_-./{},*".contains(char);
        let mut from = 0;
        while let Some(begin) = line[from..].find(is_of_path).map(|at| from + at) {
            let end = line[begin..].find(|char| !is_of_path(char)).map_or(line.len(), |at| begin + at);
            let (before, after) = (&line[..begin], &line[end..]);
            from = end;
            let is_elsewhere = before.ends_with(['~', '$', '<', '>', ':', '@', '%', '\\', '=', '+', '}']);
            let is_code = before.ends_with('`') && after.starts_with('`');
            let is_link = before.ends_with("](") && text.is_of(&["md"]);
            let word = line[begin..end].trim_end_matches(['.', ',', '-']);
            let word = if is_link { word } else { word.trim_start_matches(['.', ',', '{', '-']) };
            if is_elsewhere
                || after.starts_with("://")
                || word.contains(['*'])
                || after.starts_with(['<', '$', '…', '@', '('])
            {
                continue;
            }
            for path in expand(word) {
                let is_there = match () {
                    () if is_link => self.has(&beside(&text.path, &path)),
                    () => self.is_there(&path, is_code),
                };
                if !is_there && !path.is_empty() {
                    missing.push(path);
                }
            }
        }
        missing
    }

    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.contains(path) || self.folders.contains(path)
    }

    /// Whether a path is there, or none of this repository.
    fn is_there(&self, path: &str, is_code: bool) -> bool {
        if path.starts_with('/') {
            return true;
        }
        let first = path.split('/').next().unwrap_or_default();
        let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
        let is_file = ENDINGS.contains(&ending);
        if path.contains('/') && self.top.contains(first) && (is_file || path.ends_with('/') || is_code) {
            return self.has(path);
        }
        if path.contains('/') && self.folders.contains(format!("crates/{first}").as_str()) {
            return self.has(&format!("crates/{path}"));
        }
        if is_code && matches!(ending, "rs" | "md") && path.len() > ending.len() + 1 {
            return self.endings.contains(path);
        }
        true
    }
}

/// The paths that one with `{a,b}` stands for.
fn expand(word: &str) -> Vec<String> {
    let Some((before, rest)) = word.split_once('{') else { return vec![word.to_owned()] };
    let Some((inner, after)) = rest.split_once('}') else { return Vec::new() };
    inner.split(',').flat_map(|one| expand(&format!("{before}{one}{after}"))).collect()
}

/// Where a link of a document leads.
fn beside(document: &str, link: &str) -> String {
    let mut folder: Vec<&str> = document.split('/').collect();
    folder.pop();
    for part in link.split('/') {
        match part {
            ".." => _ = folder.pop(),
            "." => {}
            part => folder.push(part),
        }
    }
    folder.join("/")
}
