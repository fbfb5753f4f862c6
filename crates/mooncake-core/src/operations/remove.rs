//! Unlinking objects, one by one or all, and listing them.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::Time;
use crate::record::Record;
use crate::request::{Origin, Refused, RemoveOutcome, Sight};
use crate::state::objects::AHEAD;
use crate::state::objects::ObjectSlot;
use crate::state::removals_under_way::UnderWay;
use crate::work::Work;
use mooncake_ids::Rid;
use mooncake_mutant::mutant;

/// A remove_all under way. It takes what was there when it began.
#[derive(Debug, Clone)]
pub struct RemoveAll {
    /// Objects removed so far.
    pub removed: u64,
    force: bool,
    next: u32,
    begun: UnderWay,
}

impl RemoveAll {
    /// Begins now; without `force` it spares what was looked up a moment ago.
    pub fn new(core: &mut Core, force: bool) -> RemoveAll {
        let begun = core.removals.begin(Rid::new(core.epoch.number, core.counter + 1));
        RemoveAll { removed: 0, force, next: 0, begun }
    }
}

/// An object that a removal may take, if it is still the same one then.
#[derive(Debug, Clone)]
pub struct Candidate {
    slot: ObjectSlot,
    /// Its places may go and come meanwhile; this stays.
    object_id: Rid,
}

/// How far a listing of keys is.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeysCursor {
    pub(super) next: u32,
}

impl Core {
    /// Unlinks objects at once, whatever is being read.
    pub fn remove(
        &mut self,
        now: Time,
        origin: Origin,
        keys: &[&[u8]],
        force: bool,
        fx: &mut Effects,
    ) -> Result<Vec<RemoveOutcome>, Refused> {
        self.remove_each(now, origin, keys, fx, |core, key, fx| core.remove_one(now, key, force, fx))
    }

    /// A mutation that takes something of each key, all of them in one step.
    pub(crate) fn remove_each(
        &mut self,
        now: Time,
        origin: Origin,
        keys: &[&[u8]],
        fx: &mut Effects,
        mut one: impl FnMut(&mut Core, &[u8], &mut Effects) -> RemoveOutcome,
    ) -> Result<Vec<RemoveOutcome>, Refused> {
        let outcomes = self.once(origin, keys.len(), fx, |core, fx| {
            let mut outcomes = Vec::with_capacity(keys.len());
            for some in keys.chunks(AHEAD) {
                core.objects.foresee(some.iter().map(|key| core.objects.hash(key)));
                outcomes.extend(some.iter().map(|key| one(core, key, fx)));
            }
            Ok(outcomes)
        });
        self.serve_waiting(now, fx);
        outcomes
    }

    fn remove_one(&mut self, now: Time, key: &[u8], force: bool, fx: &mut Effects) -> RemoveOutcome {
        let unfinished = self.unfinished_by_key(now, key, fx).is_some();
        let Some(slot) = self.objects.find(self.objects.hash(key), key) else {
            return if unfinished { RemoveOutcome::Busy } else { RemoveOutcome::Missing };
        };
        if !self.is_visible(slot, Sight::Tiers) {
            // No reader can see it. It must not come back with its owner (docs/safety.md, rule 10).
            self.remove_object(now, slot, fx);
            return if unfinished { RemoveOutcome::Busy } else { RemoveOutcome::Missing };
        }
        if !force && self.objects.object(slot).protected_until > now {
            return RemoveOutcome::Protected;
        }
        self.remove_object(now, slot, fx);
        self.counts.removed_objects += 1;
        RemoveOutcome::Removed
    }

    /// Unlinks an object, noting it unless nothing of it can come back anyway.
    pub(crate) fn remove_object(&mut self, now: Time, slot: ObjectSlot, fx: &mut Effects) {
        let places = &self.objects.object(slot).places;
        let there = places.rids().zip(places.segments()).find(|(_, number)| self.is_there(*number));
        match there.map(|(rid, _)| rid) {
            Some(rid) => {
                let record = Record::Removed { key: self.objects.key(slot).into(), rid };
                self.log(now, record, fx);
            }
            None => self.unlink(slot).expect("nothing of it is left to give back"),
        }
    }

    /// Goes on with a remove_all over at most `budget` slots. True when it is through.
    pub fn remove_all_slice(&mut self, now: Time, cursor: &mut RemoveAll, budget: usize, fx: &mut Effects) -> bool {
        let end = self.objects.bound().min(cursor.next.saturating_add(budget as u32));
        while cursor.next < end {
            let next = cursor.next..end.min(cursor.next + AHEAD as u32);
            cursor.next = next.end;
            let slots: SmallVec<[ObjectSlot; AHEAD]> =
                next.map(ObjectSlot).filter(|slot| self.may_take(now, cursor, *slot)).collect();
            self.objects.foresee_removal(&slots);
            for slot in slots {
                self.take_object(now, cursor, slot, fx);
            }
        }
        let done = end >= self.objects.bound();
        self.serve_waiting(now, fx);
        done
    }

    /// The same for objects that the caller chooses by their keys, which may take it longer than the core is to be
    /// held: shows what the removal may take, over at most `budget` slots and about `bytes` bytes of keys. True when it
    /// is through.
    pub fn remove_candidates(
        &self,
        now: Time,
        cursor: &mut RemoveAll,
        budget: usize,
        bytes: usize,
        mut out: impl FnMut(Candidate, &[u8]),
    ) -> bool {
        let end = self.objects.bound().min(cursor.next.saturating_add(budget as u32));
        let mut shown = 0;
        while cursor.next < end && shown < bytes {
            let slot = ObjectSlot(cursor.next);
            cursor.next += 1;
            if self.may_take(now, cursor, slot) {
                let (key, object_id) = (self.objects.key(slot), self.objects.object(slot).id());
                shown += key.len();
                out(Candidate { slot, object_id }, key);
            }
        }
        cursor.next >= self.objects.bound()
    }

    /// Removes those of the candidates that were chosen and are still there.
    pub fn remove_chosen(&mut self, now: Time, cursor: &mut RemoveAll, chosen: &[Candidate], fx: &mut Effects) {
        for Candidate { slot, object_id } in chosen {
            let same = self.objects.get(*slot).is_some_and(|object| object.id() == *object_id);
            if same && self.may_take(now, cursor, *slot) {
                self.take_object(now, cursor, *slot, fx);
            }
        }
        self.serve_waiting(now, fx);
    }

    fn may_take(&self, now: Time, cursor: &RemoveAll, slot: ObjectSlot) -> bool {
        self.objects.get(slot).is_some_and(|object| {
            // Copies have younger rids (`docs/safety.md`, rule T7).
            let spared = !cursor.force && object.protected_until > now;
            let id = match mutant!(RemovalsGoByRid) {
                true => object.places.rids().max().unwrap_or(object.id()),
                false => object.id(),
            };
            self.removals.was_there(&cursor.begun, id) && !spared
        })
    }

    fn take_object(&mut self, now: Time, cursor: &mut RemoveAll, slot: ObjectSlot, fx: &mut Effects) {
        let visible = self.is_visible(slot, Sight::Tiers);
        self.remove_object(now, slot, fx);
        cursor.removed += u64::from(visible);
        self.counts.removed_objects += u64::from(visible);
    }

    /// Goes on forgetting what removals that have ended had to know.
    pub(crate) fn forget_removals(&mut self, _: Time, work: &mut Work, _: &mut Effects) {
        while !work.is_used_up() && self.removals.forget() {
            work.did(1);
        }
    }

    /// Goes on with a listing of the visible keys over at most `budget` slots. True when it is through.
    pub fn keys_slice(&self, cursor: &mut KeysCursor, budget: usize, mut out: impl FnMut(&[u8])) -> bool {
        let end = self.objects.bound().min(cursor.next.saturating_add(budget as u32));
        for slot in (cursor.next..end).map(ObjectSlot) {
            if self.objects.get(slot).is_some() && self.is_visible(slot, Sight::Tiers) {
                out(self.objects.key(slot));
            }
        }
        cursor.next = end;
        end >= self.objects.bound()
    }
}
