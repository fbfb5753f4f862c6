//! Memory of a peer that no process can copy to or from: a device's. Only an attempt finds it out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Most ranges that are remembered; one more forgets them all.
const RANGES_MAX: usize = 4096;

/// What was found out in one incarnation of a peer, by any connection to it.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRanges {
    /// Whether there are any: most peers have no such memory, and their calls take no lock.
    any: AtomicBool,
    known: Mutex<KnownRanges>,
}

#[derive(Debug, Default)]
struct KnownRanges {
    /// What the peer's revision page said then. Once it says something else, a buffer was unregistered, and other
    /// memory may lie there.
    revision: u64,
    /// The peer's buffers, none of which overlaps another: their last addresses by their first.
    ranges: BTreeMap<u64, u64>,
}

impl UnreadableRanges {
    pub fn note(&self, addr: u64, len: u64, revision: u64) {
        let mut known = self.known.lock();
        if known.revision != revision || known.ranges.len() == RANGES_MAX {
            *known = KnownRanges { revision, ranges: BTreeMap::new() };
        }
        known.ranges.insert(addr, addr.saturating_add(len.saturating_sub(1)));
        self.any.store(true, Ordering::Release);
    }

    /// Whether such memory is among these ranges, while the peer's revision page says `revision`.
    pub fn has_any<I: Iterator<Item = (u64, u64)>>(&self, revision: u64, ranges: impl FnOnce() -> I) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let known = self.known.lock();
        let overlaps = |(addr, len): (u64, u64)| {
            let last = addr.saturating_add(len.saturating_sub(1));
            len > 0 && known.ranges.range(..=last).next_back().is_some_and(|(_, end)| addr <= *end)
        };
        known.revision == revision && ranges().any(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_out_holds_until_the_peer_gives_a_buffer_up() {
        let (known, has) = (UnreadableRanges::default(), |known: &UnreadableRanges, revision, addr, len| {
            known.has_any(revision, || [(1, 1), (addr, len)].into_iter())
        });
        assert!(!has(&known, 3, 4096, 1));
        known.note(4096, 8192, 3);
        for (addr, len, is_in) in [(4095, 1, false), (4095, 2, true), (12_287, 1, true), (12_288, 9, false)] {
            assert_eq!(has(&known, 3, addr, len), is_in, "{addr} {len}");
        }
        assert!(!has(&known, 3, 5000, 0), "no bytes are nowhere");
        assert!(!has(&known, 4, 5000, 1));
        known.note(20_000, 1, 4);
        assert!(has(&known, 4, 20_000, 1) && !has(&known, 4, 5000, 1));
    }
}
