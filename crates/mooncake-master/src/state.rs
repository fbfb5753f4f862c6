//! What masters have left on this machine: state folders and witnesses, listed and removed, never one that is in use.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::log::{Folder, LogError, Witness, log_id_of};

/// The state folder of one pool.
#[derive(Debug, Clone)]
pub struct StateFolder {
    /// `CLUSTER_ID-PORT`.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// A master runs on it. What that says of itself: its pid.
    pub in_use: Option<String>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// When one of them was written last.
    pub written: SystemTime,
    /// Id of the log, where it says so.
    pub log_id: Option<u64>,
    /// What lies there that no master has made: it is not removed then.
    pub foreign: Option<String>,
}

/// The witness of one log.
#[derive(Debug, Clone)]
pub struct LeftWitness {
    /// Of which log.
    pub log_id: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Name of the state folder with that log, if it is among the listed ones.
    pub folder: Option<String>,
    /// A master holds it.
    pub in_use: bool,
    /// When it was written last: with the log's last frame.
    pub written: SystemTime,
}

/// All that is there.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// By their names.
    pub folders: Vec<StateFolder>,
    /// By their paths.
    pub witnesses: Vec<LeftWitness>,
}

impl State {
    /// Lists the state folders below `folder`, which may not be there, and the witnesses in `witnesses`, each with the
    /// state folder of its log, if that is listed.
    pub fn list(folder: &Path, witnesses: &Path) -> io::Result<State> {
        let mut state = State::default();
        for path in entries(folder)? {
            if let Some(found) = StateFolder::of(path)? {
                state.folders.push(found);
            }
        }
        for path in entries(witnesses)? {
            if let Some(found) = LeftWitness::of(path, &state.folders)? {
                state.witnesses.push(found);
            }
        }
        Ok(state)
    }
}

impl StateFolder {
    /// `None`: that is none.
    fn of(path: PathBuf) -> io::Result<Option<StateFolder>> {
        let (lock, name) = (path.join("lock"), path.file_name().and_then(OsStr::to_str).map(str::to_owned));
        let Some(name) = name.filter(|_| lock.is_file()) else { return Ok(None) };
        let mut found = StateFolder {
            log_id: log_id_of(&path.join("current")),
            in_use: None,
            bytes: 0,
            written: SystemTime::UNIX_EPOCH,
            foreign: None,
            name,
            path,
        };
        for entry in entries(&found.path)? {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !matches!(&name[..], "lock" | "current" | "begun") && !name.starts_with("away-") {
                found.foreign = Some(name);
            }
            found.measure(&entry)?;
        }
        if is_locked(&lock)? {
            found.in_use = Some(fs::read_to_string(&lock).unwrap_or_default().trim().to_owned());
        }
        Ok(Some(found))
    }

    fn measure(&mut self, path: &Path) -> io::Result<()> {
        let about = match fs::symlink_metadata(path) {
            // A master is at work there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            about => about?,
        };
        if about.is_dir() {
            return entries(path)?.iter().try_for_each(|path| self.measure(path));
        }
        self.bytes += about.len();
        self.written = self.written.max(about.modified()?);
        Ok(())
    }

    /// Refuses a folder in which something lies that no master wrote: [`StateFolder::remove`] leaves it.
    pub fn check_own(&self) -> Result<(), LogError> {
        self.foreign.as_ref().map_or(Ok(()), |foreign| {
            let source = io::Error::other(format!("{foreign} is no master's; remove the folder by hand"));
            Err(LogError::Folder { path: self.path.clone(), source })
        })
    }

    /// Removes it and the witness of its log. An error if a master runs on it, by now too: it is locked until it is
    /// gone.
    pub fn remove(&self, witnesses: &Path) -> Result<(), LogError> {
        let wrap = |source| LogError::Folder { path: self.path.clone(), source };
        self.check_own()?;
        let _locked = Folder::open(&self.path)?;
        let log_id = log_id_of(&self.path.join("current"));
        // In one step: what is half removed is no log that a start reads.
        let away = self.path.with_file_name(format!(".{}.removed-{}", self.name, std::process::id()));
        fs::rename(&self.path, &away).map_err(wrap)?;
        if let Some(log_id) = log_id {
            Witness::remove_of(witnesses, log_id);
        }
        fs::remove_dir_all(&away).map_err(|source| LogError::Folder { path: away, source })
    }
}

impl LeftWitness {
    fn of(path: PathBuf, folders: &[StateFolder]) -> io::Result<Option<LeftWitness>> {
        let name = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("mooncake-log-"));
        let Some(log_id) = name.and_then(|id| u64::from_str_radix(id, 16).ok()) else { return Ok(None) };
        let about = match fs::symlink_metadata(&path) {
            // Its master has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            about => about?,
        };
        if !about.is_file() {
            return Ok(None);
        }
        let folder = folders.iter().find(|folder| folder.log_id == Some(log_id));
        // That of a folder in use is not looked at: its master may be about to take it.
        let in_use = match folder.map_or_else(|| is_locked(&path), |folder| Ok(folder.in_use.is_some())) {
            // Another user's, in a folder that every user writes to.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            in_use => in_use?,
        };
        let (folder, written) = (folder.map(|folder| folder.name.clone()), about.modified()?);
        Ok(Some(LeftWitness { log_id, path, folder, in_use, written }))
    }

    /// Removes it; a master that begins with its log raises the epoch then. False if a master holds it by now.
    pub fn remove(&self) -> io::Result<bool> {
        let file = open(&self.path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        fs::remove_file(&self.path).map(|()| true)
    }
}

/// Whether a process holds a file. Its own look takes no longer than that.
fn is_locked(path: &Path) -> io::Result<bool> {
    let file = match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// Names in a folder that every user writes to may be links and pipes.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Paths in a folder, by name; none if it is not there.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let found = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        found => found?,
    };
    let mut paths = found.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::log::{Sink, recover};

    const BOOT: [u8; 16] = [7; 16];

    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Scratch {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("shm")).unwrap();
            Scratch(folder)
        }

        fn shm(&self) -> PathBuf {
            self.0.path().join("shm")
        }

        /// A master of that name which runs.
        fn running(&self, name: &str, log_id: u64) -> Sink {
            let witness = Witness::anew(&self.shm(), log_id, None).unwrap();
            let folder = Folder::open(&self.0.path().join("state").join(name)).unwrap();
            Sink::open(folder, log_id, 0, BOOT, Some(witness)).unwrap()
        }

        fn list(&self) -> State {
            State::list(&self.0.path().join("state"), &self.shm()).unwrap()
        }
    }

    #[test]
    fn what_runs_is_listed_as_in_use_and_cannot_be_removed_and_what_ended_is_gone_with_its_witness() {
        let scratch = Scratch::new();
        assert!(scratch.list().folders.is_empty(), "there is no folder yet");
        let (runs, ended) = (scratch.running("pool-1", 1), scratch.running("pool-2", 2));
        drop(ended);
        let state = scratch.list();
        let [one, other] = &state.folders[..] else { panic!("{state:?}") };
        assert_eq!(one.in_use, Some(format!("pid {}", std::process::id())));
        assert_eq!((other.name.as_str(), &other.in_use, other.log_id), ("pool-2", &None, Some(2)));
        assert!(other.bytes > 0 && other.written > SystemTime::UNIX_EPOCH);
        let of: Vec<_> = state.witnesses.iter().map(|one| (one.log_id, one.folder.as_deref(), one.in_use)).collect();
        assert_eq!(of, [(1, Some("pool-1"), true), (2, Some("pool-2"), false)]);

        assert!(matches!(one.remove(&scratch.shm()), Err(LogError::Locked { .. })));
        assert!(!state.witnesses[0].remove().unwrap(), "its master holds it");
        other.remove(&scratch.shm()).unwrap();
        let left = scratch.list();
        assert_eq!((left.folders.len(), left.witnesses.len()), (1, 1));
        drop(runs);
        let log = recover(&scratch.0.path().join("state/pool-1/current"), &BOOT, &mut |_: mooncake_core::RecordRef<
            '_,
        >| Ok(()));
        assert_eq!(log.unwrap().unwrap().log_id, 1, "it is as it was");
    }

    #[test]
    fn a_witness_without_a_folder_can_be_removed_and_what_is_none_is_not_listed() {
        let scratch = Scratch::new();
        drop(Witness::anew(&scratch.shm(), 9, None).unwrap());
        std::os::unix::fs::symlink("/etc/passwd", scratch.shm().join("mooncake-log-000000000000000a")).unwrap();
        fs::create_dir_all(scratch.0.path().join("state/somebody")).unwrap();
        let state = scratch.list();
        assert_eq!((state.folders.len(), state.witnesses.len()), (0, 1));
        assert_eq!((state.witnesses[0].folder.as_deref(), state.witnesses[0].in_use), (None, false));
        assert!(state.witnesses[0].remove().unwrap() && scratch.list().witnesses.is_empty());
    }

    #[test]
    fn a_folder_with_a_persons_files_is_left_alone() {
        let scratch = Scratch::new();
        drop(scratch.running("pool-1", 1));
        fs::write(scratch.0.path().join("state/pool-1/notes.txt"), "mine").unwrap();
        let error = scratch.list().folders[0].remove(&scratch.shm()).unwrap_err().to_string();
        assert!(error.contains("notes.txt") && scratch.0.path().join("state/pool-1/current").exists(), "{error}");
    }
}
