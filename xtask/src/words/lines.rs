//! Lines longer than a screen is wide.

use super::table::{PATH, Table};
use super::texts::Text;
use crate::fault::Fault;

/// Columns of a line.
pub const LINE_MAX: usize = 120;

const CHECKED: &[&str] = &["rs", "py", "pyi", "md", "toml"];

/// Finds long lines; of a file with excepted ones only others than as many.
pub fn check(texts: &[Text], table: &Table, faults: &mut Vec<Fault>) {
    for text in texts.iter().filter(|text| text.is_of(CHECKED)) {
        let is_prose = text.is_of(&["md"]);
        let long: Vec<(usize, &str)> = text.lines().filter(|(_, line)| is_too_long(line, is_prose)).collect();
        let excepted = table.long_lines.get(&text.path).copied().unwrap_or(0);
        if long.len() > excepted {
            for (number, line) in &long {
                let what = format!("{} columns, and a line has at most {LINE_MAX}", line.chars().count());
                faults.push(Fault::new(&text.path, *number, what, remedy(text, line, excepted)));
            }
        } else if long.len() < excepted {
            let what = format!("{} has {} long lines, and {excepted} are excepted", text.path, long.len());
            let remedy = if long.is_empty() { "delete this line".to_owned() } else { format!("write {}", long.len()) };
            faults.push(Fault::new(PATH, table.line_of(&text.path), what, remedy));
        }
    }
    for path in table.long_lines.keys().filter(|path| !texts.iter().any(|text| text.path == **path)) {
        let line = table.line_of(path);
        faults.push(Fault::new(PATH, line, format!("there is no {path}"), "delete this line"));
    }
}

fn remedy(text: &Text, line: &str, excepted: usize) -> String {
    if text.is_of(&["md"]) || line.trim_start().starts_with("//") {
        "wrap it: cargo xtask words --wrap".to_owned()
    } else if excepted > 0 {
        format!("break it; {PATH} excepts {excepted} of this file")
    } else {
        "break it: a long text goes on with \\ at the end of its line".to_owned()
    }
}

/// Tables of prose cannot be wrapped, nor can addresses.
pub fn is_too_long(line: &str, is_prose: bool) -> bool {
    if line.len() <= LINE_MAX || line.chars().count() <= LINE_MAX || is_prose && line.trim_start().starts_with('|') {
        return false;
    }
    let without_addresses = line.split(' ').filter(|word| !is_prose || !word.contains("://"));
    without_addresses.map(|word| word.chars().count() + 1).sum::<usize>() > LINE_MAX + 1
}
