//! Extents of puts that ended abnormally: only the owner's word brings them back.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Replica, Rid, SegmentNo, SessionId, Time};
use crate::invariants::ensure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quarantined {
    pub replica: Replica,
    pub writer: SessionId,
    /// The writer said that it will not touch it again.
    pub writer_done: bool,
    /// When it came here, as far as this process knows.
    pub since: Time,
}

#[derive(Default)]
pub(crate) struct Quarantine {
    map: BTreeMap<Rid, Quarantined>,
    /// Those of each segment that has any.
    on: BTreeMap<SegmentNo, BTreeSet<Rid>>,
    by_age: BTreeSet<(Time, Rid)>,
}

impl Quarantine {
    pub fn get(&self, rid: Rid) -> Option<&Quarantined> {
        self.map.get(&rid)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn insert(&mut self, entry: Quarantined) {
        let Replica { rid, extent } = entry.replica;
        self.by_age.insert((entry.since, rid));
        self.map.insert(rid, entry);
        self.on.entry(extent.segment).or_default().insert(rid);
    }

    pub fn set_writer_done(&mut self, rid: Rid) -> bool {
        self.map.get_mut(&rid).map(|entry| entry.writer_done = true).is_some()
    }

    pub fn remove(&mut self, rid: Rid) -> Option<Quarantined> {
        let entry = self.map.remove(&rid)?;
        let segment = entry.replica.extent.segment;
        self.by_age.remove(&(entry.since, rid));
        let on_it = self.on.get_mut(&segment).expect("one is there");
        on_it.remove(&rid);
        if on_it.is_empty() {
            self.on.remove(&segment);
        }
        Some(entry)
    }

    /// Since when the oldest has been here.
    pub fn oldest(&self) -> Option<Time> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// Everything on a segment goes with it.
    pub fn remove_segment(&mut self, segment: SegmentNo) {
        let rids: Vec<Rid> = self.on_segment(segment, Rid(0)).map(|entry| entry.replica.rid).collect();
        for rid in rids {
            self.remove(rid);
        }
    }

    /// All by rid, from one on.
    pub fn from(&self, rid: Rid) -> impl Iterator<Item = &Quarantined> {
        self.map.range(rid..).map(|(_, entry)| entry)
    }

    /// How many are on a segment.
    pub fn len_on(&self, segment: SegmentNo) -> usize {
        self.on.get(&segment).map_or(0, BTreeSet::len)
    }

    /// Those on a segment by rid, from one on.
    pub fn on_segment(&self, segment: SegmentNo, from: Rid) -> impl Iterator<Item = &Quarantined> {
        let on_it = self.on.get(&segment).into_iter().flat_map(move |rids| rids.range(from..));
        on_it.filter_map(|rid| self.map.get(rid))
    }

    /// Each is found by its segment and by its age, and nothing else is.
    pub fn check_invariants(&self) -> Result<(), String> {
        for (rid, entry) in &self.map {
            let segment = entry.replica.extent.segment;
            let on_it = self.on.get(&segment).is_some_and(|rids| rids.contains(rid));
            let aged = self.by_age.contains(&(entry.since, *rid));
            ensure!(on_it && aged, "{rid:?} is found on {segment:?}: {on_it}, and by its age: {aged}");
        }
        let (all, aged) = (self.map.len(), self.by_age.len());
        let on: usize = self.on.values().map(BTreeSet::len).sum();
        let empty = self.on.iter().find(|(_, rids)| rids.is_empty()).map(|(segment, _)| segment);
        ensure!((on, aged) == (all, all), "there are {all}, {on} on segments and {aged} by age");
        ensure!(empty.is_none(), "{empty:?} is listed with none");
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Quarantined> {
        self.map.values()
    }
}
