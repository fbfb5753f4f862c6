//! The witness: one small file in /dev/shm that says how far a log has come, and in which epoch.
//!
//! It is gone with the boot. While it is there, a log that ends before it has
//! lost frames (an older copy was put back, a tail was cut), and the epoch must
//! be raised, above the one that the witness has seen.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mooncake_core::Epoch;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

use crate::machine::start::Seen;

const MAGIC: [u8; 8] = *b"MCRSWIT1";
const LSN_AT: u64 = 16;
/// Length in versions without the epoch, which goes behind it.
const FORMER_LEN: usize = 24;
/// An LSN that no log reaches.
const NEVER: u64 = u64::MAX;

/// A witness that was found.
#[derive(Debug)]
pub struct FoundWitness {
    /// What it says.
    pub seen: Seen,
    /// The witness. `None`: a master of this host holds it, which runs or stands still on another copy of this log. It
    /// goes on in the same epoch, so that nothing vouches for a second one.
    pub witness: Option<Witness>,
}

/// An epoch in one word.
pub(super) fn pack(epoch: Epoch) -> u64 {
    u64::from(epoch.number) << 32 | u64::from(epoch.id)
}

/// What was packed.
pub(super) fn unpack(word: u64) -> Epoch {
    Epoch { number: (word >> 32) as u16, id: word as u32 }
}

/// The witness of one log, held for as long as its master runs.
#[derive(Debug)]
pub struct Witness {
    path: PathBuf,
    file: File,
    last: u64,
}

impl Witness {
    /// What stands in `folder` (/dev/shm outside of tests) under the name of a log; `None` when nothing is known.
    pub fn find(folder: &Path, log_id: u64) -> Option<FoundWitness> {
        let path = Self::path(folder, log_id);
        let (file, seen) = Self::existing(&path, log_id, geteuid().as_raw())?;
        let held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        let witness = (!held).then_some(Witness { path, file, last: seen.lsn });
        Some(FoundWitness { seen, witness })
    }

    /// Makes the witness of a log anew, whatever stands there but for a folder with contents. It vouches for nothing
    /// until
    /// [`Witness::store_raised`], and goes on saying which epoch was `seen`: a start that ends before that leaves it to
    /// the next one.
    pub fn anew(folder: &Path, log_id: u64, seen: Option<Epoch>) -> io::Result<Witness> {
        let path = Self::path(folder, log_id);
        clear(&path)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC);
        head[8..].copy_from_slice(&log_id.to_le_bytes());
        file.write_all_at(&head, 0)?;
        let mut witness = Witness { path, file, last: 0 };
        if let Some(epoch) = seen {
            witness.write(NEVER, epoch)?;
        }
        Ok(witness)
    }

    /// The file of that name, if this user has made it as a witness, and what it says. Every user can write to the
    /// folder, and names of the last boot are known: another user's file, a link to any file and a pipe are not
    /// believed and stay as they are.
    fn existing(path: &Path, log_id: u64, user: u32) -> Option<(File, Seen)> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != user || found.nlink() != 1 {
            tracing::warn!(path = %path.display(), user = found.uid(), "what stands there is not this user's witness");
            return None;
        }
        let mut bytes = [0; FORMER_LEN + 8];
        let length = file.read_at(&mut bytes, 0).ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let known = length >= FORMER_LEN && bytes[..8] == MAGIC && word(8) == log_id;
        known.then(|| (file, Seen { lsn: word(16), epoch: unpack(word(FORMER_LEN)) }))
    }

    /// Says that the log has reached this LSN. One 8-byte store into a page of
    /// memory: it is there or not, never half. It does not go down: that would vouch for a log that lost its end.
    pub fn store(&mut self, lsn: u64) -> io::Result<()> {
        if lsn < self.last {
            let last = self.last;
            return Err(io::Error::other(format!("the log was at {last} already, it cannot be at {lsn} now")));
        }
        self.last = lsn;
        self.file.write_all_at(&lsn.to_le_bytes(), LSN_AT)
    }

    /// [`Witness::store`] for a log that may have lost its end, once a higher epoch is on its disk: nothing of what is
    /// missing can be handed out again.
    pub fn store_raised(&mut self, lsn: u64, epoch: Epoch) -> io::Result<()> {
        self.last = lsn;
        self.write(lsn, epoch)
    }

    fn write(&mut self, lsn: u64, epoch: Epoch) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&lsn.to_le_bytes());
        bytes[8..].copy_from_slice(&pack(epoch).to_le_bytes());
        self.file.write_all_at(&bytes, LSN_AT)
    }

    /// Forgets the log: a master that finds it again starts with a raised epoch.
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

/// Removes what stands at a path: a file of any kind, or a folder without contents. The contents of a folder are not
/// the master's to remove.
fn clear(path: &Path) -> io::Result<()> {
    let is_folder = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let removed = if is_folder { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let path = path.display();
            let reason = if is_folder {
                format!(
                    "{path} is a folder and cannot be removed ({error}); look what is in it, then remove it as its \
                     owner: rm -r {path}"
                )
            } else {
                format!("{path} cannot be removed ({error}); is it another user's?")
            };
            Err(io::Error::new(error.kind(), reason))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
