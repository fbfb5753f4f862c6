//! Whole pages of this process alone, for I/O that wants aligned memory and may go on after its caller.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Memory, zeroed at first, that begins at a page and that a forked child does not have: what the kernel still writes
/// there for this process reaches no copy of it.
#[derive(Debug)]
pub struct PrivatePages {
    base: NonNull<u8>,
    len: usize,
    /// Which this is a part of.
    _mapping: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that belongs to the owner of the pages.
unsafe impl Send for PrivatePages {}
// SAFETY: shared references only read it.
unsafe impl Sync for PrivatePages {}
// SAFETY: it is unmapped by whichever thread has it last, and reached by nothing but its parts.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl PrivatePages {
    /// So many of `len` bytes each, a multiple of 4,096, side by side: in huge pages where the host has any, which a
    /// disk fills with one operation. Of small pages it takes one each, and a megabyte of them may be too many for one
    /// request. Memory is taken when they are first used.
    pub fn parts(count: usize, len: usize) -> io::Result<Vec<PrivatePages>> {
        assert!(len > 0 && len.is_multiple_of(4_096), "{len} bytes");
        let mapping = Arc::new(Mapping::new(count * len)?);
        let first = mapping.first(count * len);
        let parts = (0..count).map(|nth| {
            // SAFETY: inside the mapping.
            let base = unsafe { first.add(nth * len) };
            PrivatePages { base, len, _mapping: mapping.clone() }
        });
        Ok(parts.collect())
    }
}

impl Mapping {
    /// With room for so many bytes behind the first huge page.
    fn new(bytes: usize) -> io::Result<Mapping> {
        let len = if bytes < HUGE { bytes } else { bytes + HUGE };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("a mapping is not at address 0");
        let mapping = Mapping { base, len };
        // SAFETY: the mapping made above; its content stays.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        // SAFETY: the same. A hint: where the host forbids it, small pages do as well.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(mapping)
    }

    /// The first of so many bytes.
    fn first(&self, bytes: usize) -> NonNull<u8> {
        match self.len - bytes {
            0 => self.base,
            // SAFETY: the mapping is longer by that.
            _ => unsafe { self.base.add(self.base.addr().get().next_multiple_of(HUGE) - self.base.addr().get()) },
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and no part of it is there any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Deref for PrivatePages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable and zeroed for `len` bytes as long as this lives, which has them alone; changes need
        // `&mut`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for PrivatePages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped writable for `len` bytes as long as this lives, which has them alone, and borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 1_088 << 10;

    #[test]
    fn parts_are_zero_aligned_and_ones_own() {
        let mut parts = PrivatePages::parts(3, 8_192).unwrap();
        for (nth, part) in parts.iter_mut().enumerate() {
            assert!(part.iter().all(|byte| *byte == 0));
            assert_eq!((part.len(), part.as_ptr().addr() % 4096), (8_192, 0));
            part.fill(nth as u8 + 1);
        }
        // What is left of them stays.
        drop(parts.remove(1));
        assert!(parts[0].iter().all(|byte| *byte == 1) && parts[1].iter().all(|byte| *byte == 3));
    }

    #[test]
    fn many_parts_lie_in_whole_huge_pages() {
        let parts = PrivatePages::parts(32, PART).unwrap();
        assert_eq!(parts[0].as_ptr().addr() % HUGE, 0);
        assert_eq!((parts[31].as_ptr().addr() + PART) % HUGE, 0);
        assert!(parts.windows(2).all(|two| two[0].as_ptr().addr() + PART == two[1].as_ptr().addr()));
    }
}
