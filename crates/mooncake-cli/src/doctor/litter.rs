//! What masters have left on this machine: state folders and witnesses (`mooncake state ls`).

use std::path::Path;
use std::time::{Duration, SystemTime};

use mooncake_master::{State, state_folder};

use super::answer::Answer;
use super::finding::{Area, Finding, Findings};
use super::segments::SHM;
use crate::terminal::bytes;

/// What was not written for so long is not missed.
const OLD: Duration = Duration::from_secs(7 * 24 * 3_600);

/// More of it is worth a look.
const LITTER: (usize, usize, u64) = (10, 100, 1 << 30);

/// What masters have left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Litter {
    /// Old state folders.
    pub folders: usize,
    /// Bytes of these.
    pub bytes: u64,
    /// Witnesses of no folder.
    pub witnesses: usize,
}

impl Litter {
    /// Counts it; none: the disk does not answer, or cannot be listed.
    pub fn read() -> Option<Litter> {
        let folder = state_folder(|name| std::env::var(name).ok())?;
        Answer::of(move || litter(&folder)).wait().flatten()
    }
}

fn litter(folder: &Path) -> Option<Litter> {
    let state = State::list(folder, Path::new(SHM)).ok()?;
    let is_old = |written: SystemTime| written.elapsed().is_ok_and(|age| age > OLD);
    let old = || state.folders.iter().filter(|folder| folder.in_use.is_none() && is_old(folder.written));
    let witnesses = state.witnesses.iter().filter(|one| !one.in_use && one.folder.is_none()).count();
    Some(Litter { folders: old().count(), bytes: old().map(|folder| folder.bytes).sum(), witnesses })
}

/// Judges it.
pub fn judge(litter: Option<Litter>) -> Vec<Finding> {
    let mut found = Findings::of(Area::State);
    let Some(litter) = litter else {
        found.skip("litter", "what masters have left here cannot be listed");
        return found.sorted();
    };
    let message = format!(
        "{} state folders ({}) that no master wrote for a week, {} witnesses of none",
        litter.folders,
        bytes(litter.bytes as f64),
        litter.witnesses
    );
    match litter.folders > LITTER.0 || litter.witnesses > LITTER.1 || litter.bytes > LITTER.2 {
        true => found.warn("litter", message, "mooncake state gc --older_than=168h --dry_run, then without --dry_run"),
        false => found.ok("litter", message),
    }
    found.sorted()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Severity, told};

    #[test]
    fn little_is_well_and_what_cannot_be_listed_is_not_known() {
        told::is(&judge(Some(Litter::default())), "litter", Severity::Ok, &["0 state folders"]);
        told::is(&judge(None), "litter", Severity::Skipped, &[]);
        assert_eq!(litter(Path::new("/nonexistent")).map(|litter| litter.folders), Some(0));
    }

    #[test]
    fn litter_is_counted_with_the_command_that_removes_it() {
        for litter in [
            Litter { folders: 11, ..Litter::default() },
            Litter { witnesses: 101, ..Litter::default() },
            Litter { folders: 1, bytes: 2 << 30, witnesses: 0 },
        ] {
            let found = judge(Some(litter));
            told::is(&found, "litter", Severity::Warning, &["mooncake state gc --older_than=168h --dry_run"]);
        }
    }
}
