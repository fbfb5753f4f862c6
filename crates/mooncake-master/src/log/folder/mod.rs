//! A master's state folder: the lock, the log in `current`, and logs that were
//! renamed away.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use super::LogError;
use super::step::{Step, sync};

/// Logs renamed away that are kept; older ones are removed.
const AWAY_KEPT: usize = 2;
/// Where a log lies.
const CURRENT: &str = "current";
/// Where one lies that is begun while its master runs, until it is whole. No start reads it.
const BEGUN: &str = "begun";

/// A state folder, locked for as long as this lives, or any `Locked` of it.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// Name of the log's own folder: [`CURRENT`], or [`BEGUN`].
    name: &'static str,
    lock: Locked,
}

/// Keeps a state folder locked: no other master begins there while something may be written.
#[derive(Debug, Clone)]
pub(super) struct Locked {
    _file: Arc<File>,
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
        if let Err(error) = lock_patiently(&lock) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(wrap(error.into()));
            }
            let mut holder = String::new();
            // Only for the message: the holder may not have written its pid yet.
            let _ = lock.take(64).read_to_string(&mut holder);
            return Err(LogError::Locked { path: root.to_owned(), holder: holder.trim().to_owned() });
        }
        // For the message of the next one; a full disk must not keep a master from starting.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "pid {}", std::process::id()));
        Ok(Folder { root: root.to_owned(), name: CURRENT, lock: Locked { _file: Arc::new(lock) } })
    }

    /// Keeps it locked, whatever becomes of this.
    pub(super) fn locked(&self) -> Locked {
        self.lock.clone()
    }

    /// Where the log lies.
    pub fn current(&self) -> PathBuf {
        self.root.join(self.name)
    }

    /// From here on the log is written where no start looks for one, until [`Folder::put_in_place`].
    pub(super) fn write_beside(&mut self) -> Result<(), LogError> {
        self.remove_begun()?;
        self.name = BEGUN;
        Ok(())
    }

    /// Whether the log is not whole yet.
    pub(super) fn is_beside(&self) -> bool {
        self.name == BEGUN
    }

    /// What was written beside is the log from here on, for a start too: in one step, as a rename is one.
    pub(super) fn put_in_place(&mut self) -> Result<(), LogError> {
        let (from, to) = (self.root.join(BEGUN), self.root.join(CURRENT));
        std::fs::rename(&from, &to).map_err(LogError::io("giving its place to", &from))?;
        self.name = CURRENT;
        self.sync();
        Ok(())
    }

    /// Removes a log that was never whole.
    pub(super) fn remove_begun(&self) -> Result<(), LogError> {
        let path = self.root.join(BEGUN);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LogError::Folder { path, source: error }),
            _ => Ok(()),
        }
    }

    /// Takes the log out of the place where a start would read it. Where it was renamed to, if there was one.
    pub(super) fn give_up(&mut self) -> Result<Option<PathBuf>, LogError> {
        if self.is_beside() {
            self.leave_begun();
            return Ok(None);
        }
        self.rename_away()
    }

    /// Ends what is written beside the place of a log. No start reads what may stay of it.
    pub(super) fn leave_begun(&mut self) {
        if let Err(error) = self.remove_begun() {
            tracing::warn!(%error, "what was begun of a log is not removed");
        }
        self.name = CURRENT;
    }

    /// Makes the log's own folder.
    pub fn create_current(&self) -> Result<PathBuf, LogError> {
        let path = self.current();
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(LogError::Folder { path, source: error }),
            _ => Ok(path),
        }
    }

    /// Does what needs room on the disk. Where there is none, the logs that were renamed away go until there is:
    /// nothing reads them again. The newest is the last to go, as a person may want to look at it.
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
                    tracing::warn!(path = %path.display(), %error, "disk full, old log that was renamed away is not \
                        removed");
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        // Behind all that are there, whatever the clock says: the oldest go.
        let last = self.away().last().and_then(|path| numbers(path.file_name()?.to_str()?));
        let (seconds, first) =
            last.map(|(seconds, attempt)| (seconds, attempt + 1)).max(Some((now, 0))).unwrap_or_default();
        for attempt in first..1000 {
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
        sync_folders(&self.folders());
    }

    /// Those whose entries are its files, and theirs.
    pub fn folders(&self) -> [PathBuf; 2] {
        [self.current(), self.root.clone()]
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

/// `mooncake state ls` holds it for an instant, a master as long as it runs.
fn lock_patiently(lock: &File) -> rustix::io::Result<()> {
    for _ in 0..4 {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(25)),
            done => return done,
        }
    }
    flock(lock, FlockOperation::NonBlockingLockExclusive)
}

/// The name is one that [`Folder::rename_away`] gives, not one of a person's.
fn is_away(name: &str) -> bool {
    numbers(name).is_some()
}

/// Second and number of a name that [`Folder::rename_away`] gives.
fn numbers(name: &str) -> Option<(u64, u32)> {
    let (seconds, attempt) = name.strip_prefix("away-")?.split_once('-')?;
    let given = [(seconds, 12), (attempt, 3)]
        .into_iter()
        .all(|(digits, length)| digits.len() == length && digits.bytes().all(|digit| digit.is_ascii_digit()));
    given.then(|| Some((seconds.parse().ok()?, attempt.parse().ok()?))).flatten()
}

/// Makes entries of folders durable, as far as the file system can.
pub fn sync_folders(folders: &[PathBuf]) {
    for path in folders {
        if let Ok(folder) = File::open(path)
            && let Err(error) = sync(Step::FolderSynced, &folder, path)
        {
            tracing::warn!(path = %path.display(), %error, "folder not synced");
        }
    }
}

#[cfg(test)]
mod tests;
