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
}

impl Witness {
    /// Opens or makes the witness of a log in `folder` (/dev/shm outside of tests).
    pub fn open(folder: &Path, log_id: u64) -> io::Result<Witness> {
        let path = Self::path(folder, log_id);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC);
        head[8..].copy_from_slice(&log_id.to_le_bytes());
        file.write_all_at(&head, 0)?;
        Ok(Witness { path, file })
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
    /// memory: it is there or not, never half.
    pub fn store(&self, lsn: u64) -> io::Result<()> {
        self.file.write_all_at(&lsn.to_le_bytes(), LSN_AT)
    }

    /// Forgets the log: whoever finds it again starts with a raised epoch.
    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "witness not removed");
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
        let witness = Witness::open(&folder, id).unwrap();
        witness.store(41).unwrap();
        let again = Witness::open(&folder, id).unwrap();
        again.store(42).unwrap();
        assert_eq!(Witness::read(&folder, id), Some(42));
        assert_eq!(Witness::read(&folder, id + 1), None);
        witness.remove();
        assert_eq!(Witness::read(&folder, id), None);
    }
}
