//! Readers' views, by rid: the one thing that holds space.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::ids::{Extent, Rid, SegmentNo, SessionId};

pub(crate) struct PinnedExtent {
    pub extent: Extent,
    /// Views over it, of all sessions.
    pub views: u32,
    /// The object it belongs to, `None` once that has left: the extent is then held by the views alone.
    pub object: Option<u32>,
}

#[derive(Default)]
pub(crate) struct Pins {
    map: HashMap<Rid, PinnedExtent>,
    views: u64,
    /// Bytes under the views of each session that has any, an extent once, on segments that are not Gone.
    holders: BTreeMap<SessionId, u64>,
}

impl Pins {
    pub fn get(&self, rid: Rid) -> Option<&PinnedExtent> {
        self.map.get(&rid)
    }

    pub fn get_mut(&mut self, rid: Rid) -> Option<&mut PinnedExtent> {
        self.map.get_mut(&rid)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// In no order.
    pub fn iter(&self) -> impl Iterator<Item = (Rid, &PinnedExtent)> {
        self.map.iter().map(|(rid, pin)| (*rid, pin))
    }

    pub fn views(&self) -> u64 {
        self.views
    }

    /// True when it is the first view over this rid.
    pub fn add(&mut self, rid: Rid, extent: Extent, object: Option<u32>) -> bool {
        self.views += 1;
        let entry = self.map.entry(rid).or_insert(PinnedExtent { extent, views: 0, object });
        entry.views += 1;
        entry.views == 1
    }

    /// One view less. The entry when it was the last one.
    pub fn release(&mut self, rid: Rid) -> Option<PinnedExtent> {
        let entry = self.map.get_mut(&rid)?;
        self.views -= 1;
        entry.views -= 1;
        if entry.views > 0 {
            return None;
        }
        self.map.remove(&rid)
    }

    /// A session has a view of an extent that it had none of.
    pub fn holds(&mut self, session: SessionId, bytes: u64) {
        *self.holders.entry(session).or_default() += bytes;
    }

    /// Extents of so many bytes are not under views of a session any more, or are nowhere.
    pub fn holds_no_more(&mut self, session: SessionId, bytes: u64) {
        if let Some(held) = self.holders.get_mut(&session) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.holders.remove(&session);
            }
        }
    }

    /// All views of a session have ended.
    pub fn session_ended(&mut self, session: SessionId) {
        self.holders.remove(&session);
    }

    /// Whose views hold space, and how many bytes of it.
    pub fn holders(&self) -> impl ExactSizeIterator<Item = (SessionId, u64)> + '_ {
        self.holders.iter().map(|(session, bytes)| (*session, *bytes))
    }

    /// Lengths of what views hold of a segment.
    pub fn on(&self, segment: SegmentNo) -> HashMap<Rid, u64> {
        let on_it = self.map.iter().filter(|(_, pin)| pin.extent.segment == segment);
        on_it.map(|(rid, pin)| (*rid, pin.extent.length)).collect()
    }

    /// Parts the views over a segment that is Gone from their objects, which are named once per pinned replica.
    pub fn leave_objects_of(&mut self, segment: SegmentNo) -> Vec<u32> {
        let on_it = self.map.values_mut().filter(|pin| pin.extent.segment == segment);
        let mut slots: Vec<u32> = on_it.filter_map(|pin| pin.object.take()).collect();
        slots.sort_unstable();
        slots
    }

    /// What views hold of a segment, without those counted in `except` alone, by offset.
    pub fn of_segment(&self, segment: SegmentNo, except: impl Fn(Rid) -> u32) -> Vec<Extent> {
        let held = self.map.iter().filter(|(rid, pin)| pin.extent.segment == segment && pin.views > except(**rid));
        let mut extents: Vec<Extent> = held.map(|(_, pin)| pin.extent).collect();
        extents.sort_unstable_by_key(|extent| extent.offset);
        extents
    }
}
