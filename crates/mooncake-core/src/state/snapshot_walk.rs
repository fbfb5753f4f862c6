//! How far a snapshot that is being taken is, and what it keeps meanwhile: see
//! [`durable::snapshot_walk`](crate::durable::snapshot_walk).

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::SegmentNo;
use crate::record::Record;
use crate::request::{Remembered, StartOutcome};
use crate::state::objects::{ColdestFirst, ObjectSlot};
use crate::state::reservation::ReservationSlot;
use mooncake_ids::{Rid, SessionId};

/// Slots whose bits are together.
pub(crate) const WORD: usize = u64::BITS as usize;

/// One thing that a snapshot has, but for objects, in the order in which the walk meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    Session(SessionId),
    /// The how manieth segment that has gone, as far as this process knows.
    Gone(u64),
    Segment(SegmentNo),
    Tier(SegmentNo),
    Reserved(ReservationSlot),
    Quarantined(Rid),
    /// Views of a session over one placement.
    Pinned(SessionId, Rid),
    /// What a session committed last.
    Committed(SessionId),
    /// The reply of that number; 0: which replies a session has said it has.
    Replied(SessionId, u64),
    /// All of them have been met.
    Through,
}

/// Kinds of units, and objects behind them.
pub(crate) const KINDS: usize = 10;
/// The kind that objects are.
pub(crate) const OBJECTS: usize = 9;

/// Before the first unit of each kind.
pub(crate) const STARTS: [Unit; KINDS] = [
    Unit::Session(SessionId(0)),
    Unit::Gone(0),
    Unit::Segment(SegmentNo(0)),
    Unit::Tier(SegmentNo(0)),
    Unit::Reserved(ReservationSlot(0)),
    Unit::Quarantined(Rid(0)),
    Unit::Pinned(SessionId(0), Rid(0)),
    Unit::Committed(SessionId(0)),
    Unit::Replied(SessionId(0), 0),
    Unit::Through,
];

impl Unit {
    pub fn kind(self) -> usize {
        match self {
            Unit::Session(_) => 0,
            Unit::Gone(_) => 1,
            Unit::Segment(_) => 2,
            Unit::Tier(_) => 3,
            Unit::Reserved(_) => 4,
            Unit::Quarantined(_) => 5,
            Unit::Pinned(..) => 6,
            Unit::Committed(_) => 7,
            Unit::Replied(..) => 8,
            Unit::Through => OBJECTS,
        }
    }

    pub fn part(self) -> SnapshotPart {
        match self.kind() {
            0..=3 => SnapshotPart::Members,
            4..=8 => SnapshotPart::Unfinished,
            _ => SnapshotPart::Objects,
        }
    }

    pub fn after(self) -> Unit {
        match self {
            Unit::Session(session) => Unit::Session(SessionId(session.0 + 1)),
            Unit::Gone(count) => Unit::Gone(count + 1),
            Unit::Segment(number) => Unit::Segment(SegmentNo(number.0 + 1)),
            Unit::Tier(number) => Unit::Tier(SegmentNo(number.0 + 1)),
            Unit::Reserved(slot) => Unit::Reserved(ReservationSlot(slot.0 + 1)),
            Unit::Quarantined(rid) => Unit::Quarantined(Rid(rid.0 + 1)),
            Unit::Pinned(session, rid) => Unit::Pinned(session, Rid(rid.0 + 1)),
            Unit::Committed(session) => Unit::Committed(SessionId(session.0 + 1)),
            Unit::Replied(session, sequence) => Unit::Replied(session, sequence + 1),
            Unit::Through => Unit::Through,
        }
    }
}

/// Where in its file a record of a snapshot belongs. The file has the parts in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotPart {
    /// Counters, sessions, segments, tiers.
    Members,
    /// Objects.
    Objects,
    /// What is under way, and what is remembered: it may name objects.
    Unfinished,
}

/// A snapshot that is being taken.
#[derive(Debug)]
pub struct SnapshotWalk {
    pub(crate) cut: Cut,
    pub(crate) counters: Vec<Record>,
    /// Units before this one have been met.
    pub(crate) next: Unit,
    /// Units that are still to be met, and are not as they were or were not there.
    pub(crate) changed: BTreeSet<Unit>,
    /// Keys of objects that have left views which are still to be met.
    pub(crate) former_keys: BTreeMap<Rid, Box<[u8]>>,
    /// What those take.
    pub(crate) former_bytes: usize,
    /// What sessions had said they have the answers to, where they have said more since.
    pub(crate) answered_below: BTreeMap<SessionId, u64>,
    /// Segments that have gone since.
    pub(crate) gone: BTreeSet<SegmentNo>,
    pub(crate) order: ColdestFirst,
    /// Where the last look at all slots is, which finds what changed its list.
    pub(crate) scan: u32,
    /// Slots of objects that have been met, put aside or are new, as bits.
    pub(crate) seen: Vec<u64>,
    pub(crate) aside: [Aside; KINDS],
    /// Bytes of it in all.
    pub(crate) aside_bytes: usize,
    pub(crate) aside_max: usize,
}

/// Numbers above these are of things that came later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub session: SessionId,
    pub segment: SegmentNo,
    pub gone: u64,
    pub rid: Rid,
    pub slots: u32,
}

impl SnapshotWalk {
    /// Whether an object is still to be met; it is not from now on.
    pub(crate) fn meet(&mut self, ObjectSlot(slot): ObjectSlot) -> bool {
        if slot >= self.cut.slots {
            return false;
        }
        let (word, bit) = (&mut self.seen[slot as usize / WORD], 1 << (slot as usize % WORD));
        let first = *word & bit == 0;
        *word |= bit;
        first
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes() > self.aside_max
    }

    /// All that it keeps besides what it has taken.
    pub(crate) fn bytes(&self) -> usize {
        self.aside_bytes + self.former_bytes + self.changed.len() * NOTED
    }

    pub(crate) fn take_aside(&mut self, kind: usize, into: &mut Vec<Vec<Record>>) {
        let taken = std::mem::take(&mut self.aside[kind]);
        self.aside_bytes -= taken.bytes;
        into.extend(taken.chunks);
    }
}

/// Bytes that a note takes of what has changed.
pub(crate) const NOTED: usize = 64;

/// Records in one piece of memory, which never moves.
const CHUNK: usize = 256;

/// Records that were put aside.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    pub chunks: Vec<Vec<Record>>,
    /// What they take.
    pub bytes: usize,
}

impl Aside {
    fn push(&mut self, record: Record) -> usize {
        let bytes = bytes_of(&record);
        self.bytes += bytes;
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push(record),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(record);
                self.chunks.push(chunk);
            }
        }
        bytes
    }
}

impl SnapshotWalk {
    /// Keeps a record for the part that it belongs to.
    pub(crate) fn put_aside(&mut self, kind: usize, record: Record) {
        self.aside_bytes += self.aside[kind].push(record);
    }
}

/// What a record takes.
fn bytes_of(record: &Record) -> usize {
    let lists = match record {
        Record::CommittedBy { rids, .. } => size_of_val(&rids[..]),
        Record::Replied { reply: Remembered::PutStart(outcomes), .. } => outcomes.len() * size_of::<StartOutcome>(),
        Record::Replied { reply: Remembered::Pin(found), .. } => size_of_val(&found[..]),
        Record::Replied { reply: Remembered::Reclaim(verdicts), .. } => size_of_val(&verdicts[..]),
        _ => 0,
    };
    size_of::<Record>() + lists + keys_of(record)
}

/// Bytes of the keys and names in a record.
pub(crate) fn keys_of(record: &Record) -> usize {
    match record {
        Record::Object { key, .. } | Record::Reserved { key, .. } => key.len(),
        Record::GroupedObject { key, group, .. }
        | Record::ReservedWith { key, group, .. }
        | Record::TieredObject { key, group, .. } => key.len() + group.len(),
        Record::Pinned { key, .. } => key.as_ref().map_or(0, |key| key.len()),
        _ => 0,
    }
}
