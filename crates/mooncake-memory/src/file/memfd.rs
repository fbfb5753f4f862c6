//! Sealed anonymous files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, SeekFrom, fallocate, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create, seek,
};
use rustix::io::Errno;

use crate::error::MemoryError;
use crate::file::mapped_file::MappedFile;

/// No process can change the size any more, nor take that promise back.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Bytes of one hole. A larger one would keep every other process that changes the file waiting, and page faults in it
/// too, for longer than a few milliseconds.
const HOLE: u64 = 64 << 20;

/// Makes a sealed memfd of that size, readable by its user only.
pub(crate) fn create(name: &str, bytes: u64, huge_pages: bool) -> Result<OwnedFd, MemoryError> {
    let fd = create_unsealed(name, bytes, huge_pages)?;
    fcntl_add_seals(&fd, SEALS).map_err(|errno| MemoryError::os("sealing a memfd")(errno.into()))?;
    Ok(fd)
}

/// The same for a file that only the mapping returned with it can write. A process that is given the descriptor cannot
/// write by it, nor by another descriptor of the file.
pub(crate) fn create_for_readers(name: &str, bytes: u64) -> Result<(OwnedFd, MappedFile), MemoryError> {
    let fd = create_unsealed(name, bytes, false)?;
    let mapped = MappedFile::new(fd.as_fd(), bytes, true)?;
    let sealed = match fcntl_add_seals(&fd, SEALS | SealFlags::FUTURE_WRITE) {
        // Before Linux 5.1, where no process can prove its identity to another one, and none is given a descriptor.
        Err(Errno::INVAL) => fcntl_add_seals(&fd, SEALS),
        sealed => sealed,
    };
    sealed.map_err(|errno| MemoryError::os("sealing a memfd")(errno.into()))?;
    Ok((fd, mapped))
}

fn create_unsealed(name: &str, bytes: u64, huge_pages: bool) -> Result<OwnedFd, MemoryError> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge_pages {
        flags |= MemfdFlags::HUGETLB;
    }
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    let fd = fd.map_err(|errno| MemoryError::os("memfd_create")(errno.into()))?;
    fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(|errno| MemoryError::os("fchmod of a memfd")(errno.into()))?;
    ftruncate(&fd, bytes).map_err(|errno| MemoryError::os("ftruncate of a memfd")(errno.into()))?;
    Ok(fd)
}

/// Refuses a descriptor whose size could change after this check, or that has another size.
pub(crate) fn check(fd: BorrowedFd<'_>, which: &'static str, expected: u64) -> Result<(), MemoryError> {
    // What is no memfd has no seals at all.
    let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS) {
        return Err(MemoryError::NotSealed { which, seals: seals.bits(), needed: SEALS.bits() });
    }
    let stat = fstat(fd).map_err(|errno| MemoryError::os("fstat of a memfd")(errno.into()))?;
    let actual = stat.st_size as u64;
    if actual != expected {
        return Err(MemoryError::WrongSize { which, expected, actual });
    }
    Ok(())
}

/// Bytes of one page of the file: more than 4 KiB with huge pages.
pub(crate) fn page_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(fstat(fd)?.st_blksize as u64)
}

/// Whether its pages come out of the host's pool of huge pages.
pub(crate) fn is_of_huge_pages(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // The size of a page does not tell: transparent huge pages have it, too.
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    Ok(fstatfs(fd)?.f_type as u64 == HUGETLBFS_MAGIC)
}

/// Gives the pages between two offsets back, step by step; the size stays.
pub(crate) fn punch(fd: BorrowedFd<'_>, mut start: u64, end: u64) -> io::Result<()> {
    while start < end {
        let len = HOLE.min(end - start);
        match fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, len) {
            Err(Errno::INTR) => {}
            done => {
                done?;
                start += len;
            }
        }
    }
    Ok(())
}

/// Next run of bytes with pages at or after an offset.
pub(crate) fn next_data(fd: BorrowedFd<'_>, from: u64) -> io::Result<Option<(u64, u64)>> {
    // The offset of the shared file description moves; nothing uses it.
    match seek(fd, SeekFrom::Data(from)) {
        Ok(start) => Ok(Some((start, seek(fd, SeekFrom::Hole(start))?))),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
