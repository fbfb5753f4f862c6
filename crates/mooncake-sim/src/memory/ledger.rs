//! What is true, whatever processes and masters believe: which value was put under which key, which placements are over
//! for their writers, and what was acknowledged.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use mooncake_core::{Record, Replica, SegmentNo};
use mooncake_ids::{GRANULE, Rid, SegmentUuid};

use crate::memory::{self, Memory};

/// The truth. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    inner: Rc<RefCell<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    seed: u64,
    /// Values that writers were about to write to each placement; several where its number was given out twice.
    placed: BTreeMap<Rid, Vec<Value>>,
    /// Segment of each placement, by the secret of the session that writes it.
    written: BTreeMap<(u64, Rid), SegmentUuid>,
    /// Placements of which nothing may land in a segment any more, and by whose word. Another log gives the same
    /// numbers, of other segments.
    over: BTreeMap<(SegmentUuid, Rid), &'static str>,
    /// Placements of each value.
    placements: BTreeMap<u64, Vec<Rid>>,
    /// Values whose puts were answered as stored.
    acknowledged: Vec<u64>,
    /// Values whose callers were told that their puts were interrupted.
    interrupted: BTreeSet<u64>,
    /// The memory of segments.
    memories: BTreeMap<SegmentUuid, Weak<memory::Inner>>,
    /// The sessions that masters have given placements to, each time that their numbers were given.
    reserved_by: BTreeMap<Rid, BTreeSet<u64>>,
    log: Log,
    /// Several masters go on with copies of one log.
    is_split: bool,
    /// A session's number may be another one's with another log.
    repeats_numbers: bool,
    has_lost_tail: bool,
}

/// A value, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    segment: SegmentNo,
    uuid: SegmentUuid,
    key: Vec<u8>,
    number: u64,
}

/// What a log tells of objects.
#[derive(Debug, Default)]
struct Log {
    objects: BTreeMap<Vec<u8>, Vec<Replica>>,
    reserved: BTreeMap<Rid, (Vec<u8>, Vec<Replica>)>,
    /// Of objects that left by eviction, removal, replacement, or with their segment, and when the log first said so.
    left: BTreeMap<Rid, Moment>,
    now: Moment,
}

/// How many records masters have logged, or found, by then.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// What a value has in one of its granules.
pub fn word(value: u64, index: u64) -> u64 {
    (value << 16 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Factor of the checksum so far, before the next word is added.
const SUM: u32 = 0x9e37_79b1;

/// The checksum of an object's words.
pub fn checksum(words: impl IntoIterator<Item = u64>) -> u32 {
    words.into_iter().fold(0, |sum: u32, word| sum.wrapping_mul(SUM).wrapping_add((word >> 32) as u32))
}

/// The checksum of words and of so many bytes of others behind them.
pub fn checksum_of_both(first: u32, second: u32, len: u64) -> u32 {
    first.wrapping_mul(SUM.wrapping_pow((len / GRANULE) as u32)).wrapping_add(second)
}

impl Ledger {
    /// Of the world of a seed, which failures name.
    pub fn new(seed: u64) -> Ledger {
        Ledger { inner: Rc::new(RefCell::new(Inner { seed, ..Inner::default() })) }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.inner.borrow().seed
    }

    /// There is memory.
    pub(crate) fn enter(&self, uuid: SegmentUuid, memory: Weak<memory::Inner>) {
        self.inner.borrow_mut().memories.insert(uuid, memory);
    }

    /// A master gives a place out.
    ///
    /// # Panics
    ///
    /// Where a view lies there.
    pub(crate) fn note_place_given(&self, uuid: SegmentUuid, rid: Rid, offset: u64, len: u64) {
        let memory = self.inner.borrow().memories.get(&uuid).and_then(Weak::upgrade);
        if let Some(memory) = memory {
            Memory::note_place_given(&memory, rid, offset, len);
        }
    }

    /// A master has given a placement to a session.
    pub(crate) fn note_reserved(&self, session: u64, rid: Rid) {
        self.inner.borrow_mut().reserved_by.entry(rid).or_default().insert(session);
    }

    /// A store asks for the end of a placement.
    ///
    /// # Panics
    ///
    /// Where it does so in another session than the placement's.
    pub(crate) fn assert_ended_in_own_session(&self, session: u64, rid: Rid) {
        let inner = self.inner.borrow();
        let is_own = inner.reserved_by.get(&rid).is_some_and(|sessions| sessions.contains(&session));
        assert!(is_own, "seed {}: {:#x} is ended in session {session}, which is not its own", inner.seed, rid.0);
    }

    /// A writer is about to write a value to a placement. `secret`: of its session.
    pub(crate) fn note_write_begins(
        &self,
        (secret, rid): (u64, Rid),
        (segment, uuid): (u32, SegmentUuid),
        key: &[u8],
        number: u64,
    ) {
        let value = Value { segment: SegmentNo(segment), uuid, key: key.to_vec(), number };
        let mut inner = self.inner.borrow_mut();
        inner.placed.entry(rid).or_default().push(value);
        inner.written.insert((secret, rid), uuid);
        inner.placements.entry(number).or_default().push(rid);
    }

    /// From here on nothing of a placement may land: its fence is done, or its writer has said so.
    pub(crate) fn note_over(&self, uuid: SegmentUuid, rid: Rid, by: &'static str) {
        self.inner.borrow_mut().over.entry((uuid, rid)).or_insert(by);
    }

    /// Its writer says so, in the session of this secret.
    pub(crate) fn note_writer_done(&self, secret: u64, rid: Rid) {
        let uuid = self.inner.borrow().written.get(&(secret, rid)).copied();
        if let Some(uuid) = uuid {
            self.note_over(uuid, rid, "its writer");
        }
    }

    /// Something of a placement lands.
    ///
    /// # Panics
    ///
    /// Where it must not.
    pub(crate) fn assert_may_land(&self, uuid: SegmentUuid, rid: Rid) {
        let inner = self.inner.borrow();
        if let Some(by) = inner.over.get(&(uuid, rid)) {
            panic!("seed {}: {:#x} is written, and {by} says that it is over", inner.seed, rid.0);
        }
    }

    /// A reader looks at these words in place.
    ///
    /// # Panics
    ///
    /// Where no put of that placement has them.
    pub(crate) fn assert_view_is_of_a_put(&self, rid: Rid, words: &[u64]) {
        self.assert_put(None, rid, 0, words);
    }

    /// A reader has found these words under a key.
    ///
    /// # Panics
    ///
    /// Where no writer has put that.
    pub(crate) fn was_read(&self, key: &[u8], rid: Rid, words: &[u64]) {
        self.assert_put(Some(key), rid, 0, words);
    }

    /// A reader has found these words under a key, from its `first` one on.
    ///
    /// # Panics
    ///
    /// Where no writer has put that.
    pub(crate) fn was_read_from(&self, key: &[u8], rid: Rid, first: u64, words: &[u64]) {
        self.assert_put(Some(key), rid, first, words);
    }

    fn assert_put(&self, key: Option<&[u8]>, rid: Rid, first: u64, words: &[u64]) {
        let inner = self.inner.borrow();
        let values = inner.placed.get(&rid).map(Vec::as_slice).unwrap_or_default();
        let is_value = |value: &&Value| {
            let whole = (first..).zip(words).all(|(index, found)| *found == word(value.number, index));
            key.is_none_or(|key| value.key == key) && whole
        };
        let key = String::from_utf8_lossy(key.unwrap_or_default());
        assert!(
            values.iter().any(|value| is_value(&value)),
            "seed {}: wrong bytes of {key} in {:#x}",
            inner.seed,
            rid.0
        );
    }

    /// A read begins.
    pub(crate) fn moment(&self) -> Moment {
        self.inner.borrow().log.now
    }

    /// A reader that began then has found this placement's bytes.
    ///
    /// # Panics
    ///
    /// Where it had left by then: another value had taken its place, or none.
    pub(crate) fn was_there(&self, rid: Rid, began: Moment) {
        let inner = self.inner.borrow();
        if !inner.has_lost_tail && !inner.repeats_numbers {
            let left = inner.log.left.get(&rid).is_some_and(|left| *left <= began);
            assert!(!left, "seed {}: {:#x} is read, and had left before the read began", inner.seed, rid.0);
        }
    }

    /// A caller was told that this value is stored.
    pub(crate) fn acknowledged(&self, value: u64) {
        self.inner.borrow_mut().acknowledged.push(value);
    }

    /// A caller interrupted the put of this value, and was told so.
    ///
    /// # Panics
    ///
    /// Where it was stored.
    pub(crate) fn interrupted(&self, value: u64) {
        let mut inner = self.inner.borrow_mut();
        let placements = inner.placements.get(&value).into_iter().flatten();
        placements.for_each(|rid| inner.assert_not_stored(*rid));
        inner.interrupted.insert(value);
    }

    // ------------------------------------------------------------------- log

    /// The master has logged this.
    ///
    /// # Panics
    ///
    /// Where it stores a value whose caller was told that its put was interrupted.
    pub(crate) fn logged(&self, record: &Record) {
        let mut inner = self.inner.borrow_mut();
        if !inner.is_split {
            inner.log.note(record);
        }
        if let Record::Committed { good, .. } = record {
            let values = |rid: &Rid| inner.placed.get(rid).into_iter().flatten().map(|value| value.number);
            let is_unwanted = good.iter().flat_map(values).any(|value| inner.interrupted.contains(&value));
            good.iter().filter(|_| is_unwanted).for_each(|rid| inner.assert_not_stored(*rid));
        }
    }

    /// Another master begins on a copy of the log: what either logs from here on is not the other's.
    pub(crate) fn split(&self) {
        let mut inner = self.inner.borrow_mut();
        (inner.is_split, inner.repeats_numbers) = (true, true);
    }

    /// A master begins without the log that there was.
    pub(crate) fn begins_anew(&self) {
        self.inner.borrow_mut().repeats_numbers = true;
    }

    /// One of them is left, and what it logs counts again.
    pub(crate) fn join(&self) {
        self.inner.borrow_mut().is_split = false;
    }

    /// A master has found a log, whose end may be lost.
    pub(crate) fn found<'r>(&self, records: impl Iterator<Item = &'r Record>, tail_is_lost: bool) {
        let mut inner = self.inner.borrow_mut();
        inner.has_lost_tail |= tail_is_lost || inner.repeats_numbers;
        let (left, now) = (std::mem::take(&mut inner.log.left), inner.log.now);
        inner.log = Log { left, now, ..Log::default() };
        records.for_each(|record| inner.log.note(record));
    }

    /// Whether a session's number may be another one's: masters have gone on with copies of one log, or without it.
    pub(crate) fn repeats_numbers(&self) -> bool {
        self.inner.borrow().repeats_numbers
    }

    /// Whether some log has lost its end, or masters went on with copies of one or without it: what it forgot may be
    /// gone.
    pub fn has_lost_tail(&self) -> bool {
        self.inner.borrow().has_lost_tail
    }

    /// Values that were acknowledged, that nothing has taken away, and that the log does not have: all of their
    /// placements.
    pub fn forgotten(&self, is_there: impl Fn(SegmentNo) -> bool) -> Vec<Vec<Rid>> {
        let inner = self.inner.borrow();
        let there: BTreeSet<Rid> = inner.log.objects.values().flatten().map(|replica| replica.rid).collect();
        let is_known = |rid: &Rid| there.contains(rid) || inner.log.left.contains_key(rid);
        let has_gone = |rid: &Rid| inner.placed[rid].iter().all(|value| !is_there(value.segment));
        let placements = inner.acknowledged.iter().map(|value| &inner.placements[value]);
        placements.filter(|rids| !rids.iter().any(|rid| is_known(rid) || has_gone(rid))).cloned().collect()
    }

    /// The objects that the log has: keys and replicas.
    pub fn objects(&self) -> BTreeMap<Vec<u8>, Vec<Replica>> {
        self.inner.borrow().log.objects.clone()
    }
}

impl Inner {
    /// Of a value whose put was interrupted.
    fn assert_not_stored(&self, rid: Rid) {
        if !self.has_lost_tail && !self.repeats_numbers {
            let stored = self.log.left.contains_key(&rid)
                || self.log.objects.values().flatten().any(|replica| replica.rid == rid);
            assert!(!stored, "seed {}: {:#x} is stored, and its put was interrupted", self.seed, rid.0);
        }
    }
}

impl Log {
    fn note(&mut self, record: &Record) {
        self.now.0 += 1;
        match record {
            Record::Reserved { key, replicas, .. } | Record::ReservedWith { key, replicas, .. } => {
                self.reserved.insert(replicas[0].rid, (key.to_vec(), replicas.to_vec()));
            }
            Record::Committed { reservation, good, .. } => {
                let first = self.reservation_of(*reservation).expect("reserved before");
                let (key, mut replicas) = self.reserved.remove(&first).expect("reserved before");
                replicas.retain(|replica| good.contains(&replica.rid));
                if let Some(old) = self.objects.insert(key, replicas) {
                    self.have_left(&old);
                }
            }
            Record::Removed { key, .. } => {
                let old = self.objects.remove(&key[..]).expect("removed once");
                self.have_left(&old);
            }
            Record::ReplicaDropped { rid, .. } => self.lose(|replica| replica.rid == *rid),
            Record::SegmentGone(number) => self.lose(|replica| replica.extent.segment == *number),
            _ => {}
        }
    }

    /// The first rid of the reservation that a rid belongs to.
    fn reservation_of(&self, rid: Rid) -> Option<Rid> {
        let mut before = self.reserved.range(..=rid).rev().take(8);
        before.find(|(_, (_, replicas))| replicas.iter().any(|replica| replica.rid == rid)).map(|(first, _)| *first)
    }

    fn have_left(&mut self, replicas: &[Replica]) {
        for replica in replicas {
            self.left.entry(replica.rid).or_insert(self.now);
        }
    }

    fn lose(&mut self, which: impl Fn(&Replica) -> bool) {
        let lost = self.objects.values_mut().flat_map(|replicas| replicas.extract_if(.., |replica| which(replica)));
        let lost: Vec<Replica> = lost.collect();
        self.have_left(&lost);
        self.objects.retain(|_, replicas| !replicas.is_empty());
    }
}
