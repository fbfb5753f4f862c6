//! Segments as numbers with free space, and which of them take part in what.
//!
//! *Live*: its session is there, lookups find what it holds. *Open*: Live, and its owner obeys the current epoch, so
//! that something can be placed there. *Hidden*: its session is away. *Gone*: no entry any more, for ever.
//!
//! States: `docs/safety.md`, table of the segment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::ensure::ensure;
use crate::ids::{SegmentNo, Time};
use crate::request::SegmentSpec;
use crate::state::extents::{ExtentError, Extents, Remains};
use crate::state::gone_segments::{GoneSegment, GoneSegments};
use crate::state::live_counts::LiveCounts;
use crate::state::maxima::Maxima;
use crate::touched::Touched;
use mooncake_ids::{GRANULE, SegmentUuid, SessionId};
use mooncake_mutant::mutant;

/// Whether a segment's objects can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// Its owner is there.
    Live,
    /// Its owner is away; nothing is forgotten.
    Hidden,
}

/// What the shell may know of a segment that is not Gone.
#[derive(Debug, Clone, Copy)]
pub struct SegmentView<'a> {
    /// Its number in this log.
    pub number: SegmentNo,
    /// Its UUID.
    pub uuid: SegmentUuid,
    /// Its name.
    pub name: &'a str,
    /// Size of its memory, as it was mounted.
    pub bytes: u64,
    /// Bytes that it can hold: less than its size once its owner could populate no more.
    pub capacity: u64,
    /// How peers reach it, verbatim.
    pub endpoint: &'a [u8],
    /// Its owner.
    pub session: SessionId,
    /// Live or Hidden.
    pub state: SegmentState,
    /// New objects are placed there: Live, and the owner obeys the current epoch.
    pub open: bool,
    /// It is being unmounted: still read, and Gone when its grace is over.
    pub leaving: bool,
    /// Bytes that are populated.
    pub populated: u64,
    /// Bytes in use for whatever reason.
    pub used: u64,
    /// Bytes under readers' views or hard pins.
    pub pinned: u64,
    /// Bytes in quarantine.
    pub quarantined: u64,
}

/// The grace of a segment that is being unmounted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnmountGrace {
    pub grace_ms: u64,
    pub at: Time,
}

pub(crate) struct Segment {
    pub number: SegmentNo,
    pub spec: SegmentSpec,
    pub session: SessionId,
    /// Number of its owner's host.
    pub host: Option<u32>,
    pub live: bool,
    /// What its owner obeys.
    pub epoch: u16,
    /// Its owner is an heir that has not taken an epoch yet: it obeys none, and what writers of before do is not known.
    pub inherited: bool,
    pub extents: Extents,
    /// Granules in quarantine.
    pub quarantined: u32,
    /// Granules under readers' views or hard pins.
    pub pinned: u32,
    /// Granules of objects with a hard pin: the only ones that no time brings back.
    pub hard: u32,
    /// When population last got on.
    pub progress: Time,
    /// It is to be Gone then: nothing new is placed there.
    pub leaves: Option<UnmountGrace>,
    open: Option<u32>,
    /// What it counts as in [`Segments::live_counts`].
    pub(super) counted: LiveCounts,
}

impl Segment {
    pub fn view(&self) -> SegmentView<'_> {
        let bytes = |granules: u32| u64::from(granules) * GRANULE;
        SegmentView {
            number: self.number,
            uuid: self.spec.uuid,
            name: &self.spec.name,
            bytes: self.spec.bytes,
            capacity: bytes(self.extents.total()),
            endpoint: &self.spec.endpoint,
            session: self.session,
            state: if self.live { SegmentState::Live } else { SegmentState::Hidden },
            open: self.open.is_some(),
            leaving: self.leaves.is_some(),
            populated: bytes(self.extents.limit()),
            used: bytes(self.used()),
            pinned: bytes(self.pinned),
            quarantined: bytes(self.quarantined),
        }
    }

    pub fn used(&self) -> u32 {
        self.extents.limit() - self.extents.free()
    }

    /// Granules that an object can have there by eviction alone.
    pub fn attainable(&self) -> u32 {
        self.extents.total().saturating_sub(self.quarantined).saturating_sub(self.pinned)
    }

    /// Granules that an object can have there once views and quarantine have ended.
    pub fn lasting(&self) -> u32 {
        self.extents.total().saturating_sub(self.hard)
    }

    pub fn populating(&self) -> bool {
        self.extents.limit() < self.extents.total()
    }

    /// Whether its owner has taken an epoch.
    pub fn obeys(&self, epoch: u16) -> bool {
        self.epoch >= epoch && (!self.inherited || mutant!(HeirsSegmentsStayOpen))
    }

    /// Whether it is open in an epoch.
    fn takes_objects(&self, epoch: u16) -> bool {
        self.live && self.obeys(epoch) && self.leaves.is_none()
    }

    fn for_placement(&self) -> Open {
        Open {
            number: self.number,
            session: self.session,
            host: self.host,
            largest: self.extents.largest(),
            free: self.extents.free(),
            used: self.used(),
            total: self.extents.total(),
        }
    }
}

/// What placement looks at, side by side in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    pub number: SegmentNo,
    pub session: SessionId,
    pub host: Option<u32>,
    /// Longest free run.
    pub largest: u32,
    pub free: u32,
    pub used: u32,
    pub total: u32,
}

/// What keeps granules from being gained by eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldBy {
    /// A reader's view, or a hard pin.
    Pin,
    /// A hard pin, besides.
    HardPin,
    Quarantine,
}

/// Granules of all segments that are held, by what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldGranules {
    /// By readers' views or hard pins.
    pub pinned: u64,
    /// By hard pins.
    pub hard: u64,
    pub quarantined: u64,
}

#[derive(Default)]
pub(crate) struct Segments {
    table: Vec<Option<Box<Segment>>>,
    /// Those that are not Gone: the table has mostly room for others, once epochs have begun.
    numbers: BTreeSet<SegmentNo>,
    by_uuid: BTreeMap<SegmentUuid, SegmentNo>,
    by_name: BTreeSet<(String, SegmentNo)>,
    /// Those whose grace is over then.
    leaving: BTreeSet<(Time, SegmentNo)>,
    gone: GoneSegments,
    open: Vec<Open>,
    /// How many open segments each session has that has one.
    open_sessions: BTreeMap<SessionId, u32>,
    open_bytes: u64,
    /// Granules in use of the open ones.
    open_used: u64,
    /// Longest free run of granules of each open one, in the order of `open`.
    runs: Maxima,
    /// What eviction alone can gain of each of them.
    attainable: Maxima,
    /// Open ones that are still populated.
    populating: BTreeSet<SegmentNo>,
    /// Of those that are not Gone.
    held: HeldGranules,
    /// How many of those that do not leave have so many granules once views and quarantine have ended.
    lasting: BTreeMap<u32, u32>,
    live: Vec<bool>,
    live_counts: LiveCounts,
    /// How many that are not Live each session has that has one.
    hidden: BTreeMap<SessionId, u32>,
    /// Tiers that are Live, which have numbers too.
    tiers: BTreeSet<SegmentNo>,
    last: u32,
    /// Of those that are Gone, yet to be freed.
    remains: Vec<Remains>,
    touched: Touched,
}

/// Free runs of a segment that is Gone that are freed in one step.
const FREED: usize = 256;

impl Segments {
    /// Gives some memory back of what is Gone. False when there is none.
    pub fn give_back(&mut self) -> bool {
        let Some(last) = self.remains.last_mut() else { return false };
        if !last.give_back(FREED) {
            self.remains.pop();
        }
        true
    }

    /// Segments that have been looked at.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    pub fn get(&self, number: SegmentNo) -> Option<&Segment> {
        self.touched.add(1);
        self.table.get(number.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, number: SegmentNo) -> Option<&mut Segment> {
        self.touched.add(1);
        self.table.get_mut(number.0 as usize)?.as_deref_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.numbers.iter().filter_map(|number| self.get(*number))
    }

    /// How many are not Gone.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Numbers of those that are not Gone, in order.
    pub fn numbers(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        self.touched.each(self.numbers.iter().copied())
    }

    /// The same from one on.
    pub fn numbers_from(&self, number: SegmentNo) -> impl Iterator<Item = SegmentNo> + '_ {
        self.touched.each(self.numbers.range(number..).copied())
    }

    pub fn by_uuid(&self, uuid: SegmentUuid) -> Option<&Segment> {
        self.get(*self.by_uuid.get(&uuid)?)
    }

    /// Those of a name, by number.
    pub fn by_name(&self, name: &str) -> impl Iterator<Item = SegmentNo> + '_ {
        let name = name.to_owned();
        let from = self.by_name.range((name.clone(), SegmentNo(0))..);
        self.touched.each(from).take_while(move |(other, _)| *other == name).map(|(_, number)| *number)
    }

    /// Of a segment, or of a tier.
    #[inline]
    pub fn is_live(&self, number: SegmentNo) -> bool {
        self.live.get(number.0 as usize).copied().unwrap_or(false)
    }

    /// Whether its owner obeys an epoch: nothing of earlier ones is written there any more.
    pub fn obeys(&self, number: SegmentNo, epoch: u16) -> bool {
        self.get(number).is_some_and(|segment| segment.obeys(epoch))
    }

    pub fn is_open(&self, number: SegmentNo) -> bool {
        self.get(number).is_some_and(|segment| segment.open.is_some())
    }

    /// It had a number of this log once, and is no more.
    pub fn is_gone(&self, number: SegmentNo) -> bool {
        number.0 <= self.last && self.get(number).is_none()
    }

    /// Those that are remembered as Gone.
    pub fn gone(&self) -> &GoneSegments {
        &self.gone
    }

    pub fn last(&self) -> u32 {
        self.last
    }

    pub fn set_last(&mut self, last: u32) {
        self.last = self.last.max(last);
    }

    /// For placement, which looks at few of them.
    pub fn open(&self) -> &[Open] {
        &self.open
    }

    /// What placement looks at of one that is open.
    pub fn open_one_of(&self, number: SegmentNo) -> Option<&Open> {
        self.open.get(self.get(number)?.open? as usize)
    }

    /// Sessions with an open segment.
    pub fn open_sessions(&self) -> usize {
        self.open_sessions.len()
    }

    /// The longest free run of granules in an open segment.
    pub fn longest_run(&self) -> u32 {
        self.runs.largest()
    }

    /// Those open ones from a place on up to another that have a free run of so many granules.
    pub fn with_room(&self, places: Range<usize>, need: u32) -> impl Iterator<Item = &Open> + Clone {
        let next = move |from: usize| self.runs.next(from, need).filter(|place| *place < places.end);
        let found = std::iter::successors(next(places.start), move |place| next(place + 1));
        found.map(|place| &self.open[place]).inspect(|_| self.touched.add(1))
    }

    /// Those open ones in which eviction alone can gain so many granules.
    pub fn with_attainable(&self, need: u32) -> impl Iterator<Item = &Open> {
        let next = move |from: usize| self.attainable.next(from, need).filter(|place| *place < self.open.len());
        let found = std::iter::successors(next(0), move |place| next(place + 1));
        self.touched.each(found.map(|place| &self.open[place]))
    }

    /// Open ones of a host.
    pub fn of_host(&self, host: u32) -> impl Iterator<Item = SegmentNo> {
        self.open.iter().filter(move |open| open.host == Some(host)).map(|open| open.number)
    }

    /// Open ones that are still populated.
    pub fn populating(&self) -> impl Iterator<Item = &Segment> {
        self.populating.iter().filter_map(|number| self.get(*number))
    }

    /// Granules of all segments that are not Gone, by what holds them.
    pub fn held(&self) -> HeldGranules {
        self.held
    }

    /// What those that are Live come to.
    pub fn live_counts(&self) -> LiveCounts {
        self.live_counts
    }

    /// The most granules that one segment has that does not leave, less hard-pinned objects: views, quarantine and
    /// absence all come to an end.
    pub fn most_lasting(&self) -> u32 {
        self.lasting.last_key_value().map_or(0, |(granules, _)| *granules)
    }

    /// Something begins or ceases to hold granules of a segment. On a Gone one nothing is counted.
    pub fn count_held(&mut self, number: SegmentNo, by: HeldBy, granules: u32, begins: bool) {
        self.touched.add(1);
        let Some(segment) = self.table.get_mut(number.0 as usize).and_then(Option::as_deref_mut) else { return };
        let before = segment.lasting();
        let (of_it, of_all) = match by {
            HeldBy::Pin => (&mut segment.pinned, &mut self.held.pinned),
            HeldBy::HardPin => (&mut segment.hard, &mut self.held.hard),
            HeldBy::Quarantine => (&mut segment.quarantined, &mut self.held.quarantined),
        };
        match begins {
            true => (*of_it, *of_all) = (*of_it + granules, *of_all + u64::from(granules)),
            false => (*of_it, *of_all) = (*of_it - granules, *of_all - u64::from(granules)),
        }
        let (after, stays) = (segment.lasting(), segment.leaves.is_none());
        self.live_counts.recount(segment);
        if let Some(place) = segment.open {
            self.attainable.set(place as usize, segment.attainable());
        }
        if before != after && stays {
            subtract(&mut self.lasting, before);
            *self.lasting.entry(after).or_default() += 1;
        }
    }

    /// Capacity of the open segments.
    pub fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// Bytes in use of them, for whatever reason.
    pub fn open_used(&self) -> u64 {
        self.open_used * GRANULE
    }

    pub fn insert(&mut self, number: SegmentNo, session: SessionId, host: Option<u32>, spec: SegmentSpec, epoch: u16) {
        let index = number.0 as usize;
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || None);
        }
        if self.live.len() <= index {
            self.live.resize(index + 1, false);
        }
        self.last = self.last.max(number.0);
        self.by_uuid.insert(spec.uuid, number);
        self.by_name.insert((spec.name.clone(), number));
        self.numbers.insert(number);
        *self.hidden.entry(session).or_default() += 1;
        let granules = (spec.bytes / GRANULE) as u32;
        *self.lasting.entry(granules).or_default() += 1;
        self.table[index] = Some(Box::new(Segment {
            number,
            spec,
            session,
            host,
            live: false,
            epoch,
            inherited: false,
            extents: Extents::new(granules),
            quarantined: 0,
            pinned: 0,
            hard: 0,
            progress: Time(0),
            leaves: None,
            open: None,
            counted: LiveCounts::default(),
        }));
    }

    /// Its objects, if any, are dropped lazily: nothing finds them any more.
    pub fn remove(&mut self, number: SegmentNo, current_epoch: u16) -> Option<Box<Segment>> {
        self.close(number);
        let mut segment = self.table.get_mut(number.0 as usize)?.take()?;
        self.live[number.0 as usize] = false;
        self.numbers.remove(&number);
        self.by_uuid.remove(&segment.spec.uuid);
        self.by_name.remove(&(segment.spec.name.clone(), number));
        match segment.leaves {
            Some(leaves) => _ = self.leaving.remove(&(leaves.at, number)),
            None => subtract(&mut self.lasting, segment.lasting()),
        }
        self.held.pinned -= u64::from(segment.pinned);
        self.held.hard -= u64::from(segment.hard);
        self.held.quarantined -= u64::from(segment.quarantined);
        self.live_counts.replace(segment.counted, LiveCounts::default());
        if !segment.live {
            subtract(&mut self.hidden, segment.session);
        }
        let kept_whole = segment.epoch < current_epoch;
        self.forget(GoneSegment { uuid: segment.spec.uuid, number, kept_whole });
        self.remains.push(std::mem::replace(&mut segment.extents, Extents::new(0)).into_remains());
        Some(segment)
    }

    /// Another session has its memory, and is yet to prove that nothing of earlier writers lands there.
    pub fn move_to(&mut self, number: SegmentNo, session: SessionId, endpoint: &[u8]) {
        self.close(number);
        let Some(segment) = self.get_mut(number) else { return };
        let before = std::mem::replace(&mut segment.session, session);
        endpoint.clone_into(&mut segment.spec.endpoint);
        segment.inherited = true;
        if !segment.live {
            subtract(&mut self.hidden, before);
            *self.hidden.entry(session).or_default() += 1;
        }
    }

    /// Remembers that a segment is Gone.
    pub fn forget(&mut self, gone: GoneSegment) {
        self.last = self.last.max(gone.number.0);
        self.gone.remember(gone);
    }

    /// Whether that changed anything.
    pub fn set_live(&mut self, number: SegmentNo, live: bool) -> bool {
        self.touched.add(1);
        let Some(segment) = self.table.get_mut(number.0 as usize).and_then(Option::as_deref_mut) else { return false };
        match (std::mem::replace(&mut segment.live, live), live) {
            (false, true) => subtract(&mut self.hidden, segment.session),
            (true, false) => *self.hidden.entry(segment.session).or_default() += 1,
            _ => {}
        }
        self.live_counts.recount(segment);
        std::mem::replace(&mut self.live[number.0 as usize], live) != live
    }

    /// Whether a tier's objects can be read. True if that changed anything. It has a number like a segment.
    pub fn set_tier_live(&mut self, number: SegmentNo, live: bool) -> bool {
        let index = number.0 as usize;
        if self.live.len() <= index {
            self.live.resize(index + 1, false);
        }
        self.last = self.last.max(number.0);
        match live {
            true => self.tiers.insert(number),
            false => self.tiers.remove(&number),
        };
        std::mem::replace(&mut self.live[index], live) != live
    }

    /// Whether those that are there and not Live are of one session at most.
    pub fn few_are_hidden(&self) -> bool {
        self.hidden.len() <= 1
    }

    /// Opens or closes a segment after a change of whether it is Live, leaves or obeys the epoch. True when it was
    /// opened.
    pub fn open_or_close(&mut self, number: SegmentNo, current_epoch: u16) -> bool {
        let Some(segment) = self.get(number) else { return false };
        match (segment.open, segment.takes_objects(current_epoch)) {
            (None, true) => self.open_one(number),
            (Some(_), false) => self.close(number),
            _ => return false,
        }
        self.is_open(number)
    }

    fn open_one(&mut self, number: SegmentNo) {
        let place = self.open.len() as u32;
        let Some(segment) = self.get_mut(number) else { return };
        segment.open = Some(place);
        let (open, attainable, populating) = (segment.for_placement(), segment.attainable(), segment.populating());
        self.open.push(open);
        self.attainable.set(place as usize, attainable);
        if populating {
            self.populating.insert(number);
        }
        *self.open_sessions.entry(open.session).or_default() += 1;
        self.open_bytes += u64::from(open.total) * GRANULE;
        self.open_used += u64::from(open.used);
        self.runs.set(place as usize, open.largest);
    }

    fn close(&mut self, number: SegmentNo) {
        let Some(place) = self.get_mut(number).and_then(|segment| segment.open.take()) else { return };
        let closed = self.open.swap_remove(place as usize);
        self.runs.set(self.open.len(), 0);
        self.attainable.set(self.open.len(), 0);
        self.populating.remove(&number);
        if let Some(moved) = self.open.get(place as usize).copied() {
            let segment = self.get_mut(moved.number).expect("it is open");
            segment.open = Some(place);
            let attainable = segment.attainable();
            self.attainable.set(place as usize, attainable);
            self.runs.set(place as usize, moved.largest);
        }
        subtract(&mut self.open_sessions, closed.session);
        self.open_bytes -= u64::from(closed.total) * GRANULE;
        self.open_used -= u64::from(closed.used);
    }

    /// A segment is to be Gone when a grace is over.
    pub fn set_leaves(&mut self, now: Time, number: SegmentNo, grace_ms: u64) {
        let Some(segment) = self.get_mut(number) else { return };
        let leaves = UnmountGrace { grace_ms, at: now.plus_ms(grace_ms) };
        let (before, lasting) = (segment.leaves.replace(leaves), segment.lasting());
        match before {
            Some(before) => _ = self.leaving.remove(&(before.at, number)),
            None => subtract(&mut self.lasting, lasting),
        }
        self.leaving.insert((leaves.at, number));
        self.count(number);
    }

    /// The graces of segments that leave begin anew.
    pub fn restart_graces(&mut self, now: Time) {
        for (_, number) in std::mem::take(&mut self.leaving) {
            let leaves = self.get(number).and_then(|segment| segment.leaves);
            let grace_ms = leaves.expect("it leaves").grace_ms;
            self.set_leaves(now, number, grace_ms);
        }
    }

    /// A segment whose grace is over.
    pub fn overdue(&self, now: Time) -> Option<SegmentNo> {
        self.leaving.first().filter(|(at, _)| *at <= now).map(|(_, number)| *number)
    }

    pub fn take(&mut self, number: SegmentNo, granule: u32, len: u32) -> Result<(), ExtentError> {
        let Some(segment) = self.get_mut(number) else { return Ok(()) };
        segment.extents.take(granule, len)?;
        self.refresh(number);
        Ok(())
    }

    /// Gives an extent back; on a Gone segment there is nothing to give back.
    pub fn give(&mut self, number: SegmentNo, granule: u32, len: u32) -> Result<(), ExtentError> {
        let Some(segment) = self.get_mut(number) else { return Ok(()) };
        segment.extents.give(granule, len)?;
        self.refresh(number);
        Ok(())
    }

    pub fn raise_limit(&mut self, number: SegmentNo, granules: u32) {
        if let Some(segment) = self.get_mut(number) {
            segment.extents.raise_limit(granules);
            self.refresh(number);
        }
    }

    /// It will never be populated further than it is.
    pub fn end_at_limit(&mut self, number: SegmentNo) {
        if let Some(segment) = self.get_mut(number) {
            let (before, stays) = (segment.lasting(), segment.leaves.is_none());
            segment.extents.end_at_limit();
            let after = segment.lasting();
            if stays {
                subtract(&mut self.lasting, before);
                *self.lasting.entry(after).or_default() += 1;
            }
            self.refresh(number);
        }
    }

    fn count(&mut self, number: SegmentNo) {
        if let Some(segment) = self.table[number.0 as usize].as_deref_mut() {
            self.live_counts.recount(segment);
        }
    }

    fn refresh(&mut self, number: SegmentNo) {
        self.count(number);
        let Some(segment) = self.table[number.0 as usize].as_deref() else { return };
        let Some(index) = segment.open else { return };
        let (before, open) = (self.open[index as usize], segment.for_placement());
        self.open[index as usize] = open;
        self.open_bytes -= u64::from(before.total - open.total) * GRANULE;
        self.open_used = self.open_used - u64::from(before.used) + u64::from(open.used);
        if before.largest != open.largest {
            self.runs.set(index as usize, open.largest);
        }
        if before.total != open.total {
            self.attainable.set(index as usize, segment.attainable());
        }
        if !segment.populating() {
            self.populating.remove(&number);
        }
    }

    /// Which segment is Live, open or Gone is the same wherever it is noted; the free space of each is in order.
    pub fn check_invariants(&self, current_epoch: u16) -> Result<(), String> {
        let mut open = 0;
        for (uuid, number) in &self.by_uuid {
            let index = number.0 as usize;
            let Some(segment) = self.get(*number) else {
                return Err(format!("{} is Gone, and found by its UUID", index));
            };
            let number = segment.number.0;
            ensure!(number as usize == index && number <= self.last, "{number} is in place {index} of {}", self.last);
            ensure!(*uuid == segment.spec.uuid, "{number} is found by another UUID than its own");
            ensure!(self.live[index] == segment.live, "{number} is Live: {}, and listed as the contrary", segment.live);
            ensure!(segment.epoch <= current_epoch, "{number} obeys epoch {} of {current_epoch}", segment.epoch);
            segment.extents.check_invariants().map_err(|wrong| format!("{number}: {wrong}"))?;
            let (mounted, total) = (segment.spec.bytes / GRANULE, segment.extents.total());
            let whole = u64::from(total) == mounted || u64::from(total) < mounted && !segment.populating();
            ensure!(whole, "{number} has {total} granules, was mounted with {mounted}, and is still populated");
            let takes = segment.takes_objects(current_epoch);
            let noted = segment.open.and_then(|place| self.open.get(place as usize)).copied();
            let right = takes.then(|| segment.for_placement());
            ensure!(noted == right, "{number} is open as {right:?}, and noted as {noted:?}");
            open += usize::from(takes);
        }
        ensure!(open == self.open.len(), "{open} are open, and listed {}", self.open.len());
        for (index, _) in self.live.iter().enumerate().filter(|(_, live)| **live) {
            let number = SegmentNo(index as u32);
            let is_one = self.get(number).is_some() != self.tiers.contains(&number);
            ensure!(is_one, "{index} is Live, and neither a segment nor a tier, or both");
        }
        let bytes: u64 = self.open.iter().map(|open| u64::from(open.total) * GRANULE).sum();
        ensure!(bytes == self.open_bytes, "the open ones have {bytes} bytes, and counted {}", self.open_bytes);
        let mut sessions = BTreeMap::new();
        for open in &self.open {
            *sessions.entry(open.session).or_default() += 1;
        }
        ensure!(sessions == self.open_sessions, "open are those of {sessions:?}, and counted {:?}", self.open_sessions);
        let (longest, noted) = (self.open.iter().map(|open| open.largest).max().unwrap_or(0), self.longest_run());
        ensure!(longest == noted, "the longest free run of the open ones is {longest}, and noted {noted}");
        self.check_counts()?;
        let leaving = self.iter().filter_map(|segment| Some((segment.leaves?.at, segment.number)));
        let leaving: BTreeSet<_> = leaving.collect();
        ensure!(leaving == self.leaving, "{leaving:?} leave, and are listed {:?}", self.leaving);
        let numbers: BTreeSet<_> = self.by_uuid.values().copied().collect();
        ensure!(numbers == self.numbers, "{numbers:?} are there, and listed {:?}", self.numbers);
        let named: BTreeSet<_> = self.iter().map(|segment| (segment.spec.name.clone(), segment.number)).collect();
        ensure!(named == self.by_name, "{named:?} are there, and found by their names {:?}", self.by_name);
        self.gone.check_invariants()?;
        for GoneSegment { uuid, number, .. } in self.gone.iter() {
            let gone = self.is_gone(number) && !self.is_live(number) && !self.by_uuid.contains_key(&uuid);
            ensure!(gone, "{} is remembered as Gone, and there or Live", number.0);
        }
        Ok(())
    }
}

impl Segments {
    /// What is counted of all segments is what they have.
    fn check_counts(&self) -> Result<(), String> {
        let (mut held, mut lasting) = (HeldGranules::default(), BTreeMap::<u32, u32>::new());
        for segment in self.iter() {
            held.pinned += u64::from(segment.pinned);
            held.hard += u64::from(segment.hard);
            held.quarantined += u64::from(segment.quarantined);
            if segment.leaves.is_none() {
                *lasting.entry(segment.lasting()).or_default() += 1;
            }
        }
        let mut live = LiveCounts::default();
        self.iter().for_each(|segment| live.replace(LiveCounts::default(), LiveCounts::of(segment)));
        let mut hidden = BTreeMap::new();
        for segment in self.iter().filter(|segment| !segment.live) {
            *hidden.entry(segment.session).or_default() += 1;
        }
        ensure!(hidden == self.hidden, "not Live are those of {hidden:?}, and counted {:?}", self.hidden);
        ensure!(live == self.live_counts, "those that are Live have {live:?}, and counted {:?}", self.live_counts);
        ensure!(held == self.held, "{held:?} are held, and counted {:?}", self.held);
        ensure!(lasting == self.lasting, "{lasting:?} last, and counted {:?}", self.lasting);
        for (place, open) in self.open.iter().enumerate() {
            let segment = self.get(open.number).ok_or_else(|| format!("{} is open and Gone", open.number.0))?;
            let (has, noted) = (segment.attainable(), self.attainable.at(place));
            ensure!(has == noted, "eviction gains {has} in {}, and noted {noted}", open.number.0);
            let (has, noted) = (segment.populating(), self.populating.contains(&open.number));
            ensure!(has == noted, "{} is populated: {has}, and noted {noted}", open.number.0);
        }
        let used: u64 = self.open.iter().map(|open| u64::from(open.used)).sum();
        ensure!(used == self.open_used, "{used} granules of the open ones are in use, and counted {}", self.open_used);
        ensure!(self.populating.len() <= self.open.len(), "{:?} are populated, and not open", self.populating);
        Ok(())
    }
}

/// One less of these, and none at all of what there is none of.
fn subtract<K: Ord>(counts: &mut BTreeMap<K, u32>, of: K) {
    if let std::collections::btree_map::Entry::Occupied(mut count) = counts.entry(of) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
