//! Extents of puts that ended abnormally: only the owner's word brings them back (docs/safety.md, rule 7).
//!
//! States: `docs/safety.md`, table of the put and its placements. Here are the quarantined ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::ensure::ensure;
use crate::ids::{Replica, SegmentNo, Time};
use crate::touched::Touched;
use mooncake_ids::{Rid, SessionId};

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
    /// Those of each segment that has any.
    on: BTreeMap<SegmentNo, BTreeMap<Rid, Quarantined>>,
    by_rid: BTreeMap<Rid, SegmentNo>,
    by_age: BTreeSet<(Time, Rid)>,
    len: usize,
    /// Those of segments that are Gone, which count for nothing: they are forgotten in steps.
    gone: BTreeMap<SegmentNo, BTreeMap<Rid, Quarantined>>,
    touched: Touched,
}

impl Quarantine {
    /// Extents that have been looked at.
    pub fn touched(&self) -> u32 {
        self.touched.count()
    }

    pub fn get(&self, rid: Rid) -> Option<&Quarantined> {
        self.touched.add(1);
        self.on.get(self.by_rid.get(&rid)?)?.get(&rid)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn insert(&mut self, entry: Quarantined) {
        self.touched.add(1);
        let Replica { rid, extent } = entry.replica;
        self.by_age.insert((entry.since, rid));
        self.by_rid.insert(rid, extent.segment);
        let before = self.on.entry(extent.segment).or_default().insert(rid, entry);
        self.len += usize::from(before.is_none());
    }

    pub fn set_writer_done(&mut self, rid: Rid) -> bool {
        let on_it = self.by_rid.get(&rid).and_then(|segment| self.on.get_mut(segment));
        on_it.and_then(|on_it| on_it.get_mut(&rid)).map(|entry| entry.writer_done = true).is_some()
    }

    pub fn remove(&mut self, rid: Rid) -> Option<Quarantined> {
        self.touched.add(1);
        let segment = *self.by_rid.get(&rid)?;
        let on_it = self.on.get_mut(&segment)?;
        let entry = on_it.remove(&rid)?;
        if on_it.is_empty() {
            self.on.remove(&segment);
        }
        self.len -= 1;
        self.by_rid.remove(&rid);
        self.by_age.remove(&(entry.since, rid));
        Some(entry)
    }

    /// Since when the oldest has been here.
    pub fn oldest(&self) -> Option<Time> {
        self.by_age.first().filter(|_| self.len > 0).map(|(since, _)| *since)
    }

    /// Everything on a segment goes with it.
    pub fn remove_segment(&mut self, segment: SegmentNo) {
        let Some(on_it) = self.on.remove(&segment) else { return };
        self.len -= on_it.len();
        self.gone.insert(segment, on_it);
    }

    /// One that went with its segment, and is yet to be forgotten.
    pub fn next_gone(&self) -> Option<Rid> {
        self.gone.values().find_map(|gone| gone.keys().next().copied())
    }

    /// Forgets one that went with its segment.
    pub fn forget(&mut self, rid: Rid) {
        let Some(segment) = self.by_rid.get(&rid).copied() else { return };
        let Some(gone) = self.gone.get_mut(&segment) else { return };
        let Some(entry) = gone.remove(&rid) else { return };
        if gone.is_empty() {
            self.gone.remove(&segment);
        }
        self.by_rid.remove(&rid);
        self.by_age.remove(&(entry.since, rid));
    }

    /// Those from a rid on, with what went with its segment and is yet to be forgotten.
    pub fn rids_from(&self, rid: Rid) -> impl Iterator<Item = Rid> + '_ {
        self.touched.each(self.by_rid.range(rid..).map(|(rid, _)| *rid))
    }

    /// The same of one.
    pub fn get_or_gone(&self, rid: Rid) -> Option<&Quarantined> {
        let segment = self.by_rid.get(&rid)?;
        self.on.get(segment).or_else(|| self.gone.get(segment))?.get(&rid)
    }

    /// How many are on a segment.
    pub fn len_on(&self, segment: SegmentNo) -> usize {
        self.on.get(&segment).map_or(0, BTreeMap::len)
    }

    /// Those on a segment by rid, from one on.
    pub fn on_segment(&self, segment: SegmentNo, from: Rid) -> impl Iterator<Item = &Quarantined> {
        let on_it = self.on.get(&segment).into_iter().flat_map(move |on_it| on_it.range(from..));
        self.touched.each(on_it.map(|(_, entry)| entry))
    }

    /// Each is found by its rid and by its age, and nothing else is but what went with its segment.
    pub fn check_invariants(&self) -> Result<(), String> {
        for (segment, on_it) in &self.on {
            ensure!(!on_it.is_empty(), "{segment:?} is listed with none");
            for (rid, entry) in on_it {
                let of = entry.replica.extent.segment;
                ensure!(of == *segment, "{rid:?} is on {of:?}, and listed on {segment:?}");
            }
        }
        for (rid, entry) in self.on.values().chain(self.gone.values()).flatten() {
            let (of, found) = (entry.replica.extent.segment, self.by_rid.get(rid));
            let aged = self.by_age.contains(&(entry.since, *rid));
            ensure!(found == Some(&of) && aged, "{rid:?} on {of:?} is found on {found:?}, and by its age: {aged}");
        }
        let count =
            |lists: &mut dyn Iterator<Item = &BTreeMap<Rid, Quarantined>>| lists.map(BTreeMap::len).sum::<usize>();
        let (here, gone) = (count(&mut self.on.values()), count(&mut self.gone.values()));
        ensure!(here == self.len, "there are {here}, and counted {}", self.len);
        let (by_rid, aged, all) = (self.by_rid.len(), self.by_age.len(), here + gone);
        ensure!((by_rid, aged) == (all, all), "there are {all}, {by_rid} by rid and {aged} by age");
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Quarantined> {
        self.on.values().flat_map(BTreeMap::values)
    }
}
