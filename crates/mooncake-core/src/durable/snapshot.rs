//! The durable state as records that make it again on an empty core.

use smallvec::SmallVec;

use crate::core::Core;
use crate::ids::{Replica, SegmentNo};
use crate::record::Record;
use crate::request::{PinKind, Remembered};
use crate::state::gone_segments::GoneSegment;
use crate::state::object::{Hold, Object};
use crate::state::objects::ObjectSlot;
use crate::state::quarantine::Quarantined;
use crate::state::reservation::Reservation;
use crate::state::segment::Segment;
use crate::state::session::{Kept, Session};
use crate::state::tier::Tier;
use mooncake_ids::{GRANULE, Rid, SessionId};

impl Core {
    /// For the simulation and tests: all of the durable state at once, in the order in which it must be replayed. What
    /// [slices](Core::snapshot_slice) of the same moment come to.
    #[doc(hidden)]
    pub fn snapshot(&self) -> impl Iterator<Item = Record> + '_ {
        let there = |number: SegmentNo| self.is_there(number);
        let reserved = self.reservations.iter().filter_map(move |(_, put)| reserved(put, there));
        let pinned = self.sessions.iter().flat_map(move |(session, entry)| {
            entry.pins.keys().flat_map(move |rid| self.pinned(session, *rid, None, there))
        });
        let replied = self.sessions.iter().flat_map(move |(session, entry)| {
            let sequences = [0].into_iter().chain(entry.replies.keys().copied());
            sequences.filter_map(move |sequence| self.replied(session, sequence, entry.answered_below))
        });
        self.snapshot_counters()
            .chain(self.sessions.iter().flat_map(|(session, entry)| opened(session, entry)))
            .chain(self.segments.gone().iter().map(forgotten))
            .chain(self.segments.iter().flat_map(mounted))
            .chain(self.tiers.iter().map(|(number, tier)| seen(number, tier)))
            .chain(self.objects.iter().filter_map(move |(slot, _)| self.whole_object(slot, there)))
            .chain(reserved)
            .chain(self.quarantine.iter().map(quarantined))
            .chain(pinned)
            .chain(self.sessions.iter().filter_map(|(session, entry)| committed(session, entry)))
            .chain(replied)
    }

    /// `None` when nothing of it can come back: of its replicas those count that are on segments that are `there`.
    pub(crate) fn whole_object(&self, slot: ObjectSlot, there: impl Fn(SegmentNo) -> bool) -> Option<Record> {
        let object: &Object = self.objects.object(slot);
        let there = |replica: &Replica| there(replica.extent.segment);
        let replicas: SmallVec<[Replica; 1]> = object.replicas().into_iter().filter(there).collect();
        let tier = object.places.tier().map(|place| place.replica(object.size())).filter(there);
        let lowest = replicas.iter().map(|replica| replica.rid).min();
        if lowest.is_none() && tier.is_none() {
            return None;
        }
        let pin = match object.hold {
            Hold::None => PinKind::None,
            Hold::Soft | Hold::Lapsed => PinKind::Soft { ttl_ms: self.objects.soft_ttl_ms(slot) },
            Hold::Hard => PinKind::Hard,
        };
        let key = self.objects.key(slot).into();
        let (size, crc32c) = (object.size(), object.crc32c);
        let group: Box<[u8]> = self.objects.group_of(slot).into();
        let object_id = object.id();
        if tier.is_some() || lowest != Some(object_id) {
            return Some(Record::TieredObject { key, size, crc32c, pin, replicas, group, object_id, tier });
        }
        Some(match group.is_empty() {
            true => Record::Object { key, size, crc32c, pin, replicas },
            false => Record::GroupedObject { key, size, crc32c, pin, replicas, group },
        })
    }

    /// Views of a session over a placement, each of them. `former` is the key of the object that it belonged to, where
    /// that has left since. On a segment that is not `there` it belongs to none, though that may be yet to be purged.
    pub(crate) fn pinned(
        &self,
        session: SessionId,
        rid: Rid,
        former: Option<&[u8]>,
        there: impl Fn(SegmentNo) -> bool,
    ) -> impl Iterator<Item = Record> {
        let views = self.sessions.get(session).and_then(|entry| entry.pins.get(&rid)).copied().unwrap_or(0);
        let record = (views > 0).then(|| {
            let pin = self.pins.get(rid).expect("a session's view is counted");
            let key = pin.object.map(|slot| self.objects.key(slot)).or(former).filter(|_| there(pin.extent.segment));
            Record::Pinned { session, rid, extent: pin.extent, key: key.map(Into::into) }
        });
        record.into_iter().flat_map(move |record| std::iter::repeat_n(record, views as usize))
    }

    /// A reply that is remembered. Number 0, which no mutation has, says which ones are not any more: all may have been
    /// forgotten.
    pub(crate) fn replied(&self, session: SessionId, sequence: u64, answered_below: u64) -> Option<Record> {
        let reply = match sequence {
            0 if answered_below > 0 => Remembered::Done,
            // The client has it, and it is yet to be forgotten.
            _ if sequence < answered_below => return None,
            _ => self.sessions.get(session)?.replies.get(&sequence)?.clone(),
        };
        Some(Record::Replied { session, sequence, answered_below, reply })
    }
}

pub(crate) fn opened(session: SessionId, entry: &Session) -> impl Iterator<Item = Record> + use<> {
    let kept = entry.kept.map(|kept| {
        let Kept { ms, secret, turn } = kept;
        Record::SessionKept { session, ms, secret, turn }
    });
    [Record::SessionOpened { session, spec: entry.spec.clone() }].into_iter().chain(kept)
}

pub(crate) fn forgotten(gone: GoneSegment) -> Record {
    Record::SegmentForgotten { uuid: gone.uuid, number: gone.number }
}

pub(crate) fn seen(number: SegmentNo, tier: &Tier) -> Record {
    let (session, spec, head) = (tier.session, tier.spec.clone(), tier.head);
    match tier.file_system {
        Some(file_system) => Record::SharedTierSeen { number, session, spec, head, file_system },
        None => Record::TierSeen { number, session, spec, head },
    }
}

pub(crate) fn mounted(segment: &Segment) -> impl Iterator<Item = Record> + use<> {
    let (number, session, epoch) = (segment.number, segment.session, segment.epoch);
    let view = segment.view();
    let bytes = view.populated;
    let ends = view.capacity < view.bytes / GRANULE * GRANULE;
    let populated = match ends {
        true => Record::SegmentEnds { number, bytes },
        false => Record::SegmentPopulated { number, bytes },
    };
    let leaves = segment.leaves.map(|leaves| Record::SegmentLeaves { number, grace_ms: leaves.grace_ms });
    let moved = segment.inherited.then(|| {
        let endpoint = segment.spec.endpoint.clone();
        Record::SegmentMoved { number, session, endpoint }
    });
    let mounted = Record::SegmentMounted { number, session, spec: segment.spec.clone(), epoch };
    [mounted, populated].into_iter().chain(leaves).chain(moved)
}

/// `None` when it is over: of its replicas those count that are on segments that are `there`.
pub(crate) fn reserved(put: &Reservation, there: impl Fn(SegmentNo) -> bool) -> Option<Record> {
    let there = |replica: &Replica| there(replica.extent.segment);
    let replicas: SmallVec<[Replica; 1]> = put.replicas.iter().copied().filter(there).collect();
    (!replicas.is_empty()).then(|| put.record(replicas))
}

pub(crate) fn quarantined(entry: &Quarantined) -> Record {
    Record::Quarantined { replica: entry.replica, writer: entry.writer, writer_done: entry.writer_done }
}

pub(crate) fn committed(session: SessionId, entry: &Session) -> Option<Record> {
    (entry.committed().len() > 0).then(|| Record::CommittedBy { session, rids: entry.committed().collect() })
}
