//! Memory that callers get from us: for their own data, aligned and populated.

use std::collections::BTreeMap;
use std::ptr;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::error::MemoryError;
use crate::layout::PAGE;
use crate::piece::ForeignRange;
use crate::{limits, memfd};

/// What was handed out and not taken back: address to length.
static HANDED_OUT: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Makes shared memory (a sealed memfd of its own) of at least `bytes`, whole
/// pages, populated and zero. Returns its address; [`free_host_memory`] ends it.
/// Limits of the process, its memory cgroup and its host are looked at first.
pub fn allocate_shared(bytes: u64) -> Result<usize, MemoryError> {
    let len = whole(bytes, PAGE)?;
    limits::check(len as u64, 0, false, PAGE)?;
    let fd = memfd::create("kv-host-memory", len as u64, false)?;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let made = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &fd, 0) };
    let base = made.map_err(|errno| MemoryError::os("mmap of host memory")(errno.into()))?;
    hand_out(base.addr(), len);
    Ok(base.expose_provenance())
}

/// The same for as long as the process lives.
pub fn leak_shared(bytes: u64) -> Result<ForeignRange, MemoryError> {
    let addr = allocate_shared(bytes)?;
    // No longer ours to give back: nobody can free what somebody else still uses.
    HANDED_OUT.lock().remove(&addr);
    // SAFETY: mapped, writable and never unmapped; no Rust object lives in it.
    Ok(unsafe { ForeignRange::new(addr, bytes as usize) })
}

/// Makes private zero memory of at least `bytes` in huge pages of the host's
/// pool or, where there are not enough, in ordinary ones that the kernel may
/// merge. Pages come with the first access.
pub fn allocate_huge(bytes: u64) -> Result<usize, MemoryError> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let huge = limits::huge_page_bytes().unwrap_or(PAGE);
    let len = whole(bytes, huge)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    if let Ok(base) = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE | MapFlags::HUGETLB) } {
        hand_out(base.addr(), len);
        return Ok(base.expose_provenance());
    }
    let len = whole(bytes, PAGE)?;
    limits::check(len as u64, 0, false, PAGE)?;
    // SAFETY: as above.
    let made = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    let base = made.map_err(|errno| MemoryError::os("mmap of host memory")(errno.into()))?;
    // SAFETY: the mapping just made; contents do not change. Where the host forbids it, small pages do as well.
    let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
    hand_out(base.addr(), len);
    Ok(base.expose_provenance())
}

/// Takes memory back that one of the above made; false if there is none at that address.
///
/// # Safety
/// Nobody uses that memory any more.
pub unsafe fn free_host_memory(addr: usize) -> bool {
    let Some(len) = HANDED_OUT.lock().remove(&addr) else { return false };
    // SAFETY: mapped by one of the above and given up by its user.
    let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(addr), len) };
    true
}

/// Asks the kernel for huge pages inside a range that is about to be filled for
/// the first time; a hint, and none at all for short ranges.
///
/// # Safety
/// The range is memory of the caller's.
pub unsafe fn prefer_huge_pages(base: *mut u8, len: usize) {
    const WORTH_IT: usize = 4 << 20;
    if len < WORTH_IT {
        return;
    }
    let skipped = base.addr().next_multiple_of(PAGE as usize) - base.addr();
    let inside = (len - skipped) & !(PAGE as usize - 1);
    // SAFETY: whole pages inside the caller's memory; contents do not change.
    let _ = unsafe { madvise(base.wrapping_add(skipped).cast(), inside, Advice::LinuxHugepage) };
}

fn hand_out(addr: usize, len: usize) {
    HANDED_OUT.lock().insert(addr, len);
}

fn whole(bytes: u64, page: u64) -> Result<usize, MemoryError> {
    let reason = if bytes == 0 { "it is empty" } else { "larger than the address space" };
    let rounded = bytes.checked_next_multiple_of(page).filter(|&rounded| rounded > 0 && rounded < 1 << 47);
    rounded.map(|rounded| rounded as usize).ok_or(MemoryError::InvalidSize { bytes, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(addr: usize, len: usize) {
        let base: *mut u8 = ptr::with_exposed_provenance_mut(addr);
        for at in [0, len / 2, len - 1] {
            // SAFETY: inside memory of at least `len` bytes that this test alone has.
            unsafe {
                assert_eq!(base.add(at).read(), 0);
                base.add(at).write(7);
            }
        }
    }

    #[test]
    fn memory_is_zero_whole_pages_and_taken_back_once() {
        for allocate in [allocate_shared, allocate_huge] {
            let addr = allocate(100_001).unwrap();
            assert_eq!(addr % PAGE as usize, 0);
            touch(addr, 102_400);
            // SAFETY: nobody else has it.
            unsafe {
                assert!(!free_host_memory(addr + 4096));
                assert!(free_host_memory(addr));
                assert!(!free_host_memory(addr));
            }
        }
    }

    #[test]
    fn sizes_that_cannot_be_had_are_errors() {
        for allocate in [allocate_shared, allocate_huge] {
            for bytes in [0, 1 << 46, u64::MAX] {
                assert!(allocate(bytes).is_err(), "{bytes}");
            }
        }
    }
}
