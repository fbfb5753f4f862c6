//! Unfinished puts.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::SmallVec;

use crate::effect::Record;
use crate::ids::{Replica, Rid, SegmentNo, SessionId, Time};
use crate::invariants::ensure;
use crate::object::Key;
use crate::request::PinKind;
use crate::slab::{Link, Linked, List, Slab};

/// What only some puts have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Group of the object to be, empty for none.
    pub group: Box<[u8]>,
    /// It replaces the object that was there when it began, which stays until it ends.
    pub replaces: bool,
}

impl Terms {
    pub fn is_plain(&self) -> bool {
        self.group.is_empty() && !self.replaces
    }
}

pub(crate) struct Reservation {
    pub session: SessionId,
    pub key: Key,
    pub size: u64,
    pub pin: PinKind,
    pub replicas: SmallVec<[Replica; 1]>,
    pub terms: Terms,
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
        terms: Terms,
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

    /// The record that makes it.
    pub fn record(&self) -> Record {
        let (session, size, pin) = (self.session, self.size, self.pin);
        let (key, replicas) = (self.key.as_slice().into(), self.replicas.clone());
        match self.terms.is_plain() {
            true => Record::Reserved { session, key, size, pin, replicas },
            false => {
                let Terms { group, replaces } = self.terms.clone();
                Record::ReservedWith { session, key, size, pin, replicas, group, replaces }
            }
        }
    }

    pub fn rid(&self) -> Rid {
        self.replicas[0].rid
    }

    pub fn bytes(&self) -> u64 {
        self.size * self.replicas.len() as u64
    }
}

/// What an unfinished put lost with a segment.
pub(crate) struct Lost {
    pub session: SessionId,
    pub bytes: u64,
    /// It had no other replica: the put is over.
    pub ended: bool,
    pub awaited: bool,
    /// Key of the object that it was to replace.
    pub replaced: Option<Key>,
}

impl Linked for Reservation {
    fn link(&self) -> Link {
        self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

pub(crate) struct Reservations {
    hasher: DefaultHashBuilder,
    slab: Slab<Reservation>,
    by_rid: HashMap<Rid, u32>,
    by_key: HashTable<u32>,
    /// Ordered by deadline: each lasts equally long from its start or last renewal.
    deadlines: List,
    duration_ms: u64,
    bytes: u64,
}

impl Reservations {
    pub fn new(duration_ms: u64) -> Self {
        Reservations {
            hasher: DefaultHashBuilder::default(),
            slab: Slab::new(),
            by_rid: HashMap::new(),
            by_key: HashTable::new(),
            deadlines: List::default(),
            duration_ms,
            bytes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn get(&self, slot: u32) -> &Reservation {
        &self.slab[slot]
    }

    pub fn by_rid(&self, rid: Rid) -> Option<u32> {
        self.by_rid.get(&rid).copied()
    }

    pub fn by_key(&self, key: &[u8]) -> Option<u32> {
        if self.by_key.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        self.by_key.find(hash, |slot| self.slab[*slot].key.as_slice() == key).copied()
    }

    pub fn insert(&mut self, now: Time, mut reservation: Reservation) {
        reservation.deadline = now.plus_ms(self.duration_ms);
        self.bytes += reservation.bytes();
        let hash = self.hasher.hash_one(reservation.key.as_slice());
        let rids: SmallVec<[Rid; 2]> = reservation.replicas.iter().map(|replica| replica.rid).collect();
        let slot = self.slab.insert(reservation);
        for rid in rids {
            self.by_rid.insert(rid, slot);
        }
        let Reservations { by_key, slab, hasher, .. } = self;
        by_key.insert_unique(hash, slot, |slot| hasher.hash_one(slab[*slot].key.as_slice()));
        self.deadlines.push_back(&mut self.slab, slot);
    }

    pub fn remove(&mut self, slot: u32) -> Reservation {
        self.deadlines.remove(&mut self.slab, slot);
        let hash = self.hasher.hash_one(self.slab[slot].key.as_slice());
        self.by_key.find_entry(hash, |other| *other == slot).expect("an unfinished put is in the index").remove();
        let reservation = self.slab.remove(slot);
        for replica in &reservation.replicas {
            self.by_rid.remove(&replica.rid);
        }
        self.bytes -= reservation.bytes();
        if self.slab.len() == 0 {
            self.by_rid.shrink_to(1024);
            let Reservations { by_key, slab, hasher, .. } = self;
            by_key.shrink_to(1024, |slot| hasher.hash_one(slab[*slot].key.as_slice()));
        }
        reservation
    }

    /// Takes the replicas on a segment that is Gone out of all unfinished puts; those with no other end.
    pub fn drop_segment(&mut self, segment: SegmentNo) -> Vec<Lost> {
        let on_it = |replica: &Replica| replica.extent.segment == segment;
        let hit = self.iter().filter(|(_, reservation)| reservation.replicas.iter().any(on_it));
        let slots: Vec<u32> = hit.map(|(slot, _)| slot).collect();
        let mut lost = Vec::with_capacity(slots.len());
        for slot in slots {
            let reservation = &mut self.slab[slot];
            let dropped = reservation.replicas.iter().filter(|replica| on_it(replica)).count();
            let ended = dropped == reservation.replicas.len();
            let (session, awaited) = (reservation.session, reservation.awaited);
            let bytes = reservation.size * dropped as u64;
            let mut replaced = None;
            if ended {
                let gone = self.remove(slot);
                replaced = gone.terms.replaces.then_some(gone.key);
            } else {
                for replica in reservation.replicas.iter().filter(|replica| on_it(replica)) {
                    self.by_rid.remove(&replica.rid);
                }
                reservation.replicas.retain(|replica| !on_it(replica));
                self.bytes -= bytes;
            }
            lost.push(Lost { session, bytes, ended, awaited, replaced });
        }
        lost
    }

    /// Its bytes moved: its deadline begins anew.
    pub fn renew(&mut self, now: Time, slot: u32) {
        self.slab[slot].deadline = now.plus_ms(self.duration_ms);
        self.deadlines.move_to_back(&mut self.slab, slot);
    }

    /// All deadlines begin anew.
    pub fn renew_all(&mut self, now: Time) {
        let slots: Vec<u32> = self.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.renew(now, slot);
        }
    }

    pub fn set_awaited(&mut self, slot: u32) {
        self.slab[slot].awaited = true;
    }

    /// One whose deadline has passed.
    pub fn expired(&self, now: Time) -> Option<u32> {
        self.deadlines.head().filter(|slot| self.slab[*slot].deadline <= now)
    }

    /// Each is found by its key and by each of its rids, and is in the order of deadlines; the counts are right.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.slab.check_invariants()?;
        let (mut bytes, mut rids, mut before) = (0, 0, Time(0));
        self.deadlines.check_invariants(&self.slab, |slot, reservation| {
            let key = reservation.key.as_slice().escape_ascii();
            ensure!(!reservation.replicas.is_empty(), "the one of {key} has no replica");
            let found = self.by_key(reservation.key.as_slice());
            ensure!(found == Some(slot), "the one of {key} in slot {slot} is found by its key in {found:?}");
            for Replica { rid, .. } in &reservation.replicas {
                let found = self.by_rid(*rid);
                ensure!(found == Some(slot), "the one of {key} in slot {slot} is found by {rid:?} in {found:?}");
            }
            let deadline = reservation.deadline;
            ensure!(before <= deadline, "the one of {key} ends at {deadline:?}, behind one that ends at {before:?}");
            bytes += reservation.bytes();
            rids += reservation.replicas.len();
            before = deadline;
            Ok(())
        })?;
        let (all, listed, by_key) = (self.slab.len(), self.deadlines.len() as usize, self.by_key.len());
        ensure!(all == listed && all == by_key, "there are {all}, {listed} of them with a deadline, {by_key} by key");
        ensure!(rids == self.by_rid.len(), "they have {rids} rids, and are found by {}", self.by_rid.len());
        ensure!(bytes == self.bytes, "they have {bytes} bytes, and counted {}", self.bytes);
        Ok(())
    }

    /// All, the earliest deadline first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Reservation)> {
        std::iter::successors(self.deadlines.head(), |slot| self.deadlines.next(&self.slab, *slot))
            .map(|slot| (slot, &self.slab[slot]))
    }
}
