//! A master's state folder: the lock, the log in `current`, and logs that were
//! renamed away.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use super::LogError;

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

    /// Renames the log away, so that no later master takes it for whole.
    /// `None` when there is none. A rename within one folder needs no space.
    pub fn rename_away(&self) -> Result<Option<PathBuf>, LogError> {
        let current = self.current();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        for attempt in 0..1000 {
            let target = self.root.join(format!("away-{seconds:012}-{attempt:03}"));
            if target.exists() {
                continue;
            }
            return match std::fs::rename(&current, &target) {
                Ok(()) => {
                    self.sync();
                    self.remove_oldest();
                    Ok(Some(target))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(LogError::NotRenamed { path: current, source }),
            };
        }
        let source = io::Error::new(io::ErrorKind::AlreadyExists, "too many logs were renamed away this second");
        Err(LogError::NotRenamed { path: current, source })
    }

    /// Makes entries of this folder durable, as far as the file system can.
    pub fn sync(&self) {
        for path in [self.current(), self.root.clone()] {
            if let Ok(folder) = File::open(&path)
                && let Err(error) = folder.sync_all()
            {
                tracing::warn!(path = %path.display(), %error, "folder not synced");
            }
        }
    }

    fn remove_oldest(&self) {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return };
        let mut away: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("away-")))
            .collect();
        away.sort_unstable();
        for path in away.iter().rev().skip(AWAY_KEPT) {
            if let Err(error) = std::fs::remove_dir_all(path) {
                tracing::warn!(path = %path.display(), %error, "old log that was renamed away is not removed");
            }
        }
    }
}
