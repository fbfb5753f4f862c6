//! How much of a batch a disk has at a time.
//!
//! A disk that many guests share may say that a read has ended only once all others at it have, too. Given all of a
//! batch, it stands still while the bytes are copied, and the batch takes the sum of both; given some of it at a time,
//! it reads the next ones meanwhile. One that is far away is fastest with all. Which of them a disk is nobody says:
//! both ways are measured, and the faster one is taken.

use std::time::Duration;

/// A batch of no more goes to the disk at once, and of a larger one so much at least.
const SOME_BYTES: u64 = 4 << 20;

/// Part of a larger batch that is some of it.
const SOME_PART: u64 = 4;

/// Batches that are read each way in turn before one is taken.
const FIRST: u32 = 4;

/// One batch in so many is read the other way: disks, and who else reads them, change.
const OTHER_WAY_EVERY: u32 = 32;

/// What is known of one disk.
#[derive(Debug)]
pub(super) struct AtDisk {
    /// Nanoseconds a mebibyte with some of a batch and with all of it.
    took: [u64; 2],
    batches: u32,
}

/// How one batch is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It is small: that tells nothing.
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

impl Default for AtDisk {
    fn default() -> AtDisk {
        AtDisk { took: [u64::MAX; 2], batches: 0 }
    }
}

impl AtDisk {
    /// For the next batch, of so many bytes.
    pub fn way(&mut self, bytes: u64) -> Way {
        if bytes <= SOME_BYTES {
            return Way::AtOnce;
        }
        self.batches = self.batches.wrapping_add(1);
        // The first ones find files to be opened and buffers that were never touched: each way has two.
        if self.batches <= FIRST {
            return if self.batches % 2 == 1 { Way::Some } else { Way::All };
        }
        let is_other = self.batches.is_multiple_of(OTHER_WAY_EVERY);
        if (self.took[0] <= self.took[1]) != is_other { Way::Some } else { Way::All }
    }

    /// A batch of so many bytes was read that way, in so long.
    pub fn took(&mut self, way: Way, bytes: u64, took: Duration) {
        let before = match way {
            Way::AtOnce => return,
            Way::Some => &mut self.took[0],
            Way::All => &mut self.took[1],
        };
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / (bytes >> 20).max(1);
        // One that was held up by chance turns nothing over.
        *before = if took < *before { took } else { *before + (took - *before) / 4 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u64 = 32 << 20;

    /// How many of so many batches are read with some at a time, of a disk on which the two ways take so long.
    fn with_some(at_disk: &mut AtDisk, batches: u32, some_ms: u64, all_ms: u64) -> u32 {
        let ways = (0..batches).map(|_| {
            let way = at_disk.way(BATCH);
            at_disk.took(way, BATCH, Duration::from_millis(if way == Way::Some { some_ms } else { all_ms }));
            u32::from(way == Way::Some)
        });
        ways.sum()
    }

    #[test]
    fn the_faster_way_is_taken_and_a_disk_that_has_changed_is_read_the_other_one() {
        let mut at_disk = AtDisk::default();
        assert!(with_some(&mut at_disk, 320, 15, 28) >= 308);
        let after = with_some(&mut at_disk, 640, 60, 20);
        assert!((1..60).contains(&after), "{after}");
        assert!(with_some(&mut at_disk, 640, 15, 28) > 560);
    }

    #[test]
    fn a_batch_that_was_held_up_by_chance_turns_nothing_over() {
        let mut at_disk = AtDisk::default();
        with_some(&mut at_disk, 64, 15, 28);
        at_disk.took(Way::Some, BATCH, Duration::from_millis(50));
        assert!(with_some(&mut at_disk, 31, 15, 28) >= 30);
        // Nor does the first one, which finds nothing ready.
        let mut at_disk = AtDisk::default();
        assert_eq!(at_disk.way(BATCH), Way::Some);
        at_disk.took(Way::Some, BATCH, Duration::from_millis(500));
        assert!(with_some(&mut at_disk, 31, 15, 28) >= 28);
    }

    #[test]
    fn what_is_small_goes_to_the_disk_at_once_and_tells_nothing() {
        let mut at_disk = AtDisk::default();
        assert_eq!(at_disk.way(SOME_BYTES), Way::AtOnce);
        at_disk.took(Way::AtOnce, SOME_BYTES, Duration::from_secs(1));
        assert_eq!((at_disk.took, at_disk.batches), ([u64::MAX; 2], 0));
        assert_eq!(at_disk.way(SOME_BYTES).bytes(SOME_BYTES), u64::MAX);
    }
}
