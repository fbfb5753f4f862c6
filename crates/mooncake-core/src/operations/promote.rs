//! Objects that only a tier has come back to memory: before they are read, where an existence query has found them, or
//! because they were.
//!
//! A promotion makes no put wait and waits for none. It takes free room, else what would leave memory without loss and
//! before anything else. Its owner writes as any writer does, by a reservation that no key knows; the copy counts if
//! its object is still there when it is whole.

use crate::core::Core;
use crate::effect::{Effects, Push};
use crate::ids::{Extent, Replica, SegmentNo, Time};
use crate::record::Record;
use crate::state::object::{Key, Mark};
use crate::state::objects::ObjectSlot;
use crate::state::promotion::Wanted;
use crate::state::reservation::{Reservation, ReservationSlot};
use crate::state::tier::Tier;
use crate::work::{EVICTED_AS, LOOKED_AT_AS_ONE, Work};
use mooncake_ids::{GRANULE, Rid, SessionId, granules};
use smallvec::SmallVec;

/// Objects that one promotion looks at for one that may leave, and how many of them leave for it.
const PASSES: usize = 512;
const EVICTIONS: usize = 64;

/// Objects that were read and may find no room that are tried at a time.
const TRIED: usize = 8;

/// Time between two searches for room in one owner's memory for what was read.
const SOUGHT_AGAIN_MS: u64 = 20;

/// A copy that an owner was asked for, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// Its rid.
    pub rid: Rid,
    /// All of it is written.
    pub good: bool,
}

/// What became of the wish to promote an object.
enum Outcome {
    Begun,
    /// As much is under way as may be.
    NotNow,
    NoRoom,
    /// It has left, or is in memory.
    Over,
}

impl Core {
    /// An existence query has found an object that memory does not have.
    pub(crate) fn is_found(&mut self, slot: ObjectSlot) {
        if self.config.promotion.prefetch {
            self.want(slot, |core, tier, wanted| core.promotions.add_found(tier, wanted));
        }
    }

    /// A read has found an object, whose key has that hash.
    #[inline]
    pub(crate) fn is_read(&mut self, now: Time, slot: ObjectSlot, hash: u64) {
        if !self.config.promotion.on_hit || !self.objects.object(slot).places.memory().is_empty() {
            return;
        }
        match self.promotions.count_read(hash) >= self.config.promotion.threshold {
            true => self.want(slot, |core, _, wanted| core.promotions.add_read(now, wanted)),
            false => self.counts.promotions_rarely_read += 1,
        }
    }

    fn want(&mut self, slot: ObjectSlot, add: impl FnOnce(&mut Core, SegmentNo, Wanted) -> bool) {
        let object = self.objects.object(slot);
        // One whose owner is gone is read, and nobody promotes from there.
        let place = object.places.tier().filter(|place| self.tiers.get(place.tier).is_some_and(Tier::is_live));
        let Some(place) = place.filter(|_| !object.marks.has(Mark::Promoting)) else { return };
        let object_id = object.id();
        match add(self, place.tier, Wanted { slot, object_id }) {
            true => _ = self.objects.set_mark(slot, Mark::Promoting, true),
            false => self.counts.promotions_too_many += 1,
        }
    }

    /// Begins what there is room and time for.
    pub(crate) fn promote(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        // Room that comes is theirs first.
        if !self.tickets.is_empty() {
            return;
        }
        let tiers: SmallVec<[SegmentNo; 8]> = self.promotions.tiers().collect();
        for tier in tiers {
            // What found no room says that larger ones would find none either.
            let mut full_from = u64::MAX;
            while !work.is_used_up()
                && let Some(wanted) = self.promotions.next_found(tier)
            {
                let size = self.objects.get(wanted.slot).map_or(0, |object| object.size());
                let outcome = match size >= full_from {
                    true => Outcome::NoRoom,
                    false => self.promote_one(now, wanted, work, fx),
                };
                match outcome {
                    Outcome::NotNow => break,
                    Outcome::NoRoom => {
                        full_from = full_from.min(size);
                        self.leave_on_tier(wanted);
                        work.did(1);
                    }
                    Outcome::Begun | Outcome::Over => {}
                }
                self.promotions.pop_found(tier);
            }
        }
        for _ in 0..self.promotions.read_len().min(TRIED) {
            if work.is_used_up() {
                return;
            }
            let Some((wanted, until)) = self.promotions.pop_read() else { return };
            let outcome = match self.rests(now, wanted) {
                true => Outcome::NoRoom,
                false => self.promote_one(now, wanted, work, fx),
            };
            match outcome {
                Outcome::NotNow | Outcome::NoRoom if now < until => self.promotions.put_read_back((wanted, until)),
                Outcome::NotNow | Outcome::NoRoom => self.leave_on_tier(wanted),
                Outcome::Begun | Outcome::Over => {}
            }
        }
    }

    /// Whether there was no room just now where an object would be copied to.
    fn rests(&self, now: Time, wanted: Wanted) -> bool {
        let place = self.objects.get(wanted.slot).and_then(|object| object.places.tier());
        let owner = place.and_then(|place| self.sessions.get(self.tiers.get(place.tier)?.session));
        owner.is_some_and(|owner| now < owner.room_sought.rests_until)
    }

    fn leave_on_tier(&mut self, wanted: Wanted) {
        self.counts.promotions_without_room += 1;
        // The slot may have another object by now.
        if self.objects.get(wanted.slot).is_some_and(|object| object.id() == wanted.object_id) {
            self.objects.set_mark(wanted.slot, Mark::Promoting, false);
        }
    }

    fn promote_one(&mut self, now: Time, wanted: Wanted, work: &mut Work, fx: &mut Effects) -> Outcome {
        work.did(1);
        let slot = wanted.slot;
        let Some(object) = self.objects.get(slot).filter(|object| object.id() == wanted.object_id) else {
            return Outcome::Over;
        };
        let (size, crc32c, place) = (object.size(), object.crc32c, object.places.tier());
        let is_in_memory = !object.places.memory().is_empty();
        let is_live = |number| self.tiers.get(number).is_some_and(Tier::is_live);
        let Some(place) = place.filter(|place| !is_in_memory && is_live(place.tier)) else {
            self.objects.set_mark(slot, Mark::Promoting, false);
            return Outcome::Over;
        };
        let tier = self.tiers.get(place.tier).expect("it is Live");
        let (owner, uuid) = (tier.session, tier.spec.uuid);
        // A disk that fails, or stands still, is read for readers alone.
        if tier.window == 0 {
            return Outcome::NoRoom;
        }
        if self.promotions.is_busy(place.tier, size) {
            return Outcome::NotNow;
        }
        let Ok(need) = u32::try_from(granules(size)) else { return Outcome::NoRoom };
        let Some(number) = self.room_for_promotion(now, owner, need, work, fx) else { return Outcome::NoRoom };
        let segment = self.segments.get(number).expect("room was found there");
        if !self.promotions.takes(place.tier, (number, segment.spec.bytes), size) {
            return Outcome::NotNow;
        }
        let granule = segment.extents.find(need).expect("room was found there");
        let extent = Extent { segment: number, offset: u64::from(granule) * GRANULE, length: size };
        let replica = Replica { rid: self.next_rid(), extent };
        let (key, object_id): (Box<[u8]>, _) = (self.objects.key(slot).into(), wanted.object_id);
        let record = Record::Promoting { session: owner, key: key.clone(), object_id, size, replica };
        self.log(now, record, fx);
        self.promotions.begin(replica.rid, place.tier, number, size);
        self.counts.promotions_begun += 1;
        let (from, to) = (place.replica(size), replica);
        self.push(owner, Push::TierPromote { tier: uuid, key, crc32c, from, to }, fx);
        Outcome::Begun
    }

    /// A segment with the room: of the tier's owner if it lends any, else of its host, else anywhere.
    fn room_for_promotion(
        &mut self,
        now: Time,
        owner: SessionId,
        need: u32,
        work: &mut Work,
        fx: &mut Effects,
    ) -> Option<SegmentNo> {
        let host = self.sessions.get(owner)?.host;
        let open = |core: &Core, number: SegmentNo| core.segments.is_open(number);
        let own = self.sessions.get(owner)?.segments.iter().any(|number| open(self, *number));
        let local = host.is_some_and(|host| self.segments.of_host(host).any(|number| open(self, number)));
        let suits = |core: &Core, number: SegmentNo| {
            let segment = core.segments.get(number).filter(|_| core.segments.is_open(number));
            segment.is_some_and(|segment| match (own, local) {
                (true, _) => segment.session == owner,
                (_, true) => segment.host == host,
                _ => true,
            })
        };
        let free = match own {
            true => {
                let mut its = self.sessions.get(owner)?.segments.iter().copied();
                its.find(|number| suits(self, *number) && self.has_run(*number, need))
            }
            false => {
                let roomy = self.segments.with_room(0..self.segments.open().len(), need).map(|open| open.number);
                roomy.take(PASSES).find(|number| suits(self, *number))
            }
        };
        if free.is_some() {
            return free;
        }
        let found = self.room_by_eviction(now, owner, need, suits, work, fx);
        let rests_until = if found.is_some() { Time(0) } else { now.plus_ms(SOUGHT_AGAIN_MS) };
        self.sessions.get_mut(owner)?.room_sought.rests_until = rests_until;
        found
    }

    /// Whether that much is free in a segment in one piece.
    fn has_run(&self, number: SegmentNo, need: u32) -> bool {
        self.segments.get(number).is_some_and(|segment| segment.extents.largest() >= need)
    }

    /// A segment of those that suit in which enough is free once others have left it without loss. Where the coldest
    /// are very many that suit none, one search goes on where the last one ended.
    fn room_by_eviction(
        &mut self,
        now: Time,
        owner: SessionId,
        need: u32,
        suits: impl Fn(&Core, SegmentNo) -> bool,
        work: &mut Work,
        fx: &mut Effects,
    ) -> Option<SegmentNo> {
        let is_it =
            |(slot, id): &(ObjectSlot, Rid)| self.objects.is_in_turn(*slot) && self.objects.object(*slot).id() == *id;
        let from = self.sessions.get(owner)?.room_sought.next.filter(is_it).map(|(slot, _)| slot);
        let mut goes_round = from.is_some();
        let (mut next, mut evictions, mut found) = (from.or_else(|| self.objects.coldest()), EVICTIONS, None);
        for looked in 0..PASSES {
            if next.is_none() && std::mem::take(&mut goes_round) {
                next = self.objects.coldest();
            }
            let Some(slot) = next.filter(|_| evictions > 0 && found.is_none()) else { break };
            if looked % LOOKED_AT_AS_ONE == 0 {
                work.did(1);
            }
            next = self.objects.after_in_turn(slot);
            let mut places = self.objects.object(slot).places.memory().iter();
            if !self.is_on_live_tier(slot) || !places.any(|place| suits(self, place.segment)) {
                continue;
            }
            evictions -= 1;
            work.did(EVICTED_AS);
            let mut freed = self.evict(now, slot, fx).into_iter();
            found = freed.find(|number| suits(self, *number) && self.has_run(*number, need));
        }
        let next = next.map(|slot| (slot, self.objects.object(slot).id()));
        self.sessions.get_mut(owner)?.room_sought.next = next;
        found
    }

    /// An owner has made copies, or could not.
    pub fn promoted(&mut self, now: Time, owner: SessionId, promoted: &[Promoted], fx: &mut Effects) {
        for Promoted { rid, good } in promoted.iter().copied() {
            let is_its = |slot: &ReservationSlot| {
                let reservation = self.reservations.get(*slot);
                reservation.session == owner && reservation.terms.promotes.is_some()
            };
            let Some(slot) = self.reservations.by_rid(rid).filter(is_its) else {
                self.counts.stale_messages += 1;
                continue;
            };
            if !self.is_unfinished(now, slot, fx) {
                continue;
            }
            let reservation = self.reservations.get(slot);
            let (segment, bytes) = (reservation.replicas[0].extent.segment, reservation.size);
            if !good {
                self.counts.promotions_failed += 1;
            } else if self.promoted_object(slot).is_none() || !self.segments.is_live(segment) {
                self.counts.promotions_cancelled += 1;
            } else {
                self.log(now, Record::ReplicaAdded { rid }, fx);
                self.counts.promotions_done += 1;
                self.counts.promoted_bytes += bytes;
                continue;
            }
            self.drop_reservation_of(now, rid, &[rid], fx);
        }
        self.serve_waiting(now, fx);
        self.promote(now, &mut Work::beside_an_operation(), fx);
    }

    /// The object that a reservation promotes, if it is still there.
    pub(crate) fn promoted_object(&self, slot: ReservationSlot) -> Option<ObjectSlot> {
        let reservation = self.reservations.get(slot);
        let found = self.object_of_id(reservation.key.as_slice(), reservation.terms.promotes?);
        // What is left of one whose tier has gone is not there: when it is cleared away is no matter of the log.
        found.filter(|slot| self.lies_somewhere(*slot))
    }

    fn object_of_id(&self, key: &[u8], object_id: Rid) -> Option<ObjectSlot> {
        let found = self.objects.find(self.objects.hash(key), key);
        found.filter(|slot| self.objects.object(*slot).id() == object_id)
    }

    /// A reservation has ended, which may be a promotion's.
    pub(crate) fn promotion_over(&mut self, reservation: &Reservation) {
        if let Some(object_id) = reservation.terms.promotes {
            self.promotions.end(reservation.rid());
            self.mark_promoting(&reservation.key, object_id, false);
        }
    }

    /// A promotion has begun, or is over: its object has no second one meanwhile.
    pub(crate) fn mark_promoting(&mut self, key: &Key, object_id: Rid, on: bool) {
        if let Some(slot) = self.object_of_id(key.as_slice(), object_id) {
            self.objects.set_mark(slot, Mark::Promoting, on);
        }
    }
}
