//! Whether foreign memory can be used directly: pages of it are tried out, as a load or a store would.

use std::io;
use std::sync::OnceLock;

use crate::caller::registry;
use crate::error::CopyError;
use crate::file::mapped_file::PAGE;

/// What is to be done with memory that is used directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Load,
    Store,
}

/// Whether the kernel lets pages of a mapping be tried out. It does not for pages of a device's memory: what a driver
/// maps into the process (`VM_IO`, `VM_PFNMAP`), as pinned memory of some drivers is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    /// It does, or that is not known yet.
    Possible,
    /// It was found not to when the memory was registered.
    Impossible,
}

/// How mappings can be checked, by an address in each.
pub(crate) fn trial_of(addresses: impl IntoIterator<Item = usize>) -> Trial {
    let page = PAGE as usize;
    let refuses = |addr: usize| try_out(addr & !(page - 1), page, Touch::Load) == Err(libc::EINVAL);
    if can_try_out() && addresses.into_iter().any(refuses) { Trial::Impossible } else { Trial::Possible }
}

/// Distance of the pages that are tried out inside a long range: half a
/// microsecond for each, where the copy takes a hundred.
const STRIDE: usize = 2 << 20;

/// Up to this length every page is tried out, in one call, which takes less
/// than asking for the mapping and trying two pages: pieces of a gathered object are short. They may begin anywhere in
/// a page: arrays of numpy and torch begin some bytes behind the start of theirs.
const SHORT: usize = 64 << 10;

/// Whether a range can be used directly at this moment: all of it is mapped,
/// and its first and last page, and one in each [`STRIDE`] between them, can be
/// accessed. What an allocator or a caller does to memory that it gives up, it
/// does to all of it; a page that is made inaccessible inside a range longer
/// than [`SHORT`] is not found. Where trying out is [`Trial::Impossible`], only that all of it is mapped can be found.
pub(crate) fn check_usable(addr: usize, len: usize, touch: Touch, trial: Trial) -> Result<(), CopyError> {
    if len == 0 {
        return Ok(());
    }
    let fault = || CopyError::Fault { addr, len };
    let page = PAGE as usize;
    let (start, end) = pages_of(addr, len).ok_or_else(fault)?;
    let tried_out = trial == Trial::Possible && can_try_out();
    if len <= SHORT && tried_out {
        return judged(try_out(start, end - start, touch), start, end, touch).ok_or_else(fault);
    }
    // Only walks the list of mappings: unlike `mincore` it costs the same for any length.
    // SAFETY: nothing is changed; the kernel checks the range.
    let rc = unsafe { libc::msync(std::ptr::without_provenance_mut(start), end - start, libc::MS_ASYNC) };
    if rc != 0 {
        return Err(fault());
    }
    if !tried_out {
        return Ok(());
    }
    let last = end - page;
    let tried = (start..last).step_by(STRIDE).chain([last]).try_for_each(|at| try_out(at, page, touch));
    judged(tried, start, end, touch).ok_or_else(fault)
}

/// Whether [`check_usable`] tries out every page of such a range, where that can be done.
pub(crate) fn is_tried_out_whole(addr: usize, len: usize) -> bool {
    len > 0 && len <= SHORT && pages_of(addr, len).is_some()
}

/// Tries out every page of a range, which has some: true if all of them can be accessed.
pub(crate) fn can_access_all(addr: usize, len: usize, touch: Touch) -> bool {
    can_try_out() && pages_of(addr, len).is_some_and(|(start, end)| try_out(start, end - start, touch).is_ok())
}

/// The pages that a range touches, by the first one's address and the end of the last.
fn pages_of(addr: usize, len: usize) -> Option<(usize, usize)> {
    let page = PAGE as usize;
    Some((addr & !(page - 1), addr.checked_add(len)?.checked_next_multiple_of(page)?))
}

/// What trying pages of a range out says about it.
fn judged(tried: Result<(), i32>, start: usize, end: usize, touch: Touch) -> Option<()> {
    match tried {
        Ok(()) => Some(()),
        // No such access; or memory of a device, which cannot be tried out. The list of mappings knows.
        Err(libc::EINVAL) => listed(start, end, touch).then_some(()),
        Err(_) => None,
    }
}

/// Makes pages present as a load or a store would, and touches no content. The error is the kernel's.
fn try_out(start: usize, len: usize, touch: Touch) -> Result<(), i32> {
    let advice = match touch {
        Touch::Load => libc::MADV_POPULATE_READ,
        Touch::Store => libc::MADV_POPULATE_WRITE,
    };
    #[cfg(test)]
    tests::TRIED.set(tests::TRIED.get() + 1);
    loop {
        // SAFETY: contents do not change; the kernel checks the pages.
        if unsafe { libc::madvise(std::ptr::without_provenance_mut(start), len, advice) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            errno => return Err(errno.unwrap_or(libc::EFAULT)),
        }
    }
}

/// Before Linux 5.14 pages cannot be tried out.
fn can_try_out() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let here = 0_u8;
        try_out((&raw const here).addr() & !(PAGE as usize - 1), PAGE as usize, Touch::Load).is_ok()
    })
}

/// Whether /proc/self/maps lists the range as readable, and for a store as writable.
fn listed(start: usize, end: usize, touch: Touch) -> bool {
    #[cfg(test)]
    tests::LISTED.set(tests::LISTED.get() + 1);
    let found = std::fs::read_to_string("/proc/self/maps").ok().and_then(|maps| registry::probe(&maps, start, end));
    found.is_some_and(|found| found.writable || touch == Touch::Load)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::caller::piece::{Source, crc_of_sources};
    use crate::caller::registry::{Memory, Registry};
    use crate::crc32c;
    use crate::range::ForeignRange;

    thread_local! {
        /// How often this thread has read the list of mappings.
        pub(super) static LISTED: Cell<usize> = const { Cell::new(0) };
        /// How often it has tried pages out.
        pub(crate) static TRIED: Cell<usize> = const { Cell::new(0) };
    }

    /// A page that the kernel maps into every process as a driver maps a device's: it cannot be tried out.
    fn untriable_page() -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vvar]"))?;
        usize::from_str_radix(line.split('-').next()?, 16).ok()
    }

    #[test]
    fn registered_memory_that_cannot_be_tried_out_is_looked_up_once() {
        let Some(addr) = untriable_page() else { return eprintln!("skipped: this kernel maps no [vvar]") };
        // SAFETY: the kernel's, only read, and there for as long as the process.
        let page = unsafe { ForeignRange::new(addr, PAGE as usize) };
        let registry = Registry::new();
        registry.register(page).unwrap();
        // SAFETY: a part of it.
        let found = registry.memory_of(unsafe { ForeignRange::new(addr, 64) }, false).unwrap();
        assert_eq!(found, Some(Memory::Host { writable: false, trial: Trial::Impossible }));
        LISTED.set(0);
        for at in (0..4096).step_by(64) {
            // SAFETY: a part of it.
            let piece = unsafe { ForeignRange::new(addr + at, 64) };
            crc_of_sources(0, &[Source::foreign(piece, &registry).unwrap()], 0, 64).unwrap();
        }
        assert_eq!(LISTED.get(), 0, "each look costs as much as the process has mappings");
        // What nobody has registered is looked up each time: nothing is remembered of it.
        check_usable(addr, 64, Touch::Load, Trial::Possible).unwrap();
        assert_eq!(LISTED.get(), 1);
        assert!(check_usable(addr, 64, Touch::Store, Trial::Possible).is_err());
    }

    #[test]
    fn memory_that_cannot_be_tried_out_is_missed_when_it_is_gone() {
        let page = PAGE as usize;
        // SAFETY: a fresh mapping, its middle page unmapped again, and nothing else uses it.
        let addr = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let made = libc::mmap(std::ptr::null_mut(), 3 * page, libc::PROT_READ, flags, -1, 0);
            assert_ne!(made, libc::MAP_FAILED);
            assert_eq!(libc::munmap(made.wrapping_byte_add(page), page), 0);
            made.addr()
        };
        for (from, len, there) in [(0, page, true), (0, page + 1, false), (page - 1, 2, false), (2 * page, 8, true)] {
            let checked = check_usable(addr + from, len, Touch::Load, Trial::Impossible);
            assert_eq!(checked.is_ok(), there, "{from} {len}");
        }
    }

    #[test]
    fn ordinary_memory_is_tried_out_however_it_is_registered() {
        let bytes = vec![7_u8; 300_000];
        let registry = Registry::new();
        // SAFETY: the test's own.
        let range = unsafe { ForeignRange::new(bytes.as_ptr().expose_provenance(), bytes.len()) };
        registry.register(range).unwrap();
        let found = registry.memory_of(range, true).unwrap();
        assert_eq!(found, Some(Memory::Host { writable: true, trial: Trial::Possible }));
        let crc = crc_of_sources(0, &[Source::foreign(range, &registry).unwrap()], 0, range.len as u64).unwrap();
        assert_eq!(crc, crc32c(&bytes));
    }

    /// Three pages of sevens, the middle one out of reach.
    pub(crate) fn hole() -> usize {
        let page = PAGE as usize;
        // SAFETY: a fresh mapping, and nothing else uses it.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let made = libc::mmap(std::ptr::null_mut(), 3 * page, access, flags, -1, 0);
            assert_ne!(made, libc::MAP_FAILED);
            made.cast::<u8>().write_bytes(7, 3 * page);
            assert_eq!(libc::mprotect(made.wrapping_byte_add(page), page, libc::PROT_NONE), 0);
            made.addr()
        }
    }

    #[test]
    fn the_list_of_mappings_allows_stores_to_writable_memory_alone() {
        static CONSTANT: [u8; 64] = [7; 64];
        let (here, constant) = ([0_u8; 64], CONSTANT.as_ptr().addr());
        let here = here.as_ptr().addr();
        assert!(listed(here, here + 64, Touch::Store) && listed(here, here + 64, Touch::Load));
        assert!(listed(constant, constant + 64, Touch::Load) && !listed(constant, constant + 64, Touch::Store));
        let hole = hole() + PAGE as usize;
        assert!(!listed(hole, hole + 1, Touch::Load) && !listed(hole - 1, hole + 1, Touch::Store));
    }
}
