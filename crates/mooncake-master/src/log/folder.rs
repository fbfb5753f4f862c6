//! A master's state folder: the lock, the log in `current`, and logs that were
//! renamed away.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use super::LogError;
use super::step::{Step, sync};

/// Logs renamed away that are kept; older ones are removed.
const AWAY_KEPT: usize = 2;

/// A state folder, locked for as long as this lives.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Folder {
    /// Makes the folder if need be, and locks it.
    pub fn open(root: &Path) -> Result<Folder, LogError> {
        let wrap = |source| LogError::Folder { path: root.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(wrap)?;
        let path = root.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(wrap)?;
        if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(wrap(error.into()));
            }
            let mut holder = String::new();
            // Only for the message: who holds it may not have written yet.
            let _ = lock.take(64).read_to_string(&mut holder);
            return Err(LogError::Locked { path: root.to_owned(), holder: holder.trim().to_owned() });
        }
        // For the message of the next one; a full disk must not keep a master from starting.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "pid {}", std::process::id()));
        Ok(Folder { root: root.to_owned(), _lock: lock })
    }

    /// Where the log lies.
    pub fn current(&self) -> PathBuf {
        self.root.join("current")
    }

    /// Makes the log's own folder.
    pub fn create_current(&self) -> Result<PathBuf, LogError> {
        let path = self.current();
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(LogError::Folder { path, source: error }),
            _ => Ok(path),
        }
    }

    /// Does what needs room on the disk. Where there is none, the logs that were renamed away go until there is: nothing
    /// reads them again. The newest is the last to go, as a person may want to look at it.
    pub fn with_room<T>(&self, mut work: impl FnMut() -> Result<T, LogError>) -> Result<T, LogError> {
        let lacks_room = |done: &Result<T, LogError>| done.as_ref().is_err_and(LogError::is_full);
        let mut done = work();
        if !lacks_room(&done) {
            return done;
        }
        for path in self.away() {
            match std::fs::remove_dir_all(&path) {
                Ok(()) => tracing::warn!(path = %path.display(), "disk full: a log that was renamed away is removed"),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "disk full, old log that was renamed away is not removed");
                }
            }
            done = work();
            if !lacks_room(&done) {
                break;
            }
        }
        done
    }

    /// Renames the log away, so that no later master takes it for whole.
    /// `None` when there is none. Few file systems need room for a rename within one folder.
    pub fn rename_away(&self) -> Result<Option<PathBuf>, LogError> {
        let current = self.current();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        for attempt in 0..1000 {
            let target = self.root.join(format!("away-{seconds:012}-{attempt:03}"));
            if target.exists() {
                continue;
            }
            let renamed = self.with_room(|| {
                let renamed = std::fs::rename(&current, &target);
                renamed.map_err(|source| LogError::NotRenamed { path: current.clone(), source })
            });
            return match renamed {
                Ok(()) => {
                    self.sync();
                    self.remove_oldest();
                    Ok(Some(target))
                }
                Err(LogError::NotRenamed { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
        }
        let source = io::Error::new(io::ErrorKind::AlreadyExists, "too many logs were renamed away this second");
        Err(LogError::NotRenamed { path: current, source })
    }

    /// Makes entries of this folder durable, as far as the file system can.
    pub fn sync(&self) {
        for path in [self.current(), self.root.clone()] {
            if let Ok(folder) = File::open(&path)
                && let Err(error) = sync(Step::FolderSynced, &folder, &path)
            {
                tracing::warn!(path = %path.display(), %error, "folder not synced");
            }
        }
    }

    fn remove_oldest(&self) {
        for path in self.away().iter().rev().skip(AWAY_KEPT) {
            if let Err(error) = std::fs::remove_dir_all(path) {
                tracing::warn!(path = %path.display(), %error, "old log that was renamed away is not removed");
            }
        }
    }

    /// Logs that were renamed away, the oldest first.
    fn away(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let mut away: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(is_away))
            .collect();
        away.sort_unstable();
        away
    }
}

/// The name is one that [`Folder::rename_away`] gives, not one of a person's.
fn is_away(name: &str) -> bool {
    let Some((seconds, attempt)) = name.strip_prefix("away-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    [(seconds, 12), (attempt, 3)]
        .into_iter()
        .all(|(digits, length)| digits.len() == length && digits.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::Sink;
    use super::super::step::watch;
    use super::*;

    const BOOT: [u8; 16] = [7; 16];

    /// A state folder with three logs that were renamed away, and the names of those.
    fn with_three_away(name: &str) -> (PathBuf, [&'static str; 3]) {
        let root = std::env::temp_dir().join(format!("mooncake-folder-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let names = ["away-001700000000-000", "away-001700000000-001", "away-001800000000-000"];
        for name in names {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("log-0000000000000001.wal"), b"lost").unwrap();
        }
        (root, names)
    }

    fn away(root: &Path) -> Vec<String> {
        let folder = Folder { root: root.to_owned(), _lock: File::open(root).unwrap() };
        folder.away().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    /// A disk that is full as long as more than this many of those logs are on it.
    fn full_above(root: &Path, kept: usize, kind: io::ErrorKind) {
        let root = root.to_owned();
        watch::with(move |_, _| if away(&root).len() > kept { Err(kind.into()) } else { Ok(()) });
    }

    fn start(root: &Path) -> Result<Sink, LogError> {
        Sink::open(Folder::open(root).unwrap(), 5, 0, BOOT, None)
    }

    #[test]
    fn a_start_on_a_full_disk_removes_what_was_renamed_away_the_oldest_first() {
        for (kept, kind) in
            [(2, io::ErrorKind::StorageFull), (1, io::ErrorKind::QuotaExceeded), (0, io::ErrorKind::StorageFull)]
        {
            let (root, names) = with_three_away("full");
            full_above(&root, kept, kind);
            start(&root).unwrap();
            assert_eq!(away(&root), names[3 - kept..]);
            std::fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn what_fails_for_another_reason_removes_nothing() {
        let (root, names) = with_three_away("other");
        full_above(&root, 0, io::ErrorKind::FileTooLarge);
        let error = start(&root).expect_err("it fails").to_string();
        assert!(!error.contains("make room"), "{error}");
        assert_eq!(away(&root), names);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn where_nothing_is_left_to_remove_the_error_says_what_to_do() {
        let (root, _) = with_three_away("hopeless");
        watch::with(|_, _| Err(io::ErrorKind::StorageFull.into()));
        let error = start(&root).expect_err("it fails").to_string();
        assert!(error.contains("make room on its disk"), "{error}");
        assert!(away(&root).is_empty());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_a_person_has_put_there_stays() {
        let (root, _) = with_three_away("theirs");
        for name in ["away-notes", "away-1-1", "away-001700000000-000.old"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        watch::with(|_, _| Err(io::ErrorKind::StorageFull.into()));
        start(&root).expect_err("it fails");
        let mut left: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["away-001700000000-000.old", "away-1-1", "away-notes", "current", "lock"]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
