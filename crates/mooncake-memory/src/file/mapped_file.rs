//! A whole file in the address space.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;

use crate::error::MemoryError;
use mooncake_os::forked;

/// Bytes of an ordinary page. Kernels with others, as some have on aarch64, are refused.
pub(crate) const PAGE: u64 = 4096;

/// Pages that the kernel maps around one that is loaded, bytes (`fault_around_bytes`).
const AROUND: usize = 64 << 10;

/// One `mmap` of a sealed file, shared with other processes: its bytes change at
/// any time, so nothing but raw pointers and atomics ever refers to them.
#[derive(Debug)]
pub(crate) struct MappedFile {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; every access to it is a raw copy or an atomic, and says what it needs.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps all of a file. It stays out of core dumps, and a writable one out of forked children.
    pub fn new(fd: BorrowedFd<'_>, len: u64, writable: bool) -> Result<Self, MemoryError> {
        Self::new_at(fd, 0, len, writable)
    }

    /// The same with a part of a file, from a whole page on.
    pub fn new_at(fd: BorrowedFd<'_>, offset: u64, len: u64, writable: bool) -> Result<Self, MemoryError> {
        let unfit = |reason| MemoryError::InvalidSize { bytes: len, reason };
        if page_size() as u64 != PAGE {
            return Err(unfit("this kernel's pages are not of 4 KiB (`getconf PAGESIZE`), as is needed"));
        }
        let len = usize::try_from(len).map_err(|_| unfit("larger than the address space"))?;
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, offset) };
        let base = base.map_err(|errno| MemoryError::os("mmap of a segment")(errno.into()))?;
        let base = NonNull::new(base.cast()).expect("mmap never gives page 0");
        let mapped = Self { base, len };
        mapped.advise_all(Advice::LinuxDontDump, "MADV_DONTDUMP")?;
        if writable {
            mapped.advise_all(Advice::LinuxDontFork, "MADV_DONTFORK")?;
        }
        // Only where the host's policy lets applications choose; elsewhere it has no effect.
        let _ = mapped.advise_all(Advice::LinuxHugepage, "MADV_HUGEPAGE");
        Ok(mapped)
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Makes the pages of a range that are missing, and fills its page tables. The kernel's error for memory that it
    /// cannot provide, in place of a signal at the first access.
    pub fn make_pages(&self, start: u64, end: u64) -> io::Result<()> {
        self.populate(start, end, Advice::LinuxPopulateWrite)
    }

    /// Fills the page tables of a range whose pages are made already, for stores too if the mapping is writable. With a
    /// load of a page the kernel maps the pages around it that are there, [`AROUND`] bytes at a time. In shared memory
    /// it does so with the mapping's own access, as it need not notice the first store. That takes a quarter of the
    /// time of asking for a store to each page. Where the kernel does not do so, the first accesses fill the tables.
    pub fn map_pages(&self, start: u64, end: u64) -> io::Result<()> {
        let pages = (start..end).step_by(AROUND).chain((end - start > PAGE).then(|| (end - 1) / PAGE * PAGE));
        for page in pages {
            self.populate(page, (page + PAGE).min(end), Advice::LinuxPopulateRead)?;
        }
        Ok(())
    }

    fn populate(&self, start: u64, end: u64, advice: Advice) -> io::Result<()> {
        assert!(start <= end && end <= self.len(), "{start}..{end} of {} bytes", self.len);
        if start == end {
            return Ok(());
        }
        loop {
            // SAFETY: inside the mapping; contents do not change.
            match unsafe { madvise(self.base().add(start as usize).cast(), (end - start) as usize, advice) } {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                // Before Linux 5.14: the first accesses make the pages.
                Err(rustix::io::Errno::INVAL) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn advise_all(&self, advice: Advice, what: &'static str) -> Result<(), MemoryError> {
        // SAFETY: the whole of a mapping of ours; none of the advices used changes contents.
        unsafe { madvise(self.base().cast(), self.len, advice) }.map_err(|errno| MemoryError::os(what)(errno.into()))
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // In a forked child something else may be mapped there.
        if !forked() {
            // SAFETY: mapped by `new`, and nothing refers to it any more.
            let _ = unsafe { munmap(self.base().cast(), self.len) };
        }
    }
}
