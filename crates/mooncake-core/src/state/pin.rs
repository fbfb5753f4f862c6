//! Pins, by rid: what keeps extents from reuse while readers view them, the one thing that holds space for readers.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::ensure::ensure;
use crate::ids::{Extent, SegmentNo};
use crate::slab::{Link, Linked, List, Slab};
use crate::state::index::{self, Index};
use crate::state::objects::ObjectSlot;
use crate::touched::Touched;
use mooncake_ids::granules;
use mooncake_ids::{GRANULE, Rid, SessionId};

pub(crate) struct PinnedExtent {
    pub rid: Rid,
    pub extent: Extent,
    /// Views over it, of all sessions.
    pub views: u32,
    /// The object it belongs to, `None` once that has left: the extent is then held by the views alone.
    pub object: Option<ObjectSlot>,
    link: Link,
}

impl Linked for PinnedExtent {
    fn link(&self) -> Link {
        self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

pub(crate) struct Pins {
    hasher: DefaultHashBuilder,
    slab: Slab<PinnedExtent>,
    by_rid: Index,
    /// Those of each segment that has any.
    on: BTreeMap<SegmentNo, List>,
    views: u64,
    /// Bytes under the views of each session that has any, an extent once, on segments that are not Gone: all together,
    /// and by segment.
    holders: BTreeMap<SessionId, u64>,
    holders_on: BTreeMap<(SegmentNo, SessionId), u64>,
    /// The same by session.
    holds_on: BTreeSet<(SessionId, SegmentNo)>,
    touched: Touched,
}

impl Default for Pins {
    fn default() -> Self {
        Pins {
            hasher: DefaultHashBuilder::default(),
            slab: Slab::new(),
            by_rid: Index::new(index::SMALL),
            on: BTreeMap::new(),
            views: 0,
            holders: BTreeMap::new(),
            holders_on: BTreeMap::new(),
            holds_on: BTreeSet::new(),
            touched: Touched::default(),
        }
    }
}

impl Pins {
    /// Extents and their holders that have been looked at.
    pub fn touched(&self) -> u32 {
        self.slab.touched().wrapping_add(self.touched.count())
    }

    fn slot(&self, rid: Rid) -> Option<u32> {
        self.by_rid.find(self.hasher.hash_one(rid), |slot| self.slab[slot].rid == rid)
    }

    pub fn get(&self, rid: Rid) -> Option<&PinnedExtent> {
        self.slot(rid).map(|slot| &self.slab[slot])
    }

    pub fn get_mut(&mut self, rid: Rid) -> Option<&mut PinnedExtent> {
        self.slot(rid).map(|slot| &mut self.slab[slot])
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// In no order.
    pub fn iter(&self) -> impl Iterator<Item = (Rid, &PinnedExtent)> {
        self.slab.iter().map(|(_, pin)| (pin.rid, pin))
    }

    pub fn views(&self) -> u64 {
        self.views
    }

    /// One view more.
    pub fn add(&mut self, rid: Rid, extent: Extent, object: Option<ObjectSlot>) {
        self.views += 1;
        if let Some(pin) = self.get_mut(rid) {
            pin.views += 1;
            return;
        }
        let Pins { hasher, slab, by_rid, on, .. } = self;
        let slot = slab.insert(PinnedExtent { rid, extent, views: 1, object, link: Link::default() });
        on.entry(extent.segment).or_default().push_back(slab, slot);
        by_rid.insert(hasher.hash_one(rid), slot);
    }

    /// One view less. The entry when it was the last one.
    pub fn release(&mut self, rid: Rid) -> Option<PinnedExtent> {
        let slot = self.slot(rid)?;
        self.views -= 1;
        let pin = &mut self.slab[slot];
        pin.views -= 1;
        if pin.views > 0 {
            return None;
        }
        let segment = pin.extent.segment;
        let Pins { hasher, slab, by_rid, on, .. } = self;
        by_rid.remove(hasher.hash_one(rid), slot);
        let on_it = on.get_mut(&segment).expect("it has a pinned extent");
        on_it.remove(slab, slot);
        if on_it.is_empty() {
            on.remove(&segment);
        }
        Some(self.slab.remove(slot))
    }

    /// A session has a view of an extent that it had none of, on a segment that is there.
    pub fn holds(&mut self, session: SessionId, extent: Extent) {
        let bytes = granules(extent.length) * GRANULE;
        *self.holders.entry(session).or_default() += bytes;
        *self.holders_on.entry((extent.segment, session)).or_default() += bytes;
        self.holds_on.insert((session, extent.segment));
    }

    /// An extent is not under views of a session any more. On a segment that is Gone it counted for nothing.
    pub fn holds_no_more(&mut self, session: SessionId, rid: Rid) {
        let Some(extent) = self.get(rid).map(|pin| pin.extent) else { return };
        let bytes = granules(extent.length) * GRANULE;
        if subtract(&mut self.holders_on, (extent.segment, session), bytes) {
            subtract(&mut self.holders, session, bytes);
            if !self.holders_on.contains_key(&(extent.segment, session)) {
                self.holds_on.remove(&(session, extent.segment));
            }
        }
    }

    /// Segments that are there and have views of a session.
    pub fn segments_viewed_by(&self, session: SessionId) -> impl Iterator<Item = SegmentNo> + '_ {
        let its = self.holds_on.range((session, SegmentNo(0))..=(session, SegmentNo(u32::MAX)));
        self.touched.each(its.map(|(_, segment)| *segment))
    }

    /// A segment is Gone.
    pub fn segment_gone(&mut self, segment: SegmentNo) {
        let its = (segment, SessionId(0))..=(segment, SessionId(u64::MAX));
        let held: Vec<(SessionId, u64)> = self.holders_on.range(its).map(|((_, id), bytes)| (*id, *bytes)).collect();
        self.touched.add(held.len());
        for (session, bytes) in held {
            self.holders_on.remove(&(segment, session));
            self.holds_on.remove(&(session, segment));
            subtract(&mut self.holders, session, bytes);
        }
    }

    /// Whose views hold space, and how many bytes of it.
    pub fn holders(&self) -> impl ExactSizeIterator<Item = (SessionId, u64)> + '_ {
        self.holders.iter().map(|(session, bytes)| (*session, *bytes)).inspect(|_| self.touched.add(1))
    }

    /// Bytes that a session's views hold.
    pub fn held_by(&self, session: SessionId) -> u64 {
        self.touched.add(1);
        self.holders.get(&session).copied().unwrap_or(0)
    }

    /// How much of a segment is under views, in extents.
    pub fn len_on(&self, segment: SegmentNo) -> usize {
        self.on.get(&segment).map_or(0, |on_it| on_it.len() as usize)
    }

    /// Each is found by its rid and with its segment; what sessions hold of segments is what they hold at all.
    pub fn check_invariants(&self) -> Result<(), String> {
        for (slot, PinnedExtent { rid, .. }) in self.slab.iter() {
            let found = self.slot(*rid);
            ensure!(found == Some(slot), "{rid:?} in slot {slot} is found in {found:?}");
        }
        for (segment, on_it) in &self.on {
            on_it.check_invariants(&self.slab, |_, pin| {
                let of = pin.extent.segment;
                ensure!(of == *segment, "{:?} is on {of:?}, and listed on {segment:?}", pin.rid);
                Ok(())
            })?;
        }
        let (all, indexed) = (self.slab.len(), self.by_rid.len());
        let listed: usize = self.on.values().map(|on_it| on_it.len() as usize).sum();
        ensure!((indexed, listed) == (all, all), "there are {all}, {indexed} by rid and {listed} on segments");
        let mut held: BTreeMap<SessionId, u64> = BTreeMap::new();
        self.holders_on.iter().for_each(|((_, session), bytes)| *held.entry(*session).or_default() += bytes);
        let by_session: BTreeSet<_> = self.holders_on.keys().map(|(segment, session)| (*session, *segment)).collect();
        ensure!(by_session == self.holds_on, "views are on {by_session:?}, and listed by session {:?}", self.holds_on);
        ensure!(held == self.holders, "on segments sessions hold {held:?}, and all together {:?}", self.holders);
        Ok(())
    }

    /// What views hold of a segment, one extent after the other: the one that was passed by longest ago.
    pub fn pass_by(&mut self, segment: SegmentNo) -> Option<Extent> {
        let on_it = self.on.get_mut(&segment)?;
        let slot = on_it.head()?;
        on_it.move_to_back(&mut self.slab, slot);
        Some(self.slab[slot].extent)
    }
}

/// So many bytes less; whether there were any.
fn subtract<K: Ord>(held: &mut BTreeMap<K, u64>, by: K, bytes: u64) -> bool {
    let std::collections::btree_map::Entry::Occupied(mut entry) = held.entry(by) else { return false };
    *entry.get_mut() = entry.get().saturating_sub(bytes);
    if *entry.get() == 0 {
        entry.remove();
    }
    true
}
