//! What only an owner can say: that an extent is free of writers, that its bytes are what they should be, that it obeys
//! an epoch.

use crate::core::Core;
use crate::effect::{Effects, Push};
use crate::ids::{SegmentNo, Time};
use crate::record::Record;
use crate::state::recheck::Recheck;
use crate::state::tier::Mounted;
use crate::work::Work;
use mooncake_ids::{Rid, SegmentUuid, SessionId};

/// Rechecks under way; a reader that reports more is not heard until some are done.
const RECHECKS_MAX: usize = 4_096;

/// An owner that has not answered is asked again by a report that comes so much later.
const ASKED_AGAIN_MS: u64 = 10_000;

/// One that has not answered for so long leaves its place to others where there are too many.
const RECHECK_MS: u64 = 60_000;

impl Core {
    /// A reader found a replica that is not what it should be; its owner is asked. Of a tier that no session has,
    /// whoever has its file system says what is there.
    pub fn bad_replica(&mut self, now: Time, session: SessionId, key: &[u8], rid: Rid, fx: &mut Effects) {
        self.counts.replicas_reported += 1;
        let slot = self.objects.find(self.objects.hash(key), key);
        let object = slot.map(|slot| self.objects.object(slot));
        let replica = object.and_then(|object| {
            let memory = object.places.memory().iter().map(|place| place.replica(object.size()));
            memory.chain(object.places.tier().map(|place| place.replica(object.size()))).find(|other| other.rid == rid)
        });
        let (Some(object), Some(replica)) = (object, replica) else {
            self.counts.stale_messages += 1;
            return;
        };
        let tier = self.tiers.get(replica.extent.segment);
        if let Some(tier) = tier.filter(|tier| matches!(tier.mounted, Mounted::Left(_))) {
            if tier.file_system.is_some_and(|file_system| self.tiers.has_announced(file_system, session)) {
                // Nobody answers what its writer was asked.
                self.rechecks.remove(&rid);
                self.counts.replicas_bad += 1;
                self.log(now, Record::ReplicaDropped { key: key.into(), rid }, fx);
                self.serve_waiting(now, fx);
            }
            return;
        }
        let is_asked = self.rechecks.get(&rid).is_some_and(|asked| asked.asked_at.plus_ms(ASKED_AGAIN_MS) > now);
        if self.sessions.get(session).is_none() || is_asked {
            return;
        }
        let recheck = Recheck { key: key.into(), replica, crc32c: object.crc32c, asked_at: now };
        if self.rechecks.len() >= RECHECKS_MAX {
            self.touched.add(self.rechecks.len());
            self.rechecks.retain(|_, asked| asked.asked_at.plus_ms(RECHECK_MS) > now);
            if self.rechecks.len() >= RECHECKS_MAX {
                return;
            }
        }
        let Some((owner, push)) = self.recheck_of(&recheck) else { return };
        self.rechecks.insert(rid, recheck);
        self.push(owner, push, fx);
    }

    /// The session that has a segment or a tier, or had the tier last.
    pub(crate) fn owner_of(&self, number: SegmentNo) -> Option<SessionId> {
        let of_segment = self.segments.get(number).map(|segment| segment.session);
        of_segment.or_else(|| self.tiers.get(number).map(|tier| tier.session))
    }

    /// Its owner, and what that is asked.
    pub(crate) fn recheck_of(&self, recheck: &Recheck) -> Option<(SessionId, Push)> {
        let Recheck { key, replica, crc32c, .. } = recheck;
        let number = replica.extent.segment;
        if let Some(segment) = self.segments.get(number) {
            let uuid = segment.spec.uuid;
            return Some((segment.session, Push::Recheck { uuid, replica: *replica, crc32c: *crc32c }));
        }
        // Nobody looks after one that is left.
        let tier = self.tiers.get(number).filter(|tier| !matches!(tier.mounted, Mounted::Left(_)))?;
        Some((tier.session, Push::TierRecheck { tier: tier.spec.uuid, replica: *replica, key: key.clone() }))
    }

    /// The owner has looked at a replica. A bad one is dropped, and its object with the last.
    pub fn rechecked(&mut self, now: Time, owner: SessionId, rid: Rid, good: bool, fx: &mut Effects) {
        let asked = |recheck: &Recheck| self.owner_of(recheck.replica.extent.segment) == Some(owner);
        let Some(Recheck { key, .. }) =
            self.rechecks.get(&rid).is_some_and(asked).then(|| self.rechecks.remove(&rid)).flatten()
        else {
            self.counts.stale_messages += 1;
            return;
        };
        self.counts.replicas_cleared += u64::from(good);
        let found = self.objects.find(self.objects.hash(&key), &key);
        if !good && found.is_some_and(|slot| self.objects.object(slot).has(rid)) {
            self.counts.replicas_bad += 1;
            self.log(now, Record::ReplicaDropped { key, rid }, fx);
            self.serve_waiting(now, fx);
        }
    }

    /// The owner has fenced these: nothing of their writers can land there any more.
    pub fn fence_done(&mut self, now: Time, owner: SessionId, rids: &[Rid], fx: &mut Effects) {
        for rid in rids {
            let of_owner = self.quarantine.get(*rid).is_some_and(|entry| {
                let segment = self.segments.get(entry.replica.extent.segment);
                segment.is_some_and(|segment| segment.session == owner)
            });
            if of_owner {
                self.counts.fences_done += 1;
                self.log(now, Record::Released(*rid), fx);
            } else {
                self.counts.stale_messages += 1;
            }
        }
        self.serve_waiting(now, fx);
    }

    /// The owner's segments obey an epoch and the older ones are fenced: they can be placed in again.
    pub fn epoch_taken(&mut self, now: Time, owner: SessionId, epoch: u16, uuids: &[SegmentUuid], fx: &mut Effects) {
        if epoch != self.epoch.number {
            self.counts.stale_messages += 1;
            return;
        }
        let mut work = Work::beside_an_operation();
        for uuid in uuids {
            let Some(segment) = self.segments.by_uuid(*uuid) else { continue };
            if segment.session == owner && !segment.obeys(epoch) {
                self.segment_obeys(now, segment.number, epoch, &mut work, fx);
            }
        }
        self.objects.retry_set_aside();
        self.serve_waiting(now, fx);
    }

    /// Nothing older than the epoch is written in this segment any more, which proves as much as a fence for everything
    /// older in quarantine there.
    pub(crate) fn segment_obeys(
        &mut self,
        now: Time,
        number: SegmentNo,
        epoch: u16,
        work: &mut Work,
        fx: &mut Effects,
    ) {
        self.log(now, Record::SegmentTookEpoch { number, epoch }, fx);
        self.release_older(now, work, fx);
    }
}
