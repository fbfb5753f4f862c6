//! Which writes may begin in a segment, and which of them are under way.
//!
//! A write passes the gate before its first byte: its rid must not be lower
//! than a stamp that it would cover. A fence stamps the tombstone and takes the
//! list of writes that passed before it, in one step, so every write is
//! either refused by the tombstone or waited for (docs/safety.md, rule 7).

use mooncake_ids::Rid;
use mooncake_memory::CopyError;
use mooncake_mutant::mutant;

/// The stamps of a segment.
pub trait Stamps {
    /// The highest stamp in an extent.
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError>;
    /// Raises the stamps of an extent to a placement's tombstone. Higher stamps stay.
    fn tombstone(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError>;
}

/// What other machines do at the gate of a segment. The driver has the lock.
pub trait Writes {
    /// See [`Gate::fence`].
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError>;
    /// See [`Gate::raise_epoch`].
    fn raise_epoch(&self, epoch: u16) -> Vec<u64>;
    /// See [`Gate::retain_active`].
    fn retain_active(&self, ids: &mut Vec<u64>);
}

/// The gate of one segment in one process. `W` is what the driver wants to know of a write.
#[derive(Debug)]
pub struct Gate<W> {
    next: u64,
    least_epoch: u16,
    closed: bool,
    watched: bool,
    active: Vec<Active<W>>,
}

#[derive(Debug)]
struct Active<W> {
    id: u64,
    rid: Rid,
    offset: u64,
    end: u64,
    writer: W,
}

/// Why a write may not begin.
#[derive(Debug)]
pub enum Denied {
    /// A newer stamp, or a tombstone, covers part of the extent.
    Superseded {
        /// That stamp.
        found: u64,
    },
    /// Its epoch is over.
    OldEpoch {
        /// The lowest one that is not.
        least: u16,
    },
    /// Another write of the extent is under way.
    Busy,
    /// The segment is being given back.
    Closed,
    /// The extent is not in the segment.
    Copy(CopyError),
}

impl<W> Gate<W> {
    /// Lets writes of this epoch and of later ones through.
    pub fn new(least_epoch: u16) -> Gate<W> {
        Gate { next: 0, least_epoch, closed: false, watched: false, active: Vec::new() }
    }

    /// Lets a write begin, and gives the number that it goes by until it has [`Self::ended`]. The writer stamps the
    /// extent next.
    pub fn admit(&mut self, stamps: &impl Stamps, rid: Rid, offset: u64, len: u64, writer: W) -> Result<u64, Denied> {
        // The first three refuse for good, an overlap only until the other write ends. So a writer that can never begin
        // hears that, and not that its extent is busy. The first two look at no memory.
        if self.closed {
            return Err(Denied::Closed);
        }
        // A raised epoch leaves the stamps as they are, so they alone would let an older write through (docs/safety.md,
        // rule 18).
        if rid.epoch() < self.least_epoch && !mutant!(GateIgnoresEpochs) {
            return Err(Denied::OldEpoch { least: self.least_epoch });
        }
        // A higher stamp is that of a newer placement, or a tombstone (docs/safety.md, rules 1 and 7).
        let found = stamps.max_stamp(offset, len).map_err(Denied::Copy)?;
        if found > rid.0 && !mutant!(GateIgnoresStamps) {
            return Err(Denied::Superseded { found });
        }
        // An admitted write may not have stamped its extent yet, so the stamps do not show it.
        let end = offset + len;
        if self.active.iter().any(|other| other.offset < end && offset < other.end) {
            return Err(Denied::Busy);
        }
        let id = self.next;
        self.next += 1;
        self.active.push(Active { id, rid, offset, end, writer });
        Ok(id)
    }

    /// Nothing of a write can land any more. True when a caller waits for the end of some write.
    pub fn ended(&mut self, id: u64) -> bool {
        self.active.retain(|write| write.id != id);
        let tell = self.watched;
        self.watched &= !self.active.is_empty();
        tell
    }

    /// Refuses the rid from now on and names the writes of it, or of older
    /// ones, that are still under way in its extent. When they have ended, the
    /// caller fences once more: they may have stamped over the tombstone, and let others through.
    pub fn fence(&mut self, stamps: &impl Stamps, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        // The driver holds its lock across both steps: no write passes the gate between the tombstone and the list.
        stamps.tombstone(rid, offset, len)?;
        let end = offset.saturating_add(len);
        let tombstone = rid.tombstone();
        // A write with a newer rid is not the fenced one, and the tombstone does not refuse it.
        let ids = self.active.iter().filter(|w| w.rid.0 <= tombstone && w.offset < end && offset < w.end);
        let ids: Vec<u64> = ids.map(|write| write.id).collect();
        self.watched |= !ids.is_empty();
        Ok(ids)
    }

    /// Refuses older epochs from now on and names their writes still under way.
    pub fn raise_epoch(&mut self, epoch: u16) -> Vec<u64> {
        // Never lowered: a late question for an older epoch must not let its writes in again (docs/safety.md, rule 18).
        self.least_epoch = self.least_epoch.max(epoch);
        let ids: Vec<u64> = self.active.iter().filter(|w| w.rid.epoch() < epoch).map(|w| w.id).collect();
        self.watched |= !ids.is_empty();
        ids
    }

    /// Refuses every write from now on and names those still under way.
    pub fn close(&mut self) -> Vec<u64> {
        self.closed = true;
        self.watched |= !self.active.is_empty();
        self.active.iter().map(|write| write.id).collect()
    }

    /// Drops from a list the writes that have ended.
    pub fn retain_active(&self, ids: &mut Vec<u64>) {
        ids.retain(|id| self.active.iter().any(|write| write.id == *id));
    }

    /// The writers of the listed writes, as far as they are under way.
    pub fn writers(&self, ids: &[u64]) -> impl Iterator<Item = &W> {
        self.active.iter().filter(|write| ids.contains(&write.id)).map(|write| &write.writer)
    }

    /// Number of writes that are under way.
    pub fn active(&self) -> usize {
        self.active.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Granules, KIB, rid};
    use super::*;

    #[test]
    fn a_write_is_either_refused_by_the_fence_or_waited_for() {
        let stamps = Granules::new(128);
        let mut gate = Gate::new(1);

        let first = gate.admit(&stamps, rid(1, 5), 0, 8 * KIB, "first").unwrap();
        assert!(matches!(gate.admit(&stamps, rid(1, 6), 8 * KIB - 1, 1, ""), Err(Denied::Busy)));
        let beside = gate.admit(&stamps, rid(1, 6), 8 * KIB, KIB, "beside").unwrap();
        let mut writing = gate.fence(&stamps, rid(1, 5), 4 * KIB, KIB).unwrap();
        assert_eq!((&*writing, gate.writers(&writing).copied().collect()), (&[first][..], vec!["first"]));
        assert!(gate.admit(&stamps, rid(1, 4), 16 * KIB, KIB, "").is_ok(), "elsewhere an older one may write");
        assert!(gate.ended(beside), "a fence waits for some write");
        gate.retain_active(&mut writing);
        assert_eq!(writing.len(), 1);
        stamps.stamp(rid(1, 5), 0, 8 * KIB);
        assert!(gate.ended(first));
        gate.retain_active(&mut writing);
        assert!(writing.is_empty());
        assert!(gate.fence(&stamps, rid(1, 5), 0, 8 * KIB).unwrap().is_empty(), "it stamped over the first tombstone");
        let found = gate.admit(&stamps, rid(1, 5), 0, 8 * KIB, "");
        assert!(matches!(found, Err(Denied::Superseded { found }) if found == rid(1, 5).tombstone()));
        gate.admit(&stamps, rid(1, 6), 0, 8 * KIB, "newer").unwrap();
        assert!(gate.fence(&stamps, rid(1, 5), 0, 8 * KIB).unwrap().is_empty(), "a newer write is not the fenced one");
        assert!(gate.fence(&stamps, rid(1, 5), 128 * KIB, KIB).is_err());
    }

    #[test]
    fn older_epochs_and_a_closed_segment_take_no_writes_and_those_under_way_are_named() {
        let stamps = Granules::new(128);
        let mut gate = Gate::new(1);
        let old = gate.admit(&stamps, rid(1, 6), 0, KIB, ()).unwrap();
        assert_eq!(gate.raise_epoch(2), [old]);
        assert!(gate.raise_epoch(1).is_empty());
        assert!(matches!(gate.admit(&stamps, rid(1, 9), 64 * KIB, 1, ()), Err(Denied::OldEpoch { least: 2 })));
        let new = gate.admit(&stamps, rid(2, 1), 64 * KIB, 1, ()).unwrap();
        assert!(gate.raise_epoch(2) == [old] && gate.close() == [old, new]);
        assert!(matches!(gate.admit(&stamps, rid(3, 0), 32 * KIB, 1, ()), Err(Denied::Closed)));
    }

    #[test]
    fn the_end_of_a_write_is_told_only_while_a_caller_waits() {
        let stamps = Granules::new(128);
        let mut gate = Gate::new(1);
        let admit = |gate: &mut Gate<()>, counter| gate.admit(&stamps, rid(1, counter), 0, KIB, ()).unwrap();
        let alone = admit(&mut gate, 1);
        assert!(!gate.ended(alone));
        let closed_over = admit(&mut gate, 2);
        assert!(gate.close() == [closed_over] && gate.ended(closed_over));
        assert!(!gate.ended(closed_over), "none is left to wait for");
    }

    /// Extents of up to three granules at odd places, so that each pair of ends comes by.
    fn extents() -> impl Iterator<Item = (u64, u64)> {
        (0..6).flat_map(|first| (1..4).map(move |count| (first * KIB, count * KIB)))
    }

    #[test]
    fn writes_stand_in_each_others_way_only_where_they_share_a_byte() {
        for (offset, len) in extents() {
            let share = |(at, bytes): (u64, u64)| offset < at + bytes && at < offset + len;
            for other in extents() {
                let (stamps, mut gate) = (Granules::new(128), Gate::new(1));
                let first = gate.admit(&stamps, rid(1, 5), offset, len, ()).unwrap();
                let beside = gate.admit(&stamps, rid(1, 5), other.0, other.1, ());
                assert_eq!(matches!(beside, Err(Denied::Busy)), share(other), "{offset} {len} {other:?}");
                if beside.is_err() {
                    // As soon as the one has ended, the other may begin.
                    gate.ended(first);
                    gate.admit(&stamps, rid(1, 5), other.0, other.1, ()).unwrap();
                    assert_eq!(gate.active(), 1);
                }
            }
        }
    }

    #[test]
    fn a_fence_waits_for_the_writes_of_its_rid_and_of_older_ones_that_share_a_byte_with_it() {
        for (offset, len) in extents() {
            for newer in [false, true] {
                let (stamps, mut gate) = (Granules::new(128), Gate::new(1));
                // One write in each granule, so that they do not meet.
                let writes: Vec<u64> = (0..12)
                    .map(|at| {
                        let counter = if newer { 6 } else { 4 + at % 2 };
                        gate.admit(&stamps, rid(1, counter), at * KIB, KIB, at).unwrap()
                    })
                    .collect();
                let waits = gate.fence(&stamps, rid(1, 5), offset, len).unwrap();
                let inside = offset / KIB..(offset + len) / KIB;
                let expected: Vec<u64> = inside.clone().map(|at| writes[at as usize]).collect();
                assert_eq!(waits, if newer { vec![] } else { expected });
                let (writers, named) = (gate.writers(&waits).copied().collect::<Vec<_>>(), inside.collect::<Vec<_>>());
                assert_eq!(writers, if newer { vec![] } else { named });
            }
        }
    }
}
