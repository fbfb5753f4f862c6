//! The witness: one small file in /dev/shm that says how far a log has come.
//!
//! It is gone with the boot. While it is there, a log that ends before it has
//! lost frames (an older copy was put back, a tail was cut), and the epoch must
//! be raised.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"MCRSWIT1";
const LSN_AT: u64 = 16;

/// The witness of one log.
#[derive(Debug)]
pub struct Witness {
    path: PathBuf,
    file: File,
    last: u64,
}

impl Witness {
    /// Opens or makes the witness of a log in `folder` (/dev/shm outside of tests). It says what it said before; one that
    /// is new or damaged says nothing until the first LSN is stored.
    pub fn open(folder: &Path, log_id: u64) -> io::Result<Witness> {
        let path = Self::path(folder, log_id);
        let known = Self::read(folder, log_id);
        let anew = known.is_none();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(anew).mode(0o600).open(&path)?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC);
        head[8..].copy_from_slice(&log_id.to_le_bytes());
        file.write_all_at(&head, 0)?;
        Ok(Witness { path, file, last: known.unwrap_or(0) })
    }

    /// The last LSN that a log is known to have reached in this boot; `None`
    /// when nothing is known.
    pub fn read(folder: &Path, log_id: u64) -> Option<u64> {
        let file = File::open(Self::path(folder, log_id)).ok()?;
        let mut bytes = [0; 24];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let known = bytes[..8] == MAGIC && bytes[8..16] == log_id.to_le_bytes();
        known.then(|| u64::from_le_bytes(bytes[16..].try_into().expect("eight bytes")))
    }

    /// Says that the log has reached this LSN. One 8-byte store into a page of
    /// memory: it is there or not, never half. It does not go down: that would vouch for a log that lost its end.
    pub fn store(&mut self, lsn: u64) -> io::Result<()> {
        if lsn < self.last {
            let last = self.last;
            return Err(io::Error::other(format!("the log was at {last} already, it cannot be at {lsn} now")));
        }
        self.store_raised(lsn)
    }

    /// [`Witness::store`] for a log that lost its end, once a higher epoch is on its disk: nothing of what is missing can
    /// be handed out again.
    pub fn store_raised(&mut self, lsn: u64) -> io::Result<()> {
        self.last = lsn;
        self.file.write_all_at(&lsn.to_le_bytes(), LSN_AT)
    }

    /// Forgets the log: whoever finds it again starts with a raised epoch.
    pub fn remove(&self) {
        Self::remove_file(&self.path);
    }

    /// [`Witness::remove`] without opening it, for a log that is not used any more.
    pub fn remove_of(folder: &Path, log_id: u64) {
        Self::remove_file(&Self::path(folder, log_id));
    }

    fn remove_file(path: &Path) {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "witness not removed");
        }
    }

    fn path(folder: &Path, log_id: u64) -> PathBuf {
        folder.join(format!("mooncake-log-{log_id:016x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_only_its_own_log() {
        let folder = std::env::temp_dir();
        let id = u64::from(std::process::id()) << 8 | 0x5a;
        assert_eq!(Witness::read(&folder, id), None);
        let mut witness = Witness::open(&folder, id).unwrap();
        assert_eq!(Witness::read(&folder, id), None, "it has not seen anything yet");
        witness.store(41).unwrap();
        let mut again = Witness::open(&folder, id).unwrap();
        again.store(42).unwrap();
        assert_eq!(Witness::read(&folder, id), Some(42));
        assert_eq!(Witness::read(&folder, id + 1), None);
        assert!(again.store(41).is_err(), "it does not go down");
        assert_eq!(Witness::read(&folder, id), Some(42));
        again.store_raised(41).unwrap();
        assert_eq!(Witness::read(&folder, id), Some(41), "but under a higher epoch");
        again.file.write_all_at(b"X", 0).unwrap();
        Witness::open(&folder, id).unwrap();
        assert_eq!(Witness::read(&folder, id), None, "a damaged one says nothing");
        witness.remove();
        assert_eq!(Witness::read(&folder, id), None);
    }
}
