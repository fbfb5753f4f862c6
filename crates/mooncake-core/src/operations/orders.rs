//! Objects that are written to tiers: which, in which order, and what their owners answer.
//!
//! New ones are written in order of commit, so that nearly all of what must leave memory is on a tier by then; and what
//! would leave first is looked through again and again, for what is not. Nothing waits behind the window of a tier:
//! what has no place there now is found later, among the coldest.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::{Effects, Push};
use crate::ids::{Extent, Replica, SegmentNo, Time};
use crate::record::Record;
use crate::state::object::Mark;
use crate::state::objects::ObjectSlot;
use crate::state::tier::{Closing, Order, OrderSource, Tier, WINDOW_MAX, WINDOW_MIN};
use crate::state::tier_writes::Budget;
use crate::work::{LOOKED_AT_AS_ONE, STEP_OBJECTS, Work};
use mooncake_ids::{Rid, SessionId, TIER_BLOCK, TierUuid};

/// The coldest of so many are kept on a tier: one in ten.
const COLD_PART: usize = 10;

/// Of a full segment: this share of it below the watermark.
const COLD_FROM: f64 = 0.1;

/// Objects that one search for cold ones looks at, in half a step. Once they are under order the other half is for new
/// ones.
const COLD_LOOK: usize = STEP_OBJECTS / 2 * LOOKED_AT_AS_ONE;

/// Where something cold cannot be written, that is tried again after so long. No log says that a disk is well again,
/// that a budget has come back or that an object was read.
const UNWRITTEN_AGAIN_MS: u64 = 1_000;

/// Time that a session has to close beyond what it said, before its memory counts as Gone.
const CLOSING_MS: u64 = 60_000;

/// Part of a segment that may be under order.
const SEGMENT_PART: u64 = 8;

/// The last block that an address can have.
const ADDRESS_MAX: u64 = u64::MAX / TIER_BLOCK - 1;

/// What became of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its rid.
    pub rid: Rid,
    /// First block of the record; none if there is none that can be read.
    pub address: Option<u64>,
}

/// What an owner says of orders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OrdersAnswered {
    /// Those that are answered.
    pub written: Vec<Written>,
    /// Bytes that it writes in half a second; 0 if it takes no orders.
    pub window: u64,
    /// Files that it appends no more.
    pub sealed: Vec<u64>,
}

/// Members of a group that are on a tier already, or not to be written, behind which no more of them are looked at.
const SETTLED_MAX: usize = 8;

/// Whether an object has been given to an owner.
enum Ordered {
    /// To that of this tier.
    Yes(SegmentNo),
    /// It lies there, of which no more can be written now: the tier has too much under order, or the segment.
    NotNow(SegmentNo),
    /// The owner of the tier takes no orders.
    Refused,
    /// It is on a tier or on its way there, has left, or fits none.
    No,
}

/// Which tiers an object may be ordered to.
#[derive(Clone, Copy)]
enum Among {
    All,
    /// Those of a session. What is nearer to another one's holds it up no more than if it were not there.
    Of(SessionId),
    Only(SegmentNo),
}

impl Core {
    /// Has owners write what they have room for.
    pub(crate) fn order_writes(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        if !self.tiers.any_live() {
            return;
        }
        self.tiers.refresh_budgets(now, self.config.tier_fills_per_day);
        let tiers = self.tiers.live_in_turn();
        self.order_hot(now, &tiers, work, fx);
        self.order_cold(now, work, fx);
        self.order_new(now, &tiers, work, fx);
    }

    /// A session will close within that time, and the memory that it lends goes: what leaves last is written first, and
    /// nothing new is placed there.
    pub fn closes(&mut self, now: Time, session: SessionId, within_ms: u64, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(session) else { return };
        let grace_ms = within_ms.saturating_add(CLOSING_MS);
        for number in entry.segments.clone() {
            if self.segments.get(number).is_some_and(|segment| segment.leaves.is_none()) {
                self.log(now, Record::SegmentLeaves { number, grace_ms }, fx);
            }
        }
        let mounted = self.tiers.mounted_by(session);
        for number in mounted.iter().copied() {
            let tier = self.tiers.get_mut(number).expect("it is mounted");
            if tier.is_adopted {
                continue;
            }
            // What no list has, pinned and viewed objects among it, is found by the search over all slots.
            (tier.closing, tier.search) = (Some(Closing::Begins), Some(0));
        }
        self.order_hot(now, &mounted, &mut Work::beside_an_operation(), fx);
    }

    /// Those that leave last, of stores among these that close.
    fn order_hot(&mut self, now: Time, tiers: &[SegmentNo], work: &mut Work, fx: &mut Effects) {
        for number in tiers.iter().copied() {
            if work.is_used_up() {
                return;
            }
            let tier = self.tiers.get(number).filter(|tier| tier.is_live());
            let Some((closing, session)) = tier.and_then(|tier| Some((tier.closing?, tier.session))) else { continue };
            let mut next = match closing {
                Closing::Through => continue,
                Closing::At(slot) if self.objects.is_listed(slot) => Some(slot),
                Closing::Begins | Closing::At(_) => self.objects.hottest(),
            };
            let (most, mut looked, mut ordered) = (work.left(STEP_OBJECTS) * LOOKED_AT_AS_ONE, 0, 0);
            while looked < most
                && ordered < work.left(STEP_OBJECTS)
                && let Some(slot) = next
            {
                looked += 1;
                match self.order(now, slot, Among::Of(session), work, fx) {
                    Ordered::NotNow(_) | Ordered::Refused => break,
                    Ordered::Yes(_) => ordered += 1,
                    Ordered::No => {}
                }
                next = self.objects.before_in_turn(slot);
            }
            work.did(ordered + looked.div_ceil(LOOKED_AT_AS_ONE));
            self.tiers.get_mut(number).expect("it is there").closing = Some(next.map_or(Closing::Through, Closing::At));
        }
    }

    /// What an owner has answered leaves room for others: a tier does not rest until the next tick, nor those that have
    /// segments in common with it.
    fn order_more(&mut self, now: Time, number: SegmentNo, any_written: bool, fx: &mut Effects) {
        let mut work = Work::beside_an_operation();
        let Some(tier) = self.tiers.get(number) else { return };
        let others = self.tiers.near(tier.session, tier.host).filter(|other| *other != number);
        let tiers: SmallVec<[SegmentNo; 8]> = [number].into_iter().chain(others).collect();
        self.order_hot(now, &[number], &mut work, fx);
        self.order_new(now, &tiers, &mut work, fx);
        // What came to nothing is not ordered at once again.
        if self.config.offload.on_evict && any_written {
            self.order_cold(now, &mut work, fx);
        }
    }

    /// In order of commit, and then what was there before.
    fn order_new(&mut self, now: Time, tiers: &[SegmentNo], work: &mut Work, fx: &mut Effects) {
        tiers.iter().for_each(|number| self.order_fresh(now, *number, work, fx));
        tiers.iter().for_each(|number| self.order_earlier(now, *number, work, fx));
    }

    fn order_fresh(&mut self, now: Time, number: SegmentNo, work: &mut Work, fx: &mut Effects) {
        let mut looked = 0;
        while !work.is_used_up()
            && let Some((slot, object_id)) = self.tiers.get(number).and_then(|tier| tier.fresh.front().copied())
        {
            let is_it = self.objects.get(slot).is_some_and(|object| object.id() == object_id);
            let closing = self.tiers.get(number).and_then(|tier| tier.closing.map(|_| tier.session));
            let among = closing.map_or(Among::All, Among::Of);
            let ordered = if is_it { self.order(now, slot, among, work, fx) } else { Ordered::No };
            // Members of a group were ordered with the first of it, and are no more than looked at.
            looked += 1;
            work.did(usize::from(looked % LOOKED_AT_AS_ONE == 0 || !matches!(ordered, Ordered::No)));
            if matches!(ordered, Ordered::NotNow(_) | Ordered::Refused) {
                break;
            }
            self.tiers.get_mut(number).expect("it is there").fresh.pop_front();
            if is_it && closing.is_some() && matches!(ordered, Ordered::No) {
                self.goes_to_another(slot, number);
            }
        }
    }

    /// What was committed before a tier was Live, once nothing newer waits for it.
    fn order_earlier(&mut self, now: Time, number: SegmentNo, work: &mut Work, fx: &mut Effects) {
        let Some(tier) = self.tiers.get(number).filter(|tier| tier.fresh.is_empty()) else { return };
        // The hottest of a store that closes come first.
        let is_wanted = match tier.closing {
            None => !self.config.offload.on_evict,
            Some(closing) => closing == Closing::Through,
        };
        let Some(from) = tier.search.filter(|_| is_wanted) else { return };
        let end = self.objects.bound().min(from.saturating_add((work.left(STEP_OBJECTS) * LOOKED_AT_AS_ONE) as u32));
        let (mut next, mut ordered, session) = (from, 0, tier.session);
        while next < end && ordered < work.left(STEP_OBJECTS) {
            let slot = ObjectSlot(next);
            if self.objects.get(slot).is_some() {
                match self.order(now, slot, Among::Of(session), work, fx) {
                    Ordered::NotNow(_) | Ordered::Refused => break,
                    Ordered::Yes(_) => ordered += 1,
                    Ordered::No => {}
                }
            }
            next += 1;
        }
        work.did(ordered + ((next - from) as usize).div_ceil(LOOKED_AT_AS_ONE));
        let is_through = next >= self.objects.bound();
        let tier = self.tiers.get_mut(number).expect("it is there");
        tier.search = if is_through { None } else { Some(next) };
        if is_through && tier.closing.is_some() {
            // It comes behind the orders.
            let (owner, tier) = (tier.session, tier.spec.uuid);
            self.push(owner, Push::TierAllOrdered { tier }, fx);
        }
    }

    /// Those that leave first, on segments that are nearly full.
    fn order_cold(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        if now < self.tiers.cold_rests_until {
            return;
        }
        let wanted = self.objects.len().div_ceil(COLD_PART).min(COLD_LOOK);
        let most = wanted.min(work.left(STEP_OBJECTS) * LOOKED_AT_AS_ONE);
        let (mut next, mut rests_until) = (self.objects.coldest(), Time(if most == wanted { u64::MAX } else { 0 }));
        // Segments of which no more is written now: what lies there holds up nothing else.
        let mut busy: SmallVec<[SegmentNo; 8]> = SmallVec::new();
        for looked in 0..most {
            let Some(slot) = next else { break };
            if work.is_used_up() {
                // The rest of them at the next step.
                rests_until = Time(0);
                break;
            }
            next = self.objects.after_in_turn(slot);
            if looked % LOOKED_AT_AS_ONE == 0 {
                work.did(1);
            }
            if self.is_on_live_tier(slot) || !self.is_nearly_full(slot) {
                continue;
            }
            let object = self.objects.object(slot);
            let is_busy = object.places.memory().iter().all(|place| busy.contains(&place.segment));
            if is_busy || object.marks.has(Mark::Ordered) {
                rests_until = Time(0);
                continue;
            }
            rests_until = rests_until.min(match self.order(now, slot, Among::All, work, fx) {
                Ordered::NotNow(segment) => {
                    busy.push(segment);
                    Time(0)
                }
                Ordered::Yes(_) => {
                    work.did(1);
                    Time(0)
                }
                Ordered::Refused | Ordered::No => now.plus_ms(UNWRITTEN_AGAIN_MS),
            });
        }
        self.tiers.cold_rests_until = rests_until;
    }

    pub(crate) fn is_nearly_full(&self, slot: ObjectSlot) -> bool {
        let share = self.config.high_watermark - COLD_FROM;
        let opens = self.objects.object(slot).places.memory().iter();
        let mut opens = opens.filter_map(|place| self.segments.open_one_of(place.segment));
        opens.any(|open| f64::from(open.used) >= f64::from(open.total) * share)
    }

    /// An object was committed: it is written in its turn.
    pub(crate) fn is_to_be_written(&mut self, slot: ObjectSlot) {
        if !self.tiers.any_live() || self.config.offload.on_evict {
            return;
        }
        let object = self.objects.object(slot);
        let id = object.id();
        if let Some(tier) = self.tier_of_first(slot).and_then(|number| self.tiers.get_mut(number)) {
            tier.add_fresh(slot, id);
        }
    }

    /// What waited for a tier that closes is written by another one, if that is nearer by now: to memory that stays, or
    /// because nothing is written to this one.
    fn goes_to_another(&mut self, slot: ObjectSlot, number: SegmentNo) {
        let object = self.objects.object(slot);
        let is_written = object.marks.has(Mark::Ordered) || self.is_on_live_tier(slot);
        if !is_written && self.tier_of_first(slot) != Some(number) {
            self.is_to_be_written(slot);
        }
    }

    /// The tier for the first replica in memory.
    fn tier_of_first(&self, slot: ObjectSlot) -> Option<SegmentNo> {
        let object = self.objects.object(slot);
        object.places.memory().first().and_then(|place| self.tier_near(place.segment, object.size(), Among::All))
    }

    /// The tier for what lies on a segment: of its session, of which the one with the largest part of its window free;
    /// else of its host.
    fn tier_near(&self, number: SegmentNo, size: u64, among: Among) -> Option<SegmentNo> {
        // A disk that is twice as fast has twice as much under order.
        let ordered = |tier: &Tier| (u128::from(tier.ordered_bytes) << 32) / u128::from(tier.window.max(1));
        let near = self.tiers_near(number, size, among);
        near.min_by_key(|(at, _, tier)| (*at, ordered(tier))).map(|(_, number, _)| number)
    }

    /// Tiers that suit what lies on a segment, each with how far it is from it, whether it is left alone and whether it
    /// is another session's: the nearest ones are for it.
    fn tiers_near(
        &self,
        number: SegmentNo,
        size: u64,
        among: Among,
    ) -> impl Iterator<Item = ((bool, bool), SegmentNo, &Tier)> {
        self.segments.get(number).into_iter().flat_map(move |segment| {
            self.tiers.near(segment.session, segment.host).filter_map(move |number| {
                let tier = self.tiers.get(number).filter(|tier| tier.suits(size))?;
                // A store that closes takes its tier along, and has no time for what stays.
                let is_away = tier.closing.is_some() && segment.leaves.is_none();
                // Its budget says what of that is written: it has no other day.
                let is_its_last = tier.closing.is_some() && matches!(among, Among::Of(owner) if owner == tier.session);
                let is_left_alone = if is_its_last { tier.takes_nothing() } else { tier.is_left_alone() };
                (!is_away).then_some(((is_left_alone, tier.session != segment.session), number, tier))
            })
        })
    }

    /// Whether a tier is one of those for what lies on a segment.
    fn is_for(&self, wanted: SegmentNo, number: SegmentNo, size: u64) -> bool {
        let (mut nearest, mut its) = (None, None);
        for (at, number, _) in self.tiers_near(number, size, Among::Only(wanted)) {
            nearest = Some(nearest.map_or(at, |nearest| at.min(nearest)));
            its = if number == wanted { Some(at) } else { its };
        }
        its == nearest && its.is_some_and(|(is_left_alone, _)| !is_left_alone)
    }

    /// Whether there is a tier that an object can be written to.
    pub(crate) fn may_be_written(&self, slot: ObjectSlot) -> bool {
        let object = self.objects.object(slot);
        let mut near =
            object.places.memory().iter().flat_map(|place| self.tiers_near(place.segment, object.size(), Among::All));
        near.any(|(.., tier)| !tier.is_left_alone())
    }

    /// Has an object written, and right behind it to the same tier what is of use together with it: the members of a
    /// group come to lie side by side, and are read at once. What has no room with it now is found again by itself.
    fn order(&mut self, now: Time, slot: ObjectSlot, among: Among, work: &mut Work, fx: &mut Effects) -> Ordered {
        let ordered = self.order_one(now, slot, among, fx);
        let Ordered::Yes(tier) = ordered else { return ordered };
        if work.is_used_up() {
            return ordered;
        }
        let takes_all =
            self.tiers.get(tier).is_some_and(|tier| !self.config.offload.on_evict || tier.closing.is_some());
        let (mut looked, mut settled) = (0_usize, 0);
        for member in self.objects.group_beside(slot) {
            if work.is_used_up() || settled == SETTLED_MAX {
                break;
            }
            looked += 1;
            // What would not leave soon is no business of a tier that has only what does.
            let is_wanted = takes_all || self.is_nearly_full(member);
            match is_wanted.then(|| self.order_one(now, member, Among::Only(tier), fx)) {
                Some(Ordered::Yes(_)) => {
                    settled = 0;
                    work.did(1);
                }
                Some(Ordered::NotNow(_) | Ordered::Refused) => break,
                Some(Ordered::No) | None => settled += 1,
            }
        }
        work.did(looked.div_ceil(LOOKED_AT_AS_ONE));
        ordered
    }

    fn order_one(&mut self, now: Time, slot: ObjectSlot, among: Among, fx: &mut Effects) -> Ordered {
        let object = self.objects.object(slot);
        if object.marks.has(Mark::Ordered) || self.is_on_live_tier(slot) {
            return Ordered::No;
        }
        let (size, object_id, crc32c) = (object.size(), object.id(), object.crc32c);
        let live = object.places.memory().iter().filter(|place| self.segments.is_live(place.segment));
        let near = live.filter_map(|place| {
            let number = match among {
                Among::Only(only) => self.is_for(only, place.segment, size).then_some(only)?,
                Among::All | Among::Of(_) => self.tier_near(place.segment, size, among)?,
            };
            let owner = self.tiers.get(number)?.session;
            let is_one = !matches!(among, Among::Of(session) if session != owner);
            is_one.then_some((self.segments.get(place.segment)?.session != owner, number, place.replica(size)))
        });
        let Some((_, number, source)) = near.min_by_key(|(is_foreign, ..)| *is_foreign) else { return Ordered::No };
        let tier = self.tiers.get(number).expect("it is Live");
        if tier.window == 0 {
            return Ordered::Refused;
        }
        if tier.is_full() {
            self.counts.tier_orders_refused += u64::from(!self.objects.set_mark(slot, Mark::Unwritten, true));
            return Ordered::No;
        }
        let was_read = object.marks.has(Mark::Read);
        let budget = self.tiers.get_mut(number).expect("it is Live").budget(now, self.config.tier_fills_per_day);
        match budget {
            Budget::Spent => return Ordered::NotNow(source.extent.segment),
            Budget::Scarce if !was_read => {
                self.counts.tier_orders_spared += u64::from(!self.objects.set_mark(slot, Mark::Unwritten, true));
                return Ordered::No;
            }
            Budget::Plenty | Budget::Scarce => {}
        }
        let tier = self.tiers.get(number).expect("it is Live");
        let of_segment = self.segments.get(source.extent.segment).map_or(0, |segment| segment.spec.bytes);
        let on_segment = self.tiers.ordered_on(source.extent.segment);
        if !tier.takes(size) || on_segment > 0 && on_segment + size > of_segment / SEGMENT_PART {
            return Ordered::NotNow(source.extent.segment);
        }
        let (owner, uuid) = (tier.session, tier.spec.uuid);
        let rid = self.next_order_rid(now, fx);
        let from = OrderSource::Memory(source.extent.segment);
        let order = Order { tier: number, slot, object_id, source: from, bytes: size, since: now };
        self.tiers.insert_order(rid, order);
        self.objects.set_mark(slot, Mark::Ordered, true);
        self.counts.tier_orders += 1;
        let key = self.objects.key(slot).into();
        self.push(owner, Push::TierOrder { tier: uuid, rid, key, object_id, crc32c, source }, fx);
        Ordered::Yes(number)
    }

    /// An owner has answered orders: what was written is there from now on, if it is still what the object is.
    pub fn orders_answered(
        &mut self,
        now: Time,
        owner: SessionId,
        uuid: TierUuid,
        answered: &OrdersAnswered,
        fx: &mut Effects,
    ) {
        let Some(number) = self.tier_of(owner, uuid) else {
            self.counts.stale_messages += 1;
            return;
        };
        let tier = self.tiers.get_mut(number).expect("it was found");
        tier.window = if answered.window == 0 { 0 } else { answered.window.clamp(WINDOW_MIN, WINDOW_MAX) };
        if !tier.is_live() {
            answered.sealed.iter().for_each(|file| tier.seal(*file));
            // What it says of itself counts while it is checked, too.
            self.counts.stale_messages += u64::from(!answered.written.is_empty());
            return;
        }
        let mut any_written = false;
        for Written { rid, address } in answered.written.iter().copied() {
            let Some(order) = self.tiers.take_order(now, rid, number) else {
                self.counts.stale_messages += 1;
                continue;
            };
            let object = self.objects.get(order.slot).filter(|object| object.id() == order.object_id);
            let Some(size) = object.map(|object| object.size()) else { continue };
            let tier = self.tiers.get(number).expect("it is Live");
            let is_one = |address: &u64| *address <= ADDRESS_MAX && !tier.judged.contains(&tier.file_of(*address));
            let Some(address) = address.filter(is_one) else {
                self.order_failed(now, &order, fx);
                continue;
            };
            self.objects.set_mark(order.slot, Mark::Ordered, false);
            let fills_per_day = self.config.tier_fills_per_day;
            self.tiers.get_mut(number).expect("it is Live").wrote(now, size, fills_per_day);
            let extent = Extent { segment: number, offset: address * TIER_BLOCK, length: size };
            let key = self.objects.key(order.slot).into();
            let replica = Replica { rid, extent };
            self.log(now, Record::TierAdded { key, object_id: order.object_id, replica }, fx);
            any_written = true;
            self.counts.tier_written_objects += 1;
            self.counts.tier_written_bytes += size;
        }
        // Behind what the same answer says to be there: a file is not unneeded of which that is all.
        let tier = self.tiers.get_mut(number).expect("it is Live");
        answered.sealed.iter().for_each(|file| tier.seal(*file));
        self.order_more(now, number, any_written, fx);
        self.news.room = true;
        self.serve_waiting(now, fx);
    }
}
