//! The durable state as records that make it again on an empty core.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Record;
use crate::ids::{GRANULE, Replica};
use crate::object::{Hold, Object};
use crate::request::PinKind;

impl Core {
    /// Records that recreate the durable state, in the order in which they must be replayed.
    pub fn snapshot(&self) -> impl Iterator<Item = Record> + '_ {
        self.snapshot_counters()
            .chain(self.snapshot_members())
            .chain(self.objects.coldest_first().filter_map(|slot| self.snapshot_object(slot)))
            .chain(self.snapshot_unfinished())
            .chain(self.snapshot_committed())
            .chain(self.snapshot_replies())
    }

    fn snapshot_members(&self) -> impl Iterator<Item = Record> + '_ {
        let sessions =
            self.sessions.iter().map(|(session, entry)| Record::SessionOpened { session, spec: entry.spec.clone() });
        let gone = self.segments.gone().map(|gone| Record::SegmentForgotten { uuid: gone.uuid, number: gone.number });
        let segments = self.segments.iter().flat_map(|segment| {
            let (number, session, epoch) = (segment.number, segment.session, segment.epoch);
            let view = segment.view();
            let bytes = view.populated;
            let ends = view.capacity < view.bytes / GRANULE * GRANULE;
            let populated = match ends {
                true => Record::SegmentEnds { number, bytes },
                false => Record::SegmentPopulated { number, bytes },
            };
            let leaves = segment.leaves.map(|leaves| Record::SegmentLeaves { number, grace_ms: leaves.grace_ms });
            [Record::SegmentMounted { number, session, spec: segment.spec.clone(), epoch }, populated]
                .into_iter()
                .chain(leaves)
        });
        sessions.chain(gone).chain(segments)
    }

    /// `None` when nothing of it can come back.
    fn snapshot_object(&self, slot: u32) -> Option<Record> {
        let object: &Object = self.objects.object(slot);
        let there = |replica: &Replica| self.segments.get(replica.extent.segment).is_some();
        let replicas: SmallVec<[Replica; 1]> = object.replicas().into_iter().filter(there).collect();
        let pin = match object.hold {
            Hold::None => PinKind::None,
            Hold::Soft | Hold::Lapsed => PinKind::Soft { ttl_ms: self.objects.soft_ttl_ms(slot) },
            Hold::Hard => PinKind::Hard,
        };
        let key = object.key.as_slice().into();
        let (size, crc32c) = (object.size, object.crc32c);
        if replicas.is_empty() {
            return None;
        }
        let group: Box<[u8]> = self.objects.group_of(slot).into();
        Some(match group.is_empty() {
            true => Record::Object { key, size, crc32c, pin, replicas },
            false => Record::GroupedObject { key, size, crc32c, pin, replicas, group },
        })
    }

    fn snapshot_unfinished(&self) -> impl Iterator<Item = Record> + '_ {
        let reserved = self.reservations.records();
        let quarantined = self.quarantine.iter().map(|entry| Record::Quarantined {
            replica: entry.replica,
            writer: entry.writer,
            writer_done: entry.writer_done,
        });
        let pinned = self.sessions.iter().flat_map(move |(session, entry)| {
            entry.pins.iter().flat_map(move |(rid, views)| {
                let pin = self.pins.get(*rid).expect("a session's view is counted");
                let key = self.object_under(pin).map(|slot| self.objects.object(slot).key.as_slice().into());
                let record = Record::Pinned { session, rid: *rid, extent: pin.extent, key };
                std::iter::repeat_n(record, *views as usize)
            })
        });
        reserved.chain(quarantined).chain(pinned)
    }

    fn snapshot_committed(&self) -> impl Iterator<Item = Record> + '_ {
        let writers = self.sessions.iter().filter(|(_, entry)| entry.committed().len() > 0);
        writers.map(|(session, entry)| Record::CommittedBy { session, rids: entry.committed().collect() })
    }

    fn snapshot_replies(&self) -> impl Iterator<Item = Record> + '_ {
        self.sessions.iter().flat_map(|(session, entry)| {
            let answered_below = entry.answered_below;
            entry.replies.iter().map(move |(sequence, reply)| Record::Replied {
                session,
                sequence: *sequence,
                answered_below,
                reply: reply.clone(),
            })
        })
    }
}
