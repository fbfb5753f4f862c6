//! Extents of puts that ended abnormally: only the owner's word brings them back.

use std::collections::BTreeMap;

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
}

impl Quarantine {
    pub fn get(&self, rid: Rid) -> Option<&Quarantined> {
        self.map.get(&rid)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn insert(&mut self, entry: Quarantined) {
        self.map.insert(entry.replica.rid, entry);
    }

    pub fn set_writer_done(&mut self, rid: Rid) -> bool {
        self.map.get_mut(&rid).map(|entry| entry.writer_done = true).is_some()
    }

    pub fn remove(&mut self, rid: Rid) -> Option<Quarantined> {
        self.map.remove(&rid)
    }

    /// Since when the oldest has been here.
    pub fn oldest(&self) -> Option<Time> {
        self.map.values().map(|entry| entry.since).min()
    }

    /// Everything on a segment goes with it.
    pub fn remove_segment(&mut self, segment: SegmentNo) {
        self.map.retain(|_, entry| entry.replica.extent.segment != segment);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Quarantined> {
        self.map.values()
    }

    /// By rid, from one on.
    pub fn iter_from(&self, rid: Rid) -> impl Iterator<Item = &Quarantined> {
        self.map.range(rid..).map(|(_, entry)| entry)
    }
}
