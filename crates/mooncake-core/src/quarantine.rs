//! Extents of puts that ended abnormally: only the owner's word brings them back.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Replica, Rid, SegmentNo, SessionId, Time};

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
    on: BTreeSet<(SegmentNo, Rid)>,
    /// How many are on each segment that has any.
    counts: BTreeMap<SegmentNo, usize>,
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
        if self.on.insert((extent.segment, rid)) {
            *self.counts.entry(extent.segment).or_default() += 1;
        }
    }

    pub fn set_writer_done(&mut self, rid: Rid) -> bool {
        self.map.get_mut(&rid).map(|entry| entry.writer_done = true).is_some()
    }

    pub fn remove(&mut self, rid: Rid) -> Option<Quarantined> {
        let entry = self.map.remove(&rid)?;
        let segment = entry.replica.extent.segment;
        self.on.remove(&(segment, rid));
        self.by_age.remove(&(entry.since, rid));
        let count = self.counts.get_mut(&segment).expect("one is there");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&segment);
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

    /// How many are on a segment.
    pub fn len_on(&self, segment: SegmentNo) -> usize {
        self.counts.get(&segment).copied().unwrap_or(0)
    }

    /// Those on a segment by rid, from one on.
    pub fn on_segment(&self, segment: SegmentNo, from: Rid) -> impl Iterator<Item = &Quarantined> {
        let on_it = self.on.range((segment, from)..=(segment, Rid(u64::MAX)));
        on_it.filter_map(|(_, rid)| self.map.get(rid))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Quarantined> {
        self.map.values()
    }
}
