//! All committed objects: found by key, and each in at most one of the lists from which eviction takes.

mod coldest_first;
mod foresee;
mod invariants;
mod renewals;
mod several;
mod soft_pins;

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use crate::config::renewal_ms;
use crate::eviction::EvictionPolicy;
use crate::eviction::lru::Lru;
use crate::ids::{SegmentNo, Time};
use crate::slab::{List, Slab};
use crate::state::group::Groups;
use crate::state::index::{self, Index};
use crate::state::object::{Hold, ListedIn, Mark, Object, Places, TierPlace};
use crate::state::segment::Segments;
use crate::state::writers::{Stored, WriterNo, Writers};
use mooncake_ids::Rid;

pub(crate) use coldest_first::ColdestFirst;
pub(crate) use foresee::{AHEAD, Asked};
use renewals::{Renewal, Renewals};
use several::Several;
pub(crate) use soft_pins::SoftPin;
use soft_pins::SoftPins;

/// Members of a group that one eviction looks at for the next one to leave, and that one order looks at for those to be
/// written with it.
const LOOKED_AT: usize = 64;

/// Protected objects that one may be put before, when it is protected no longer than they are: behind more of them it
/// stays longer than it must.
const OVERTAKEN_MAX: usize = 64;

/// How far eviction goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// What nothing speaks for.
    Unprotected,
    /// Soft pinned objects after them.
    SoftPinned,
    /// Then those looked up a moment ago, longest ago first.
    Protected,
}

/// What a call has stored that needs more room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SameCall {
    /// Its first rid: what has a higher one is its own, or as new.
    pub first: Rid,
    /// Protection that ends by then has lasted for the second that is promised, and for as long as a renewal may be
    /// late.
    pub promise_kept_until: Time,
    /// How many of its own the search for others may still pass over.
    pub passes: usize,
}

/// Where an object is in memory, as long as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectSlot(pub u32);

/// The key of the object in a slot.
#[inline]
fn key_of(slab: &Slab<Object>, slot: u32) -> &[u8] {
    let bytes = slab.bytes(slot);
    &bytes[..bytes.len() - usize::from(slab[slot].spare)]
}

/// What is counted of one segment.
#[derive(Debug, Clone, Copy, Default)]
struct OnSegment {
    /// Objects of one replica, which lies there, and no place on a tier.
    singles: u64,
    /// Bytes there of objects that no tier has.
    unwritten: u64,
}

fn on_segment(all: &mut Vec<OnSegment>, segment: SegmentNo) -> &mut OnSegment {
    let index = segment.0 as usize;
    if all.len() <= index {
        all.resize(index + 1, OnSegment::default());
    }
    &mut all[index]
}

pub(crate) struct Objects {
    hasher: DefaultHashBuilder,
    index: Index,
    slab: Slab<Object>,
    policy: Box<dyn EvictionPolicy<Slab<Object>>>,
    /// Ordered by expiry, as all protection lasts equally long: eviction and lapse look at its head only.
    protected: List,
    soft: List,
    /// Met by eviction while none of their segments took part; tried first when one does again.
    set_aside: List,
    retry_set_aside: u32,
    soft_pins: SoftPins,
    /// Soft pinned objects are evicted when nothing else is left.
    evict_soft: bool,
    /// By segment number.
    on_segments: Vec<OnSegment>,
    several: Several,
    /// Objects that only a tier has.
    on_tiers_alone: u64,
    pub hard_pinned: u64,
    /// Bytes of objects whose replacements are being written.
    pub replaced_bytes: u64,
    groups: Groups,
    renewals: Renewals,
    writers: Writers,
}

impl Objects {
    pub fn new(evict_soft: bool) -> Objects {
        Objects {
            hasher: DefaultHashBuilder::default(),
            index: Index::new(index::LARGE),
            slab: Slab::new(),
            policy: Box::new(Lru::default()),
            protected: List::default(),
            soft: List::default(),
            set_aside: List::default(),
            retry_set_aside: 0,
            soft_pins: SoftPins::new(),
            evict_soft,
            on_segments: Vec::new(),
            several: Several::default(),
            on_tiers_alone: 0,
            hard_pinned: 0,
            replaced_bytes: 0,
            groups: Groups::default(),
            renewals: Renewals::default(),
            writers: Writers::default(),
        }
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<ObjectSlot> {
        self.index.find(hash, |slot| key_of(&self.slab, slot) == key).map(ObjectSlot)
    }

    #[inline]
    pub fn get(&self, ObjectSlot(slot): ObjectSlot) -> Option<&Object> {
        self.slab.get(slot)
    }

    #[inline]
    pub fn object(&self, ObjectSlot(slot): ObjectSlot) -> &Object {
        &self.slab[slot]
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Objects that have been looked at.
    pub fn touched(&self) -> u32 {
        self.slab.touched()
    }

    pub fn bound(&self) -> u32 {
        self.slab.bound()
    }

    /// Gives some memory back that nothing is in. False when there is none.
    pub fn give_back(&mut self) -> bool {
        self.slab.give_back() || self.groups.give_back() || self.soft_pins.give_back()
    }

    pub fn protected_len(&self) -> u32 {
        self.protected.len()
    }

    pub fn soft_len(&self) -> usize {
        self.soft_pins.lapsing()
    }

    /// The key of an object.
    #[inline]
    pub fn key(&self, ObjectSlot(slot): ObjectSlot) -> &[u8] {
        key_of(&self.slab, slot)
    }

    /// So many will be added.
    pub fn expect(&mut self, objects: usize) {
        self.index.expect(objects);
    }

    /// Adds an object under a key that is not there, of that hash; `soft` is its soft pin, which a lapsed one keeps for
    /// the log.
    pub fn insert(
        &mut self,
        now: Time,
        hash: u64,
        key: &[u8],
        object: Object,
        soft: Option<SoftPin>,
        segments: &Segments,
    ) -> ObjectSlot {
        if object.hold == Hold::Hard {
            self.hard_pinned += 1;
        }
        let holds = object.hold == Hold::Soft;
        self.writers.add(object.writer(), object.size());
        let slot = self.slab.insert_with(object, key);
        self.slab[slot].spare = (self.slab.bytes(slot).len() - key.len()) as u16;
        self.count(slot, segments);
        if let Some(pin) = soft {
            self.soft_pins.insert(slot, pin, holds);
        }
        self.index.insert(hash, slot);
        self.list(now, slot);
        ObjectSlot(slot)
    }

    /// Takes an object out of everything.
    pub fn remove(&mut self, ObjectSlot(slot): ObjectSlot) -> Object {
        self.unlist(slot);
        let hash = self.hash(key_of(&self.slab, slot));
        let was_there = self.index.remove(hash, slot);
        assert!(was_there, "an object is in the index");
        let object = self.slab.remove(slot);
        self.groups.leave(slot);
        if object.is_replaced() {
            self.replaced_bytes -= object.bytes();
        }
        if matches!(object.hold, Hold::Soft | Hold::Lapsed) {
            self.soft_pins.remove(slot);
        }
        if object.hold == Hold::Hard {
            self.hard_pinned -= 1;
        }
        self.discount(slot, object.size(), &object.places);
        self.writers.remove(object.writer(), object.size());
        object
    }

    /// A client stores its first object.
    pub fn begin_writer(&mut self) -> WriterNo {
        self.writers.begin()
    }

    /// A client that has stored objects is over.
    pub fn writer_left(&mut self, number: WriterNo) {
        self.writers.leave(number);
    }

    /// What a client has stored that is still there; nothing, where nobody knows.
    pub fn stored_by(&self, writer: WriterNo) -> Stored {
        if writer == WriterNo::NOBODY { Stored::default() } else { self.writers.stored(writer) }
    }

    /// Gives an object other places; it must have one.
    pub fn set_places(&mut self, now: Time, ObjectSlot(slot): ObjectSlot, places: Places, segments: &Segments) {
        debug_assert!(places.rids().next().is_some());
        let object = &mut self.slab[slot];
        if object.is_replaced() {
            self.replaced_bytes -= object.bytes();
            self.replaced_bytes += object.size() * places.memory().len() as u64;
        }
        let old = std::mem::replace(&mut object.places, places);
        let was_in_memory = !old.memory().is_empty();
        let size = object.size();
        self.discount(slot, size, &old);
        self.count(slot, segments);
        // What has nothing in memory is in no list: nothing of it can be evicted.
        if was_in_memory == self.slab[slot].places.memory().is_empty() {
            self.relist(now, slot);
        }
    }

    /// Whether it was set before.
    pub fn set_mark(&mut self, ObjectSlot(slot): ObjectSlot, mark: Mark, on: bool) -> bool {
        self.slab.get_mut(slot).is_some_and(|object| object.marks.set(mark, on))
    }

    fn count(&mut self, slot: u32, segments: &Segments) {
        let object = &self.slab[slot];
        match &object.places {
            Places::One(place) => {
                let on = on_segment(&mut self.on_segments, place.segment);
                on.singles += 1;
                on.unwritten += object.size();
            }
            places @ Places::More(_) => {
                let owners = places.memory().len();
                if places.tier().is_none() {
                    for place in places.memory() {
                        on_segment(&mut self.on_segments, place.segment).unwritten += object.size();
                    }
                }
                self.several.add(slot, owners, places.segments().any(|number| segments.is_live(number)));
                self.on_tiers_alone += u64::from(owners == 0);
            }
        }
    }

    fn discount(&mut self, slot: u32, size: u64, places: &Places) {
        match places {
            Places::One(place) => {
                let on = on_segment(&mut self.on_segments, place.segment);
                on.singles -= 1;
                on.unwritten -= size;
            }
            places @ Places::More(_) => {
                let owners = places.memory().len();
                if places.tier().is_none() {
                    for place in places.memory() {
                        on_segment(&mut self.on_segments, place.segment).unwritten -= size;
                    }
                }
                self.several.remove(slot, owners);
                self.on_tiers_alone -= u64::from(owners == 0);
            }
        }
    }

    /// Number of objects with a replica in memory, whether that can be read now or not.
    pub fn in_memory(&self) -> u64 {
        self.len() as u64 - self.on_tiers_alone
    }

    /// Bytes on a segment of objects that no tier has.
    pub fn unwritten_on(&self, segment: SegmentNo) -> u64 {
        self.on_segments.get(segment.0 as usize).map_or(0, |on| on.unwritten)
    }

    /// Number of objects with a Live replica.
    pub fn visible_len(&self, segments: &Segments) -> u64 {
        let live = segments.numbers().filter(|number| segments.is_live(*number));
        let on = live.filter_map(|number| self.on_segments.get(number.0 as usize));
        on.map(|on| on.singles).sum::<u64>() + self.several.visible_len()
    }

    // ------------------------------------------------------------------ lists

    /// Whether eviction must not touch it (docs/safety.md, rule 12): views are over it, it is hard pinned, or it is
    /// being replaced. So is a soft pinned one where those are not evicted. Of one that only a tier has there is
    /// nothing to evict.
    fn is_held(&self, object: &Object) -> bool {
        let pinned = object.hold == Hold::Hard || object.hold == Hold::Soft && !self.evict_soft;
        object.readers > 0 || object.is_replaced() || pinned || object.places.memory().is_empty()
    }

    /// Puts an object that is in no list where it belongs.
    fn list(&mut self, now: Time, slot: u32) {
        // Held first: what is in no list costs eviction no step. Protected before soft pinned: what was looked up a
        // moment ago leaves last (docs/safety.md, rule 12).
        let held = self.is_held(&self.slab[slot]);
        let object = &mut self.slab[slot];
        debug_assert!(object.listed_in == ListedIn::None);
        let soft = object.hold == Hold::Soft;
        object.listed_in = if held {
            ListedIn::None
        } else if object.protected_until > now {
            ListedIn::Protected
        } else if soft {
            ListedIn::Soft
        } else {
            ListedIn::Policy
        };
        match object.listed_in {
            ListedIn::Protected => self.list_protected(slot),
            ListedIn::Soft => self.soft.push_back(&mut self.slab, slot),
            ListedIn::Policy => self.policy.insert(&mut self.slab, slot),
            ListedIn::None | ListedIn::SetAside => {}
        }
    }

    /// Nearly always last. What was held meanwhile, and by no reader, may have been looked up before others.
    fn list_protected(&mut self, slot: u32) {
        let until = self.slab[slot].protected_until;
        let mut prev = self.protected.tail();
        for _ in 0..OVERTAKEN_MAX {
            match prev {
                Some(later) if self.slab[later].protected_until > until => {
                    prev = self.protected.prev(&self.slab, later);
                }
                _ => break,
            }
        }
        self.protected.insert_after(&mut self.slab, prev, slot);
    }

    fn unlist(&mut self, slot: u32) {
        match std::mem::replace(&mut self.slab[slot].listed_in, ListedIn::None) {
            ListedIn::None => {}
            ListedIn::Policy => self.policy.remove(&mut self.slab, slot),
            ListedIn::Protected => self.protected.remove(&mut self.slab, slot),
            ListedIn::Soft => self.soft.remove(&mut self.slab, slot),
            ListedIn::SetAside => {
                self.set_aside.remove(&mut self.slab, slot);
                self.retry_set_aside = self.retry_set_aside.min(self.set_aside.len());
            }
        }
    }

    fn relist(&mut self, now: Time, slot: u32) {
        self.unlist(slot);
        self.list(now, slot);
    }

    // ----------------------------------------------------------------- groups

    /// Makes an object a member of a group; an empty name is none.
    pub fn join(&mut self, ObjectSlot(slot): ObjectSlot, group: &[u8]) {
        if !group.is_empty() {
            self.groups.join(group, slot);
        }
    }

    /// Name of an object's group, empty for none.
    pub fn group_of(&self, ObjectSlot(slot): ObjectSlot) -> &[u8] {
        self.groups.of(slot).map_or(&[], |group| self.groups.name(group))
    }

    /// Others of its group, if it is in one, those behind it first.
    pub fn group_beside(&self, ObjectSlot(slot): ObjectSlot) -> SmallVec<[ObjectSlot; 8]> {
        let Some(group) = self.groups.of(slot) else { return SmallVec::new() };
        self.groups.members_behind(group, slot).take(LOOKED_AT).map(ObjectSlot).collect()
    }

    /// An object of a group is about to be evicted: another one of it comes next.
    pub fn is_evicted(&mut self, ObjectSlot(slot): ObjectSlot) {
        let Some(group) = self.groups.of(slot) else { return };
        let others = self.groups.members_behind(group, slot);
        let next = others.take(LOOKED_AT).find(|other| self.slab[*other].listed_in == ListedIn::Policy);
        if let Some(next) = next {
            self.policy.remove(&mut self.slab, next);
            self.policy.insert_coldest(&mut self.slab, next);
        }
    }

    /// A get found it, and with it its group. `is_young` says whether a record's file is one of the youngest of its
    /// tier.
    #[inline]
    pub fn touch(&mut self, now: Time, ObjectSlot(slot): ObjectSlot, is_young: impl Fn(&TierPlace) -> bool) {
        self.touch_one(now, slot, &is_young);
        if let Some(group) = self.groups.of(slot)
            && self.groups.is_to_be_touched(group, now)
        {
            let renewal = Renewal { group, member: slot, protect_ms: None };
            self.renew(now, renewal, is_young);
        }
    }

    #[inline]
    fn touch_one(&mut self, now: Time, slot: u32, is_young: impl Fn(&TierPlace) -> bool) {
        let object = &mut self.slab[slot];
        object.marks.set(Mark::Read, true);
        if let Some(place) = object.places.tier()
            && !object.marks.has(Mark::ReadLate)
        {
            object.marks.set(Mark::ReadLate, !is_young(&place));
        }
        match object.listed_in {
            ListedIn::Policy => self.policy.touch(&mut self.slab, slot),
            ListedIn::Soft => self.soft.move_to_back(&mut self.slab, slot),
            ListedIn::SetAside => self.relist(now, slot),
            // It comes back as just used when the protection lapses or the last reader leaves.
            ListedIn::Protected | ListedIn::None => {}
        }
    }

    /// An existence query found it, and with it its group. Renewed only when an eighth of the protection has gone by:
    /// the promise is half of it.
    #[inline]
    pub fn protect(&mut self, now: Time, ObjectSlot(slot): ObjectSlot, protect_ms: u64) {
        let Some(group) = self.groups.of(slot) else { return self.protect_one(now, slot, protect_ms) };
        self.protect_one(now, slot, protect_ms);
        if self.groups.is_to_be_protected(group, now, renewal_ms(protect_ms)) {
            let renewal = Renewal { group, member: slot, protect_ms: Some(protect_ms) };
            // Nothing is read.
            self.renew(now, renewal, |_| false);
        }
    }

    #[inline]
    fn protect_one(&mut self, now: Time, slot: u32, protect_ms: u64) {
        let object = &mut self.slab[slot];
        if object.protected_until > now.plus_ms(protect_ms - renewal_ms(protect_ms)) {
            return;
        }
        object.protected_until = now.plus_ms(protect_ms).into();
        match object.listed_in {
            ListedIn::None => {}
            ListedIn::Protected => self.protected.move_to_back(&mut self.slab, slot),
            _ => self.relist(now, slot),
        }
    }

    /// A replacement of it is being written, which may fail.
    pub fn hold(&mut self, ObjectSlot(slot): ObjectSlot) {
        let object = &mut self.slab[slot];
        if !object.marks.set(Mark::Replacing, true) {
            self.replaced_bytes += object.bytes();
            self.unlist(slot);
        }
    }

    /// No replacement of it is being written after all: there was no room for one.
    pub fn unhold(&mut self, now: Time, ObjectSlot(slot): ObjectSlot) {
        let object = &mut self.slab[slot];
        if object.marks.set(Mark::Replacing, false) {
            self.replaced_bytes -= object.bytes();
            self.relist(now, slot);
        }
    }

    /// The replacement has ended and this is still there. Protection as when the last reader leaves.
    pub fn release(&mut self, now: Time, ObjectSlot(slot): ObjectSlot, protect_ms: u64) {
        let object = &mut self.slab[slot];
        if object.is_replaced() && object.protected_until > now {
            object.protected_until = now.plus_ms(protect_ms).into();
        }
        self.unhold(now, ObjectSlot(slot));
    }

    /// A view was taken over it.
    pub fn reader_added(&mut self, ObjectSlot(slot): ObjectSlot) {
        self.slab[slot].readers += 1;
        self.unlist(slot);
    }

    /// A view over it ended. Protection begins anew if there is some left, to keep that list in order.
    pub fn reader_left(&mut self, now: Time, ObjectSlot(slot): ObjectSlot, protect_ms: u64) {
        let object = &mut self.slab[slot];
        object.readers -= 1;
        if object.readers == 0 {
            if object.protected_until > now {
                object.protected_until = now.plus_ms(protect_ms).into();
            }
            self.relist(now, slot);
        }
    }

    /// Moves objects whose protection has lapsed to where they are evicted from. How many there were.
    pub fn lapse_protection(&mut self, now: Time, most: usize) -> usize {
        for count in 0..most {
            match self.protected.head() {
                Some(slot) if self.slab[slot].protected_until <= now => self.relist(now, slot),
                _ => return count,
            }
        }
        most
    }

    /// Ends soft pins whose time has come. How many there were.
    pub fn lapse_soft_pins(&mut self, now: Time, most: usize) -> usize {
        for count in 0..most {
            let Some(slot) = self.soft_pins.pop_lapsed(now) else { return count };
            self.slab[slot].hold = Hold::Lapsed;
            if !matches!(self.slab[slot].listed_in, ListedIn::Protected | ListedIn::SetAside) {
                self.relist(now, slot);
            }
        }
        most
    }

    /// Soft pins count from now on: after a replay, which knows no times.
    pub fn restart_soft_pins(&mut self, now: Time) {
        self.soft_pins.restart(now);
    }

    pub fn soft_pin(&self, ObjectSlot(slot): ObjectSlot) -> Option<SoftPin> {
        self.soft_pins.get(slot)
    }

    pub fn soft_ttl_ms(&self, ObjectSlot(slot): ObjectSlot) -> u64 {
        self.soft_pins.get(slot).map_or(0, |pin| pin.ttl_ms)
    }

    /// A segment takes part in eviction again: try the objects set aside first, they were the coldest.
    pub fn retry_set_aside(&mut self) {
        self.retry_set_aside = self.set_aside.len();
    }

    /// The object to evict next, `None` when nothing within `reach` is left. Objects that free nothing where something
    /// can be placed are set aside. `steps` bounds the work; at 0 there may be more.
    ///
    /// Order: others; what was looked up over a second ago; then this call's own objects, and those only if nothing is
    /// protected or `reach` allows protected ones; then protected ones, if `reach` allows them.
    pub fn victim(
        &mut self,
        now: Time,
        segments: &Segments,
        reach: Reach,
        mut same_call: Option<&mut SameCall>,
        steps: &mut usize,
    ) -> Option<ObjectSlot> {
        while *steps > 0 {
            *steps -= 1;
            // What was set aside came from the cold end of its list, and goes back there unless it is protected by now.
            if self.retry_set_aside > 0 {
                let slot = self.set_aside.head().expect("counted as set aside");
                self.retry_set_aside -= 1;
                self.unlist(slot);
                if self.slab[slot].protected_until > now {
                    self.list(now, slot);
                } else if self.slab[slot].hold == Hold::Soft {
                    self.slab[slot].listed_in = ListedIn::Soft;
                    self.soft.push_front(&mut self.slab, slot);
                } else {
                    self.slab[slot].listed_in = ListedIn::Policy;
                    self.policy.insert_coldest(&mut self.slab, slot);
                }
                continue;
            }
            // Lapsed protection protects no more, even if no tick has moved the object yet. A soft pin holds on: its
            // object goes after all that nothing speaks for (docs/safety.md, rule 12).
            let looked_up = self.protected.head();
            let lapsed =
                looked_up.filter(|slot| self.slab[*slot].protected_until <= now && self.slab[*slot].hold != Hold::Soft);
            let soft = self.soft.head().filter(|_| reach >= Reach::SoftPinned);
            let protected = looked_up.filter(|_| reach >= Reach::Protected);
            let unprotected = [self.policy.victim(&self.slab), lapsed, soft];
            let slot = match &mut same_call {
                None => unprotected.into_iter().flatten().next().or(protected)?,
                // A call spares what it has just stored (`docs/pressure.md`). Soft pinned objects of others go before,
                // and so does what has had the second that a look-up promises. Short of `Reach::Protected`, a younger
                // look-up spares the call's own objects, too: the put waits until that second is over.
                Some(call) => {
                    let promise_kept_until =
                        looked_up.filter(|slot| self.slab[*slot].protected_until <= call.promise_kept_until);
                    let same_call_too = reach >= Reach::Protected || looked_up.is_none();
                    let mut others = [self.coldest_other(call), lapsed, soft].into_iter().flatten();
                    let other = others.find(|slot| self.slab[*slot].id() < call.first).or(promise_kept_until);
                    other
                        .or_else(|| unprotected.into_iter().flatten().next().filter(|_| same_call_too))
                        .or(protected)?
                }
            };
            // An object on no open segment frees nothing that a put can have. Each is a step: there may be very many.
            if self.slab[slot].places.memory().iter().any(|place| segments.is_open(place.segment)) {
                return Some(ObjectSlot(slot));
            }
            self.unlist(slot);
            self.slab[slot].listed_in = ListedIn::SetAside;
            self.set_aside.push_back(&mut self.slab, slot);
        }
        None
    }

    /// The one that leaves first of those that nothing speaks for.
    pub fn coldest(&self) -> Option<ObjectSlot> {
        self.policy.victim(&self.slab).map(ObjectSlot)
    }

    /// The one that leaves after another of those.
    pub fn after_in_turn(&self, ObjectSlot(slot): ObjectSlot) -> Option<ObjectSlot> {
        self.policy.after(&self.slab, slot).map(ObjectSlot)
    }

    /// Whether it is one of those.
    pub fn is_in_turn(&self, ObjectSlot(slot): ObjectSlot) -> bool {
        self.slab.get(slot).is_some_and(|object| object.listed_in == ListedIn::Policy)
    }

    /// Whether it may leave now.
    pub fn is_listed(&self, ObjectSlot(slot): ObjectSlot) -> bool {
        let is_one = |object: &Object| !matches!(object.listed_in, ListedIn::None | ListedIn::SetAside);
        self.slab.get(slot).is_some_and(is_one)
    }

    /// The one that leaves last, of all that may.
    pub fn hottest(&self) -> Option<ObjectSlot> {
        self.protected.tail().or_else(|| self.hottest_unprotected()).map(ObjectSlot)
    }

    fn hottest_unprotected(&self) -> Option<u32> {
        self.soft.tail().or_else(|| self.policy.last(&self.slab))
    }

    /// The one that leaves before another one; `None` behind the coldest, and for one that may not leave now.
    pub fn before_in_turn(&self, ObjectSlot(slot): ObjectSlot) -> Option<ObjectSlot> {
        let next = match self.slab.get(slot)?.listed_in {
            ListedIn::Protected => self.protected.prev(&self.slab, slot).or_else(|| self.hottest_unprotected()),
            ListedIn::Soft => self.soft.prev(&self.slab, slot).or_else(|| self.policy.last(&self.slab)),
            ListedIn::Policy => self.policy.before(&self.slab, slot),
            ListedIn::None | ListedIn::SetAside => None,
        };
        next.map(ObjectSlot)
    }

    /// The first of the policy's that is not the call's own. What was read since the call stored something comes behind
    /// that; once it is found there, what was passed over counts as just used and is not passed again.
    fn coldest_other(&mut self, call: &mut SameCall) -> Option<u32> {
        let mut next = self.policy.victim(&self.slab);
        let mut passed = 0;
        while let Some(slot) = next.filter(|slot| self.slab[*slot].id() >= call.first) {
            // Bounded for one look at a request: a call may have stored very many, and the core's lock is held. Behind
            // the bound no other is looked for.
            call.passes = call.passes.checked_sub(1)?;
            passed += 1;
            next = self.policy.after(&self.slab, slot);
        }
        let other = next?;
        for _ in 0..passed {
            let slot = self.policy.victim(&self.slab).expect("passed over");
            self.policy.touch(&mut self.slab, slot);
        }
        Some(other)
    }
}
