//! Large pieces of memory that are used again: new ones cost the kernel's
//! zeroing of their pages, which takes as long as filling them does.

use std::ptr::{self, NonNull};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Steps of sizes, so that what comes back fits again: two huge pages.
const STEP_BYTES: usize = 4 << 20;

/// Bytes before the first one that is handed out. A tensor's header has 304
/// bytes: so its data begins at a cache line.
const LEAD: usize = 16;

/// Most bytes that are kept for the next use.
const KEPT_BYTES_MAX: usize = 256 << 20;

static KEPT: Mutex<Vec<Region>> = Mutex::new(Vec::new());

/// Private memory with any content, given to the next user when it is dropped.
#[derive(Debug)]
pub struct Recycled {
    region: Option<Region>,
}

#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that belongs to the owner of the region.
unsafe impl Send for Region {}
// SAFETY: it is only reached through raw pointers, whose users answer for what they do.
unsafe impl Sync for Region {}

impl Recycled {
    /// Memory of at least `bytes`, larger by a few MiB at most; `None` when there is none.
    pub fn take(bytes: usize) -> Option<Self> {
        let len = bytes.checked_add(LEAD)?.checked_next_multiple_of(STEP_BYTES)?;
        let kept = {
            let mut kept = KEPT.lock();
            kept.iter().position(|region| region.len == len).map(|at| kept.swap_remove(at))
        };
        Some(Self { region: Some(kept.or_else(|| Region::new(len))?) })
    }

    /// First byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_ref().expect("it is taken at the drop only").base.as_ptr().wrapping_add(LEAD)
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else { return };
        let mut kept = KEPT.lock();
        // The oldest make room: what is asked for now is likely to be asked for again.
        kept.push(region);
        let mut total: usize = kept.iter().map(|region| region.len).sum();
        while total > KEPT_BYTES_MAX {
            total -= kept.remove(0).len;
        }
    }
}

impl Region {
    fn new(len: usize) -> Option<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let made = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?
        };
        // SAFETY: the mapping just made; a hint, contents do not change.
        let _ = unsafe { madvise(made, len, Advice::LinuxHugepage) };
        Some(Self { base: NonNull::new(made.cast())?, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing has the region any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: the kept regions are the process's.
    #[test]
    fn memory_comes_back_and_no_more_is_kept_than_said() {
        let first = Recycled::take(5 << 20).unwrap();
        let address = first.as_mut_ptr();
        assert_eq!((address.addr() + 304) % 64, 0);
        // SAFETY: inside memory of at least so many bytes.
        unsafe { address.add((5 << 20) - 1).write(7) };
        drop(first);
        let again = Recycled::take(6 << 20).unwrap();
        assert_eq!(again.as_mut_ptr(), address);
        assert_ne!(Recycled::take(5 << 20).unwrap().as_mut_ptr(), address);

        let many: Vec<_> = (1..20).map(|at| Recycled::take(at * (8 << 20)).unwrap()).collect();
        drop(many);
        drop(Recycled::take(KEPT_BYTES_MAX * 2).unwrap());
        assert!(KEPT.lock().iter().map(|region| region.len).sum::<usize>() <= KEPT_BYTES_MAX);
        assert!(Recycled::take(usize::MAX).is_none() && Recycled::take(1 << 60).is_none());
    }
}
