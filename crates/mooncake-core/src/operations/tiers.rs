//! Tiers and their owners: which come, prove what they have, are away and go.

use crate::config::{Config, SharedStorage};
use crate::core::Core;
use crate::effect::{Effects, Push, To};
use crate::ids::{SegmentNo, Time};
use crate::record::Record;
use crate::request::{Refused, TierSpec};
use crate::state::objects::ObjectSlot;
use crate::state::tier::{FileCounts, Mounted, Tier, TierProof};
use crate::state::tier_stats::TierStats;
use crate::state::tier_writes::TierWrites;
use crate::work::Work;
use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid, SessionId, TierUuid};
use mooncake_mutant::mutant;

/// Blocks that a file of one number has at most.
const FILE_BLOCKS_MAX: u64 = 1 << 16;

/// Files that one message retires at most.
const RETIRED_MAX: usize = 1_024;

/// How often the owner of a full tier is told that it is.
const FULL_AGAIN_MS: u64 = 1_000;

/// A tier as its owner mounts it.
#[derive(Debug, Clone)]
pub struct TierMount {
    /// What it is.
    pub spec: TierSpec,
    /// Nothing was ever written there.
    pub is_new: bool,
    /// The session has it beside its own, as an earlier process has left it: nothing is written there.
    pub is_adopted: bool,
    /// On which it lies, where sessions share one; this one announces it, too.
    pub file_system: Option<FileSystemUuid>,
    /// Above the numbers of all files that its folder had.
    pub head: u64,
    /// Records that it has at most; none if the master alone is to say.
    pub records_max: Option<u64>,
    /// What its folder proves.
    pub proof: TierProof,
}

/// What its owner is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierMounted {
    /// Its number, among those of segments.
    pub number: SegmentNo,
    /// Above the numbers of all its files that the log has heard of: a new one has that, or a higher one.
    pub head: u64,
    /// What objects have in its files.
    pub files: Vec<(u64, FileCounts)>,
}

/// Whether and how its session has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierState {
    /// Its objects can be read: its session is there, or others that share its file system.
    Live,
    /// It is mounted, and what its folder does not prove is being dropped.
    Checking,
    /// No session has it.
    Hidden,
}

/// What the shell may know of a tier.
#[derive(Debug, Clone, Copy)]
pub struct TierView<'a> {
    /// Its number, among those of segments.
    pub number: SegmentNo,
    /// What it is.
    pub spec: &'a TierSpec,
    /// The session that has it, or had it last.
    pub session: SessionId,
    /// Whether that session has it mounted.
    pub state: TierState,
    /// It has it beside its own, and does not write it.
    pub is_adopted: bool,
    /// No session has it: others that share its file system read it.
    pub is_left: bool,
    /// On which it lies, where sessions share one.
    pub file_system: Option<FileSystemUuid>,
    /// Records that objects have there.
    pub records: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Bytes that its files may have.
    pub capacity: u64,
    /// Bytes that it may have under order.
    pub window: u64,
    /// Bytes that it has under order.
    pub ordered: u64,
    /// What its owner has said last of its disk, since it was mounted.
    pub stats: Option<&'a TierStats>,
    writes: &'a TierWrites,
    storage: Option<&'a SharedStorage>,
}

impl TierView<'_> {
    /// The folder of the tier's files, if it is on a file system that sessions share.
    pub fn shared_folder(&self) -> Option<String> {
        self.storage.map(|storage| format!("{}/{}", storage.folder(), self.spec.uuid))
    }

    /// How often it would be filled in a day, as in the last hour.
    pub fn fills_per_day(&self, now: Time) -> f64 {
        self.writes.last_hour(now) as f64 * 24.0 / self.capacity.max(1) as f64
    }
}

impl Core {
    /// A session has a tier: new, taken over, or again after its anchor was away. What the folder does not prove is
    /// dropped before it is Live.
    pub fn mount_tier(
        &mut self,
        now: Time,
        session: SessionId,
        mount: TierMount,
        fx: &mut Effects,
    ) -> Result<TierMounted, Refused> {
        let TierMount { spec, is_new, is_adopted, file_system, head, records_max, proof } = mount;
        self.sessions.known(session)?;
        let is_allowed = match file_system {
            Some(_) => self.config.shared_storage.is_some(),
            None => self.config.tiers_allowed,
        };
        if !is_allowed {
            return Err(Refused::TiersNotAllowed);
        }
        if !(1..=FILE_BLOCKS_MAX).contains(&spec.file_blocks) {
            return Err(Refused::TierSize(spec.uuid, spec.bytes, spec.file_blocks));
        }
        let known = self.tiers.by_uuid(spec.uuid);
        let number = match known.and_then(|number| Some((number, self.tiers.get(number)?))) {
            None if !is_new => return Err(Refused::TierUnknown(spec.uuid)),
            None => SegmentNo(self.segments.last() + 1),
            Some((_, tier)) if tier.spec.secret != spec.secret => return Err(Refused::TierSecret(spec.uuid)),
            Some((_, tier)) if tier.spec.file_blocks != spec.file_blocks => {
                return Err(Refused::TierSize(spec.uuid, spec.bytes, spec.file_blocks));
            }
            Some((_, tier)) if tier.file_system != file_system => return Err(Refused::TierUnknown(spec.uuid)),
            // Its writer was thought to be gone: it begins another one.
            Some((_, tier)) if tier.session != session && tier.is_mounted() && tier.is_adopted && !is_adopted => {
                return Err(Refused::TierAdopted(spec.uuid));
            }
            // Nor does a session adopt what it writes.
            Some((_, tier)) if tier.is_mounted() && (tier.session != session || is_adopted && !tier.is_adopted) => {
                return Err(Refused::TierTaken(spec.uuid, tier.session.0));
            }
            Some((number, _)) => number,
        };
        if known.is_some() {
            self.hide_tier(now, number);
        }
        let head = head.max(self.tiers.get(number).map_or(0, |tier| tier.head));
        if self.tiers.get(number).is_some_and(|tier| tier.session != session) {
            // Who was asked is not there any more; who finds a record bad says so again.
            self.rechecks.retain(|_, recheck| recheck.replica.extent.segment != number);
        }
        match file_system {
            Some(file_system) => {
                self.announce(now, session, file_system, fx)?;
                self.log(now, Record::SharedTierSeen { number, session, spec, head, file_system }, fx);
            }
            None => self.log(now, Record::TierSeen { number, session, spec, head }, fx),
        }
        let tier = self.tiers.get_mut(number).expect("it was seen");
        tier.is_adopted = is_adopted;
        let most = self.config.tier_records_max;
        (tier.records_max, tier.told_full) = (records_max.map_or(most, |given| given.min(most)), None);
        let files = tier.files().iter().map(|(file, counts)| (*file, *counts)).collect();
        let mounted = match has_unproven(tier, &proof) {
            true => Mounted::Checking { proof: Box::new(proof.clone()), next: 0 },
            false => Mounted::Live,
        };
        self.set_tier_mounted(number, mounted);
        let tier = self.tiers.get_mut(number).expect("it was seen");
        proof.files.difference(&proof.appended).for_each(|file| tier.seal(*file));
        self.news.room = true;
        self.serve_waiting(now, fx);
        Ok(TierMounted { number, head, files })
    }

    /// Whether what a session says of a tier counts: it has said nothing later, and is there. Words come over several
    /// connections, and a session that gives one up says the next. 0 is that of a client which has no turns.
    pub fn turn_of_tier(&mut self, session: SessionId, uuid: TierUuid, turn: u64) -> Result<(), Refused> {
        self.sessions.known(session)?;
        let session = self.sessions.get_mut(session).expect("it is known");
        let is_late = session.tier_turns.get(&uuid).is_some_and(|last| turn < *last);
        if turn > 0 && (is_late || session.away.is_some()) && !mutant!(LateWordsOfTiersCount) {
            return Err(Refused::TierTooLate(uuid));
        }
        if turn > 0 {
            session.tier_turns.insert(uuid, turn);
        }
        Ok(())
    }

    /// Its session leaves a tier, whose records stay. One that the session does not have is no harm. If it `is_empty`,
    /// its folder has no file any more: it is Gone, where the log knows of no record either.
    pub fn leave_tier(&mut self, now: Time, session: SessionId, uuid: TierUuid, is_empty: bool, fx: &mut Effects) {
        let Some(number) = self.tier_of(session, uuid) else {
            self.counts.stale_messages += 1;
            return;
        };
        match is_empty && self.tiers.get(number).is_some_and(|tier| tier.records == 0) {
            true => _ = self.forget_tier(now, uuid, fx),
            false => self.hide_tier(now, number),
        }
    }

    /// The owner of a tier says what its disk has done, and what it may have. That is of the tier as it is mounted, and
    /// of no other.
    pub fn tier_stats(&mut self, session: SessionId, uuid: TierUuid, stats: TierStats) {
        let number = self.tier_of(session, uuid);
        let Some(tier) = number.and_then(|number| self.tiers.get_mut(number)) else {
            self.counts.stale_messages += 1;
            return;
        };
        match &mut tier.stats {
            Some(known) => **known = stats,
            none => *none = Some(Box::new(stats)),
        }
    }

    /// An operator, or time, says that a tier never comes back. False if it is not known.
    ///
    /// One that a session has mounted goes as well: what its owner has under order is over, its later words are of no
    /// tier, and it is told to begin another one. An owner that is away hears so when it mounts again.
    pub fn forget_tier(&mut self, now: Time, uuid: TierUuid, fx: &mut Effects) -> bool {
        let Some(number) = self.tiers.by_uuid(uuid) else { return false };
        self.log(now, Record::SegmentGone(number), fx);
        self.rechecks.retain(|_, recheck| recheck.replica.extent.segment != number);
        let gone = Push::SegmentGone { uuid: SegmentUuid(uuid.0), number, pinned: Vec::new() };
        fx.pushes.push((To::Everybody, gone));
        true
    }

    /// All that are not Gone, by number.
    pub fn tiers(&self) -> impl Iterator<Item = TierView<'_>> {
        self.tiers.iter().map(|(number, tier)| view(number, tier, &self.config))
    }

    /// One that is not Gone.
    pub fn tier(&self, number: SegmentNo) -> Option<TierView<'_>> {
        Some(view(number, self.tiers.get(number)?, &self.config))
    }

    /// Where sessions may have tiers on a file system that they share.
    pub fn shared_storage(&self) -> Option<&SharedStorage> {
        self.config.shared_storage.as_ref()
    }

    /// The tier of that UUID, if the session has it mounted.
    pub(crate) fn tier_of(&self, session: SessionId, uuid: TierUuid) -> Option<SegmentNo> {
        let number = self.tiers.by_uuid(uuid)?;
        let tier = self.tiers.get(number)?;
        (tier.session == session && tier.is_mounted()).then_some(number)
    }

    /// A session that will be away, though its anchor is open, mounts its tiers when that begins anew: it ends.
    pub(crate) fn mounts_anew(&mut self, session: SessionId, fx: &mut Effects) {
        if self.tiers.has_any_of(session) {
            const WHY: &str = "nothing was heard of it for a while, and what it has on disks is to be mounted anew";
            self.push(session, Push::SessionOver(WHY.to_owned()), fx);
        }
    }

    /// A session is away, or ends.
    pub(crate) fn hide_tiers_of(&mut self, now: Time, session: SessionId) {
        self.announces_no_more(session);
        if !self.tiers.is_empty() {
            self.tiers.mounted_by(session).into_iter().for_each(|number| self.hide_tier(now, number));
        }
    }

    /// Goes on dropping what folders do not prove.
    pub(crate) fn check_mounted(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while !work.is_used_up()
            && let Some(number) = self.tiers.checking()
        {
            let tier = self.tiers.get_mut(number).expect("it was found");
            let blocks = tier.spec.file_blocks;
            let Mounted::Checking { proof, next } = &mut tier.mounted else { return };
            let is_lost = |slot: u32| {
                let place = self.objects.get(ObjectSlot(slot)).and_then(|object| object.places.tier());
                let place = place.filter(|place| place.tier == number);
                place.is_some_and(|place| !proof.proves(&place, place.address() / blocks))
            };
            let (lost, end) = work.look_through(*next, self.objects.bound(), is_lost);
            *next = end;
            lost.into_iter().for_each(|slot| self.drop_tier_place(now, ObjectSlot(slot), fx));
            if end >= self.objects.bound() {
                self.set_tier_mounted(number, Mounted::Live);
                self.news.room = true;
            }
        }
    }

    /// Of an object that has one.
    pub(crate) fn drop_tier_place(&mut self, now: Time, slot: ObjectSlot, fx: &mut Effects) {
        let Some(place) = self.objects.object(slot).places.tier() else { return };
        let key = self.objects.key(slot).into();
        self.log(now, Record::ReplicaDropped { key, rid: place.rid }, fx);
    }

    /// Tells owners of files that no object needs and of tiers that are full, and gives up tiers that no session has
    /// had for too long.
    pub(crate) fn retire(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        let epoch = self.epoch.number;
        let numbers: Vec<SegmentNo> = self.tiers.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let tier = self.tiers.get_mut(number).expect("it is there");
            // What a full one gives up it says to be judged; until that is over it need not be told again.
            let is_full = tier.is_full() && !tier.is_adopted && tier.given_up.is_empty();
            let is_full = is_full && tier.told_full.is_none_or(|told| told.plus_ms(FULL_AGAIN_MS) <= now);
            if tier.is_live() && (is_full || !tier.unneeded.is_empty()) && !work.is_used_up() {
                let files: Vec<u64> = tier.unneeded.iter().copied().take(RETIRED_MAX).collect();
                for file in &files {
                    tier.unneeded.remove(file);
                    tier.judged.remove(file);
                    tier.told.remove(file);
                }
                let (owner, uuid) = (tier.session, tier.spec.uuid);
                if is_full {
                    tier.told_full = Some(now);
                }
                work.did(files.len() + 1);
                self.push(owner, Push::TierRetire { tier: uuid, epoch, files, is_full }, fx);
            }
        }
        let retention_us = self.config.tier_retention_ms.saturating_mul(1_000);
        let old = now.0.checked_sub(retention_us).and_then(|time| self.tiers.without_session(Time(time)));
        if let Some(uuid) = old.and_then(|number| Some(self.tiers.get(number)?.spec.uuid)) {
            self.forget_tier(now, uuid, fx);
        }
    }

    /// The next rid of an order, which no log has: the log sets them aside in blocks, so that none comes twice.
    pub(crate) fn next_order_rid(&mut self, now: Time, fx: &mut Effects) -> Rid {
        let (next, end) = self.tiers.rids;
        let is_of_epoch = Rid(next).epoch() == self.epoch.number;
        if next >= end || !is_of_epoch {
            let from = Rid::new(self.epoch.number, self.counter + 1);
            self.log(now, Record::TierRids { from, count: ORDER_RIDS }, fx);
            let end = Rid::new(self.epoch.number, self.counter + 1);
            self.tiers.rids = (from.0, end.0);
        }
        let rid = Rid(self.tiers.rids.0);
        self.tiers.rids.0 = Rid::new(rid.epoch(), rid.counter() + 1).0;
        rid
    }
}

/// Rids that the log sets aside for orders at a time.
const ORDER_RIDS: u32 = 4_096;

fn view<'a>(number: SegmentNo, tier: &'a Tier, config: &'a Config) -> TierView<'a> {
    TierView {
        number,
        spec: &tier.spec,
        session: tier.session,
        state: match tier.mounted {
            Mounted::Live | Mounted::Left(_) => TierState::Live,
            Mounted::Checking { .. } => TierState::Checking,
            Mounted::Hidden(_) => TierState::Hidden,
        },
        is_adopted: tier.is_adopted && tier.is_mounted(),
        is_left: matches!(tier.mounted, Mounted::Left(_)),
        file_system: tier.file_system,
        records: tier.records,
        bytes: tier.bytes,
        capacity: tier.capacity(),
        window: tier.window,
        ordered: tier.ordered_bytes,
        stats: tier.stats.as_deref(),
        writes: &tier.writes,
        storage: config.shared_storage.as_ref().filter(|_| tier.file_system.is_some()),
    }
}

/// Whether some record that objects have may be one that the folder does not prove.
fn has_unproven(tier: &Tier, proof: &TierProof) -> bool {
    let is_unproven = |file: &u64| !proof.files.contains(file) || proof.suspects.contains(file);
    tier.files().keys().any(is_unproven)
}
