//! Guesses at what a mistyped name, or a word without dashes, was meant for.

use strsim::levenshtein;

use crate::programs::Program;

/// Flags that take the address of another process, by their program's choice of name.
const ADDRESSES: [&str; 3] = ["master_server_address", "segment_id", "target_seg_name"];

/// Names of a program's settings within a few edits, best first.
pub(crate) fn close_to(program: &Program, name: &str) -> Vec<&'static str> {
    let mut near: Vec<(usize, &'static str)> = program
        .settings
        .iter()
        .map(|setting| (setting.name, 1 + setting.name.len() / 4))
        // Names of very different lengths are far apart: what may be very long is not compared.
        .filter(|(known, most)| known.len().abs_diff(name.len()) <= *most)
        .map(|(known, most)| (levenshtein(name, known), known, most))
        .filter(|(distance, _, most)| distance <= most)
        .map(|(distance, known, _)| (distance, known))
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// The flag that a word without dashes was meant for, as it would be written.
pub(crate) fn meant_by(program: &Program, word: &str) -> Option<String> {
    // Texts that went through an editor have longer dashes.
    let bare = word.trim_start_matches(['\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}']);
    let (name, value) = match bare.split_once('=') {
        Some((name, value)) => (name.replace('-', "_"), format!("={value}")),
        None => (bare.replace('-', "_"), String::new()),
    };
    if matches!(name.as_str(), "help" | "version") {
        return Some(format!("--{name}"));
    }
    // A letter or two are near to every short name.
    if name.len() > 2
        && let Some(close) = close_to(program, &name).first()
    {
        return Some(format!("--{close}{value}"));
    }
    let is_file = [".yaml", ".yml", ".json"].iter().any(|ending| word.ends_with(ending));
    if is_file && program.find("config_path").is_some() {
        return Some(format!("--config_path={word}"));
    }
    let port = word.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let address = ADDRESSES.iter().find(|name| program.find(name).is_some());
    port.and(address).map(|name| format!("--{name}={word}"))
}
