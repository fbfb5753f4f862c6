//! Room for a key: found, or made by evicting what is used least.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{Extent, Replica, SegmentNo, Time};
use crate::operations::put_start::{Entry, PutContext};
use crate::operations::why_full::Why;
use crate::record::Record;
use crate::state::object::{Mark, REPLICAS_MAX};
use crate::state::objects::ObjectSlot;
use crate::state::objects::{Reach, SameCall};
use crate::state::placement::{self, Alone, Wishes};
use crate::state::reservation;
use crate::state::segment::Segment;
use crate::work::{EVICTED_AS, EVICTED_AS_BESIDE_A_SNAPSHOT, key_as};
use mooncake_ids::granules;
use mooncake_ids::{GRANULE, Rid, SessionId};

/// Objects evicted for a further replica before the put does with fewer.
const EVICTED_MORE: usize = 64;

/// Segments that cost as much as one object, where they are only looked at.
const SEGMENTS_AS_ONE: usize = 32;

/// Objects on no tier that one look at a request passes over in search of one that a tier has.
const UNWRITTEN_PASSES: usize = 512;

/// A tier that has answered no order for so long is not waited for.
const TIER_SILENT_MS: u64 = 500;

/// What is under order is passed over for so long.
const ORDER_SPARED_MS: u64 = 500;

/// A populator without progress for so long has failed.
const POPULATION_STALLED_MS: u64 = 3_000;

/// How a request may get room now.
#[derive(Clone, Copy)]
pub(crate) struct RoomMode {
    /// No request before it waits for room, or its own deadline has come.
    pub room: bool,
    /// A key that others wait for, and are yet to hear that it is free, is theirs.
    pub newcomer: bool,
    /// Its deadline has come: protected objects go too, and no populator is waited for.
    pub force: bool,
    /// It waits a little for a tier to have what would be lost.
    pub spares_unwritten: bool,
}

/// Why a key was not placed.
#[derive(Clone)]
pub(crate) enum NoRoom {
    TooLarge,
    /// Owners may come, but nothing is there that a put could wait for.
    NoSegment,
    /// Room may come.
    Full(Why),
    /// Only this call's own objects, and objects looked up a moment ago, could be evicted. The put waits without
    /// blocking later puts.
    SameCall,
    /// No eviction gives it room, only the end of views or of quarantine, or an owner that comes back. The put waits
    /// without blocking later puts: one that needs less may be placed.
    Unattainable,
    /// Room comes from the populator.
    Populating,
    /// Room for a further replica comes from the populator, without an eviction. The put waits without blocking puts
    /// that need no more than there is.
    PopulatingMore,
    /// Room comes from owners that are writing to their tiers what eviction would lose.
    Writing,
    /// This session has too much unfinished already. The put waits without blocking those of others.
    Capped(Why),
}

impl NoRoom {
    pub fn why(&self) -> Why {
        match self {
            NoRoom::Full(why) | NoRoom::Capped(why) => *why,
            NoRoom::Populating | NoRoom::PopulatingMore => Why::Populating,
            NoRoom::Writing => Why::Writing,
            NoRoom::TooLarge | NoRoom::NoSegment | NoRoom::SameCall | NoRoom::Unattainable => Why::Held,
        }
    }
}

/// What one replica needs.
#[derive(Clone, Copy)]
struct Need<'a> {
    granules: u32,
    /// Owners that have another replica of it already.
    owners: &'a [SessionId],
    mode: RoomMode,
    /// Objects that may be evicted for it.
    evictions: usize,
}

/// What leaves next, so that as little as can be is lost.
pub(crate) enum Victim {
    Slot(ObjectSlot),
    /// What the order of eviction says: no tier has anything of it.
    Any,
    /// All that was looked at would be lost, and owners are writing.
    Wait,
}

/// What one look at a request has learnt about room.
pub(crate) struct RoomSearch {
    /// What it may still do, in replicas that it places.
    pub left: usize,
    /// Each object that it evicts takes as long as so many.
    evicted_as: usize,
    /// Objects that are on no tier and that it may still pass over.
    passes: usize,
    /// Objects that are on their way from memory to be evicted.
    foreseen: usize,
    /// A writer that is away and has more keys for it than it has time for.
    pub yielding: Option<SessionId>,
    /// What its call has stored.
    pub same_call: Option<SameCall>,
    /// So many granules and more are not to be had: the keys after the first that found out need not try again.
    pub full_from: u32,
    /// Why not.
    pub denied: NoRoom,
    wishes: Wishes,
    /// The most granules that one segment has of those that are being populated.
    most_populating: Option<u32>,
    populating: Option<Vec<Populating>>,
    /// Besides these owners' no segment can have room, by eviction or without.
    alone: Option<Alone>,
}

/// What a segment has to give whose populator gets on.
#[derive(Clone, Copy)]
struct Populating {
    owner: SessionId,
    /// Granules that eviction alone can gain.
    attainable: u32,
    /// Granules that come without any.
    to_come: u32,
}

impl RoomSearch {
    pub fn of(left: usize, beside_a_snapshot: bool, same_call: Option<SameCall>, wishes: Wishes) -> RoomSearch {
        RoomSearch {
            left,
            evicted_as: if beside_a_snapshot { EVICTED_AS_BESIDE_A_SNAPSHOT } else { EVICTED_AS },
            passes: UNWRITTEN_PASSES,
            foreseen: 0,
            yielding: None,
            same_call,
            full_from: u32::MAX,
            denied: NoRoom::Full(Why::Held),
            wishes,
            most_populating: None,
            populating: None,
            alone: None,
        }
    }

    /// Objects that it may still evict.
    pub fn evictions(&self) -> usize {
        self.left / self.evicted_as
    }

    /// What it has looked at besides the keys and what it evicted, in objects.
    pub fn looked_at(&self) -> usize {
        self.populating.as_ref().map_or(0, |populating| populating.len().div_ceil(SEGMENTS_AS_ONE))
    }

    fn found_none(&mut self, granules: u32, denied: &NoRoom) {
        if granules < self.full_from {
            self.full_from = granules;
            self.denied = denied.clone();
        }
    }
}

impl Core {
    /// Finds room for each replica, evicting if it must, and reserves it. One replica is enough where none is to come
    /// for another.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another thing that is known of one put; a struct of them would serve this one call"
    )]
    pub(crate) fn place(
        &mut self,
        now: Time,
        context: &PutContext<'_>,
        entry: Entry<'_>,
        replaces: bool,
        mode: RoomMode,
        search: &mut RoomSearch,
        fx: &mut Effects,
    ) -> Result<SmallVec<[Replica; 1]>, NoRoom> {
        let Entry { key, size, group, .. } = entry;
        let Ok(granules) = u32::try_from(granules(size)) else {
            return Err(NoRoom::TooLarge);
        };
        self.check_cap(context.origin.session, size)?;
        // Replicas lie with different clients (docs/safety.md, rule 11): no more than owners that take any. One at
        // least, so that the search says why there is no room.
        let wanted =
            (context.config.replica_num.max(1) as usize).min(REPLICAS_MAX).min(self.segments.open_sessions().max(1));
        // A key gets fewer replicas for want of room, but not because this look at the request has no evictions left:
        // it is placed at another look.
        if wanted > 1 && search.evictions() == 0 && granules >= search.full_from {
            return Err(search.denied.clone());
        }
        let mut owners: SmallVec<[SessionId; 2]> = SmallVec::new();
        let mut extents: SmallVec<[Extent; 1]> = SmallVec::new();
        for nth in 0..wanted {
            let free = match mode.room {
                true => placement::choose(&self.segments, granules, &owners, &mut search.wishes, &mut self.random),
                false => None,
            };
            let need = Need { granules, owners: &owners, mode, evictions: usize::MAX };
            let chosen = match free {
                Some(number) => number,
                None if nth == 0 => self.make_room(now, need, search, fx)?,
                None if !mode.force && granules <= self.to_come(now, &owners, search) => {
                    return Err(NoRoom::PopulatingMore);
                }
                None => {
                    let mode = RoomMode { force: false, spares_unwritten: false, ..mode };
                    let need = Need { mode, evictions: EVICTED_MORE, ..need };
                    match self.make_room(now, need, search, fx) {
                        Ok(number) => number,
                        // Another look has the time to evict for it.
                        Err(denied @ NoRoom::Full(_)) if search.evictions() == 0 => {
                            search.found_none(granules, &denied);
                            return Err(denied);
                        }
                        Err(_) => break,
                    }
                }
            };
            let segment = self.segments.get(chosen).expect("an open segment");
            let granule = segment.extents.find(granules).expect("room was found there");
            owners.push(segment.session);
            extents.push(Extent { segment: chosen, offset: u64::from(granule) * GRANULE, length: size });
        }
        // Rids are given only now that it is placed: the log knows of each.
        let replicas: SmallVec<[Replica; 1]> =
            extents.into_iter().map(|extent| Replica { rid: self.next_rid(), extent }).collect();
        search.left = search.left.saturating_sub(replicas.len());
        let terms = reservation::PutTerms { group: group.into(), replaces, promotes: None };
        let record = terms.record(context.origin.session, key, size, context.pin, SmallVec::from_slice(&replicas));
        self.log(now, record, fx);
        Ok(replicas)
    }

    fn check_cap(&self, session: SessionId, size: u64) -> Result<(), NoRoom> {
        let unfinished = self.sessions.get(session).map_or(0, |session| session.unfinished);
        // A single put is never too much, whatever its size.
        if unfinished == 0 {
            return Ok(());
        }
        let cap = (self.segments.open_bytes() as f64 * self.config.unfinished_share_max) as u64;
        if unfinished + size > cap {
            return Err(NoRoom::Capped(Why::Unfinished { bytes: unfinished, cap }));
        }
        Ok(())
    }

    /// Evicts until one segment has the room.
    fn make_room(
        &mut self,
        now: Time,
        need: Need<'_>,
        search: &mut RoomSearch,
        fx: &mut Effects,
    ) -> Result<SegmentNo, NoRoom> {
        let Need { granules, owners, .. } = need;
        if granules > self.segments.most_lasting() {
            return Err(match self.segments.len() {
                0 => NoRoom::NoSegment,
                _ => NoRoom::TooLarge,
            });
        }
        if owners.is_empty() && granules >= search.full_from {
            return Err(search.denied.clone());
        }
        let room = self.search_room(now, need, search, fx);
        // What waits for a populator says nothing of larger keys, for which another segment may be.
        if owners.is_empty()
            && let Err(denied @ (NoRoom::Full(_) | NoRoom::Writing | NoRoom::SameCall | NoRoom::Unattainable)) = &room
        {
            search.found_none(granules, denied);
        }
        room
    }

    /// Evicts for one replica until a segment has the room, or says why there is none.
    fn search_room(
        &mut self,
        now: Time,
        need: Need<'_>,
        search: &mut RoomSearch,
        fx: &mut Effects,
    ) -> Result<SegmentNo, NoRoom> {
        let Need { granules, owners, mode, evictions, .. } = need;
        // The order of the refusals decides what the put waits for. First where evicting would gain nothing, even if
        // others wait for room: in their line it would keep puts waiting that need less.
        if search.alone.as_ref().is_some_and(|alone| alone.are(owners, granules)) {
            return Err(NoRoom::Unattainable);
        }
        if !self.segments.with_attainable(granules).any(|open| !owners.contains(&open.session)) {
            search.alone = Alone::of(owners, granules);
            return Err(NoRoom::Unattainable);
        }
        // Before the populator: a request that waits for one goes ahead of requests in the line that do not.
        if !mode.room {
            return Err(NoRoom::Full(Why::OthersWait));
        }
        // Before evicting: a put waits for the populator instead, until its deadline (docs/safety.md, rule 22).
        if !mode.force && granules <= self.attainable_by_populators(now, owners, search) {
            return Err(NoRoom::Populating);
        }
        self.counts.evictions_attempted += 1;
        // At its deadline a put takes what was looked up a moment ago, too (docs/safety.md, rules 9 and 12).
        let reach = if mode.force { Reach::Protected } else { Reach::SoftPinned };
        let mut left = evictions.min(search.evictions());
        loop {
            if search.foreseen == 0 {
                search.foreseen = self.objects.foresee_victims(search.evictions(), reach);
            }
            let before = left;
            let spared = self.spare_the_unwritten(now, search.same_call.as_ref(), &mut search.passes);
            if matches!(spared, Victim::Wait) && mode.spares_unwritten {
                return Err(NoRoom::Writing);
            }
            let victim = match spared {
                Victim::Slot(slot) if left > 0 => {
                    left -= 1;
                    Some(slot)
                }
                _ => self.objects.victim(now, &self.segments, reach, search.same_call.as_mut(), &mut left),
            };
            search.foreseen = search.foreseen.saturating_sub(before - left);
            search.left -= (before - left) * search.evicted_as;
            let Some(victim) = victim else { break };
            let beside = key_as(self.objects.key(victim).len());
            left = left.saturating_sub(beside);
            search.left = search.left.saturating_sub(beside * search.evicted_as);
            let freed = self.evict(now, victim, fx);
            for number in &freed {
                search.wishes.alone.take_if(|alone| !alone.gains(*number));
            }
            for number in freed {
                let open = self.segments.get(number).filter(|_| self.segments.is_open(number));
                if open.is_some_and(|s| s.extents.largest() >= granules && !owners.contains(&s.session)) {
                    self.counts.evictions_successful += 1;
                    return Ok(number);
                }
            }
        }
        // Without a call of its own to spare there would have been a victim.
        let denied = match search.same_call {
            Some(_) if left > 0 && self.objects.victim(now, &self.segments, reach, None, &mut 1).is_some() => {
                NoRoom::SameCall
            }
            _ => NoRoom::Full(Why::Held),
        };
        Err(denied)
    }

    /// Where a tier is Live, the coldest object that it has, or that no tier will ever have; else one that no owner is
    /// about to write. What a call has just stored is neither. `passes` bounds the search.
    pub(crate) fn spare_the_unwritten(
        &mut self,
        now: Time,
        same_call: Option<&SameCall>,
        passes: &mut usize,
    ) -> Victim {
        if !self.tiers.any_live() {
            return Victim::Any;
        }
        let within = |since: Option<Time>, ms: u64| since.is_some_and(|since| now <= since.plus_ms(ms));
        let oldest = self.tiers.oldest_order();
        let spares_ordered = within(oldest, ORDER_SPARED_MS);
        // Where no passes are left, an earlier search has passed what may be written.
        let (mut next, mut unwritten, mut has_passed) = (self.objects.coldest(), None, *passes == 0);
        while let Some(slot) = next.filter(|_| *passes > 0) {
            let object = self.objects.object(slot);
            if object.places.memory().iter().any(|place| self.segments.is_open(place.segment)) {
                if self.is_on_live_tier(slot) {
                    return Victim::Slot(slot);
                }
                let is_ordered = object.marks.has(Mark::Ordered);
                let is_lost = !is_ordered && !self.may_be_written(slot);
                let is_own = same_call.is_some_and(|call| object.id() >= call.first);
                if is_lost && !is_own {
                    return Victim::Slot(slot);
                }
                let is_spared = is_own || spares_ordered && is_ordered;
                if !is_spared {
                    unwritten.get_or_insert(slot);
                }
                has_passed |= !is_lost;
            }
            *passes -= 1;
            next = self.objects.after_in_turn(slot);
        }
        if self.config.offload.force_evict {
            return unwritten.map_or(Victim::Any, Victim::Slot);
        }
        let is_writing = [self.tiers.answered_at(), oldest].into_iter().any(|at| within(at, TIER_SILENT_MS));
        // Owners of whom nothing is asked are not silent: what would be lost is ordered next.
        let is_asked_next = || oldest.is_none() && unwritten.is_some_and(|slot| self.is_nearly_full(slot));
        if has_passed && is_writing || is_asked_next() {
            // Reads move what is cold, of which no log knows.
            self.tiers.cold_rests_until = Time(0);
            return Victim::Wait;
        }
        unwritten.map_or(Victim::Any, Victim::Slot)
    }

    /// Granules that eviction alone can gain where the populator gets on.
    fn attainable_by_populators(&self, now: Time, owners: &[SessionId], search: &mut RoomSearch) -> u32 {
        if let Some(known) = search.most_populating.filter(|_| owners.is_empty()) {
            return known;
        }
        let others = self.populating(now, search).iter().filter(|one| !owners.contains(&one.owner));
        let most = others.map(|one| one.attainable).max().unwrap_or(0);
        if owners.is_empty() {
            search.most_populating = Some(most);
        }
        most
    }

    /// Granules that populators bring without an eviction.
    fn to_come(&self, now: Time, owners: &[SessionId], search: &mut RoomSearch) -> u32 {
        let others = self.populating(now, search).iter().filter(|one| !owners.contains(&one.owner));
        others.map(|one| one.to_come).max().unwrap_or(0)
    }

    fn populating<'a>(&self, now: Time, search: &'a mut RoomSearch) -> &'a [Populating] {
        let gets_on = |segment: &&Segment| now < segment.progress.plus_ms(POPULATION_STALLED_MS);
        search.populating.get_or_insert_with(|| {
            let populating = self.segments.populating().filter(gets_on).map(|segment| Populating {
                owner: segment.session,
                attainable: segment.attainable(),
                to_come: segment.extents.to_come(),
            });
            populating.collect()
        })
    }

    /// Evicts one object; the segments that have more room now.
    pub(crate) fn evict(&mut self, now: Time, slot: ObjectSlot, fx: &mut Effects) -> SmallVec<[SegmentNo; 2]> {
        let object = self.objects.object(slot);
        let changed = object.places.memory().iter().map(|place| place.segment).collect();
        let bytes = object.bytes();
        self.counts.evicted_objects += 1;
        self.counts.evicted_bytes += bytes;
        self.objects.is_evicted(slot);
        let object = self.objects.object(slot);
        if self.is_on_live_tier(slot) {
            self.counts.evicted_clean_objects += 1;
            self.drop_from_memory(now, slot, fx);
            return changed;
        }
        let broken = object.protected_until > now;
        self.counts.protection_broken += u64::from(broken);
        if object.protected_until > Time(0) {
            let hash = self.objects.hash(self.objects.key(slot));
            self.recently_evicted.add(hash);
        }
        if self.tiers.any_live() {
            self.counts.evicted_unwritten_objects += 1;
            self.counts.evicted_unwritten_bytes += bytes;
        }
        // A tier that is Hidden may come back with it.
        match object.places.tier().is_some_and(|place| self.tiers.get(place.tier).is_some()) {
            true => self.drop_from_memory(now, slot, fx),
            false => self.remove_object(now, slot, fx),
        }
        changed
    }

    /// Of an object that a tier has.
    fn drop_from_memory(&mut self, now: Time, slot: ObjectSlot, fx: &mut Effects) {
        let object = self.objects.object(slot);
        let rids: SmallVec<[Rid; 2]> = object.places.memory().iter().map(|place| place.rid).collect();
        for rid in rids {
            let key = self.objects.key(slot).into();
            self.log(now, Record::ReplicaDropped { key, rid }, fx);
        }
    }
}
