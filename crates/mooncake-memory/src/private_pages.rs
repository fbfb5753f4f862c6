//! Whole pages of this process alone, for I/O that wants aligned memory and may go on after its caller.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Zeroed memory that begins at a page and that a forked child does not have: what the kernel still writes there for
/// this process reaches no copy of it.
#[derive(Debug)]
pub struct PrivatePages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that belongs to the owner of the pages.
unsafe impl Send for PrivatePages {}
// SAFETY: shared references only read it.
unsafe impl Sync for PrivatePages {}

impl PrivatePages {
    /// `len` bytes, one at least.
    pub fn new(len: usize) -> io::Result<PrivatePages> {
        assert!(len > 0, "no bytes");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("a mapping is not at address 0");
        let pages = PrivatePages { base, len };
        // SAFETY: the mapping made above; its content stays.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(pages)
    }
}

impl Drop for PrivatePages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Deref for PrivatePages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable and zeroed for `len` bytes as long as this lives; changes need `&mut`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for PrivatePages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped writable for `len` bytes as long as this lives, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_aligned_and_ones_own() {
        let mut pages = PrivatePages::new(10_000).unwrap();
        assert!(pages.iter().all(|byte| *byte == 0));
        assert_eq!((pages.len(), pages.as_ptr().addr() % 4096), (10_000, 0));
        pages[9_999] = 7;
        assert_eq!(pages[9_999], 7);
    }
}
