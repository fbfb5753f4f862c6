//! What the master asks of a tier: records to be written, and to be looked at again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_memory::Destination;
use mooncake_os::Deadline;
use mooncake_segment::{RecordAddress, RecordError, SegmentAddress};
use mooncake_tier::health::Fitness;
use mooncake_tier::owner::Source;
use mooncake_wire::message::{Rechecked, Replica, TierOrder, TierRecheck, anchor_up};

use super::{Driver, RETRY_PAUSE};
use crate::tier::Surroundings;
use crate::tier::source::{Copied, OwnExtent};

/// Records that a disk failed to read once which are kept in mind.
const UNREADABLE_MAX: usize = 1_024;

/// Records found bad that are kept in mind: of objects that are gone the master does not ask.
const FOUND_BAD_MAX: usize = 4_096;

/// Time for a copy of another process's memory.
const COPY_LIMIT: Duration = Duration::from_secs(3);

/// Who has what is to be written.
enum Holder {
    /// This store.
    Own(Arc<dyn Source>),
    /// Another process.
    Other(Arc<SegmentAddress>),
}

impl Driver<'_> {
    /// True if it waited for another process.
    pub(super) fn order(&mut self, order: TierOrder) -> bool {
        let (rid, object_id) = (Rid(order.rid), Rid(order.object_id));
        let (source, waited) = match order.source.as_ref().and_then(|replica| Some((replica, self.holder(replica)?))) {
            None => (None, false),
            Some((_, Holder::Own(source))) => (Some(source), false),
            Some((replica, Holder::Other(address))) => {
                let segment = replica.extents[0].segment;
                let is_unreachable = |(of, until): (u32, Instant)| of == segment && Instant::now() < until;
                if self.unreachable.is_some_and(is_unreachable) {
                    (None, false)
                } else {
                    let copied = self.copied(replica, &address, order.crc32c);
                    if copied.is_none() {
                        self.unreachable = Some((segment, Instant::now() + RETRY_PAUSE));
                    }
                    (copied, true)
                }
            }
        };
        match source {
            Some(source) => self.folder.tier.order(rid, object_id, order.key.to_vec(), order.crc32c, source),
            None => self.folder.tier.refuse(rid),
        }
        waited
    }

    /// None if the object is nowhere that this store knows.
    fn holder(&self, replica: &Replica) -> Option<Holder> {
        let Surroundings { control, owner, segments } = self.surroundings;
        let [extent] = &replica.extents[..] else { return None };
        let numbering = control.numbering();
        segments.directory().meet(control, numbering, std::iter::once(replica)).ok()?;
        let address = segments.directory().find(numbering, extent.segment)?;
        let (rid, offset, len) = (Rid(replica.rid), extent.offset, extent.length);
        Some(match owner.memory(address.uuid) {
            Some(memory) => Holder::Own(Arc::new(OwnExtent { memory, rid, offset, len })),
            None => Holder::Other(address),
        })
    }

    /// A copy of another process's memory.
    fn copied(&self, replica: &Replica, address: &SegmentAddress, crc32c: u32) -> Option<Arc<dyn Source>> {
        let [extent] = &replica.extents[..] else { return None };
        let (rid, offset, len, segments) =
            (Rid(replica.rid), extent.offset, extent.length, &self.surroundings.segments);
        let never = || false;
        let deadline = Deadline::after(COPY_LIMIT, &never);
        let link = segments.links().link(address, &deadline).ok()?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        link.read(rid, offset, &mut [Destination::new(&mut bytes)], Some(crc32c), &deadline).ok()?;
        Some(Arc::new(Copied(rid, bytes)))
    }

    /// The master asks of these as it hears that they are bad, and is answered without another look.
    pub(super) fn note_bad(&mut self, rids: impl Iterator<Item = Rid>) {
        if self.found_bad.len() > FOUND_BAD_MAX {
            self.found_bad.clear();
        }
        self.found_bad.extend(rids);
    }

    /// Every question is answered: the master asks none about a record of which it waits for an answer.
    pub(super) fn recheck(&mut self, recheck: &TierRecheck) {
        let (Some(replica), Some(records)) = (&recheck.replica, self.records_named(&recheck.tier)) else { return };
        if self.found_bad.remove(&Rid(replica.rid)) {
            let rechecked = Rechecked { uuid: recheck.tier.clone(), rid: replica.rid, good: false };
            return self.surroundings.control.tell(anchor_up::Body::Rechecked(rechecked));
        }
        let [extent] = &replica.extents[..] else { return };
        let key_bytes = u32::try_from(recheck.key.len()).unwrap_or(u32::MAX);
        let record = RecordAddress { rid: Rid(replica.rid), offset: extent.offset, size: extent.length, key_bytes };
        const PART: u64 = 4 << 20;
        let mut buffer = vec![0; extent.length.min(PART) as usize];
        let parts = (0..extent.length.max(1)).step_by(PART as usize);
        let read = parts.into_iter().try_for_each(|from| {
            let len = (extent.length - from).min(PART) as usize;
            records.read_again(&record, from, &mut buffer[..len])
        });
        let rid = Rid(replica.rid);
        let is_good = match read {
            Ok(()) => true,
            // A disk that has no time says nothing of the record. Its next reader asks once more.
            Err(RecordError::Busy) => true,
            // Nor does one that fails. Where it reads what lies beside it, it will not read this any more.
            Err(RecordError::Failed) => self.folder.tier.fitness() != Fitness::Good || self.unreadable.insert(rid),
            Err(RecordError::Gone | RecordError::Wrong) => false,
        };
        if read.is_ok() || !is_good {
            self.unreadable.remove(&rid);
        }
        if self.unreadable.len() > UNREADABLE_MAX {
            self.unreadable.clear();
        }
        if !is_good {
            let path = self.folder.path.display();
            let (rid, why) = (format_args!("{:#x}", rid.0), read.err());
            tracing::warn!(%path, %rid, ?why, "a record of the tier is bad: it is dropped");
        }
        let rechecked = Rechecked { uuid: recheck.tier.clone(), rid: replica.rid, good: is_good };
        self.surroundings.control.tell(anchor_up::Body::Rechecked(rechecked));
    }
}
