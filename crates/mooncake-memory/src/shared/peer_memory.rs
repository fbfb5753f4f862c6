//! Memory of another process, mapped.

use std::os::fd::{AsFd, OwnedFd};

use crate::error::MemoryError;
use crate::file::mapped_file::MappedFile;
use crate::file::memfd;
use crate::range::ForeignRange;
use mooncake_os::forked;

/// A block of another process's memory, sealed, so that no touch of it is ever a signal. What its owner does with it at
/// the same time is for the [access page](crate::AccessPage) to say.
#[derive(Debug)]
pub struct PeerMemory {
    mapped: MappedFile,
}

impl PeerMemory {
    /// Maps a block that its owner has sent, to be read and written. Refuses what the owner could still shorten.
    pub fn map(fd: &OwnedFd, bytes: u64) -> Result<PeerMemory, MemoryError> {
        if forked() {
            return Err(MemoryError::Forked);
        }
        memfd::check(fd.as_fd(), "peer's", bytes)?;
        Ok(PeerMemory { mapped: MappedFile::new(fd.as_fd(), bytes, true)? })
    }

    /// A part of it, for as long as this is mapped; none if that is not inside.
    pub fn range(&self, offset: u64, len: u64) -> Option<ForeignRange> {
        let end = offset.checked_add(len)?;
        let addr = self.mapped.base().expose_provenance();
        (end <= self.mapped.len()).then(|| ForeignRange { addr: addr + offset as usize, len: len as usize })
    }
}
