//! `cargo xtask words`: what the texts of the repository say, whatever their language.

mod lines;
mod paths;
mod retired;
mod table;
mod texts;
mod wrap;

use std::path::Path;

use crate::fault::Fault;
use table::Table;
use texts::Text;

/// Everything that is against the table.
pub fn check(root: &Path) -> Result<Vec<Fault>, String> {
    let table = Table::read(root)?;
    let (texts, files) = texts::read(root)?;
    let mut faults = Vec::new();
    for text in &texts {
        retired::check(text, &table, &mut faults);
    }
    lines::check(&texts, &table, &mut faults);
    paths::check(&texts, &files, &table, &mut faults);
    Ok(faults)
}

/// Wraps long lines of comments and prose, in the files of these paths or in all, and says in which.
pub fn wrap(root: &Path, only: &[&str]) -> Result<String, String> {
    let table = Table::read(root)?;
    let (texts, _) = texts::read(root)?;
    let mut said = String::new();
    for Text { path, text } in texts.iter().filter(|text| only.is_empty() || only.iter().any(|o| text.is_below(o))) {
        let wrapped = wrap::wrapped(path, text);
        if wrapped != *text && !table.long_lines.contains_key(path) {
            std::fs::write(root.join(path), wrapped).map_err(|error| format!("{path}: {error}"))?;
            said += &format!("{path}\n");
        }
    }
    Ok(said)
}
