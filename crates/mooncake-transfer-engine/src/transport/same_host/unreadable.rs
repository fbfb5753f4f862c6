//! Memory of a peer's that no process can copy to or from: a device's. It is found out by trying.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Most ranges that are remembered.
const MOST: usize = 4096;

/// What was found out in one life of a peer, by any connection to it.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRanges {
    /// Most peers have no such memory, and who asks for it is not to wait.
    any: AtomicBool,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// What the peer's revision page said then. Where a buffer was given up since, there may be something else by now.
    revision: u64,
    /// Last addresses by the first: the peer's buffers, none of which overlaps another.
    ranges: BTreeMap<u64, u64>,
}

impl UnreadableRanges {
    pub fn note(&self, addr: u64, len: u64, revision: u64) {
        let mut found = self.found.lock();
        if found.revision != revision || found.ranges.len() == MOST {
            *found = Found { revision, ranges: BTreeMap::new() };
        }
        found.ranges.insert(addr, addr.saturating_add(len.saturating_sub(1)));
        self.any.store(true, Ordering::Release);
    }

    /// Whether such memory is among these ranges, while the peer's revision page says `revision`.
    pub fn has_any<I: Iterator<Item = (u64, u64)>>(&self, revision: u64, ranges: impl FnOnce() -> I) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let found = self.found.lock();
        let overlaps = |(addr, len): (u64, u64)| {
            let last = addr.saturating_add(len.saturating_sub(1));
            len > 0 && found.ranges.range(..=last).next_back().is_some_and(|(_, end)| addr <= *end)
        };
        found.revision == revision && ranges().any(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_out_holds_until_the_peer_gives_a_buffer_up() {
        let (found, has) = (UnreadableRanges::default(), |found: &UnreadableRanges, revision, addr, len| {
            found.has_any(revision, || [(1, 1), (addr, len)].into_iter())
        });
        assert!(!has(&found, 3, 4096, 1));
        found.note(4096, 8192, 3);
        for (addr, len, is_in) in [(4095, 1, false), (4095, 2, true), (12_287, 1, true), (12_288, 9, false)] {
            assert_eq!(has(&found, 3, addr, len), is_in, "{addr} {len}");
        }
        assert!(!has(&found, 3, 5000, 0), "no bytes are nowhere");
        assert!(!has(&found, 4, 5000, 1));
        found.note(20_000, 1, 4);
        assert!(has(&found, 4, 20_000, 1) && !has(&found, 4, 5000, 1));
    }
}
