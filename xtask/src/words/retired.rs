//! Names that are in use no more.

use super::table::{PATH, Table};
use super::texts::Text;
use crate::fault::Fault;

/// Finds retired names in one text.
pub fn check(text: &Text, table: &Table, faults: &mut Vec<Fault>) {
    if text.path == PATH {
        return;
    }
    let is_below = |places: &[String]| places.iter().any(|place| text.is_below(place));
    for retired in &table.retired {
        if !retired.within.is_empty() && !is_below(&retired.within) || is_below(&retired.except) {
            continue;
        }
        if !text.text.contains(&retired.name) {
            continue;
        }
        for (number, line) in text.lines().filter(|(_, line)| has_word(line, &retired.name)) {
            let column = line.find(&retired.name).unwrap_or(0) + 1;
            let what = format!("`{}` is a retired name (column {column})", retired.name);
            faults.push(Fault::new(&text.path, number, what, format!("say `{}`", retired.instead)));
        }
    }
}

/// Whether a line has a word as a whole, by itself or between underscores.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(char::is_alphanumeric) && !line[at + word.len()..].starts_with(char::is_alphanumeric)
    })
}
