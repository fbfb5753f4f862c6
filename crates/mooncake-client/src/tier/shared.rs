//! The folder that the master names on a file system which clients share: whether it is here, and which file system it
//! is. A store that lends memory writes a tier there; any other only reads what others wrote.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_ids::FileSystemUuid;
use mooncake_os::{BlockingError, BlockingPool, Deadline, forked, random_bytes};
use mooncake_tier::medium::folder::NameFile;
use mooncake_wire::message::{SharedStorage, TierMount, request};

use super::{StoreTier, Word};
use crate::error::ErrorKind as Kind;
use crate::options::{SharedTier, TierOptions};
use crate::segments::direct_reads::SharedFolder;
use crate::session::control::Control;

/// Says which file system the folder is on.
const NAME_FILE: &str = "TIER";

/// Longest content of that file that is looked at.
const NAME_BYTES_MAX: u64 = 64;

/// Whoever has made the file has so long to write it.
const NAME_LIMIT: Duration = Duration::from_secs(2);
const NAME_PAUSE: Duration = Duration::from_millis(20);

/// A file system that does not answer for so long is taken for none.
const FIND_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks for one that was not there.
const FIND_AGAIN: Duration = Duration::from_secs(5);

/// Threads that open files there, or have not come back from it; whoever finds none free waits for one.
const OPENING_MAX: usize = 32;

/// Between two tries to tell the master.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Why a store has no part of the folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStorage {
    #[error("there is no folder {} on this host", .0.display())]
    NoRoot(PathBuf),
    #[error("{what} {}: {source}", path.display())]
    Disk { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} names no file system: where no client uses the folder, remove that file, and it is made anew",
        .0.display()
    )]
    NoName(PathBuf),
    #[error("{} does not answer: is its server there?", root.display())]
    Silent { root: PathBuf, source: BlockingError },
}

/// Looks for what the master names.
#[derive(Debug)]
pub(crate) struct Search {
    storage: SharedStorage,
    /// One thread: a look that does not come back from a silent file system is waited for by the next one.
    looking: BlockingPool,
}

impl Search {
    pub fn new(storage: SharedStorage) -> Search {
        Search { storage, looking: BlockingPool::new(1, "shared-files") }
    }

    /// The tier that this store may have there.
    pub fn look(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<TierOptions, NoStorage> {
        let asked = self.storage.clone();
        let found = self.looking.run(&Deadline::after(FIND_LIMIT, interrupted), move || look(&asked));
        found.map_err(|source| NoStorage::Silent { root: PathBuf::from(&self.storage.root), source })?
    }

    /// Looks until it is there: a mount may come after its users, or its server be in its grace period. None if the
    /// store closes before. Why it was not there has been `said`.
    pub(super) fn until_found(&self, tier: &StoreTier, control: &Control, mut said: String) -> Option<TierOptions> {
        let is_over = || forked() || control.is_stopped() || tier.is_closing();
        let mut next = Instant::now() + FIND_AGAIN;
        loop {
            if tier.heard(RETRY_PAUSE).iter().any(|word| matches!(word, Word::Close { .. })) || is_over() {
                return None;
            }
            if Instant::now() < next {
                continue;
            }
            match self.look(&is_over) {
                Ok(found) => {
                    let path = found.path.display();
                    tracing::info!(%path, "the file system that clients share (root_fs_dir) is there now");
                    return Some(found);
                }
                Err(_) if is_over() => return None,
                Err(error) => {
                    let reason = error.to_string();
                    if said != reason {
                        tracing::warn!(reason, "still no part of the file system that clients share (root_fs_dir)");
                        said = reason;
                    }
                    next = Instant::now() + FIND_AGAIN;
                }
            }
        }
    }
}

/// Where this store reads what others write.
pub(crate) fn folder(file_system: FileSystemUuid, path: &Path) -> SharedFolder {
    SharedFolder { file_system, path: path.to_owned(), name_file: name_file(file_system, path), opening: opening() }
}

/// What says in the folder of all tiers there which file system it is.
pub(super) fn name_file(file_system: FileSystemUuid, path: &Path) -> NameFile {
    NameFile { path: path.join(NAME_FILE), name: file_system.to_string() }
}

fn opening() -> BlockingPool {
    BlockingPool::new(OPENING_MAX, "shared-files")
}

fn look(storage: &SharedStorage) -> Result<TierOptions, NoStorage> {
    let root = PathBuf::from(&storage.root);
    // A path that is missing is a file system that is not mounted: nothing is made in its place.
    if !root.is_dir() {
        return Err(NoStorage::NoRoot(root));
    }
    let folder = root.join(&storage.cluster_id);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !folder.is_dir() => {
            return Err(NoStorage::Disk { what: "making", path: folder, source: error });
        }
        _ => {}
    }
    let file_system = name_of(&folder)?;
    let quota = Some(storage.quota_bytes).filter(|bytes| *bytes > 0);
    Ok(TierOptions {
        bytes: quota,
        bytes_below_path: quota,
        shared: Some(SharedTier { file_system, evicts: storage.evicts }),
        ..TierOptions::new(folder)
    })
}

/// The file system's UUID, made by whoever is first.
fn name_of(folder: &Path) -> Result<FileSystemUuid, NoStorage> {
    let path = folder.join(NAME_FILE);
    let disk = |what| {
        let path = path.clone();
        move |source| NoStorage::Disk { what, path, source }
    };
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(mut file) => {
            let uuid = FileSystemUuid(random_bytes().map_err(disk("drawing a UUID for"))?);
            let written = file.write_all(format!("{uuid}\n").as_bytes()).and_then(|()| file.sync_all());
            if let Err(error) = written {
                // Half of one would name none for ever.
                let _ = fs::remove_file(&path);
                return Err(disk("writing")(error));
            }
            return Ok(uuid);
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        // A file system that is not to be written may be read.
        Err(error) if !path.is_file() => return Err(disk("making")(error)),
        Err(_) => {}
    }
    let until = Instant::now() + NAME_LIMIT;
    loop {
        let about = fs::metadata(&path).map_err(disk("looking at"))?;
        if !about.is_file() || about.len() > NAME_BYTES_MAX {
            return Err(NoStorage::NoName(path));
        }
        let text = fs::read(&path).map_err(disk("reading"))?;
        let text = String::from_utf8_lossy(&text);
        if let Some(line) = text.strip_suffix('\n') {
            return line.parse().map_err(|_| NoStorage::NoName(path));
        }
        if Instant::now() >= until {
            return Err(NoStorage::NoName(path));
        }
        thread::sleep(NAME_PAUSE);
    }
}

/// Tells each session's master which file system this store has, which writes nothing there.
pub(super) fn announce(tier: &StoreTier, control: &Arc<Control>, file_system: FileSystemUuid) {
    let mut is_due = true;
    while !forked() && !control.is_stopped() {
        if is_due {
            const WHAT: &str = "saying which file system is shared";
            let said = TierMount { file_system: name(file_system), ..TierMount::default() };
            let body = request::Body::TierMount(said);
            let told = control.query_on_any_thread(WHAT, body, control.lookup_timeout);
            is_due = match told {
                Ok(_) => false,
                Err(error) => {
                    tracing::debug!(%error, "the master does not know yet which file system is shared");
                    // With the next session.
                    error.kind() != Kind::Unsupported
                }
            };
        }
        for word in tier.heard(RETRY_PAUSE) {
            match word {
                Word::Close { .. } => return,
                Word::Mount => is_due = true,
                _ => {}
            }
        }
    }
}

/// As messages name it.
pub(super) fn name(file_system: FileSystemUuid) -> Bytes {
    file_system.0.to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(storage: &SharedStorage) -> Result<TierOptions, NoStorage> {
        Search::new(storage.clone()).look(&|| false)
    }

    fn storage(root: &Path) -> SharedStorage {
        let root = root.to_str().unwrap().to_owned();
        SharedStorage { root, cluster_id: "c".into(), quota_bytes: 0, evicts: true }
    }

    #[test]
    fn the_first_names_the_file_system_and_all_others_find_that_name() {
        let root = tempfile::tempdir().unwrap();
        let storage = storage(root.path());
        let found: Vec<_> = thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| find(&storage).unwrap().shared.unwrap())).collect();
            all.into_iter().map(|one| one.join().unwrap().file_system).collect()
        });
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        let other = tempfile::tempdir().unwrap();
        let elsewhere = find(&self::storage(other.path())).unwrap().shared.unwrap();
        assert_ne!(elsewhere.file_system, found[0]);
    }

    #[test]
    fn what_is_no_name_is_said_and_left_as_it_is_and_a_missing_path_is_not_made() {
        let root = tempfile::tempdir().unwrap();
        let storage = storage(root.path());
        find(&storage).unwrap();
        let file = root.path().join("c").join(NAME_FILE);
        for garbage in [&b"garbage\n"[..], b"", b"\xff\xfe\n", &[b'0'; 100], b"0123456789abcdef0123456789abcdeg\n"] {
            fs::write(&file, garbage).unwrap();
            let error = find(&storage).unwrap_err();
            assert!(matches!(error, NoStorage::NoName(_)), "{garbage:?}: {error}");
            assert_eq!(fs::read(&file).unwrap(), garbage);
        }
        fs::remove_file(&file).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = find(&storage).unwrap_err();
        assert!(matches!(error, NoStorage::NoName(_)), "nobody writes to it: {error}");
        let missing = root.path().join("missing");
        let error = find(&self::storage(&missing)).unwrap_err();
        assert!(error.to_string().contains("missing on this host"), "{error}");
        assert!(!missing.exists());
    }
}
