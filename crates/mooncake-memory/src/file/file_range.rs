//! Parts of existing files as memory.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, SealFlags, fcntl_get_seals};

use crate::error::MemoryError;
use crate::file::mapped_file::PAGE;

/// Seals that no file has of itself; every file of a tmpfs has [`SealFlags::SEAL`].
const SEALED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::FUTURE_WRITE);

/// Opens a file whose bytes from `offset` on become a segment, and locks them against other segments. The lock is that
/// of the open file: gone with its last descriptor.
pub(crate) fn open(path: &Path, offset: u64, bytes: u64) -> Result<OwnedFd, MemoryError> {
    let refused = |reason: String| MemoryError::File { path: path.to_owned(), offset, bytes, reason };
    if bytes == 0 {
        return Err(refused("it is smaller than a granule of 1024 bytes".into()));
    }
    if !offset.is_multiple_of(PAGE) {
        return Err(refused(format!("it must begin at a multiple of {PAGE}")));
    }
    // Never a wait for the other end of a pipe.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| refused(errno.to_string()))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| refused(errno.to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("it is not a regular file".into()));
    }
    // Memory of a segment, of this process or of another one whose descriptors can be opened: it has stamps already.
    if fcntl_get_seals(&file).is_ok_and(|seals| seals.intersects(SEALED)) {
        return Err(refused("it is sealed memory, a segment of its own most likely".into()));
    }
    let size = stat.st_size as u64;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(refused(format!("the file has {size} bytes")));
    }
    lock(&file, offset, bytes).map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => refused("another segment has bytes of it".into()),
        _ => refused(format!("it cannot be locked: {error}")),
    })?;
    Ok(file)
}

fn lock(file: &OwnedFd, offset: u64, bytes: u64) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset as libc::off_t,
        l_len: bytes as libc::off_t,
        l_pid: 0,
    };
    // SAFETY: an open descriptor and a lock description that lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
