//! Objects that only a tier has and that are to come back to memory: asked for, and under way.

use std::collections::{BTreeMap, VecDeque};

use crate::ensure::ensure;
use crate::ids::{SegmentNo, Time};
use crate::state::objects::ObjectSlot;
use mooncake_ids::Rid;

/// Objects of one tier found by existence queries that wait for their turn. More are left where they are.
const FOUND_MAX: usize = 4_096;

/// Objects that were read and wait for room. More are left on their tier.
const READ_MAX: usize = 1_024;

/// Time that an object that was read waits for room, ms.
const READ_MS: u64 = 10_000;

/// Bytes that are copied from one tier at a time: what a slow disk reads in a second.
const TIER_BYTES_MAX: u64 = 64 << 20;

/// Part of a segment that may be under way to it.
const SEGMENT_PART: u64 = 8;

/// An object that is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub slot: ObjectSlot,
    pub object_id: Rid,
}

/// A copy that an owner was asked for.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    tier: SegmentNo,
    segment: SegmentNo,
    bytes: u64,
}

/// How far the search for room in one owner's memory is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoomSought {
    /// The object that is looked at next: those before it are others', or cannot leave without loss.
    pub next: Option<(ObjectSlot, Rid)>,
    /// There was none. What was read waits until then, before it is looked for again.
    pub rests_until: Time,
}

#[derive(Debug, Default)]
pub(crate) struct Promotions {
    /// By existence queries, in the order of their keys. A disk that is slow holds up its own alone.
    found: BTreeMap<SegmentNo, VecDeque<Wanted>>,
    /// By reads; each with the end of its time.
    read: VecDeque<(Wanted, Time)>,
    /// By the rids of the copies. No log has them: after a restart their reservations end by themselves.
    under_way: BTreeMap<Rid, UnderWay>,
    from_tier: BTreeMap<SegmentNo, u64>,
    to_segment: BTreeMap<SegmentNo, u64>,
    reads: Frequency,
}

impl Promotions {
    /// False: too many wait.
    pub fn add_found(&mut self, tier: SegmentNo, wanted: Wanted) -> bool {
        let found = self.found.entry(tier).or_default();
        let has_place = found.len() < FOUND_MAX;
        if has_place {
            found.push_back(wanted);
        }
        has_place
    }

    /// False: too many wait.
    pub fn add_read(&mut self, now: Time, wanted: Wanted) -> bool {
        let has_place = self.read.len() < READ_MAX;
        if has_place {
            self.read.push_back((wanted, now.plus_ms(READ_MS)));
        }
        has_place
    }

    /// Tiers of which objects were found that wait.
    pub fn tiers(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        self.found.keys().copied()
    }

    /// The next one of a tier that an existence query found.
    pub fn next_found(&self, tier: SegmentNo) -> Option<Wanted> {
        self.found.get(&tier)?.front().copied()
    }

    pub fn pop_found(&mut self, tier: SegmentNo) {
        let Some(found) = self.found.get_mut(&tier) else { return };
        found.pop_front();
        if found.is_empty() {
            self.found.remove(&tier);
        }
    }

    /// How many wait that were read.
    pub fn read_len(&self) -> usize {
        self.read.len()
    }

    /// Takes the next one that was read, with the end of its time.
    pub fn pop_read(&mut self) -> Option<(Wanted, Time)> {
        self.read.pop_front()
    }

    /// It waits on, behind the others.
    pub fn put_read_back(&mut self, wanted: (Wanted, Time)) {
        self.read.push_back(wanted);
    }

    /// How often an object of that hash was read of late, this time too.
    pub fn count_read(&mut self, hash: u64) -> u8 {
        self.reads.count(hash)
    }

    /// Whether that much more may be under way. One object always may.
    pub fn takes(&self, tier: SegmentNo, (segment, segment_bytes): (SegmentNo, u64), bytes: u64) -> bool {
        let has_room = |under_way: Option<&u64>, most: u64| under_way.is_none_or(|under_way| under_way + bytes <= most);
        has_room(self.from_tier.get(&tier), TIER_BYTES_MAX)
            && has_room(self.to_segment.get(&segment), segment_bytes / SEGMENT_PART)
    }

    /// Whether a tier has as much under way as it may have.
    pub fn is_busy(&self, tier: SegmentNo, bytes: u64) -> bool {
        self.from_tier.get(&tier).is_some_and(|under_way| under_way + bytes > TIER_BYTES_MAX)
    }

    pub fn begin(&mut self, rid: Rid, tier: SegmentNo, segment: SegmentNo, bytes: u64) {
        *self.from_tier.entry(tier).or_default() += bytes;
        *self.to_segment.entry(segment).or_default() += bytes;
        self.under_way.insert(rid, UnderWay { tier, segment, bytes });
    }

    /// A reservation is over; nothing happens if it was not begun in this run.
    pub fn end(&mut self, rid: Rid) {
        let Some(UnderWay { tier, segment, bytes }) = self.under_way.remove(&rid) else { return };
        for (counts, number) in [(&mut self.from_tier, tier), (&mut self.to_segment, segment)] {
            let under_way = counts.get_mut(&number).expect("it was counted");
            *under_way -= bytes;
            if *under_way == 0 {
                counts.remove(&number);
            }
        }
    }

    /// What is under way has its reservation, and is counted.
    pub fn check_invariants(&self, is_reserved: impl Fn(Rid) -> bool) -> Result<(), String> {
        let (mut from_tier, mut to_segment) = (BTreeMap::<SegmentNo, u64>::new(), BTreeMap::<SegmentNo, u64>::new());
        for (rid, UnderWay { tier, segment, bytes }) in &self.under_way {
            ensure!(is_reserved(*rid), "{rid:?} is under way without a reservation");
            *from_tier.entry(*tier).or_default() += bytes;
            *to_segment.entry(*segment).or_default() += bytes;
        }
        let counted = (&self.from_tier, &self.to_segment);
        ensure!(
            (&from_tier, &to_segment) == counted,
            "{from_tier:?}, {to_segment:?} are under way, counted {counted:?}"
        );
        Ok(())
    }
}

/// How often objects were read of late, in little room: a count-min sketch (Cormode and Muthukrishnan, 2005) of four
/// rows, halved now and then, as Mooncake has one.
#[derive(Debug)]
struct Frequency {
    rows: Box<[[u8; Frequency::COLUMNS]; Frequency::ROWS]>,
    counted: u32,
}

impl Frequency {
    const ROWS: usize = 4;
    const COLUMNS: usize = 4_096;
    const HALVED_EVERY: u32 = 16_384;

    fn count(&mut self, hash: u64) -> u8 {
        self.counted += 1;
        if self.counted == Self::HALVED_EVERY {
            self.counted = 0;
            self.rows.iter_mut().flatten().for_each(|count| *count /= 2);
        }
        let mut least = u8::MAX;
        for (nth, row) in self.rows.iter_mut().enumerate() {
            let count = &mut row[(hash >> (nth * 12)) as usize % Self::COLUMNS];
            *count = count.saturating_add(1);
            least = least.min(*count);
        }
        least
    }
}

impl Default for Frequency {
    fn default() -> Self {
        Frequency { rows: Box::new([[0; Self::COLUMNS]; Self::ROWS]), counted: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_by_object_and_forgotten_by_halves() {
        let mut frequency = Frequency::default();
        let hash = |nth: u64| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!((1..=3).map(|_| frequency.count(hash(1))).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(frequency.count(hash(2)), 1);
        for nth in 0..Frequency::HALVED_EVERY {
            frequency.count(hash(3 + u64::from(nth % 64)));
        }
        assert_eq!(frequency.count(hash(1)), 2, "3 halved, and one");
    }

    #[test]
    fn one_object_may_always_be_under_way_and_more_within_bounds() {
        let (tier, segment, other) = (SegmentNo(1), SegmentNo(2), SegmentNo(3));
        let mut promotions = Promotions::default();
        assert!(promotions.takes(tier, (segment, 1024), 1 << 40));
        promotions.begin(Rid::new(1, 2), tier, segment, 100);
        assert!(promotions.takes(tier, (segment, 1024), 28) && !promotions.takes(tier, (segment, 1024), 29));
        assert!(promotions.takes(tier, (other, 0), 1024), "another segment has none");
        assert!(!promotions.takes(tier, (other, 0), TIER_BYTES_MAX));
        promotions.end(Rid::new(1, 2));
        promotions.end(Rid::new(1, 2));
        assert!(promotions.takes(tier, (segment, 1024), 1 << 40));
        promotions.check_invariants(|_| false).unwrap();
    }
}
