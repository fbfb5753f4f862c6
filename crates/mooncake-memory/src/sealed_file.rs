//! A small file in memory that processes hand on to one another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mooncake_os::Guarded;

use crate::error::MemoryError;
use crate::file::memfd;

/// A sealed memfd that is read and written, and never mapped.
#[derive(Debug)]
pub struct SealedFile {
    fd: Guarded<OwnedFd>,
    bytes: u64,
}

impl SealedFile {
    /// Makes one of zeros.
    pub fn create(name: &str, bytes: u64) -> Result<SealedFile, MemoryError> {
        let fd = Guarded::new(memfd::create(name, bytes, false)?);
        Ok(SealedFile { fd, bytes })
    }

    /// One that another process made, after a look at its seals and its size.
    pub fn adopt(fd: OwnedFd, bytes: u64) -> Result<SealedFile, MemoryError> {
        memfd::check(fd.as_fd(), "state", bytes)?;
        Ok(SealedFile { fd: Guarded::new(fd), bytes })
    }

    /// All of its bytes.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut all = vec![0; self.bytes as usize];
        let mut have = 0;
        while have < all.len() {
            match rustix::io::pread(&*self.fd, &mut all[have..], have as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => have += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(all)
    }

    /// Writes bytes that lie within it.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&*self.fd, &bytes[done..], offset + done as u64) {
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for SealedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
