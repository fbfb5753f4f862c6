//! Ranges of foreign memory that the caller registered.

use std::fs;

use parking_lot::RwLock;

use crate::addresses::{AddressHold, hold_addresses};
use crate::caller::reach::{RunsOut, check_reach};
use crate::caller::trial::{self, Trial};
use crate::device::{self, Location};
use crate::error::RegisterError;
use crate::range::ForeignRange;

/// The registered ranges of one store. There are a few of them, looked up for
/// every piece of foreign memory.
#[derive(Debug, Default)]
pub struct Registry {
    /// Sorted by address; they may overlap.
    ranges: RwLock<Vec<Registered>>,
}

#[derive(Debug)]
struct Registered {
    addr: usize,
    end: usize,
    memory: Memory,
    /// Of memory of ours: the caller may free it before it unregisters it.
    addresses: Option<AddressHold>,
}

/// What a registered range is, as it was found when it was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Host { writable: bool, trial: Trial },
    Device(i32),
}

impl Registry {
    /// A registry without ranges.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a range after a look at whether all of it is readable memory of
    /// this process, where gets store to it directly if it is writable too, or
    /// memory of a device.
    pub fn register(&self, range: ForeignRange) -> Result<(), RegisterError> {
        let (addr, len) = (range.addr, range.len);
        let end = addr.checked_add(len).filter(|_| addr != 0 && len != 0);
        let end = end.ok_or(RegisterError::Invalid { addr, len })?;
        let addresses = hold_addresses(addr, len);
        let memory = match device::location_of(addr, len)? {
            Location::Device(device) => Memory::Device(device),
            Location::Host | Location::Unknown => {
                let maps = fs::read_to_string("/proc/self/maps").map_err(|source| RegisterError::Probe {
                    addr,
                    len,
                    source,
                })?;
                let found = probe(&maps, addr, end).ok_or(RegisterError::NotReadable { addr, len })?;
                // Once: for its pieces there is no time to look.
                let trial = trial::trial_of(found.starts);
                Memory::Host { writable: found.writable, trial }
            }
        };
        let mut ranges = self.ranges.write();
        match ranges.binary_search_by_key(&addr, |range| range.addr) {
            Ok(at) => Err(RegisterError::Already { addr, registered: ranges[at].end - addr }),
            Err(at) => {
                ranges.insert(at, Registered { addr, end, memory, addresses });
                Ok(())
            }
        }
    }

    /// Forgets the range that starts at an address; false if there is none.
    pub fn unregister(&self, addr: usize) -> bool {
        let mut ranges = self.ranges.write();
        let found = ranges.binary_search_by_key(&addr, |range| range.addr);
        found.map(|at| ranges.remove(at)).is_ok()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.read().len()
    }

    /// No range at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses bytes that begin in a registered range and run out of it, for a caller that touches them in another way
    /// than as a [`Source`](crate::Source) or a [`Destination`](crate::Destination).
    pub fn check(&self, range: ForeignRange) -> Result<(), RunsOut> {
        self.memory_of(range, false).map(drop)
    }

    /// What a registered range that all bytes lie in is; to be `writable`, a range of the host must have been so. None
    /// of one that was freed: the kernel finds that nothing is there, on hosts, too, where pages cannot be tried out.
    /// Bytes that begin in a registered range and run out of it are refused.
    pub(crate) fn memory_of(&self, range: ForeignRange, writable: bool) -> Result<Option<Memory>, RunsOut> {
        let ForeignRange { addr, len } = range;
        let ranges = self.ranges.read();
        let (before, behind) = ranges.split_at(ranges.partition_point(|range| range.addr <= addr));
        // The nearest one is nearly always it.
        let fits = |end: usize| {
            before.iter().rev().find(|range| {
                let is_freed = range.addresses.as_ref().is_some_and(AddressHold::is_freed);
                let is_read_only = matches!(range.memory, Memory::Host { writable: false, .. });
                end <= range.end && !is_freed && !(writable && is_read_only)
            })
        };
        if let Some(range) = addr.checked_add(len).and_then(fits) {
            return Ok(Some(range.memory));
        }
        let bounds = |range: &Registered| (range.addr, range.end);
        check_reach(range, before.iter().map(bounds), behind.iter().map(bounds))?;
        Ok(None)
    }
}

/// What the list of mappings says about a range.
pub(crate) struct Found {
    pub writable: bool,
    /// An address of the range in each of its mappings.
    pub starts: Vec<usize>,
}

/// Looks a range up; `None` unless all of it is readable.
pub(crate) fn probe(maps: &str, addr: usize, end: usize) -> Option<Found> {
    let mut at = addr;
    let (mut writable, mut starts) = (true, Vec::new());
    for line in maps.lines() {
        let mut fields = line.split(' ');
        let (bounds, access) = (fields.next()?, fields.next()?);
        let (from, to) = bounds.split_once('-')?;
        let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        if to <= at {
            continue;
        }
        if from > at || !access.starts_with('r') {
            return None;
        }
        writable &= access.as_bytes().get(1) == Some(&b'w');
        starts.push(at);
        at = to;
        if at >= end {
            return Some(Found { writable, starts });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    impl Registry {
        fn contains(&self, addr: usize, len: usize) -> bool {
            self.found(addr, len, false).is_ok_and(|found| found.is_some())
        }

        fn contains_writable(&self, addr: usize, len: usize) -> bool {
            self.found(addr, len, true).is_ok_and(|found| found.is_some())
        }

        fn found(&self, addr: usize, len: usize, writable: bool) -> Result<Option<Memory>, RunsOut> {
            // SAFETY: only its numbers are used.
            self.memory_of(unsafe { ForeignRange::new(addr, len) }, writable)
        }
    }

    #[test]
    fn registered_memory_of_ours_that_was_freed_is_no_memory_and_nobody_elses() {
        use mooncake_test_support::mapped_range;

        use crate::caller::piece::{Source, crc_of_sources};
        use crate::error::CopyError;
        use crate::{allocate_huge, allocate_shared, free_host_memory};

        for allocate in [allocate_shared, allocate_huge] {
            let (registry, addr) = (Registry::new(), allocate(64 << 10).unwrap());
            // SAFETY: this test's alone.
            let part = unsafe { ForeignRange::new(addr + 8192, 4096) };
            registry.register(part).unwrap();
            assert!(registry.contains_writable(part.addr, part.len));
            // SAFETY: nothing uses it.
            assert!(unsafe { free_host_memory(addr) });
            // As on hosts where pages cannot be tried out, which would not find it.
            assert!(!registry.contains(part.addr, part.len) && !registry.contains_writable(part.addr + 9, 7));
            let source = Source::foreign(part, &registry).unwrap();
            let summed = crc_of_sources(0, &[source], 0, 4096);
            assert!(matches!(summed, Err(CopyError::Fault { .. })), "{summed:?}");
            for at in [addr, part.addr, addr + (64 << 10) - 1] {
                assert_eq!(mapped_range(at).unwrap().access, "---");
            }
            assert!(registry.unregister(part.addr));
        }
    }

    fn range(bytes: &[u8]) -> ForeignRange {
        // SAFETY: only its address is used in these tests.
        unsafe { ForeignRange::new(bytes.as_ptr().addr(), bytes.len()) }
    }

    #[test]
    fn only_memory_that_is_there_can_be_registered() {
        let registry = Registry::new();
        let bytes = vec![0; 100_000];
        registry.register(range(&bytes)).unwrap();
        assert!(matches!(registry.register(range(&bytes)), Err(RegisterError::Already { registered: 100_000, .. })));
        for (addr, len) in [(0, 10), (4096, 0), (usize::MAX, 2)] {
            // SAFETY: never used.
            let nothing = unsafe { ForeignRange::new(addr, len) };
            assert!(matches!(registry.register(nothing), Err(RegisterError::Invalid { .. })));
        }
        // SAFETY: never used.
        let unmapped = unsafe { ForeignRange::new(64, 64) };
        assert!(matches!(registry.register(unmapped), Err(RegisterError::NotReadable { .. })));
        assert_eq!(registry.len(), 1);
    }

    #[test]
    fn a_piece_belongs_to_a_range_only_as_a_whole() {
        let registry = Registry::new();
        let bytes = vec![0_u8; 10_000];
        let addr = bytes.as_ptr().addr();
        registry.register(range(&bytes[..5000])).unwrap();
        registry.register(range(&bytes[100..200])).unwrap();
        assert!(registry.contains(addr, 5000) && registry.contains_writable(addr + 150, 4850));
        assert!(!registry.contains(addr, 5001) && !registry.contains(addr.wrapping_sub(1), 2));
        assert!(!registry.contains(addr, usize::MAX));
        assert!(registry.unregister(addr) && !registry.unregister(addr));
        assert!(registry.contains(addr + 100, 100) && !registry.contains(addr + 100, 101));
        assert!(registry.unregister(addr + 100) && registry.is_empty());
    }

    #[test]
    fn a_piece_that_begins_in_a_range_and_leaves_all_of_them_is_refused() {
        let registry = Registry::new();
        let bytes = vec![0_u8; 10_000];
        let addr = bytes.as_ptr().addr();
        registry.register(range(&bytes[..5000])).unwrap();
        let out = RunsOut { addr: addr + 4996, len: 8, start: addr, end: addr + 5000 };
        assert_eq!(registry.found(addr + 4996, 8, true), Err(out));
        assert_eq!(registry.found(addr + 1, usize::MAX, false).unwrap_err().end, addr + 5000);
        // Where its neighbour is registered too, it is memory that the caller named, though of no one range.
        registry.register(range(&bytes[5000..6000])).unwrap();
        assert_eq!(registry.found(addr + 4996, 8, true), Ok(None));
        assert_eq!(registry.found(addr + 4996, 1005, true).unwrap_err().end, addr + 6000);
        // Nobody knows where other memory ends.
        assert_eq!(registry.found(addr + 6000, 4000, true), Ok(None));
        assert!(registry.unregister(addr) && registry.unregister(addr + 5000));
        assert_eq!(registry.found(addr + 4996, 8, true), Ok(None));
    }

    #[test]
    fn read_only_memory_is_readable_only() {
        static CONSTANT: [u8; 64] = [7; 64];
        let registry = Registry::new();
        registry.register(range(&CONSTANT)).unwrap();
        assert!(registry.contains(CONSTANT.as_ptr().addr(), 64));
        assert!(!registry.contains_writable(CONSTANT.as_ptr().addr(), 64));
    }

    proptest! {
        // Each registration reads the list of mappings.
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_piece_of_random_ranges_is_refused_where_some_of_its_bytes_are_registered_from_the_first_on_and_not_all(
            ranges in vec((0_usize..60, 1_usize..17), 0..7),
            given_up in vec(0_usize..60, 0..4),
            pieces in vec((0_usize..80, 0_usize..40), 20),
        ) {
            let bytes = [0_u8; 120];
            let (registry, start) = (Registry::new(), bytes.as_ptr().addr());
            let mut registered = BTreeMap::new();
            for (at, len) in ranges {
                let fresh = !registered.contains_key(&at);
                prop_assert_eq!(registry.register(range(&bytes[at..at + len])).is_ok(), fresh);
                registered.entry(at).or_insert(len);
            }
            for at in given_up {
                prop_assert_eq!(registry.unregister(start + at), registered.remove(&at).is_some());
            }
            let holds = |byte: usize| registered.iter().any(|(at, len)| (*at..at + len).contains(&byte));
            for (at, len) in pieces {
                let found = registry.found(start + at, len, true);
                let refused = len > 0 && holds(at) && !(at..at + len).all(holds);
                prop_assert_eq!(found.is_err(), refused, "{} bytes at {} of {:?}", len, at, registered);
                let of_one = registered.iter().any(|(from, count)| *from <= at && at + len <= from + count);
                prop_assert_eq!(matches!(found, Ok(Some(_))), of_one);
            }
        }
    }

    /// Pages with these rights, one after another, and `n` for none. Never given back.
    fn pages(rights: &str) -> usize {
        let page = crate::file::mapped_file::PAGE as usize;
        // SAFETY: fresh mappings that nothing else uses.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::mmap(std::ptr::null_mut(), rights.len() * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(all, libc::MAP_FAILED);
            for (nth, right) in rights.chars().enumerate() {
                let at = all.wrapping_byte_add(nth * page);
                let done = match right {
                    'w' => libc::mprotect(at, page, libc::PROT_READ | libc::PROT_WRITE),
                    'r' => libc::mprotect(at, page, libc::PROT_READ),
                    _ => 0,
                };
                assert_eq!(done, 0);
            }
            all.addr()
        }
    }

    #[test]
    fn gets_store_directly_to_a_range_only_where_each_of_its_pages_is_writable() {
        for rights in ["w", "www", "rww", "wrw", "wwr", "wrwrw", "r", "rrr", "wnw", "nww", "wwn"] {
            let (registry, addr, len) = (Registry::new(), pages(rights), rights.len() * 4096);
            // Not whole pages either: the first and the last byte count.
            for (addr, len) in [(addr, len), (addr + 4095, len - 4095), (addr, len - 4095)] {
                // SAFETY: only its numbers are used.
                let registered = registry.register(unsafe { ForeignRange::new(addr, len) });
                let readable = !rights.contains('n');
                assert_eq!(registered.is_ok(), readable, "{rights}");
                assert_eq!(registry.contains(addr, len), readable, "{rights}");
                assert_eq!(registry.contains_writable(addr, len), !rights.contains(['r', 'n']), "{rights}");
                registry.unregister(addr);
            }
        }
    }

    #[test]
    fn what_the_list_of_mappings_says_counts_as_far_as_the_range_goes() {
        let maps = "1000-2000 r--p\n2000-4000 rw-p\n4000-5000 rw-s\n5000-6000 r-xp\n6000-7000 -w-p\n9000-a000 rw-p\n";
        for (addr, end, found) in [
            (0x2000, 0x4000, Some((true, vec![0x2000]))),
            (0x2001, 0x4001, Some((true, vec![0x2001, 0x4000]))),
            (0x2000, 0x5000, Some((true, vec![0x2000, 0x4000]))),
            (0x2000, 0x5001, Some((false, vec![0x2000, 0x4000, 0x5000]))),
            (0x1fff, 0x2001, Some((false, vec![0x1fff, 0x2000]))),
            (0x1000, 0x6000, Some((false, vec![0x1000, 0x2000, 0x4000, 0x5000]))),
            (0x5fff, 0x6001, None),
            (0x0fff, 0x1001, None),
            (0x8fff, 0x9001, None),
            (0x9000, 0xa000, Some((true, vec![0x9000]))),
            (0x9000, 0xa001, None),
            (0xa000, 0xa001, None),
        ] {
            let got = probe(maps, addr, end).map(|found| (found.writable, found.starts));
            assert_eq!(got, found, "{addr:#x} to {end:#x}");
        }
    }
}
