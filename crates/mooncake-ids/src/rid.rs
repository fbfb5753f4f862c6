//! Ids of placements.

use serde::{Deserialize, Serialize};

/// Id of one placement (`rid`: the id of its reservation, and of the replica that it becomes): epoch (16 bits) .
/// counter (47 bits) . 0. Grows, is never reused; the low bit set makes a tombstone; 0 means never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rid(pub u64);

impl Rid {
    /// Largest counter of one epoch.
    pub const COUNTER_MAX: u64 = (1 << 47) - 1;

    /// The rid of a counter in an epoch.
    pub const fn new(epoch: u16, counter: u64) -> Rid {
        assert!(counter <= Self::COUNTER_MAX);
        Rid(((epoch as u64) << 48) | (counter << 1))
    }

    /// Its place among the rids of its epoch.
    #[inline]
    pub const fn counter(self) -> u64 {
        (self.0 >> 1) & Self::COUNTER_MAX
    }

    /// The epoch that handed it out.
    #[inline]
    pub const fn epoch(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Whether it can be a placement's: 0 means never written, and the low bit makes a tombstone. Neither may ever
    /// match a stamp.
    #[inline]
    pub const fn is_placement(self) -> bool {
        self.0 != 0 && self.0 & 1 == 0
    }

    /// The stamp that refuses the bytes of this placement's writer, and of all before it.
    #[inline]
    pub const fn tombstone(self) -> u64 {
        self.0 | 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rid_has_its_epoch_and_counter_and_only_placements_pass_for_one() {
        let rid = Rid::new(7, Rid::COUNTER_MAX);
        assert_eq!((rid.epoch(), rid.counter(), rid.is_placement()), (7, Rid::COUNTER_MAX, true));
        assert!(rid < Rid::new(8, 0) && rid > Rid::new(7, 1), "later epochs and counters are larger");
        assert!(!Rid(0).is_placement() && !Rid(rid.tombstone()).is_placement());
        assert!(rid.tombstone() > rid.0 && rid.tombstone() < Rid::new(8, 0).0);
    }
}
