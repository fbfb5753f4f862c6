//! Memory that may not be there.
//!
//! A pointer from a caller in another language may be stale, or never have been
//! host memory. Copying through it with plain loads would end the process with
//! a signal; the kernel answers `EFAULT` instead.

use std::io;
use std::sync::OnceLock;

use crate::caller::registry;
use crate::device;
use crate::error::CopyError;
use crate::file::mapped_file::PAGE;
use crate::range::ForeignRange;

/// Bytes per step through the kernel.
pub(crate) const KERNEL_STEP_BYTES: usize = 16 * 1024;

/// Copies from foreign memory into ours.
pub(crate) fn read(from: *const u8, into: &mut [u8]) -> Result<(), CopyError> {
    let len = into.len();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: len };
    transfer(from.addr(), local, |local, remote| {
        // SAFETY: the local range is exclusively borrowed; the kernel checks the remote one.
        unsafe { libc::process_vm_readv(own_pid(), local, 1, remote, 1, 0) }
    })
}

/// Copies ours into foreign memory.
pub(crate) fn write(from: &[u8], into: *mut u8) -> Result<(), CopyError> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    transfer(into.addr(), local, |local, remote| {
        // SAFETY: the local range is only read; the kernel checks the remote one, which the maker of the
        // `ForeignRange` gave away.
        unsafe { libc::process_vm_writev(own_pid(), local, 1, remote, 1, 0) }
    })
}

fn transfer(
    addr: usize,
    local: libc::iovec,
    call: impl Fn(*const libc::iovec, *const libc::iovec) -> libc::ssize_t,
) -> Result<(), CopyError> {
    let len = local.iov_len;
    let mut done = 0;
    while done < len {
        let ours = libc::iovec { iov_base: local.iov_base.wrapping_byte_add(done), iov_len: len - done };
        let theirs =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(addr.wrapping_add(done)), iov_len: len - done };
        match call(&raw const ours, &raw const theirs) {
            copied if copied > 0 => done += copied as usize,
            0 => return Err(fault(addr, len)),
            _ => {
                let source = io::Error::last_os_error();
                match source.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EFAULT | libc::EINVAL) => return Err(fault(addr, len)),
                    // A seccomp filter, or a kernel without the call.
                    _ => return Err(CopyError::Unchecked { addr, source }),
                }
            }
        }
    }
    Ok(())
}

/// Why the kernel cannot reach a range: it is not there, or it may be a device's
/// whose driver could not tell.
fn fault(addr: usize, len: usize) -> CopyError {
    match device::place_of(addr, len) {
        Ok(_) => CopyError::Fault { addr, len },
        Err(e) => e.into(),
    }
}

fn own_pid() -> libc::pid_t {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

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

impl ForeignRange {
    /// Copies the first bytes of the range out of it, fault-safely. Panics if there are fewer.
    pub fn read_into(&self, bytes: &mut [u8]) -> Result<(), CopyError> {
        assert!(bytes.len() <= self.len, "{} bytes of a range of {}", bytes.len(), self.len);
        read(std::ptr::with_exposed_provenance(self.addr), bytes)
    }

    /// Copies bytes to the start of the range, fault-safely. Panics if there is no room for them.
    pub fn write_from(&self, bytes: &[u8]) -> Result<(), CopyError> {
        assert!(bytes.len() <= self.len, "{} bytes for a range of {}", bytes.len(), self.len);
        write(bytes, std::ptr::with_exposed_provenance_mut(self.addr))
    }
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

    #[test]
    fn memory_is_copied_both_ways() {
        let source: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        let mut copy = vec![0; source.len()];
        read(source.as_ptr(), &mut copy).unwrap();
        assert_eq!(copy, source);
        let mut back = vec![0; source.len()];
        write(&copy, back.as_mut_ptr()).unwrap();
        assert_eq!(back, source);
        check_usable(source.as_ptr().addr(), source.len(), Touch::Load, Trial::Possible).unwrap();
        check_usable(back.as_ptr().addr(), back.len(), Touch::Store, Trial::Possible).unwrap();
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_no_signal() {
        let mut bytes = [1; 64];
        for addr in [8, usize::MAX - 100, 1 << 60] {
            let ptr = std::ptr::without_provenance_mut::<u8>(addr);
            assert!(matches!(read(ptr, &mut bytes), Err(CopyError::Fault { .. })), "{addr:#x}");
            assert!(matches!(write(&bytes, ptr), Err(CopyError::Fault { .. })), "{addr:#x}");
            assert!(
                matches!(check_usable(addr, 64, Touch::Load, Trial::Possible), Err(CopyError::Fault { .. })),
                "{addr:#x}"
            );
        }
    }

    /// Three pages of sevens, the middle one out of reach.
    fn hole() -> usize {
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
    fn memory_that_ends_in_the_middle_is_not_copied_in_part_and_called_whole() {
        let (page, addr) = (PAGE as usize, hole());
        for (from, len, there) in [
            (0, page, true),
            (2 * page, page, true),
            (0, page + 1, false),
            (page - 1, 2, false),
            (0, 3 * page, false),
            (page, 1, false),
            (2 * page - 1, 2, false),
        ] {
            let at = std::ptr::without_provenance_mut::<u8>(addr + from);
            let mut bytes = vec![0; len];
            let read = read(at, &mut bytes);
            assert_eq!(read.is_ok(), there, "{from} {len}: {read:?}");
            assert!(!there || bytes.iter().all(|byte| *byte == 7));
            assert_eq!(write(&vec![7; len], at).is_ok(), there, "{from} {len}");
            for touch in [Touch::Load, Touch::Store] {
                assert_eq!(check_usable(addr + from, len, touch, Trial::Possible).is_ok(), there, "{from} {len}");
            }
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
