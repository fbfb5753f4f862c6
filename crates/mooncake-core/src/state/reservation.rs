//! Unfinished puts.
//!
//! States: `docs/safety.md`, table of the put and its placements. Here are the reserved ones.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::ops::Bound;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use crate::ensure::ensure;
use crate::ids::{Replica, SegmentNo, Time};
use crate::record::Record;
use crate::request::PinKind;
use crate::slab::{Link, Linked, List, Slab};
use crate::state::index::{self, Index};
use crate::state::object::Key;
use mooncake_ids::{Rid, SessionId};

/// What only some puts have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PutTerms {
    /// Group of the object to be, empty for none.
    pub group: Box<[u8]>,
    /// It replaces the object that was there when it began, which stays until it ends.
    pub replaces: bool,
    /// It is no put, but a promotion of the object with that id: its key is free meanwhile.
    pub promotes: Option<Rid>,
}

impl PutTerms {
    /// The record that makes a put on these terms, with one replica at least.
    pub fn record(
        self,
        session: SessionId,
        key: &[u8],
        size: u64,
        pin: PinKind,
        replicas: SmallVec<[Replica; 1]>,
    ) -> Record {
        let (key, PutTerms { group, replaces, promotes }) = (key.into(), self);
        if let Some(object_id) = promotes {
            return Record::Promoting { session, key, object_id, size, replica: replicas[0] };
        }
        match group.is_empty() && !replaces {
            true => Record::Reserved { session, key, size, pin, replicas },
            false => Record::ReservedWith { session, key, size, pin, replicas, group, replaces },
        }
    }
}

pub(crate) struct Reservation {
    pub session: SessionId,
    pub key: Key,
    pub size: u64,
    pub pin: PinKind,
    pub replicas: SmallVec<[Replica; 1]>,
    pub terms: PutTerms,
    pub deadline: Time,
    /// A parked request waits for what becomes of its key.
    pub awaited: bool,
    link: Link,
}

impl Reservation {
    pub fn new(
        session: SessionId,
        key: &[u8],
        size: u64,
        pin: PinKind,
        replicas: SmallVec<[Replica; 1]>,
        terms: PutTerms,
    ) -> Self {
        Reservation {
            session,
            key: Key::new(key),
            size,
            pin,
            replicas,
            terms,
            deadline: Time(0),
            awaited: false,
            link: Link::default(),
        }
    }

    /// The record that makes it, with these of its replicas.
    pub fn record(&self, replicas: SmallVec<[Replica; 1]>) -> Record {
        self.terms.clone().record(self.session, self.key.as_slice(), self.size, self.pin, replicas)
    }

    pub fn rid(&self) -> Rid {
        self.replicas[0].rid
    }

    /// A put of that session.
    pub fn is_put_of(&self, session: SessionId) -> bool {
        self.session == session && self.terms.promotes.is_none()
    }

    pub fn bytes(&self) -> u64 {
        self.size * self.replicas.len() as u64
    }
}

/// What an unfinished put lost with segments.
pub(crate) struct LostReplicas {
    pub session: SessionId,
    pub bytes: u64,
    pub is_promotion: bool,
    /// It had no other replica, and is over.
    pub ended: Option<Reservation>,
}

impl Linked for Reservation {
    fn link(&self) -> Link {
        self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// A replica of an unfinished put, among the others on its segment.
struct Placed {
    rid: Rid,
    /// Slot of the put.
    put: u32,
    link: Link,
}

impl Linked for Placed {
    fn link(&self) -> Link {
        self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Where an unfinished put is in memory, until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReservationSlot(pub u32);

pub(crate) struct Reservations {
    hasher: DefaultHashBuilder,
    slab: Slab<Reservation>,
    by_key: Index,
    /// Slots of `placed`.
    by_rid: Index,
    placed: Slab<Placed>,
    /// Those of each segment that has any, or had, and is not Gone.
    on: BTreeMap<SegmentNo, List>,
    /// Ordered by deadline: each lasts equally long from its start or last renewal.
    deadlines: List,
    /// No deadline is before this.
    renewed_to: Time,
    /// Those that parked requests wait for, by writer.
    awaited: BTreeSet<(SessionId, ReservationSlot)>,
    /// Segments that are Gone and still have replicas here, which count for nothing.
    gone: BTreeSet<SegmentNo>,
    duration_ms: u64,
    bytes: u64,
    promotions: PromotionCounts,
}

/// Promotions among the reservations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PromotionCounts {
    pub count: usize,
    pub bytes: u64,
}

impl Reservations {
    pub fn new(duration_ms: u64) -> Self {
        Reservations {
            hasher: DefaultHashBuilder::default(),
            slab: Slab::new(),
            by_key: Index::new(index::SMALL),
            by_rid: Index::new(index::SMALL),
            placed: Slab::new(),
            on: BTreeMap::new(),
            deadlines: List::default(),
            renewed_to: Time(0),
            awaited: BTreeSet::new(),
            gone: BTreeSet::new(),
            duration_ms,
            bytes: 0,
            promotions: PromotionCounts::default(),
        }
    }

    /// Unfinished puts.
    pub fn puts(&self) -> usize {
        self.slab.len() - self.promotions.count
    }

    /// Puts, and replicas of theirs, that have been looked at.
    pub fn touched(&self) -> u32 {
        self.slab.touched().wrapping_add(self.placed.touched())
    }

    /// Bytes of unfinished puts.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn promotions(&self) -> PromotionCounts {
        self.promotions
    }

    fn count(&mut self, terms: &PutTerms, bytes: u64) {
        match terms.promotes {
            Some(_) => self.promotions.bytes += bytes,
            None => self.bytes += bytes,
        }
    }

    fn discount(&mut self, is_promotion: bool, bytes: u64) {
        match is_promotion {
            true => self.promotions.bytes -= bytes,
            false => self.bytes -= bytes,
        }
    }

    pub fn get(&self, ReservationSlot(slot): ReservationSlot) -> &Reservation {
        &self.slab[slot]
    }

    pub fn by_rid(&self, rid: Rid) -> Option<ReservationSlot> {
        let hash = self.hasher.hash_one(rid);
        let place = self.by_rid.find(hash, |place| self.placed[place].rid == rid)?;
        Some(ReservationSlot(self.placed[place].put))
    }

    pub fn by_key(&self, key: &[u8]) -> Option<ReservationSlot> {
        if self.by_key.len() == 0 {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        self.by_key.find(hash, |slot| self.slab[slot].key.as_slice() == key).map(ReservationSlot)
    }

    pub fn insert(&mut self, now: Time, mut reservation: Reservation) {
        reservation.deadline = now.plus_ms(self.duration_ms);
        self.count(&reservation.terms, reservation.bytes());
        let is_promotion = reservation.terms.promotes.is_some();
        let hash = self.hasher.hash_one(reservation.key.as_slice());
        let replicas: SmallVec<[Replica; 1]> = SmallVec::from_slice(&reservation.replicas);
        let slot = self.slab.insert(reservation);
        for replica in replicas {
            self.place(replica, slot);
        }
        match is_promotion {
            true => self.promotions.count += 1,
            false => self.by_key.insert(hash, slot),
        }
        self.deadlines.push_back(&mut self.slab, slot);
    }

    /// Has a replica found by its rid, and with its segment.
    fn place(&mut self, Replica { rid, extent }: Replica, put: u32) {
        let place = self.placed.insert(Placed { rid, put, link: Link::default() });
        let Reservations { by_rid, placed, hasher, on, .. } = self;
        on.entry(extent.segment).or_default().push_back(placed, place);
        by_rid.insert(hasher.hash_one(rid), place);
    }

    fn displace(&mut self, Replica { rid, extent }: Replica) {
        let Reservations { by_rid, placed, hasher, on, gone, .. } = self;
        let found = by_rid.take(hasher.hash_one(rid), |place| placed[place].rid == rid);
        let place = found.expect("a replica of an unfinished put is in the index");
        let on_it = on.get_mut(&extent.segment).expect("it has a replica");
        on_it.remove(placed, place);
        if on_it.is_empty() && gone.remove(&extent.segment) {
            on.remove(&extent.segment);
        }
        placed.remove(place);
    }

    pub fn remove(&mut self, ReservationSlot(slot): ReservationSlot) -> Reservation {
        self.deadlines.remove(&mut self.slab, slot);
        let Reservation { terms, key, .. } = &self.slab[slot];
        let is_promotion = terms.promotes.is_some();
        if is_promotion {
            self.promotions.count -= 1;
        } else {
            let hash = self.hasher.hash_one(key.as_slice());
            let was_there = self.by_key.remove(hash, slot);
            assert!(was_there, "an unfinished put is in the index");
        }
        let reservation = self.slab.remove(slot);
        for replica in &reservation.replicas {
            self.displace(*replica);
        }
        if reservation.awaited {
            self.awaited.remove(&(reservation.session, ReservationSlot(slot)));
        }
        self.discount(is_promotion, reservation.bytes());
        reservation
    }

    /// What is in a slot, which may be free.
    pub fn at(&self, ReservationSlot(slot): ReservationSlot) -> Option<&Reservation> {
        self.slab.get(slot)
    }

    /// Gives some memory back that nothing is in. False when there is none.
    pub fn give_back(&mut self) -> bool {
        self.slab.give_back() || self.placed.give_back()
    }

    /// Slots are below it.
    pub fn bound(&self) -> u32 {
        self.slab.bound()
    }

    /// A segment is Gone: replicas there are lost.
    pub fn segment_gone(&mut self, segment: SegmentNo) {
        match self.on.get(&segment) {
            Some(on_it) if on_it.is_empty() => _ = self.on.remove(&segment),
            Some(_) => _ = self.gone.insert(segment),
            None => {}
        }
    }

    /// Whether replicas on a segment are lost.
    pub fn has_lost_on(&self, segment: SegmentNo) -> bool {
        self.gone.contains(&segment)
    }

    /// A put of which replicas are lost.
    pub fn next_lost(&self) -> Option<ReservationSlot> {
        let place = self.on.get(self.gone.first()?)?.head()?;
        Some(ReservationSlot(self.placed[place].put))
    }

    /// Whether replicas of a put are lost.
    pub fn has_lost(&self, ReservationSlot(slot): ReservationSlot) -> bool {
        let is_lost = |replica: &Replica| self.gone.contains(&replica.extent.segment);
        !self.gone.is_empty() && self.slab[slot].replicas.iter().any(is_lost)
    }

    /// Takes what is lost out of a put; one with no other replica ends.
    pub fn lose(&mut self, ReservationSlot(slot): ReservationSlot) -> LostReplicas {
        let is_lost = |replica: &Replica| self.gone.contains(&replica.extent.segment);
        let Reservation { session, size, replicas, terms, .. } = &self.slab[slot];
        let (session, size, is_promotion) = (*session, *size, terms.promotes.is_some());
        let lost: SmallVec<[Replica; 1]> = replicas.iter().copied().filter(is_lost).collect();
        let ends = lost.len() == replicas.len();
        let (bytes, ended) = if ends {
            let over = self.remove(ReservationSlot(slot));
            (over.bytes(), Some(over))
        } else {
            let bytes = size * lost.len() as u64;
            self.slab[slot].replicas.retain(|replica| !lost.contains(replica));
            self.discount(is_promotion, bytes);
            lost.iter().for_each(|replica| self.displace(*replica));
            (bytes, None)
        };
        LostReplicas { session, bytes, is_promotion, ended }
    }

    /// Its bytes moved: its deadline begins anew.
    pub fn renew(&mut self, now: Time, ReservationSlot(slot): ReservationSlot) {
        self.slab[slot].deadline = now.plus_ms(self.duration_ms);
        self.deadlines.move_to_back(&mut self.slab, slot);
    }

    /// All deadlines begin anew.
    pub fn renew_all(&mut self, now: Time) {
        self.renewed_to = now.plus_ms(self.duration_ms);
    }

    pub fn set_awaited(&mut self, ReservationSlot(slot): ReservationSlot) {
        let reservation = &mut self.slab[slot];
        if !std::mem::replace(&mut reservation.awaited, true) {
            self.awaited.insert((reservation.session, ReservationSlot(slot)));
        }
    }

    /// The next one of a writer that parked requests wait for, by slot.
    pub fn next_awaited(&self, writer: SessionId, after: Option<ReservationSlot>) -> Option<ReservationSlot> {
        let from = after.map_or(Bound::Included((writer, ReservationSlot(0))), |slot| Bound::Excluded((writer, slot)));
        self.awaited.range((from, Bound::Included((writer, ReservationSlot(u32::MAX))))).next().map(|(_, slot)| *slot)
    }

    /// One whose deadline has passed.
    pub fn expired(&self, now: Time) -> Option<ReservationSlot> {
        let has_passed = |slot: &u32| self.slab[*slot].deadline.max(self.renewed_to) <= now;
        self.deadlines.head().filter(has_passed).map(ReservationSlot)
    }

    /// Each is found by its key and by each of its rids, and is in the order of deadlines; the counts are right.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.slab.check_invariants()?;
        let (mut bytes, mut rids, mut awaiting, mut before) = (0, 0, 0, Time(0));
        let mut promotions = PromotionCounts::default();
        self.deadlines.check_invariants(&self.slab, |slot, reservation| {
            let key = reservation.key.as_slice().escape_ascii();
            ensure!(!reservation.replicas.is_empty(), "the one of {key} has no replica");
            let found = self.by_key(reservation.key.as_slice()) == Some(ReservationSlot(slot));
            let is_promotion = reservation.terms.promotes.is_some();
            ensure!(found != is_promotion, "the one of {key} in slot {slot} is found by its key: {found}");
            for Replica { rid, .. } in &reservation.replicas {
                let found = self.by_rid(*rid);
                ensure!(
                    found == Some(ReservationSlot(slot)),
                    "the one of {key} in slot {slot} is found by {rid:?} in {found:?}"
                );
            }
            let deadline = reservation.deadline;
            ensure!(before <= deadline, "the one of {key} ends at {deadline:?}, behind one that ends at {before:?}");
            let (awaited, listed) =
                (reservation.awaited, self.awaited.contains(&(reservation.session, ReservationSlot(slot))));
            ensure!(awaited == listed, "the one of {key} is waited for: {awaited}, and found by its writer: {listed}");
            awaiting += usize::from(awaited);
            if is_promotion {
                promotions.count += 1;
                promotions.bytes += reservation.bytes();
            } else {
                bytes += reservation.bytes();
            }
            rids += reservation.replicas.len();
            before = deadline;
            Ok(())
        })?;
        let (all, listed, by_key) = (self.slab.len(), self.deadlines.len() as usize, self.by_key.len());
        let puts = self.puts();
        ensure!(
            all == listed && puts == by_key,
            "there are {all}, {listed} with a deadline, {puts} puts, {by_key} by key"
        );
        let counted = self.promotions;
        ensure!(promotions == counted, "there are {promotions:?}, and counted {counted:?}");
        let listed = self.awaited.len();
        ensure!(awaiting == listed, "{awaiting} are waited for, and {listed} found by their writers");
        ensure!(rids == self.by_rid.len(), "they have {rids} rids, and are found by {}", self.by_rid.len());
        for (segment, on_it) in &self.on {
            on_it.check_invariants(&self.placed, |_, place| {
                let put = self.slab.get(place.put);
                let mut replicas = put.iter().flat_map(|put| &put.replicas);
                let is_there = replicas.any(|other| other.rid == place.rid && other.extent.segment == *segment);
                ensure!(is_there, "{:?} is listed on {segment:?}, and no put has it there", place.rid);
                Ok(())
            })?;
        }
        for segment in &self.gone {
            let has_some = self.on.get(segment).is_some_and(|on_it| !on_it.is_empty());
            ensure!(has_some, "{segment:?} is Gone and has none, and is listed as if it had");
        }
        let (places, on) = (self.placed.len(), self.on.values().map(|on_it| on_it.len() as usize).sum::<usize>());
        ensure!(places == rids && on == rids, "they have {rids} rids, {places} places, {on} of them on segments");
        ensure!(bytes == self.bytes, "they have {bytes} bytes, and counted {}", self.bytes);
        Ok(())
    }

    /// All, the earliest deadline first.
    pub fn iter(&self) -> impl Iterator<Item = (ReservationSlot, &Reservation)> {
        std::iter::successors(self.deadlines.head(), |slot| self.deadlines.next(&self.slab, *slot))
            .map(|slot| (ReservationSlot(slot), &self.slab[slot]))
    }
}
