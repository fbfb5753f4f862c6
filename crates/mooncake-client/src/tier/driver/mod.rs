//! The thread that has the folder: it mounts the tier with each session, writes what is ordered, and carries words
//! between [`mooncake_tier::owner`] and the master.

mod adopted;
mod orders;
mod words;

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid, TierUuid};
use mooncake_os::forked;
use mooncake_segment::Records;
use mooncake_tier::health::Fitness;
use mooncake_tier::io_counts::IoCounts;

use super::adoption::Adoption;
use super::figures::Figures;
use super::folder::delete_unknown;
use super::promoter::Promoter;
use super::records::FolderRecords;
use super::{PoolOf, StoreTier, Surroundings, TierFolder, Word};
use crate::error::ErrorKind;
use crate::options::TierOptions;
use crate::segments::owner::random_key;
use crate::session::control::Control;

/// How long it waits for words while nothing is on its way to the disk.
const REST: Duration = Duration::from_millis(50);

/// How long it waits for the disk before it looks for words.
const DISK_WAIT: Duration = Duration::from_millis(1);

/// Copies of other processes' memory are made for so long at a time, one at least, before it looks at the disk.
const COPIES_LIMIT: Duration = Duration::from_millis(5);

/// Between two tries to mount.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The master has so long to hear that a tier is left, where the session goes on.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// A store whose memory goes, and whose tier takes no orders just now, waits so long for one.
const QUIET: Duration = Duration::from_millis(300);

/// Time that the disk has for what is read back when the tier is mounted.
const PROOF_LIMIT: Duration = Duration::from_secs(60);

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
        match TierFolder::take_or_wait(options, PoolOf::now(control), &[], Instant::now() < until) {
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
    count_disk(folder.tier.counts(), &surroundings.control);
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
        log_id: 0,
        to_be_left: BTreeSet::new(),
        leave_at: None,
        closes_by: None,
        looked_at: None,
        lacked_room: false,
        turns: Cell::new(0),
        unreadable: BTreeSet::new(),
        found_bad: BTreeSet::new(),
        unreachable: None,
        promoter: Promoter::new(),
        adoption: Adoption::default(),
        figures: Figures::default(),
        unknown_folders: 0,
    };
    driver.serve();
    let control = &surroundings.control;
    let (mut closing, mut busy_at, mut waiting) = (None, Instant::now(), VecDeque::new());
    // A store whose memory goes is owed orders of all that memory alone has.
    let mut is_owed_orders = false;
    while !forked() && (closing.is_some() || !control.is_stopped()) {
        let mounts = closing.is_none() || is_owed_orders;
        let has_work = !waiting.is_empty() || mounts && driver.is_to_mount() || !driver.is_resting();
        let rest = if has_work { Duration::ZERO } else { REST };
        for word in tier.heard(rest) {
            match word {
                Word::Close { with_memory } if closing.is_none() => {
                    let until = Instant::now() + driver.options.close_limit;
                    (closing, driver.closes_by) = (Some((until, with_memory)), Some(until));
                    busy_at = Instant::now();
                    is_owed_orders = with_memory && driver.mounted;
                    if is_owed_orders {
                        driver.closes();
                    }
                }
                Word::Close { .. } => {}
                // It came while this thread had another folder.
                Word::Gone { tier, log_id } if tier != driver.folder.uuid => driver.let_go_of(tier, log_id),
                // One that is Gone is mounted no more: the master's answer has another one begun.
                Word::Gone { .. } => {
                    waiting.retain(|word| matches!(word, Word::Recheck(_)));
                    driver.is_to_mount_anew();
                }
                Word::Mount => {
                    // The others are of a session before.
                    waiting.retain(|word| matches!(word, Word::Recheck(_)));
                    driver.forget_session();
                }
                word => waiting.push_back(word),
            }
        }
        // Those that wait for other processes have their time: whatever else has come is not to wait as long.
        let until = Instant::now() + COPIES_LIMIT;
        while let Some(word) = waiting.pop_front()
            && !(driver.obey(word) && Instant::now() >= until)
        {}
        let wait = if waiting.is_empty() { DISK_WAIT } else { Duration::ZERO };
        // A master that is back meanwhile has the tier again, and orders what is owed.
        if (closing.is_none() || is_owed_orders) && driver.is_to_mount() {
            driver.mount();
            if is_owed_orders && driver.mounted {
                driver.closes();
            }
        }
        driver.go_on(closing.is_none(), wait);
        if let Some((until, _)) = closing {
            driver.folder.tier.sync_at_once();
            let is_idle = waiting.is_empty() && driver.folder.tier.is_idle();
            if !is_idle || driver.folder.tier.takes_orders() {
                busy_at = Instant::now();
            }
            let is_owed_more = is_owed_orders && !driver.all_ordered;
            if !driver.mounted {
                busy_at = Instant::now();
            }
            if is_idle && (!is_owed_more || busy_at.elapsed() >= QUIET) || Instant::now() >= until {
                break;
            }
        }
    }
    let session_goes_on = closing.is_some_and(|(_, with_memory)| !with_memory);
    driver.leave(if session_goes_on { LEAVE_LIMIT } else { Duration::ZERO });
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
    /// Folders that a log does not know, each with that log: another one may.
    useless: Vec<(PathBuf, u64)>,
    /// When it looked for such folders of earlier processes.
    looked_at: Option<Instant>,
    /// Whose log has the tier, as its master said when it was mounted last.
    log_id: u64,
    /// Tiers that the master may take for mounted, and that are not: whether it has heard that they were left is not
    /// known. When that is said again.
    to_be_left: BTreeSet<TierUuid>,
    leave_at: Option<Instant>,
    /// The store closes: by then it has left.
    closes_by: Option<Instant>,
    /// The tier had no room for its next file when that was asked last.
    lacked_room: bool,
    /// Of what was said last to the master of these tiers: messages that come late do not count.
    turns: Cell<u64>,
    /// Records that the disk failed to read when the master asked.
    unreadable: BTreeSet<Rid>,
    /// Records that were read back and are bad, of which the master is about to ask.
    found_bad: BTreeSet<Rid>,
    /// The segment of another process that could not be read, and until when it is not tried again.
    unreachable: Option<(u32, Instant)>,
    promoter: Promoter,
    adoption: Adoption,
    figures: Figures,
    /// Folders beside its own that no log of this pool knows, as of when they were looked for.
    unknown_folders: u64,
}

/// Objects that it writes and reads count on the client's page.
fn count_disk(counts: &IoCounts, control: &Control) {
    if let Some(metrics) = &control.metrics {
        counts.count_objects(metrics.tiers.disk().clone());
    }
}

fn records_of(folder: &TierFolder) -> Arc<FolderRecords> {
    Arc::new(FolderRecords::new(folder.folder.clone(), folder.uuid, folder.geometry, folder.tier.counts().clone()))
}

impl<'a> Driver<'a> {
    /// This store's pool, by a log that a master has answered for.
    fn pool(&self, log_id: u64) -> PoolOf<'a> {
        PoolOf { log_id, ..PoolOf::now(&self.surroundings.control) }
    }

    fn serve(&self) {
        let (uuid, served): (_, Arc<dyn Records>) = (segment_uuid(self.folder.uuid), self.records.clone());
        self.surroundings.owner.server().add_tier(uuid, self.folder.capacity, self.access_key, served);
    }

    fn serve_no_more(&self) {
        self.surroundings.owner.server().remove_tier(segment_uuid(self.folder.uuid));
    }

    /// Another folder is begun. One that `is_useless` has nothing of that log, nor will have; any other one is another
    /// process's by now.
    fn begin_another(&mut self, log_id: u64, is_useless: bool) {
        if is_useless {
            self.useless.push((self.folder.path.clone(), log_id));
        }
        self.to_be_left.remove(&self.folder.uuid);
        let pool = self.pool(log_id);
        match TierFolder::take(&self.options, pool, &self.useless_in(log_id)) {
            Ok(folder) => {
                let adopted: Vec<TierUuid> = self.adoption.adopted.iter().map(|adopted| adopted.uuid).collect();
                adopted.into_iter().for_each(|uuid| self.leave_adopted(uuid));
                self.serve_no_more();
                count_disk(folder.tier.counts(), &self.surroundings.control);
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
        self.folder.tier.is_idle() || self.folder.tier.is_resting()
    }

    fn is_to_mount_anew(&mut self) {
        self.all_ordered = false;
        self.folder.tier.anchor_lost();
        (self.mounted, self.mount_at) = (false, Some(Instant::now()));
    }

    /// Folders that this log does not know.
    fn useless_in(&self, log_id: u64) -> Vec<PathBuf> {
        self.useless.iter().filter(|(_, log)| *log == log_id).map(|(path, _)| path.clone()).collect()
    }

    fn forget_session(&mut self) {
        // A master that has another anchor of this store has none of its tiers mounted.
        self.to_be_left.clear();
        self.is_to_mount_anew();
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
            Word::Mount | Word::Gone { .. } | Word::Close { .. } => {}
        }
        false
    }

    /// It is time to, and its disk lets it.
    fn is_to_mount(&self) -> bool {
        self.is_there && !self.hidden && self.mount_at.is_some_and(|at| at <= Instant::now())
    }

    fn go_on(&mut self, takes_more: bool, wait: Duration) {
        if self.leave_at.is_some_and(|at| at <= Instant::now()) {
            self.leaves_again();
        }
        if self.mounted {
            // The anchor may have found another master meanwhile: this one's log has what is mounted.
            let pool = self.pool(self.log_id);
            self.folder.tier.is_of_log(pool.log_id);
            let lacks_room = self.folder.tier.lacks_room();
            let lacked_room = std::mem::replace(&mut self.lacked_room, lacks_room);
            // Folders that nobody needs go before anything that lives.
            let is_due = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
            if is_due || lacks_room && !lacked_room {
                self.looked_at = Some(Instant::now());
                let found = delete_unknown(&self.options, pool, &self.useless_in(pool.log_id), lacks_room);
                self.unknown_folders = found.left;
                if found.any_deleted {
                    self.folder.tier.room_was_made();
                }
            }
            if takes_more {
                self.look_after_adopted(pool);
            }
        }
        let adopted = self.adoption.adopted.iter().map(|adopted| &adopted.records);
        if adopted.chain([&self.records]).any(|records| records.is_failing()) {
            self.folder.tier.fails(self.began.elapsed(), "many reads of it failed within a minute");
        }
        let wait = if self.folder.tier.is_idle() { Duration::ZERO } else { wait };
        for said in self.folder.tier.poll(self.began.elapsed(), wait) {
            if self.mounted {
                self.say(said);
            }
        }
        if self.mounted {
            let adopted = self.adoption.adopted.iter().filter(|adopted| adopted.is_mounted).map(|adopted| adopted.uuid);
            let TierFolder { folder, tier, uuid, .. } = &self.folder;
            let (owner, tiers) = ((tier, folder.engine()), adopted.chain([*uuid]));
            self.figures.tell(&self.surroundings.control, owner, tiers, self.unknown_folders);
        }
        // A mount of a file system that hosts share may hold up whoever looks.
        if self.options.shared.is_none() && self.seen_at.is_none_or(|at| at.elapsed() >= SEEN_EVERY) {
            (self.is_there, self.seen_at) = (self.folder.folder.is_there(), Some(Instant::now()));
            self.leave_adopted_that_are_away();
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
            true => tracing::error!(
                %path,
                "the disk of the tier stands still: what it has is not read until it answers. The kernel's log may \
                 say why (dmesg). A store with another folder keeps a new tier"
            ),
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

    fn mount(&mut self) {
        let control = &self.surroundings.control;
        let until = self.closes_by.into_iter().fold(Instant::now() + PROOF_LIMIT, Instant::min);
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
        let path = self.folder.path.clone();
        let path = path.display();
        match self.ask_to_mount(self.mount_of(spec, proof)) {
            Ok((mounted, log_id)) if !mounted.unknown.is_empty() => {
                tracing::warn!(%path, reason = mounted.unknown, "another folder is begun");
                self.begin_another(log_id, !mounted.adopted);
            }
            Ok((mounted, log_id)) => {
                self.log_id = log_id;
                self.to_be_left.remove(&uuid);
                self.folder.tier.mounted(mounted.head);
                self.figures.forget(uuid);
                (self.mounted, self.mount_at, self.refused) = (true, None, None);
                let records: u64 = mounted.files.iter().map(|file| u64::from(file.records)).sum();
                tracing::info!(%path, session = session.id, records, "tier mounted");
            }
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::Refused | ErrorKind::Unsupported) {
                    // It may have been done all the same.
                    self.is_to_leave(uuid);
                }
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

    /// The end. What the master does not hear by the end of the session it is told again, for so long at most.
    fn leave(mut self, limit: Duration) {
        self.serve_no_more();
        std::mem::replace(&mut self.promoter, Promoter::new()).close();
        for adopted in &self.adoption.adopted {
            self.surroundings.owner.server().remove_tier(segment_uuid(adopted.uuid));
        }
        let adopted = self.adoption.adopted.iter().filter(|adopted| adopted.is_mounted).map(|adopted| adopted.uuid);
        self.to_be_left.extend(adopted.chain(self.mounted.then_some(self.folder.uuid)));
        (self.mounted, self.mount_at) = (false, None);
        self.adoption.adopted.iter_mut().for_each(|adopted| adopted.is_mounted = false);
        let until = Instant::now() + limit;
        loop {
            self.leaves_again();
            if self.to_be_left.is_empty() || Instant::now() >= until || self.surroundings.control.is_stopped() {
                break;
            }
            std::thread::sleep(REST);
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
