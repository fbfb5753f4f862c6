//! What operations change while a snapshot is being taken and has not come to it: put aside first, as it was.
//!
//! Each slice takes what there is of the kind that the walk is at. Of objects before it comes to them, and when the
//! disk does not take what the walk has, there may be [too much](crate::Config::snapshot_aside_max).

use smallvec::SmallVec;

use crate::core::Core;
use crate::record::Record;
use crate::state::objects::ObjectSlot;
use crate::state::snapshot_walk::{NOTED, OBJECTS, SnapshotWalk, Unit};
use mooncake_ids::{Rid, SessionId};

impl Core {
    /// A record is about to be applied.
    #[inline]
    pub(crate) fn put_aside_before<K: AsRef<[u8]>>(&mut self, record: &Record<K>) {
        if self.walk.is_some() {
            self.with_walk(|core, walk| core.put_aside_what_changes(walk, record));
        }
    }

    /// An object is about to leave, or to lose replicas.
    #[inline]
    pub(crate) fn put_aside_object(&mut self, slot: ObjectSlot) {
        if self.walk.is_some() {
            self.with_walk(|core, walk| {
                if walk.next < PINS_MET {
                    core.note_former_keys(walk, slot);
                }
                if walk.meet(slot) {
                    core.object_at_cut(walk, slot).into_iter().for_each(|record| walk.put_aside(OBJECTS, record));
                }
            });
        }
    }

    /// An object has come.
    #[inline]
    pub(crate) fn is_no_matter_of_a_snapshot(&mut self, slot: ObjectSlot) {
        if let Some(walk) = &mut self.walk {
            walk.meet(slot);
        }
    }

    /// What a segment that is Gone left behind is about to be cleared away, which no record says.
    pub(crate) fn put_aside_cleared(&mut self, unit: Unit) {
        if self.walk.as_ref().is_some_and(|walk| walk.next <= unit) {
            self.with_walk(|core, walk| core.put_aside(walk, unit));
        }
    }

    /// A reply of a session is about to be forgotten, which no record says.
    pub(crate) fn put_aside_reply(&mut self, session: SessionId, sequence: u64) {
        let unit = Unit::Replied(session, sequence);
        if self.walk.as_ref().is_some_and(|walk| walk.next <= unit) {
            self.with_walk(|core, walk| core.put_aside(walk, unit));
        }
    }

    /// Does something as long as the snapshot is not given up.
    fn with_walk(&mut self, put_aside: impl FnOnce(&Core, &mut SnapshotWalk)) {
        let Some(mut walk) = self.walk.take() else { return };
        if !walk.is_full() {
            put_aside(self, &mut walk);
        }
        self.walk = Some(walk);
    }

    fn put_aside(&self, walk: &mut SnapshotWalk, unit: Unit) {
        if unit < walk.next || !walk.changed.insert(unit) {
            return;
        }
        let mut records = Vec::new();
        self.records_of(walk, unit, &mut records);
        records.into_iter().for_each(|record| walk.put_aside(unit.kind(), record));
    }

    fn put_aside_what_changes<K: AsRef<[u8]>>(&self, walk: &mut SnapshotWalk, record: &Record<K>) {
        if let Record::SegmentGone(number) = record {
            walk.gone.insert(*number);
        }
        if walk.next == Unit::Through {
            return;
        }
        if let Record::Replied { session, .. } = record {
            let now = self.sessions.get(*session).map_or(0, |entry| entry.answered_below);
            walk.answered_below.entry(*session).or_insert(now);
        }
        for unit in self.changed_by(record) {
            self.put_aside(walk, unit);
        }
    }

    /// The units that a record changes, makes or takes away, but for those whose numbers say that they are new.
    fn changed_by<K: AsRef<[u8]>>(&self, record: &Record<K>) -> Vec<Unit> {
        let ends = |rid: Rid| self.reservations.by_rid(rid).map(|slot| (slot, self.reservations.get(slot)));
        match record {
            Record::SessionOver(session) => {
                let pins = self.sessions.get(*session).into_iter().flat_map(|entry| entry.pins.keys());
                let pins = pins.map(|rid| Unit::Pinned(*session, *rid));
                let replies = self.sessions.get(*session).into_iter().flat_map(|entry| entry.replies.keys());
                let replies = replies.map(|sequence| Unit::Replied(*session, *sequence));
                let itself = [Unit::Session(*session), Unit::Committed(*session), Unit::Replied(*session, 0)];
                itself.into_iter().chain(pins).chain(replies).collect()
            }
            Record::SegmentTookEpoch { number, .. }
            | Record::SegmentPopulated { number, .. }
            | Record::SegmentEnds { number, .. }
            | Record::SegmentLeaves { number, .. }
            | Record::SegmentMoved { number, .. } => vec![Unit::Segment(*number)],
            Record::SessionKept { session, .. } => vec![Unit::Session(*session)],
            Record::TierSeen { number, .. } | Record::SharedTierSeen { number, .. } => vec![Unit::Tier(*number)],
            Record::SegmentGone(number) if self.tiers.get(*number).is_some() => vec![Unit::Tier(*number)],
            Record::SegmentGone(number) => {
                // What lay on it is put aside when it is cleared away.
                vec![Unit::Segment(*number), Unit::Gone(self.segments.gone().forgotten())]
            }
            // One more may make the oldest one forgotten.
            Record::SegmentForgotten { .. } => vec![Unit::Gone(self.segments.gone().forgotten())],
            Record::Committed { reservation, .. } | Record::Dropped(reservation) => {
                let Some((slot, put)) = ends(*reservation) else { return Vec::new() };
                let quarantined = put.replicas.iter().map(|replica| Unit::Quarantined(replica.rid));
                let itself = [Unit::Reserved(slot), Unit::Committed(put.session)];
                let many = if matches!(record, Record::Dropped(_)) { 1 } else { 2 };
                itself.into_iter().take(many).chain(quarantined).collect()
            }
            Record::ReplicaAdded { rid } => ends(*rid).map(|(slot, _)| Unit::Reserved(slot)).into_iter().collect(),
            Record::Released(rid) | Record::WriterDone(rid) => vec![Unit::Quarantined(*rid)],
            Record::Pinned { session, rid, .. } | Record::Unpinned { session, rid } => {
                vec![Unit::Pinned(*session, *rid)]
            }
            // Those that it says are answered are put aside when they are forgotten.
            Record::Replied { session, sequence, .. } => vec![Unit::Replied(*session, *sequence)],
            _ => Vec::new(),
        }
    }

    /// Views over an object that is about to leave were over that.
    fn note_former_keys(&self, walk: &mut SnapshotWalk, slot: ObjectSlot) {
        let object = self.objects.object(slot);
        let viewed = |rid: &Rid| self.pins.get(*rid).is_some_and(|pin| pin.object.is_some());
        let rids: SmallVec<[Rid; 2]> = object.places.memory().iter().map(|place| place.rid).filter(viewed).collect();
        for rid in rids {
            if !walk.former_keys.contains_key(&rid) {
                let key: Box<[u8]> = self.objects.key(slot).into();
                walk.former_bytes += NOTED + key.len();
                walk.former_keys.insert(rid, key);
            }
        }
    }
}

/// The first unit behind all views.
const PINS_MET: Unit = Unit::Committed(SessionId(0));
