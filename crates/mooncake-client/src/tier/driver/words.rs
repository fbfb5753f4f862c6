//! What it says to the master.

use std::time::Instant;

use bytes::Bytes;
use mooncake_ids::{Rid, TierUuid};
use mooncake_tier::owner::{Proof, ToMaster};
use mooncake_wire::message::{
    BadReplica, Closing, Tier, TierLeave, TierMount, TierMountReply, TierReclaim, TierWritten, anchor_up, reply,
    request,
};
use mooncake_wire::pack_keys;

use super::{Driver, RETRY_PAUSE};
use crate::error::{ErrorKind, StoreError};
use crate::tier::{report, shared};

impl Driver<'_> {
    pub(super) fn say(&mut self, said: ToMaster) {
        let tier = || self.folder.uuid.0.to_vec().into();
        let control = &self.surroundings.control;
        match said {
            ToMaster::Written { written, window, sealed } => {
                let written = TierWritten {
                    tier: tier(),
                    rids: written.iter().map(|(rid, _)| rid.0).collect(),
                    addresses: written.iter().map(|(_, address)| address.map_or(0, |address| address.0 + 1)).collect(),
                    window,
                    sealed: sealed.iter().map(|file| file.0).collect(),
                };
                control.tell(anchor_up::Body::TierWritten(written));
            }
            ToMaster::Damaged { key, rid } => {
                let reason = "its bytes in memory are not those that were put";
                report(control, BadReplica { key: key.into(), rid: rid.0, reason: reason.into(), more: Vec::new() });
            }
            ToMaster::Bad { records } => {
                let path = self.folder.path.display();
                let count = records.len();
                tracing::warn!(%path, count, "records that the disk failed to write are bad: they are dropped");
                self.note_bad(records.iter().map(|(_, rid)| *rid));
                let reason = "the disk failed to write it, and it cannot be read back";
                let mut bad = records.into_iter().map(|(key, rid)| BadReplica {
                    key: key.into(),
                    rid: rid.0,
                    reason: reason.into(),
                    more: Vec::new(),
                });
                if let Some(first) = bad.next() {
                    report(control, BadReplica { more: bad.collect(), ..first });
                }
            }
            ToMaster::Reclaim { tier, file, records } => {
                let keys: Vec<&[u8]> = records.iter().map(|(key, _)| &key[..]).collect();
                let rids = records.iter().map(|(_, rid)| rid.0).collect();
                let keys = Some(pack_keys(&keys));
                let body = TierReclaim { file: file.0, keys, rids, ..self.reclaim_of(tier) };
                match self.reclaim(body) {
                    Ok(rids) => self.folder.tier.judged(&rids.into_iter().map(Rid).collect::<Vec<_>>()),
                    Err(error) => {
                        tracing::debug!(%error, "a file of the tier is not given up yet");
                        self.folder.tier.leave_off();
                    }
                }
            }
            ToMaster::Reclaimed { tier, file } => {
                let none = Some(pack_keys(&[] as &[&[u8]]));
                let body = TierReclaim { file: file.0, keys: none, last: true, ..self.reclaim_of(tier) };
                if let Err(error) = self.reclaim(body) {
                    tracing::debug!(%error, "a file of the tier is not given up yet");
                    self.folder.tier.leave_off();
                }
            }
        }
    }

    /// About a file of that tier: what is kept of it is written to the own one.
    fn reclaim_of(&self, tier: TierUuid) -> TierReclaim {
        let own = self.folder.uuid;
        let into = if tier == own { Bytes::new() } else { own.0.to_vec().into() };
        TierReclaim { tier: tier.0.to_vec().into(), into, ..TierReclaim::default() }
    }

    fn reclaim(&self, body: TierReclaim) -> Result<Vec<u64>, StoreError> {
        const WHAT: &str = "giving up a file of the tier";
        let control = &self.surroundings.control;
        let timeout = control.lookup_timeout * 4;
        match control.finish(WHAT, request::Body::TierReclaim(body), timeout)?.body {
            reply::Body::TierReclaim(judged) => Ok(judged.rids),
            _ => Err(control.confused(WHAT)),
        }
    }

    /// What memory has, and the tier has not, is to be ordered.
    pub(super) fn closes(&self) {
        let within_ms = u64::try_from(self.options.close_limit.as_millis()).unwrap_or(u64::MAX);
        self.surroundings.control.tell(anchor_up::Body::Closing(Closing { within_ms }));
    }

    /// What a tier of this store is.
    pub(super) fn spec(&self, uuid: TierUuid, secret: [u8; 16], bytes: u64, file_blocks: u64, access_key: u64) -> Tier {
        let owner = &self.surroundings.owner;
        Tier {
            uuid: uuid.0.to_vec().into(),
            secret: secret.to_vec().into(),
            name: owner.name().to_owned(),
            bytes,
            file_blocks,
            endpoint: Some(owner.tier_endpoint(access_key)),
        }
    }

    /// A tier with what its folder proves.
    pub(super) fn mount_of(&self, tier: Tier, proof: Proof) -> TierMount {
        TierMount {
            tier: Some(tier),
            is_new: proof.is_new,
            head: proof.head,
            files: proof.files.into_iter().collect(),
            appended: proof.appended.into_iter().collect(),
            suspects: proof.suspects.into_iter().collect(),
            proven: proof.proven.iter().map(|rid| rid.0).collect(),
            adopted: false,
            records_max: self.options.records_max.unwrap_or(0),
            file_system: self.options.shared.map_or_else(Bytes::new, |shared| shared::name(shared.file_system)),
            turn: self.next_turn(),
        }
    }

    /// The answer, and whose log it goes by.
    pub(super) fn ask_to_mount(&self, mount: TierMount) -> Result<(TierMountReply, u64), StoreError> {
        const WHAT: &str = "mounting the tier";
        let control = &self.surroundings.control;
        let answer = control.query_on_any_thread(WHAT, request::Body::TierMount(mount), control.lookup_timeout * 4);
        let answer = answer?;
        match answer.body {
            reply::Body::TierMount(mounted) => Ok((mounted, answer.numbering.log_id)),
            _ => Err(control.confused(WHAT)),
        }
    }

    /// Leaves a tier, which has no file any more if it `is_empty`; false if the master does not know yet. It is told
    /// again; by the end of this session it learns it, too.
    pub(super) fn say_left(&mut self, uuid: TierUuid, is_empty: bool) -> bool {
        let leave = TierLeave { uuid: uuid.0.to_vec().into(), empty: is_empty, turn: self.next_turn() };
        let control = &self.surroundings.control;
        let left = control.finish("leaving the tier", request::Body::TierLeave(leave), control.lookup_timeout);
        match &left {
            Ok(_) => _ = self.to_be_left.remove(&uuid),
            Err(error) => {
                tracing::debug!(%error, "the master does not know yet that a tier is left");
                // Of a session that is away, it has none mounted.
                match error.kind() {
                    ErrorKind::Refused => _ = self.to_be_left.remove(&uuid),
                    _ => self.is_to_leave(uuid),
                }
            }
        }
        left.is_ok()
    }

    /// The master may take that tier for mounted.
    pub(super) fn is_to_leave(&mut self, uuid: TierUuid) {
        self.to_be_left.insert(uuid);
        self.leave_at.get_or_insert(Instant::now() + RETRY_PAUSE);
    }

    /// Tells the master once more what it may not have heard, but of tiers that are about to be mounted.
    pub(super) fn leaves_again(&mut self) {
        self.leave_at = None;
        for uuid in self.to_be_left.clone() {
            let is_about_to_be_mounted = match self.adoption.find(uuid) {
                Some(_) => self.mounted,
                None => uuid == self.folder.uuid && self.mount_at.is_some() && self.is_there && !self.hidden,
            };
            match is_about_to_be_mounted {
                true => self.is_to_leave(uuid),
                false => _ = self.say_left(uuid, false),
            }
        }
    }

    fn next_turn(&self) -> u64 {
        self.turns.set(self.turns.get() + 1);
        self.turns.get()
    }
}
