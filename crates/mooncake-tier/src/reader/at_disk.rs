//! How much of a batch a disk has at a time.
//!
//! A disk that many guests share may say that a read has ended only once all others at it have, too. Given all of a
//! batch, it stands still while the bytes are copied, and the batch takes the sum of both; given some of it at a time,
//! it reads the next ones meanwhile. One that is far away is fastest with all. Which of them a disk is nobody says:
//! both ways are measured, and the faster one is taken.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// A batch of no more goes to the disk at once, and of a larger one so much at least.
const SOME_BYTES: u64 = 4 << 20;

/// Part of a larger batch that is some of it.
const SOME_PART: u64 = 4;

/// The first batches. They find files to be opened and buffers that were never touched: each way has two.
const FIRST: [Way; 4] = [Way::All, Way::Some, Way::Some, Way::All];

/// One batch in so many is read the other way: disks, and those who read them besides, change. It is odd, so that of
/// two kinds of batches that come in turn both are met.
const OTHER_WAY_EVERY: u32 = 31;

/// What is known of one disk; clones are of the same.
#[derive(Debug, Clone, Default)]
pub struct AtDisk(Arc<Mutex<Ways>>);

#[derive(Debug)]
struct Ways {
    /// Nanoseconds a mebibyte with some of a batch and with all of it.
    took: [u64; 2],
    batches: u32,
}

/// How one batch is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It is small, or both ways are one: that tells nothing.
    AtOnce,
    Some,
    All,
}

impl Way {
    /// Once so many bytes of such a batch are at the disk no more of it goes there.
    pub fn bytes(self, batch: u64) -> u64 {
        match self {
            Way::Some => (batch / SOME_PART).max(SOME_BYTES),
            Way::AtOnce | Way::All => u64::MAX,
        }
    }
}

impl Default for Ways {
    fn default() -> Ways {
        Ways { took: [u64::MAX; 2], batches: 0 }
    }
}

impl AtDisk {
    /// For the next batch, of so many bytes, of a reader that has no more than `most` of them at the disk.
    pub(super) fn way(&self, bytes: u64, most: u64) -> Way {
        if bytes <= SOME_BYTES || Way::Some.bytes(bytes) >= most {
            return Way::AtOnce;
        }
        let mut ways = self.0.lock();
        let nth = ways.batches;
        ways.batches = nth.wrapping_add(1);
        if let Some(way) = FIRST.get(nth as usize) {
            return *way;
        }
        let is_other = nth.is_multiple_of(OTHER_WAY_EVERY);
        if (ways.took[0] < ways.took[1]) != is_other { Way::Some } else { Way::All }
    }

    /// A batch of so many bytes was read that way in so long; or that long was waited for it, if it is late.
    pub(super) fn took(&self, way: Way, bytes: u64, took: Duration, is_late: bool) {
        let which = match way {
            Way::AtOnce => return,
            Way::Some => 0,
            Way::All => 1,
        };
        let before = &mut self.0.lock().took[which];
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / (bytes >> 20).max(1);
        // How long the caller waited for what is late says nothing of how fast the way is, only that it is no faster.
        let took = if is_late { took.max(*before) } else { took };
        // One that was held up by chance turns nothing over.
        *before = if took < *before { took } else { *before + (took.min(before.saturating_mul(2)) - *before) / 4 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u64 = 32 << 20;

    /// How many of so many batches are read with some at a time, of a disk on which the two ways take so long.
    fn with_some(at_disk: &AtDisk, batches: u32, some_ms: u64, all_ms: u64) -> u32 {
        let ways = (0..batches).map(|_| {
            let way = at_disk.way(BATCH, BATCH);
            at_disk.took(way, BATCH, Duration::from_millis(if way == Way::Some { some_ms } else { all_ms }), false);
            u32::from(way == Way::Some)
        });
        ways.sum()
    }

    #[test]
    fn the_faster_way_is_taken_and_a_disk_that_has_changed_is_read_the_other_one() {
        let at_disk = AtDisk::default();
        assert!(with_some(&at_disk, 320, 15, 28) >= 308);
        let after = with_some(&at_disk, 640, 60, 20);
        assert!((1..60).contains(&after), "{after}");
        assert!(with_some(&at_disk, 640, 15, 28) > 560);
    }

    #[test]
    fn a_batch_that_was_held_up_by_chance_turns_nothing_over() {
        let at_disk = AtDisk::default();
        with_some(&at_disk, 64, 15, 28);
        at_disk.took(Way::Some, BATCH, Duration::from_secs(50), false);
        assert!(with_some(&at_disk, 31, 15, 28) >= 30);
        // Nor does the first one, which finds nothing ready.
        let at_disk = AtDisk::default();
        assert_eq!(at_disk.way(BATCH, BATCH), Way::All);
        at_disk.took(Way::All, BATCH, Duration::from_millis(500), false);
        assert!(with_some(&at_disk, 31, 15, 28) >= 28);
    }

    #[test]
    fn of_two_kinds_of_batches_in_turn_both_are_measured_each_way() {
        let at_disk = AtDisk::default();
        let mut met = std::collections::BTreeSet::new();
        for nth in 0..200 {
            let (way, is_dear) = (at_disk.way(BATCH, BATCH), nth % 2 == 0);
            if nth >= FIRST.len() {
                met.insert((way == Way::Some, is_dear));
            }
            let ms = match (way, is_dear) {
                (Way::Some, false) => 10,
                (Way::Some, true) => 30,
                (_, false) => 7,
                (_, true) => 20,
            };
            at_disk.took(way, BATCH, Duration::from_millis(ms), false);
        }
        assert_eq!(met.len(), 4);
        assert!(with_some(&at_disk, 310, 10, 7) < 30, "what is faster with both is taken");
    }

    #[test]
    fn a_way_in_which_no_batch_has_come_in_time_is_not_taken() {
        let at_disk = AtDisk::default();
        for _ in 0..310 {
            let way = at_disk.way(BATCH, BATCH);
            at_disk.took(way, BATCH, Duration::from_millis(40), way == Way::Some);
        }
        let some = with_some(&at_disk, 31, 60, 40);
        assert!(some < 3, "{some}");
    }

    #[test]
    fn a_batch_that_its_caller_gave_up_at_once_does_not_make_a_way_fast() {
        let at_disk = AtDisk::default();
        with_some(&at_disk, 310, 15, 28);
        at_disk.took(Way::All, BATCH, Duration::from_micros(1), true);
        assert!(with_some(&at_disk, 31, 15, 28) >= 29);
    }

    #[test]
    fn what_is_small_or_is_never_there_whole_goes_to_the_disk_at_once_and_tells_nothing() {
        let at_disk = AtDisk::default();
        assert_eq!(at_disk.way(SOME_BYTES, BATCH), Way::AtOnce);
        assert_eq!(at_disk.way(BATCH, BATCH / 4), Way::AtOnce, "both ways are one");
        at_disk.took(Way::AtOnce, SOME_BYTES, Duration::from_secs(1), false);
        let ways = at_disk.0.lock();
        assert_eq!((ways.took, ways.batches), ([u64::MAX; 2], 0));
        drop(ways);
        assert_eq!(at_disk.way(SOME_BYTES, BATCH).bytes(SOME_BYTES), u64::MAX);
    }
}
