//! A snapshot of one moment, taken from the living core in slices.
//!
//! The walk meets everything that was there at that moment, the *cut*, once. What an operation changes or takes away
//! before the walk has come to it is [put aside](crate::durable::put_aside) as it was; what came after the cut does not
//! count. The few things that hang on sessions and segments come first, while little of them changes; then the objects,
//! coldest first, which take the longest. A file has the unfinished things last, as they name objects.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::Core;
use crate::durable::snapshot;
use crate::ids::SegmentNo;
use crate::record::Record;
use crate::request::Remembered;
use crate::state::objects::ObjectSlot;
use crate::state::reservation::ReservationSlot;
use crate::state::snapshot_walk::{Cut, OBJECTS, STARTS, SnapshotPart, SnapshotWalk, Unit, WORD, keys_of};
use mooncake_ids::{Rid, SessionId};

/// Places in a table that one look for the next thing passes over at most.
const PASSED_OVER: u32 = 512;

/// Bytes that take as long as an object.
const AS_ONE: usize = 512;

/// Bytes of objects that are put aside before their turn, which do not wait for it.
const MUCH_ASIDE: usize = 4 << 20;

/// A part of a part.
#[derive(Debug)]
pub struct SnapshotSlice {
    /// Which one. What changes of objects while the unfinished things are taken comes in between those.
    pub part: SnapshotPart,
    /// Its records, in order.
    pub records: Vec<Vec<Record>>,
}

/// More was changed since the last slice than is put aside: the snapshot is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes of what operations changed were put aside and not taken: too much")]
pub struct AsideFull(pub usize);

impl Core {
    /// Begins a snapshot of this moment, in the place of a former one.
    pub fn begin_snapshot(&mut self) {
        let slots = self.objects.bound();
        let cut = Cut {
            session: SessionId(self.sessions.last),
            segment: SegmentNo(self.segments.last()),
            gone: self.segments.gone().count(),
            rid: Rid::new(self.epoch.number, self.counter),
            slots,
        };
        self.walk = Some(Box::new(SnapshotWalk {
            cut,
            counters: self.snapshot_counters().collect(),
            next: STARTS[0],
            changed: BTreeSet::new(),
            former_keys: BTreeMap::new(),
            former_bytes: 0,
            answered_below: BTreeMap::new(),
            gone: BTreeSet::new(),
            order: self.objects.walk_coldest_first(),
            scan: 0,
            seen: vec![0; (slots as usize).div_ceil(WORD)],
            aside: Default::default(),
            aside_bytes: 0,
            aside_max: self.config.snapshot_aside_max,
        }));
    }

    /// Goes on with the snapshot, over at most about `most` objects and other things. `None` when it is through.
    pub fn snapshot_slice(&mut self, most: usize) -> Result<Option<SnapshotSlice>, AsideFull> {
        let mut walk = self.walk.take().expect("a snapshot was begun");
        let slice = match walk.is_full() {
            true => Err(AsideFull(walk.bytes())),
            false => Ok(self.take_slice(&mut walk, most)),
        };
        self.walk = Some(walk);
        slice
    }

    /// Ends the snapshot, through or not. What it still has takes long to free: not under a lock.
    pub fn end_snapshot(&mut self) -> Option<Box<SnapshotWalk>> {
        self.walk.take()
    }

    fn take_slice(&mut self, walk: &mut SnapshotWalk, most: usize) -> Option<SnapshotSlice> {
        let part = walk.next.part();
        let mut records = Vec::new();
        if part == SnapshotPart::Unfinished && walk.aside[OBJECTS].bytes > MUCH_ASIDE {
            walk.take_aside(OBJECTS, &mut records);
            return Some(SnapshotSlice { part: SnapshotPart::Objects, records });
        }
        let mut fresh = std::mem::take(&mut walk.counters);
        fresh.reserve_exact(most);
        walk.take_aside(walk.next.kind(), &mut records);
        let mut left = most;
        if part == SnapshotPart::Objects {
            if walk.scan >= walk.cut.slots && records.is_empty() {
                return None;
            }
            self.take_objects(walk, left, &mut fresh);
        }
        while left > 0 && walk.next.part() == part && walk.next != Unit::Through {
            match self.next_unit(walk.next) {
                Some(unit) => {
                    let before = fresh.len();
                    if !walk.changed.remove(&unit) {
                        self.records_of(walk, unit, &mut fresh);
                    }
                    let cost: usize = fresh[before..].iter().map(cost).sum();
                    left = left.saturating_sub(cost.max(1));
                    walk.next = unit.after();
                }
                None => {
                    walk.next = STARTS[walk.next.kind() + 1];
                    // What is put aside of the next part comes with that.
                    if walk.next.part() == part {
                        records.push(std::mem::take(&mut fresh));
                        walk.take_aside(walk.next.kind(), &mut records);
                    }
                }
            }
        }
        records.push(fresh);
        Some(SnapshotSlice { part, records })
    }

    fn take_objects(&mut self, walk: &mut SnapshotWalk, mut left: usize, fresh: &mut Vec<Record>) {
        while left > 0 {
            left -= 1;
            if let Some(slot) = self.objects.next_coldest(&mut walk.order) {
                let taken = self.meet_object(walk, slot, fresh);
                left = left.saturating_sub(taken.saturating_sub(1));
                continue;
            }
            if walk.scan >= walk.cut.slots {
                return;
            }
            let (first, seen) = (walk.scan, walk.seen[walk.scan as usize / WORD]);
            for slot in (0..WORD as u32).filter(|bit| seen & 1 << bit == 0).map(|bit| first + bit) {
                left = left.saturating_sub(self.meet_object(walk, ObjectSlot(slot), fresh));
            }
            walk.scan += WORD as u32;
        }
    }

    /// What it cost, which is nothing where there is none that was still to be met.
    fn meet_object(&self, walk: &mut SnapshotWalk, slot: ObjectSlot, fresh: &mut Vec<Record>) -> usize {
        if self.objects.get(slot).is_none() || !walk.meet(slot) {
            return 0;
        }
        let record = self.object_at_cut(walk, slot);
        let cost = record.as_ref().map_or(1, cost);
        fresh.extend(record);
        cost
    }

    /// An object as it was at the cut, as long as nothing but its segments has changed.
    pub(crate) fn object_at_cut(&self, walk: &SnapshotWalk, slot: ObjectSlot) -> Option<Record> {
        self.whole_object(slot, self.there_at_cut(walk))
    }

    /// Whether a segment was there at the cut. What lay on one that was Gone counted for nothing, though some of it may
    /// be yet to be cleared away.
    fn there_at_cut(&self, walk: &SnapshotWalk) -> impl Fn(SegmentNo) -> bool {
        |number| self.is_there(number) || walk.gone.contains(&number)
    }

    /// The first of its kind from here on, which may have nothing to tell.
    fn next_unit(&self, from: Unit) -> Option<Unit> {
        let session_from = |session| self.sessions.from(session).map(|(session, _)| session).next();
        match from {
            Unit::Session(session) => session_from(session).map(Unit::Session),
            Unit::Gone(count) => {
                let next = count.max(self.segments.gone().forgotten());
                (next < self.segments.gone().count()).then_some(Unit::Gone(next))
            }
            Unit::Segment(number) => self.segments.numbers_from(number).next().map(Unit::Segment),
            Unit::Tier(number) => self.tiers.from(number).map(|(number, _)| number).next().map(Unit::Tier),
            Unit::Reserved(ReservationSlot(slot)) => {
                let end = self.reservations.bound().min(slot.saturating_add(PASSED_OVER));
                let found = (slot..end).find(|slot| self.reservations.at(ReservationSlot(*slot)).is_some());
                let next = found.or(end.checked_sub(1).filter(|last| *last >= slot));
                next.map(|slot| Unit::Reserved(ReservationSlot(slot)))
            }
            Unit::Quarantined(rid) => self.quarantine.rids_from(rid).next().map(Unit::Quarantined),
            Unit::Pinned(session, rid) => {
                let of_it = self.sessions.get(session).and_then(|entry| entry.pins.range(rid..).next());
                of_it
                    .map(|(rid, _)| Unit::Pinned(session, *rid))
                    .or_else(|| session_from(SessionId(session.0 + 1)).map(|next| Unit::Pinned(next, Rid(0))))
            }
            Unit::Committed(session) => session_from(session).map(Unit::Committed),
            Unit::Replied(session, sequence) => {
                let entry = self.sessions.get(session);
                let of_it = match sequence {
                    0 => entry.map(|_| 0),
                    _ => entry.and_then(|entry| entry.replies.range(sequence..).next()).map(|(sequence, _)| *sequence),
                };
                of_it
                    .map(|sequence| Unit::Replied(session, sequence))
                    .or_else(|| session_from(SessionId(session.0 + 1)).map(|next| Unit::Replied(next, 0)))
            }
            Unit::Through => None,
        }
    }

    /// What a snapshot says of one thing that has not changed since the cut. Nothing if it was not there.
    pub(crate) fn records_of(&self, walk: &SnapshotWalk, unit: Unit, into: &mut Vec<Record>) {
        let Cut { session: last, segment, gone, rid, .. } = walk.cut;
        let session_of_cut = |session: SessionId| self.sessions.get(session).filter(|_| session <= last);
        match unit {
            Unit::Session(session) => {
                into.extend(session_of_cut(session).into_iter().flat_map(|entry| snapshot::opened(session, entry)));
            }
            Unit::Gone(count) if count < gone => into.extend(self.segments.gone().at(count).map(snapshot::forgotten)),
            Unit::Segment(number) if number <= segment => {
                into.extend(self.segments.get(number).into_iter().flat_map(snapshot::mounted));
            }
            Unit::Tier(number) if number <= segment => {
                into.extend(self.tiers.get(number).map(|tier| snapshot::seen(number, tier)));
            }
            Unit::Reserved(slot) => {
                let of_cut = self.reservations.at(slot).filter(|put| put.rid() <= rid);
                into.extend(of_cut.and_then(|put| snapshot::reserved(put, self.there_at_cut(walk))));
            }
            Unit::Quarantined(rid) => {
                let there = self.there_at_cut(walk);
                let of_cut = self.quarantine.get_or_gone(rid).filter(|entry| there(entry.replica.extent.segment));
                into.extend(of_cut.map(snapshot::quarantined));
            }
            Unit::Pinned(session, rid) => {
                let former = walk.former_keys.get(&rid).map(|key| &key[..]);
                into.extend(self.pinned(session, rid, former, self.there_at_cut(walk)));
            }
            Unit::Committed(session) => {
                into.extend(session_of_cut(session).and_then(|entry| snapshot::committed(session, entry)));
            }
            Unit::Replied(session, sequence) => {
                let of_cut = session_of_cut(session).and_then(|entry| {
                    let said = walk.answered_below.get(&session).copied();
                    self.replied(session, sequence, said.unwrap_or(entry.answered_below))
                });
                into.extend(of_cut);
            }
            Unit::Gone(_) | Unit::Segment(_) | Unit::Tier(_) | Unit::Through => {}
        }
    }
}

/// In objects and the like, with keys of a few dozen bytes.
fn cost(record: &Record) -> usize {
    let things = match record {
        Record::Replied { reply: Remembered::PutStart(outcomes), .. } => 1 + outcomes.len(),
        Record::Replied { reply: Remembered::Pin(found), .. } => 1 + found.len(),
        Record::Replied { .. } | Record::CommittedBy { .. } | Record::SegmentMounted { .. } => 4,
        _ => 1,
    };
    things + keys_of(record) / AS_ONE
}

#[cfg(test)]
mod tests;
