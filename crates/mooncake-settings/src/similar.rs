//! Names that somebody may have meant.

use crate::Program;

/// Names of a program's settings within a few edits, best first.
pub(crate) fn close_to(program: &Program, name: &str) -> Vec<&'static str> {
    let mut near: Vec<(usize, &'static str)> = program
        .settings
        .iter()
        .map(|setting| (edits(name, setting.name), setting.name))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
