//! Objects of one look-up that only tiers have: those of one are read together, past its owner on this host, else by a
//! lane whose owner reads ahead.

use std::sync::Arc;

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::{Destination, total_of_destinations};
use mooncake_os::Deadline;
use mooncake_segment::{RecordAddress, RecordRead, SegmentAddress, TransferError};
use mooncake_wire::message::{Object, Replica};

use crate::call::fan_out::fan_out;
use crate::inner::Inner;
use crate::machine::get::LostReplica;
use crate::machine::numbering::Numbering;
use crate::segments::direct_reads::DirectRead;

/// What became of each object of a look-up, where it was read so. Each is taken once.
pub(crate) type Tried = Vec<Option<Result<(), TransferError>>>;

/// An object that is to be read so, and all of it.
pub(crate) struct DirectObject<'t, 'a> {
    /// Its place in the look-up.
    pub nth: usize,
    pub key: &'t [u8],
    pub object: &'t Object,
    pub destinations: Vec<Destination<'a>>,
}

/// Objects of one tier, each with its placement.
type OfTier<'t, 'a> = (Arc<SegmentAddress>, Vec<(Rid, DirectObject<'t, 'a>)>);

impl Inner {
    /// Whether an object has one replica, on a tier, which the call has not failed to read already.
    pub(crate) fn is_on_a_tier_alone(&self, object: &Object, numbering: Numbering, lost: &[LostReplica]) -> bool {
        let is_lost = |rid: u64| lost.iter().any(|lost| lost.rid == Rid(rid));
        self.only_tier(object, numbering).is_some_and(|(_, replica)| !is_lost(replica.rid))
    }

    fn only_tier<'o>(&self, object: &'o Object, numbering: Numbering) -> Option<(Arc<SegmentAddress>, &'o Replica)> {
        let [replica] = &object.replicas[..] else { return None };
        let address = self.shared.directory.find(numbering, replica.extents.first()?.segment)?;
        address.is_tier().then_some((address, replica))
    }

    /// So many bytes were read past the owner of their tier.
    pub(crate) fn count_direct(&self, bytes: u64) {
        if let Some(metrics) = &self.shared.control.metrics {
            metrics.tiers.read(bytes);
        }
    }

    /// An object that only a tier has, as its look-up said, could not be read.
    pub(crate) fn count_lost_on_tier(&self, object: &Object, numbering: Numbering) {
        if let Some((address, _)) = self.only_tier(object, numbering)
            && let Some(metrics) = &self.shared.control.metrics
        {
            metrics.tiers.lost_on(&address.name, TierUuid(address.uuid.0));
        }
    }

    /// Reads these of `found` objects, all that lie on one tier together.
    pub(crate) fn read_directly(
        &self,
        objects: Vec<DirectObject<'_, '_>>,
        found: usize,
        numbering: Numbering,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Tried {
        let mut tried: Tried = (0..found).map(|_| None).collect();
        let mut by_tier: Vec<OfTier<'_, '_>> = Vec::new();
        for one in objects {
            let Some((address, replica)) = self.only_tier(one.object, numbering) else { continue };
            let rid = Rid(replica.rid);
            match by_tier.iter_mut().find(|(other, _)| other.uuid == address.uuid) {
                Some((_, all)) => all.push((rid, one)),
                None => by_tier.push((address, vec![(rid, one)])),
            }
        }
        // Each disk is waited for by a thread: they read at the same time.
        let threads = by_tier.len().min(self.shared.links.direct().at_once());
        let read = |of_tier: &mut OfTier<'_, '_>, interrupted: &(dyn Fn() -> bool + Sync)| {
            let ended = self.read_tier(of_tier, interrupted);
            of_tier.1.iter().map(|(_, one)| one.nth).zip(ended).collect::<Vec<_>>()
        };
        let (ended, _) = fan_out(by_tier, threads, interrupted, |_| false, read);
        ended.into_iter().flatten().for_each(|(nth, ended)| tried[nth] = ended);
        tried
    }

    /// What became of each object of one tier.
    fn read_tier(
        &self,
        (address, objects): &mut OfTier<'_, '_>,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Option<Result<(), TransferError>>> {
        let bytes = objects.iter().fold(0_u64, |bytes, (_, one)| bytes.saturating_add(one.object.size));
        let deadline = self.transfer_deadline(bytes, interrupted);
        let mut reads: Vec<DirectRead<'_, '_>> = objects
            .iter_mut()
            .map(|(rid, one)| {
                debug_assert_eq!(total_of_destinations(&one.destinations), one.object.size);
                let crc = self.settings.verify.then_some(one.object.crc32c);
                let record = record_of(one.key, one.object, *rid);
                DirectRead { record, from: 0, destinations: &mut one.destinations, crc }
            })
            .collect();
        let file_system = self.shared.directory.file_system(address);
        let mut ended = self.shared.links.direct().read(address, file_system, &mut reads, &deadline);
        let is_good = |ended: &Option<Result<(), TransferError>>| matches!(ended, Some(Ok(())));
        let good = reads.iter().zip(&ended).filter(|(_, ended)| is_good(ended));
        self.count_direct(good.map(|(read, _)| total_of_destinations(read.destinations)).sum());
        let left: Vec<RecordRead<'_, '_>> = reads.iter_mut().zip(&ended).filter_map(lane_read).collect();
        // One alone is read as any other: its owner may have been started again.
        if left.len() > 1 {
            let mut read = self.read_by_lane(address, left, &deadline).into_iter();
            ended.iter_mut().filter(|ended| ended.is_none()).for_each(|ended| *ended = read.next().flatten());
        }
        ended
    }

    /// Reads them one behind the other; none for what is to be tried once more, alone.
    fn read_by_lane(
        &self,
        address: &SegmentAddress,
        mut reads: Vec<RecordRead<'_, '_>>,
        deadline: &Deadline<'_>,
    ) -> Tried {
        let mut ended = match self.shared.links.records().read_all(address, &mut reads, deadline) {
            Ok(ended) => ended,
            Err(error) => {
                tracing::debug!(%error, tier = %address.display_name(), "no lane for several records");
                return reads.iter().map(|_| None).collect();
            }
        };
        let mut late = None;
        for ended in &mut ended {
            match ended {
                // An owner that stands still is waited for once.
                Some(Err(TransferError::Timeout { what, waited, .. })) => late = Some((*what, *waited)),
                // The lane or its owner is to blame, and not the record.
                Some(Err(TransferError::Broken { .. } | TransferError::Refused { .. })) => *ended = None,
                Some(_) => {}
                None => {
                    let segment = || address.display_name().to_string();
                    *ended =
                        late.map(|(what, waited)| Err(TransferError::Timeout { segment: segment(), what, waited }));
                }
            }
        }
        ended
    }
}

/// One that has not ended.
fn lane_read<'r, 'a>(
    (read, ended): (&'r mut DirectRead<'_, 'a>, &Option<Result<(), TransferError>>),
) -> Option<RecordRead<'r, 'a>> {
    let DirectRead { record, from, destinations, crc } = read;
    ended.is_none().then_some(RecordRead { record: *record, from: *from, pieces: destinations, crc: *crc })
}

/// The record of an object with one replica.
fn record_of(key: &[u8], object: &Object, rid: Rid) -> RecordAddress {
    let offset = object.replicas[0].extents[0].offset;
    RecordAddress { rid, offset, size: object.size, key_bytes: key.len() as u32 }
}
