//! The thread that has the folder: it mounts the tier with each session, writes what is ordered, and carries words
//! between [`mooncake_tier::owner`] and the master.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_ids::{Rid, SegmentUuid, TierUuid};
use mooncake_memory::Destination;
use mooncake_os::{Deadline, forked};
use mooncake_segment::{RecordAddress, RecordError, Records, SegmentAddress};
use mooncake_tier::address::FILES_MIN;
use mooncake_tier::health::Fitness;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::owner::{Proof, Source, ToMaster};
use mooncake_wire::message::{
    BadReplica, Closing, Rechecked, Replica, Tier, TierLeave, TierMount, TierMountReply, TierOrder, TierRecheck,
    TierReclaim, TierShared, TierWritten, anchor_up, reply, request,
};
use mooncake_wire::pack_keys;

use super::adoption::{Adopted, Adoption};
use super::figures::Figures;
use super::folder::{PoolOf, TierFolder, capacity_of, delete, delete_unknown, folder_of, share_of};
use super::promoter::Promoter;
use super::records::FolderRecords;
use super::shared;
use super::source::{Copied, OwnExtent};
use super::{StoreTier, Surroundings, Word, report};
use crate::error::{ErrorKind, StoreError};
use crate::options::TierOptions;
use crate::segments::owner::random_key;

/// How long it waits for words while nothing is on its way to the disk.
const REST: Duration = Duration::from_millis(50);

/// How long it waits for the disk before it looks for words.
const DISK_WAIT: Duration = Duration::from_millis(1);

/// Between two tries to mount.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A store whose memory goes, and whose tier takes no orders just now, waits so long for one.
const QUIET: Duration = Duration::from_millis(300);

/// Time that the disk has for what is read back when the tier is mounted.
const PROOF_LIMIT: Duration = Duration::from_secs(60);

/// Of one that is adopted: what is read back stays known, and the rest waits for the next try.
const ADOPTED_PROOF_LIMIT: Duration = Duration::from_secs(5);

/// Records that a disk failed to read once which are kept in mind.
const UNREADABLE_MAX: usize = 1_024;

/// Time for a copy of another process's memory.
const COPY_LIMIT: Duration = Duration::from_secs(3);

/// How often it looks for folders that no log of this pool knows.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How often it looks whether its own folder is there.
const SEEN_EVERY: Duration = Duration::from_secs(1);

/// How long a process of before may take to leave its folder, before another one is made.
const LEAVING_LIMIT: Duration = Duration::from_secs(5);

/// How often it looks whether one has.
const LEFT_EVERY: Duration = Duration::from_millis(100);

/// The folder that a process of before leaves, or a new one; none if the store closes before.
fn waited_for(tier: &StoreTier, options: &TierOptions, surroundings: &Surroundings) -> Option<TierFolder> {
    let (control, until) = (&surroundings.control, Instant::now() + LEAVING_LIMIT);
    loop {
        // What is said of a session is said again when the tier is mounted.
        if tier.heard(LEFT_EVERY).iter().any(|word| matches!(word, Word::Close { .. }))
            || control.is_stopped()
            || forked()
        {
            return None;
        }
        match TierFolder::take_or_wait(options, control, &[], Instant::now() < until) {
            Ok(Some(folder)) => return Some(folder),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "no folder for a tier: this store keeps none");
                return None;
            }
        }
    }
}

pub(super) fn run(tier: &StoreTier, options: TierOptions, folder: Option<TierFolder>, surroundings: &Surroundings) {
    // A store may have several: each line of this thread says of which.
    let _span = tracing::error_span!("tier", path = %options.path.display()).entered();
    let Some(folder) = folder.or_else(|| waited_for(tier, &options, surroundings)) else { return };
    tier.is_of(Some(folder.uuid));
    let (records, access_key) = (records_of(&folder), random_key().unwrap_or(1));
    let mut driver = Driver {
        tier,
        options,
        folder,
        records,
        access_key,
        surroundings,
        began: Instant::now(),
        mount_at: Some(Instant::now()),
        mounted: false,
        all_ordered: false,
        hidden: false,
        is_there: true,
        seen_at: None,
        refused: None,
        useless: Vec::new(),
        looked_at: None,
        turns: Cell::new(0),
        unreadable: BTreeSet::new(),
        unreachable: None,
        promoter: Promoter::new(),
        adoption: Adoption::default(),
        figures: Figures::default(),
    };
    driver.serve();
    let control = &surroundings.control;
    let (mut closing, mut busy_at, mut waiting) = (None, Instant::now(), VecDeque::new());
    while !forked() && (closing.is_some() || !control.is_stopped()) {
        let rest = if waiting.is_empty() && driver.is_resting() { REST } else { Duration::ZERO };
        for word in tier.heard(rest) {
            match word {
                Word::Close { with_memory } if closing.is_none() => {
                    closing = Some((Instant::now() + driver.options.close_limit, with_memory));
                    busy_at = Instant::now();
                    if with_memory {
                        driver.closes();
                    }
                }
                Word::Close { .. } => {}
                // It came while this thread had another folder.
                Word::Gone(uuid) if uuid != driver.folder.uuid => driver.let_go_of(uuid),
                // One that is Gone is mounted no more: the master's answer has another one begun.
                Word::Mount | Word::Gone(_) => {
                    // The others are of a session before.
                    waiting.retain(|word| matches!(word, Word::Recheck(_)));
                    driver.forget_session();
                }
                word => waiting.push_back(word),
            }
        }
        // One that waits for another process is enough: whatever else has come is not to wait as long.
        while let Some(word) = waiting.pop_front()
            && !driver.obey(word)
        {}
        driver.go_on(closing.is_none());
        if let Some((until, with_memory)) = closing {
            driver.folder.tier.sync_at_once();
            let is_idle = waiting.is_empty() && driver.folder.tier.is_idle();
            if !is_idle || driver.folder.tier.takes_orders() {
                busy_at = Instant::now();
            }
            let is_owed_orders = with_memory && driver.mounted && !driver.all_ordered;
            if is_idle && (!is_owed_orders || busy_at.elapsed() >= QUIET) || Instant::now() >= until {
                break;
            }
        }
    }
    driver.leave();
}

/// Who has what is to be written.
enum Holder {
    /// This store.
    Own(Arc<dyn Source>),
    /// Another process.
    Other(Arc<SegmentAddress>),
}

struct Driver<'a> {
    tier: &'a StoreTier,
    options: TierOptions,
    folder: TierFolder,
    records: Arc<FolderRecords>,
    access_key: u64,
    surroundings: &'a Surroundings,
    began: Instant,
    /// The tier is to be mounted then.
    mount_at: Option<Instant>,
    mounted: bool,
    /// The master has ordered all that is to be written before this store closes.
    all_ordered: bool,
    /// It was left, as its disk stands still or its folder is away.
    hidden: bool,
    /// Whether the folder was there when it was looked for last, and when that was.
    is_there: bool,
    seen_at: Option<Instant>,
    /// Why it is not, as was said.
    refused: Option<String>,
    /// Folders that the master does not know.
    useless: Vec<PathBuf>,
    /// When it looked for such folders of earlier processes.
    looked_at: Option<Instant>,
    /// Of what was said last to the master of these tiers: messages that come late do not count.
    turns: Cell<u64>,
    /// Records that the disk failed to read when the master asked.
    unreadable: BTreeSet<Rid>,
    /// The segment of another process that could not be read, and until when it is not tried again.
    unreachable: Option<(u32, Instant)>,
    promoter: Promoter,
    adoption: Adoption,
    figures: Figures,
}

fn records_of(folder: &TierFolder) -> Arc<FolderRecords> {
    Arc::new(FolderRecords::new(folder.folder.clone(), folder.uuid, folder.geometry, folder.tier.counts().clone()))
}

impl Driver<'_> {
    fn serve(&self) {
        let (uuid, served): (_, Arc<dyn Records>) = (segment_uuid(self.folder.uuid), self.records.clone());
        self.surroundings.owner.server().add_tier(uuid, self.folder.capacity, self.access_key, served);
    }

    fn serve_no_more(&self) {
        self.surroundings.owner.server().remove_tier(segment_uuid(self.folder.uuid));
    }

    /// Another folder is begun. One that `is_useless` has nothing of the master's log, nor will have; any other one is
    /// another process's by now.
    fn begin_another(&mut self, is_useless: bool) {
        if is_useless {
            self.useless.push(self.folder.path.clone());
        }
        match TierFolder::take(&self.options, &self.surroundings.control, &self.useless) {
            Ok(folder) => {
                let adopted: Vec<TierUuid> = self.adoption.adopted.iter().map(|adopted| adopted.uuid).collect();
                adopted.into_iter().for_each(|uuid| self.leave_adopted(uuid));
                self.serve_no_more();
                self.records = records_of(&folder);
                self.tier.is_of(Some(folder.uuid));
                drop(std::mem::replace(&mut self.folder, folder).tier.into_lock());
                self.serve();
                // The day that the other one has begins with the next look.
                (self.mount_at, self.looked_at) = (Some(Instant::now()), None);
            }
            Err(error) => {
                if is_useless {
                    self.useless.pop();
                }
                self.mount_at = Some(Instant::now() + LOOK_EVERY);
                tracing::warn!(%error, "no folder for another tier; it is tried again in a minute");
            }
        }
    }

    /// Nothing is to be done before a word comes, or some time has passed.
    fn is_resting(&self) -> bool {
        let is_due = self.mount_at.is_some_and(|at| at <= Instant::now());
        !is_due && (self.folder.tier.is_idle() || self.folder.tier.is_resting())
    }

    /// What memory has, and the tier has not, is to be ordered.
    fn closes(&self) {
        if self.mounted {
            let within_ms = u64::try_from(self.options.close_limit.as_millis()).unwrap_or(u64::MAX);
            self.surroundings.control.tell(anchor_up::Body::Closing(Closing { within_ms }));
        }
    }

    fn forget_session(&mut self) {
        self.folder.tier.anchor_lost();
        (self.mounted, self.mount_at) = (false, Some(Instant::now()));
        self.adoption.adopted.iter_mut().for_each(|adopted| adopted.is_mounted = false);
        (self.adoption.retry_at, self.adoption.is_refused) = (None, false);
    }

    /// True if it waited for another process.
    fn obey(&mut self, word: Word) -> bool {
        match word {
            // What comes while it is not mounted is of a session before.
            Word::Order(order) if self.mounted => return self.order(order),
            Word::Promote(order) if self.mounted => {
                if let Some(records) = self.records_named(&order.promote.tier) {
                    self.promoter.ask(order, records, self.surroundings);
                }
            }
            Word::Retire(retire) if self.mounted => {
                let epoch = u16::try_from(retire.epoch).unwrap_or(u16::MAX);
                match TierUuid::try_from(&retire.tier[..]) {
                    Ok(uuid) if uuid == self.folder.uuid => {
                        self.folder.tier.retire(epoch, &retire.files);
                        if retire.full {
                            self.folder.tier.give_oldest_up();
                        }
                    }
                    Ok(uuid) => self.folder.tier.retire_adopted(uuid, epoch, &retire.files),
                    Err(_) => {}
                }
            }
            Word::Recheck(recheck) => self.recheck(&recheck),
            Word::AllOrdered(_) => self.all_ordered = true,
            Word::Shared(word) if self.mounted => self.shares(&word),
            Word::Order(_) | Word::Promote(_) | Word::Retire(_) | Word::Shared(_) => {}
            Word::Mount | Word::Gone(_) | Word::Close { .. } => {}
        }
        false
    }

    fn go_on(&mut self, takes_more: bool) {
        if takes_more && self.is_there && self.mount_at.is_some_and(|at| at <= Instant::now()) {
            self.mount();
        }
        if self.mounted {
            let pool = PoolOf::now(&self.surroundings.control);
            self.folder.tier.is_of_log(pool.log_id);
            if self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                self.looked_at = Some(Instant::now());
                delete_unknown(&self.options, pool, &self.useless);
            }
            if takes_more {
                self.look_after_adopted(pool);
            }
        }
        let adopted = self.adoption.adopted.iter().map(|adopted| &adopted.records);
        if adopted.chain([&self.records]).any(|records| records.is_failing()) {
            self.folder.tier.fails(self.began.elapsed(), "many reads of it failed within a minute");
        }
        let wait = if self.folder.tier.is_idle() { Duration::ZERO } else { DISK_WAIT };
        for said in self.folder.tier.poll(self.began.elapsed(), wait) {
            if self.mounted {
                self.say(said);
            }
        }
        if self.mounted {
            let adopted = self.adoption.adopted.iter().filter(|adopted| adopted.is_mounted).map(|adopted| adopted.uuid);
            let TierFolder { folder, tier, uuid, .. } = &self.folder;
            self.figures.tell(&self.surroundings.control, (tier, folder.engine()), adopted.chain([*uuid]));
        }
        // A mount of a file system that hosts share may hold up whoever looks.
        if self.options.shared.is_none() && self.seen_at.is_none_or(|at| at.elapsed() >= SEEN_EVERY) {
            (self.is_there, self.seen_at) = (self.folder.folder.is_there(), Some(Instant::now()));
        }
        let is_hung = self.folder.tier.fitness() == Fitness::Hung || !self.is_there;
        if is_hung && self.mounted {
            self.hide();
        } else if is_hung != std::mem::replace(&mut self.hidden, is_hung) && !is_hung {
            self.mount_at = Some(Instant::now());
        }
    }

    /// The disk stands still, or the folder is not there: no reader is sent here before that has ended.
    fn hide(&mut self) {
        let path = self.folder.path.display();
        match self.is_there {
            true => {
                tracing::error!(%path, "the disk of the tier stands still: what it has is not read until it answers")
            }
            false => tracing::error!(
                %path,
                "the folder of the tier is not there any more: it was removed or moved, or its file system is not \
                 mounted. It is neither read nor written until it is back. A store that is restarted makes another \
                 one; `mooncake tier forget {}` lets the master forget what this one had",
                self.folder.uuid
            ),
        }
        // A master that has no time to answer may have done it: the next mount says what is so.
        self.say_left(self.folder.uuid, false);
        self.folder.tier.anchor_lost();
        (self.mounted, self.hidden, self.mount_at) = (false, true, None);
        // They lie on the same disk.
        for at in 0..self.adoption.adopted.len() {
            let adopted = &mut self.adoption.adopted[at];
            if std::mem::replace(&mut adopted.is_mounted, false) {
                let uuid = adopted.uuid;
                self.say_left(uuid, false);
            }
        }
    }

    /// What has the records of a tier: its own, or one that is adopted.
    fn records_named(&self, uuid: &[u8]) -> Option<Arc<FolderRecords>> {
        let uuid = TierUuid::try_from(uuid).ok()?;
        match uuid == self.folder.uuid {
            true => Some(self.records.clone()),
            false => self.adoption.find(uuid).map(|adopted| adopted.records.clone()),
        }
    }

    /// Adopts what is free, mounts it, and deletes what has nothing any more.
    fn look_after_adopted(&mut self, pool: PoolOf<'_>) {
        let mut found = Vec::new();
        if self.adoption.is_to_look(&self.options) {
            let others = self.adoption.adopted.iter().map(|adopted| &adopted.path);
            let taken: Vec<PathBuf> =
                [&self.folder.path].into_iter().chain(&self.useless).chain(others).cloned().collect();
            found = self.adoption.take_free(&self.options, pool, &taken);
        }
        found.into_iter().for_each(|(path, folder, tier)| self.adopt(&path, folder, tier));
        if self.adoption.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        let unmounted = self.adoption.adopted.iter().find(|adopted| !adopted.is_mounted).map(|adopted| adopted.uuid);
        if let Some(uuid) = unmounted {
            self.mount_adopted(uuid);
        }
        if let Some(uuid) = self.folder.tier.empty_adopted() {
            match self.say_left(uuid, true) {
                true => self.delete_adopted(uuid),
                false => self.adoption.retry_at = Some(Instant::now() + RETRY_PAUSE),
            }
        }
    }

    fn adopt(&mut self, path: &Path, folder: Folder, tier: mooncake_tier::tier::Tier<Folder>) {
        let adopted = Adopted::new(path, folder, &tier);
        if let Err(error) = self.folder.tier.adopt(tier) {
            tracing::warn!(path = %path.display(), %error, "a folder of an earlier process cannot be adopted");
            return;
        }
        let served: Arc<dyn Records> = adopted.records.clone();
        let server = self.surroundings.owner.server();
        server.add_tier(segment_uuid(adopted.uuid), adopted.bytes, adopted.access_key, served);
        self.adoption.adopted.push(adopted);
        self.has_adopted();
    }

    /// What its master says of a file system that clients share.
    fn shares(&mut self, word: &TierShared) {
        if word.writers > 0
            && let Ok(share) =
                share_of(&self.options, &self.folder.folder, self.folder.tier.used(), word.writers.into())
        {
            let least = FILES_MIN * self.folder.geometry.file_bytes();
            self.folder.capacity = share.max(least);
            self.folder.tier.set_capacity(self.folder.capacity);
        }
        let Ok(left) = TierUuid::try_from(&word.left[..]) else { return };
        if self.adoption.find(left).is_some() || left == self.folder.uuid {
            return;
        }
        let path = folder_of(&self.options, left);
        let pool = PoolOf::now(&self.surroundings.control);
        match self.adoption.take_left(&path, &self.options, pool) {
            Ok(Some((folder, tier))) => self.adopt(&path, folder, tier),
            Ok(None) => tracing::debug!(path = %path.display(), "a folder that is to be adopted is of another log"),
            Err(error) => tracing::debug!(path = %path.display(), %error, "a folder is not adopted yet"),
        }
    }

    fn has_adopted(&self) {
        self.tier.has_adopted(self.adoption.adopted.iter().map(|adopted| adopted.uuid).collect());
    }

    fn mount_adopted(&mut self, uuid: TierUuid) {
        let until = Instant::now() + ADOPTED_PROOF_LIMIT;
        let time_left = || until.saturating_duration_since(Instant::now());
        let proof = self.folder.tier.adopted_proof(uuid, time_left);
        let (Some(proof), Some(adopted)) = (proof, self.adoption.find(uuid)) else {
            self.adoption.retry_at = Some(Instant::now() + RETRY_PAUSE);
            return;
        };
        let spec = self.spec(uuid, adopted.secret, adopted.bytes, adopted.file_blocks, adopted.access_key);
        let path = adopted.path.clone();
        match self.ask_to_mount(TierMount { adopted: true, ..self.mount_of(spec, proof) }) {
            Ok(mounted) if mounted.unknown.is_empty() => {
                let records: u64 = mounted.files.iter().map(|file| u64::from(file.records)).sum();
                tracing::info!(path = %path.display(), records, "the folder of an earlier process is read again");
                self.folder.tier.adopted_is_mounted(uuid, true);
                self.figures.forget(uuid);
                self.adoption.adopted.iter_mut().filter(|one| one.uuid == uuid).for_each(|one| one.is_mounted = true);
                // What it has of the file system can be had.
                if self.options.shared.is_none()
                    && let Ok(capacity) = capacity_of(&self.options, &self.folder.folder, self.folder.tier.used())
                {
                    self.folder.capacity = self.folder.capacity.max(capacity);
                    self.folder.tier.set_capacity(self.folder.capacity);
                }
            }
            // It is marked, and deleted in a day.
            Ok(_) => self.let_go_of(uuid),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "a folder that is adopted is not mounted yet");
                self.adoption.retry_at = Some(Instant::now() + RETRY_PAUSE);
                match error.kind() {
                    ErrorKind::Unsupported => {
                        self.adoption.is_refused = true;
                        self.give_back(uuid);
                    }
                    // Another session has it by now: what was listed of it is not what it is.
                    ErrorKind::Refused => _ = self.give_back(uuid),
                    _ => {}
                }
            }
        }
    }

    fn leave_adopted(&mut self, uuid: TierUuid) {
        if self.adoption.find(uuid).is_some_and(|adopted| adopted.is_mounted) {
            self.say_left(uuid, false);
        }
        self.give_back(uuid);
    }

    /// The log knows nothing of one that was adopted, or lies beside, or nothing more.
    fn let_go_of(&mut self, uuid: TierUuid) {
        if let Some(path) = self.give_back(uuid).or_else(|| self.lies_beside(uuid)) {
            self.useless.retain(|path| path.is_dir());
            self.useless.push(path);
            self.looked_at = None;
        }
    }

    /// The folder of another writer's tier, where clients share the file system.
    fn lies_beside(&self, uuid: TierUuid) -> Option<PathBuf> {
        let path = folder_of(&self.options, uuid);
        (self.options.shared.is_some() && path.is_dir() && !self.useless.contains(&path)).then_some(path)
    }

    /// Whoever comes next may have one that was adopted: its path.
    fn give_back(&mut self, uuid: TierUuid) -> Option<PathBuf> {
        let adopted = self.adoption.remove(uuid)?;
        self.figures.forget(uuid);
        self.surroundings.owner.server().remove_tier(segment_uuid(uuid));
        drop(self.folder.tier.let_go(uuid));
        self.has_adopted();
        Some(adopted.path)
    }

    /// Nothing is left of one that was adopted, and no log needs it.
    fn delete_adopted(&mut self, uuid: TierUuid) {
        let Some(adopted) = self.adoption.remove(uuid) else { return };
        self.figures.forget(uuid);
        self.surroundings.owner.server().remove_tier(segment_uuid(uuid));
        let lock = self.folder.tier.let_go(uuid);
        self.has_adopted();
        let deleted = Folder::to_look_at(&adopted.path).and_then(|folder| delete(&folder));
        drop(lock);
        let path = adopted.path.display();
        match deleted {
            Ok(()) => tracing::info!(%path, "nothing of the folder of an earlier process is needed: it is deleted"),
            Err(error) => tracing::warn!(%path, %error, "an empty folder of an earlier process cannot be deleted"),
        }
    }

    /// What a tier of this store is.
    fn spec(&self, uuid: TierUuid, secret: [u8; 16], bytes: u64, file_blocks: u64, access_key: u64) -> Tier {
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
    fn mount_of(&self, tier: Tier, proof: Proof) -> TierMount {
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

    fn ask_to_mount(&self, mount: TierMount) -> Result<TierMountReply, StoreError> {
        const WHAT: &str = "mounting the tier";
        let control = &self.surroundings.control;
        let answer = control.query_on_any_thread(WHAT, request::Body::TierMount(mount), control.lookup_timeout * 4);
        match answer?.body {
            reply::Body::TierMount(mounted) => Ok(mounted),
            _ => Err(control.confused(WHAT)),
        }
    }

    fn mount(&mut self) {
        let control = &self.surroundings.control;
        let until = Instant::now() + PROOF_LIMIT;
        let time_left = || match control.is_stopped() || self.tier.is_closing() {
            true => Duration::ZERO,
            false => until.saturating_duration_since(Instant::now()),
        };
        let Some(proof) = self.folder.tier.proof(time_left) else {
            self.mount_at = Some(Instant::now() + RETRY_PAUSE);
            let path = self.folder.path.display();
            tracing::warn!(%path, "the disk does not answer what the tier has; it is asked again");
            return;
        };
        let session = control.session();
        let TierFolder { uuid, secret, capacity, geometry, .. } = self.folder;
        let spec = self.spec(uuid, secret, capacity, geometry.file_blocks(), self.access_key);
        let path = self.folder.path.display();
        match self.ask_to_mount(self.mount_of(spec, proof)) {
            Ok(mounted) if !mounted.unknown.is_empty() => {
                tracing::warn!(%path, reason = mounted.unknown, "another folder is begun");
                self.begin_another(!mounted.adopted);
            }
            Ok(mounted) => {
                self.folder.tier.mounted(mounted.head);
                self.figures.forget(uuid);
                (self.mounted, self.mount_at, self.refused) = (true, None, None);
                let records: u64 = mounted.files.iter().map(|file| u64::from(file.records)).sum();
                tracing::info!(%path, session = session.id, records, "tier mounted");
            }
            Err(error) => {
                self.mount_at = Some(Instant::now() + RETRY_PAUSE);
                // Once, however often it is tried, as long as the reason is the same.
                let reason = error.to_string();
                if error.kind() != ErrorKind::Closed && self.refused.as_ref() != Some(&reason) {
                    tracing::warn!(%path, %error, "the tier is not mounted yet");
                    self.refused = Some(reason);
                }
            }
        }
    }

    /// True if it waited for another process.
    fn order(&mut self, order: TierOrder) -> bool {
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

    /// Every question is answered: the master asks none about a record of which it waits for an answer.
    fn recheck(&mut self, recheck: &TierRecheck) {
        let (Some(replica), Some(records)) = (&recheck.replica, self.records_named(&recheck.tier)) else { return };
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

    fn say(&mut self, said: ToMaster) {
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

    fn next_turn(&self) -> u64 {
        self.turns.set(self.turns.get() + 1);
        self.turns.get()
    }

    /// Leaves a tier, which has no file any more if it `is_empty`; false if the master does not know yet. By the end of
    /// this session it learns it, too.
    fn say_left(&self, uuid: TierUuid, is_empty: bool) -> bool {
        let leave = TierLeave { uuid: uuid.0.to_vec().into(), empty: is_empty, turn: self.next_turn() };
        let control = &self.surroundings.control;
        let left = control.finish("leaving the tier", request::Body::TierLeave(leave), control.lookup_timeout);
        if let Err(error) = &left {
            tracing::debug!(%error, "the master does not know yet that a tier is left");
        }
        left.is_ok()
    }

    fn leave(mut self) {
        self.serve_no_more();
        std::mem::replace(&mut self.promoter, Promoter::new()).close();
        for adopted in &self.adoption.adopted {
            self.surroundings.owner.server().remove_tier(segment_uuid(adopted.uuid));
            if adopted.is_mounted {
                self.say_left(adopted.uuid, false);
            }
        }
        if self.mounted {
            self.say_left(self.folder.uuid, false);
        }
        let Driver { adoption, mut folder, .. } = self;
        adoption.adopted.iter().for_each(|adopted| drop(folder.tier.let_go(adopted.uuid)));
        // The next process may have the folder from here on.
        drop(folder.tier.into_lock());
    }
}

/// A tier is named on a lane as a segment is.
fn segment_uuid(uuid: TierUuid) -> SegmentUuid {
    SegmentUuid(uuid.0)
}
