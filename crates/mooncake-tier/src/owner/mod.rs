//! What the owner of a tier does: it writes what the master orders and answers where that lies, says what its folder
//! proves, and gives up its oldest file where there is no room.
//!
//! The master alone says what exists: an owner has no index. What it is told comes in by calls, what it says comes out
//! of [`TierOwner::poll`], for a driver to carry over the session's anchor and calls.

mod giving_up;
mod reading_back;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, TierUuid};
use mooncake_mutant::mutant;

use crate::address::{Address, FileNumber, Geometry};
use crate::adopted::Adopted;
use crate::appender::{Appender, Event, Loss, Order, Value};
use crate::footer::Entries;
use crate::health::{Fitness, Health};
use crate::io_counts::{IoCounts, IoTotals};
use crate::medium::Medium;
use crate::proof::{Proving, ReadBack};
use crate::rate::Rate;
use crate::reader::Reader;
use crate::record::Layout;
use crate::slots::Slots;
use crate::superblock::Superblock;
use crate::tier::{Tier, TierError};

use giving_up::{GivingUp, STUCK};

pub use crate::proof::Proof;

/// Room for another object of several numbers is kept for so long.
const LARGE_FOR: Duration = Duration::from_secs(60);

/// A file system that was full is tried again after so long.
const SHORT_FOR: Duration = Duration::from_secs(60);

/// Buffers of the writer, and for what it reads itself. A fast disk writes a little more with eight of the writer's
/// than with four.
const WRITER_SLOTS: usize = 8;
const READER_SLOTS: usize = 4;

/// Bytes of an object in memory, from which its placement may go at any time.
pub trait Source: Send + Sync {
    /// How many.
    fn size(&self) -> u64;

    /// CRC-32C of `len` of them from `at` on; none if they cannot be reached any more.
    fn sum(&self, at: u64, len: u64) -> Option<u32>;

    /// Copies those from `at` on to where a disk is to have them; false if they cannot be reached any more.
    fn copy(&self, at: u64, into: &mut [u8]) -> bool;

    /// Whether all that was summed or copied so far was the placement's: its stamps are there still.
    fn is_same(&self) -> bool;

    /// Of which placement they are.
    fn placement(&self) -> Rid;
}

/// Something for the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToMaster {
    /// Orders are answered. Those without an address left nothing that can be read.
    Written {
        /// By rid.
        written: Vec<(Rid, Option<Address>)>,
        /// Bytes that are written in half a second; 0 if the disk is not to be written.
        window: u64,
        /// Files that are appended no more.
        sealed: Vec<FileNumber>,
    },
    /// Records of a file that is given up are to be judged; [`TierOwner::judged`] takes the answer. What is kept of
    /// them is written to the owner's own tier.
    Reclaim {
        /// The tier that has the file: the owner's own, or one that it has adopted.
        tier: TierUuid,
        /// The file.
        file: FileNumber,
        /// Keys and rids.
        records: Vec<(Vec<u8>, Rid)>,
    },
    /// Records of a file that the disk failed to write are not there as they were written: objects are to have them no
    /// more.
    Bad {
        /// Keys and rids.
        records: Vec<(Vec<u8>, Rid)>,
    },
    /// Bytes of an object in memory are not those that the log has a checksum of: whoever has that memory is to look.
    Damaged {
        /// Its key.
        key: Vec<u8>,
        /// The placement.
        rid: Rid,
    },
    /// All of them have been, and what was kept is written.
    Reclaimed {
        /// The tier that has the file.
        tier: TierUuid,
        /// The file.
        file: FileNumber,
    },
}

/// How a tier is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that its files have.
    pub bytes: u64,
    /// Those that they may have, with the files of tiers that its owner has adopted; none of such a one.
    pub capacity: Option<u64>,
    /// Whether there was no room for its next file of late, though it has not what it may have.
    pub lacks_room: bool,
    /// What its disk has done.
    pub totals: IoTotals,
}

/// A tier that this process has.
pub struct TierOwner<M: Medium> {
    medium: M,
    appender: Appender<M>,
    reader: Reader<M>,
    slots: Slots,
    counts: Arc<IoCounts>,
    lock: M::Lock,
    geometry: Geometry,
    capacity: u64,
    is_new: bool,
    /// What was ordered and is not answered.
    ordered: BTreeMap<Rid, Ordered>,
    /// Keys and placements of what was ordered and is damaged in memory.
    damaged: Vec<(Vec<u8>, Rid)>,
    answers: Vec<(Rid, Option<Address>)>,
    /// Files in which nothing is written any more, and whose records have all been answered.
    over: BTreeSet<FileNumber>,
    /// Files that the disk failed to write, and of which something may be under way.
    failed: BTreeSet<FileNumber>,
    /// Those that are over since the master was told of others.
    sealed: Vec<FileNumber>,
    /// The highest epoch that was seen.
    epoch: u16,
    rate: Rate,
    giving_up: Option<GivingUp>,
    /// Tiers of earlier processes, in the order in which they are given up.
    adopted: Vec<Adopted<M>>,
    /// The master has mounted the tier since its anchor began: it answers what it is asked.
    is_mounted: bool,
    /// What was read back of files that are suspect.
    read_back: BTreeMap<FileNumber, ReadBack>,
    /// Those that the disk failed to write since the tier was mounted, when they are looked at next, and how often what
    /// comes next could not be read.
    to_read_back: BTreeMap<FileNumber, (Duration, u32)>,
    /// Orders that came to nothing since then: there may be a trace of them, which is no object's.
    lost: BTreeSet<Rid>,
    /// Giving up files gained next to nothing, or the disk would not let it: not tried again before.
    stuck_until: Duration,
    /// Files of which nearly all is kept, and since when: for a while, or until none is left to be given up.
    passed_over: BTreeMap<(TierUuid, FileNumber), Duration>,
    /// Files that the largest object of late took, and until when that counts.
    large: Option<(u64, Duration)>,
    /// Of the last [`TierOwner::poll`].
    now: Duration,
    health: Health,
    fitness: Fitness,
    /// What the master was told last that it may order.
    told_window: Option<u64>,
    /// The file system has no room for more, whoever has taken it, and until when that counts.
    short: Option<(u64, Duration)>,
    /// Files are given up where there is no room.
    evicts: bool,
    /// The master lets it have no more records, by a word of before this: its oldest file is to be given up, whatever
    /// room there is.
    full_until: Duration,
    /// Files that were given up for that since anything new was written.
    in_vain: usize,
    /// When a line said so last.
    full_said_at: Option<Duration>,
}

enum Ordered {
    /// What the master ordered, its key, and when.
    Source(Arc<dyn Source>, Vec<u8>, Instant),
    /// A record that is written once more.
    Moved(u64),
}

/// Gives an appender what a source has.
struct FromSource(Arc<dyn Source>);

impl Value for FromSource {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        self.0.sum(at, len)
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        self.0.copy(at, into)
    }
}

impl<M: Medium> TierOwner<M> {
    /// Of a tier that was created, or taken over.
    pub fn new(tier: Tier<M>, is_new: bool, capacity: u64) -> Result<Self, TierError> {
        let disk = |what: &'static str| move |source: io::Error| TierError::Disk { what, source };
        let slots = Slots::new(WRITER_SLOTS);
        let geometry = tier.superblock.geometry;
        let (medium, files) = (tier.medium.clone(), tier.files.clone());
        let (superblock, super_file) = ((tier.superblock.clone(), tier.sequence), tier.super_file.clone());
        let (counts, lock) = (tier.counts.clone(), tier.into_lock());
        // None of those that an earlier owner has left is appended.
        let over = files.keys().copied().collect();
        let appender = Appender::new(medium.clone(), slots, superblock, super_file, capacity, files)
            .map_err(disk("open its files"))?
            .counted(counts.clone());
        let reading = Slots::new(READER_SLOTS);
        let reader = Reader::new(medium.clone(), geometry, reading.clone()).map_err(disk("read its files"))?;
        Ok(TierOwner {
            medium,
            appender,
            reader,
            slots: reading,
            counts,
            lock,
            geometry,
            capacity,
            is_new,
            ordered: BTreeMap::new(),
            damaged: Vec::new(),
            answers: Vec::new(),
            over,
            failed: BTreeSet::new(),
            sealed: Vec::new(),
            epoch: 0,
            rate: Rate::new(),
            giving_up: None,
            adopted: Vec::new(),
            is_mounted: false,
            read_back: BTreeMap::new(),
            to_read_back: BTreeMap::new(),
            lost: BTreeSet::new(),
            stuck_until: Duration::ZERO,
            passed_over: BTreeMap::new(),
            large: None,
            now: Duration::ZERO,
            health: Health::default(),
            fitness: Fitness::Good,
            told_window: None,
            short: None,
            evicts: true,
            full_until: Duration::ZERO,
            in_vain: 0,
            full_said_at: None,
        })
    }

    /// Whether files are given up where there is no room; otherwise nothing more is written.
    pub fn evicting(mut self, evicts: bool) -> Self {
        self.evicts = evicts;
        self
    }

    /// The superblock as it is.
    pub fn superblock(&self) -> &Superblock {
        self.appender.superblock()
    }

    /// What the folder proves now. Reads all of what an earlier owner may not have brought to the disk before its host
    /// lost power, and of files that the disk failed to write.
    ///
    /// None if the disk had no time for it: what it does not answer is not lost, and the tier is mounted later.
    pub fn proof(&mut self, time_left: impl FnMut() -> Duration) -> Option<Proof> {
        let (superblock, appender) = (self.appender.superblock().clone(), &self.appender);
        let files: Vec<(FileNumber, u64)> = appender.files().iter().map(|(file, bytes)| (*file, *bytes)).collect();
        let appended = files.iter().map(|(file, _)| *file).filter(|file| appender.is_appended(*file)).collect();
        let busy = files.iter().map(|(file, _)| *file).filter(|file| appender.is_busy(*file)).collect();
        let proving = Proving {
            medium: &self.medium,
            superblock: &superblock,
            reader: &mut self.reader,
            slots: &self.slots,
            read_back: &mut self.read_back,
            counts: &self.counts,
        };
        let proof = proving.prove(&files, appended, &busy, time_left)?;
        Some(Proof { is_new: self.is_new && files.is_empty(), ..proof })
    }

    /// The master has mounted the tier: new files have this number at least.
    pub fn mounted(&mut self, head: u64) {
        self.is_mounted = true;
        self.told_window = None;
        self.appender.begin_above(FileNumber(head));
    }

    /// A master of that log knows the tier, which is looked for by it when the next process takes a folder. To be said
    /// now and then: a log that is begun anew has another id.
    pub fn is_of_log(&mut self, log_id: u64) {
        self.appender.set_log_id(log_id);
    }

    /// Orders and questions of before are over, on both sides.
    pub fn anchor_lost(&mut self) {
        if !mutant!(OrdersOutliveTheirAnchor) {
            self.ordered.clear();
            self.answers.clear();
        }
        self.sealed.clear();
        (self.giving_up, self.is_mounted, self.full_until) = (None, false, Duration::ZERO);
        self.adopted.iter_mut().for_each(|adopted| adopted.is_mounted = false);
        self.limit_appender();
    }

    /// Its files may have so many bytes from now on, with those of tiers that it has adopted.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
        self.limit_appender();
    }

    /// Has a tier of an earlier process beside its own: it is read, nothing is appended to it, and its files are given
    /// up before any of the owner's own.
    pub fn adopt(&mut self, tier: Tier<M>) -> Result<(), TierError> {
        self.adopted.push(Adopted::new(tier)?);
        Ok(())
    }

    /// What the folder of such a tier proves; see [`TierOwner::proof`]. None if it is not adopted, too.
    pub fn adopted_proof(&mut self, tier: TierUuid, time_left: impl FnMut() -> Duration) -> Option<Proof> {
        self.adopted.iter_mut().find(|adopted| adopted.uuid() == tier)?.proof(&self.slots, time_left)
    }

    /// The master has mounted such a tier, or has it no more.
    pub fn adopted_is_mounted(&mut self, tier: TierUuid, is_mounted: bool) {
        if let Some(adopted) = self.adopted_mut(tier) {
            adopted.is_mounted = is_mounted;
        }
        self.limit_appender();
    }

    /// Bytes of files of tiers that are adopted, as far as they can be given up.
    fn adopted_bytes(&self) -> u64 {
        self.adopted.iter().filter(|adopted| adopted.is_mounted).map(Adopted::bytes).sum()
    }

    /// An adopted tier that is mounted and has no file any more.
    pub fn empty_adopted(&self) -> Option<TierUuid> {
        self.adopted.iter().find(|adopted| adopted.is_mounted && adopted.files.is_empty()).map(Adopted::uuid)
    }

    /// An adopted tier is left to another process, or to none: its lock.
    pub fn let_go(&mut self, tier: TierUuid) -> Option<M::Lock> {
        let at = self.adopted.iter().position(|adopted| adopted.uuid() == tier)?;
        if self.giving_up.as_ref().is_some_and(|up| up.tier == tier) {
            self.leave_off();
        }
        let lock = self.adopted.remove(at).into_lock();
        self.limit_appender();
        Some(lock)
    }

    /// What counts what the disk does for the tier: its own.
    pub fn counts(&self) -> &Arc<IoCounts> {
        &self.counts
    }

    /// How a tier is used: its own, or one that it has adopted.
    pub fn usage(&self, tier: TierUuid) -> Option<Usage> {
        if tier == self.appender.superblock().tier {
            let capacity = Some(self.capacity);
            let (bytes, lacks_room) = (self.appender.used(), self.lacks_room());
            return Some(Usage { bytes, capacity, lacks_room, totals: self.counts.totals() });
        }
        let adopted = self.adopted.iter().find(|adopted| adopted.uuid() == tier)?;
        Some(Usage { bytes: adopted.bytes(), capacity: None, lacks_room: false, totals: adopted.counts.totals() })
    }

    fn adopted_mut(&mut self, tier: TierUuid) -> Option<&mut Adopted<M>> {
        self.adopted.iter_mut().find(|adopted| adopted.uuid() == tier)
    }

    /// Bytes of all files that it may give up: its own, and those of tiers that it has adopted.
    pub fn used(&self) -> u64 {
        self.appender.used() + self.adopted_bytes()
    }

    /// Whether there was no room for its next file of late, though it has not what it may have.
    pub fn lacks_room(&self) -> bool {
        self.short.is_some()
    }

    /// There may be room for its next file now, whatever was found of late.
    pub fn room_was_made(&mut self) {
        self.short = None;
        self.limit_appender();
    }

    fn limit_appender(&mut self) {
        let limit = self.short.map_or(self.capacity, |(found, _)| found.min(self.capacity));
        self.appender.set_limit(limit, self.capacity, self.adopted_bytes());
    }

    /// The master orders an object to be written, of that checksum.
    pub fn order(&mut self, rid: Rid, object_id: Rid, key: Vec<u8>, crc32c: u32, source: Arc<dyn Source>) {
        let value = Box::new(FromSource(source.clone()));
        self.makes_room_for(key.len(), source.size());
        self.ordered.insert(rid, Ordered::Source(source, key.clone(), Instant::now()));
        self.appender.append(Order { rid, object_id, key, crc32c: Some(crc32c), value, is_kept: false });
    }

    fn makes_room_for(&mut self, key_bytes: usize, bytes: u64) {
        let of_record = Layout::of(key_bytes, bytes).map_or(0, |layout| layout.record_bytes);
        let numbers = self.geometry.numbers_for(of_record + Entries::default().footer_bytes_with(key_bytes));
        if numbers > 1 {
            let most = self.large.map_or(numbers, |(most, _)| most.max(numbers));
            self.large = Some((most, self.now + LARGE_FOR));
        }
    }

    /// An order that cannot be carried out: the object is not where the master says.
    pub fn refuse(&mut self, rid: Rid) {
        self.answers.push((rid, None));
    }

    /// No object needs these files, as a master of that epoch says.
    pub fn retire(&mut self, epoch: u16, files: &[u64]) {
        if epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        for file in files.iter().copied().map(FileNumber) {
            if self.appender.is_appended(file) {
                continue;
            }
            if self.appender.files().contains_key(&file)
                && let Err(error) = self.appender.retire(file)
            {
                tracing::warn!(file = file.0, %error, "a file that nothing needs cannot be removed from the tier");
                self.put_off();
                continue;
            }
            self.over.remove(&file);
            self.failed.remove(&file);
            self.read_back.remove(&file);
            self.to_read_back.remove(&file);
            let own = self.appender.superblock().tier;
            self.passed_over.remove(&(own, file));
            if self.giving_up.as_ref().is_some_and(|up| (up.tier, up.file) == (own, file)) {
                self.leave_off();
            }
        }
    }

    /// The same of a tier that is adopted.
    pub fn retire_adopted(&mut self, tier: TierUuid, epoch: u16, files: &[u64]) {
        if epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        for file in files.iter().copied().map(FileNumber) {
            let Some(adopted) = self.adopted_mut(tier) else { return };
            if let Err(error) = adopted.retire(file) {
                tracing::warn!(%tier, file = file.0, %error, "a file that nothing needs cannot be removed");
                self.put_off();
                continue;
            }
            self.passed_over.remove(&(tier, file));
            if self.giving_up.as_ref().is_some_and(|up| (up.tier, up.file) == (tier, file)) {
                self.leave_off();
            }
        }
        self.limit_appender();
    }

    /// Whether the master was told that it may order.
    pub fn takes_orders(&self) -> bool {
        self.is_mounted && self.told_window != Some(0)
    }

    /// Whether everything that was ordered is answered and synced.
    pub fn is_idle(&self) -> bool {
        self.ordered.is_empty() && self.answers.is_empty() && self.appender.is_idle()
    }

    /// Whether nothing is to be done before the next sync, and the disk has nothing to answer.
    pub fn is_resting(&self) -> bool {
        let is_waiting = self.giving_up.as_ref().is_none_or(|up| up.is_told);
        is_waiting && self.answers.is_empty() && self.appender.is_resting()
    }

    /// From now on what was written is synced as soon as it can be.
    pub fn sync_at_once(&mut self) {
        self.appender.sync_at_once();
    }

    /// What has to live as long as anything is written to the folder.
    pub fn into_lock(self) -> M::Lock {
        self.lock
    }

    /// What may be done with the disk, as of the last [`TierOwner::poll`].
    pub fn fitness(&self) -> Fitness {
        self.fitness
    }

    /// Its records cannot be read: it is written no more for a while.
    pub fn fails(&mut self, now: Duration, why: &str) {
        self.health.fails(now, why);
    }

    /// Goes on; waits so long at most for a disk. What is to be said to the master.
    pub fn poll(&mut self, now: Duration, wait: Duration) -> Vec<ToMaster> {
        let lacked_room = self.lacks_room();
        let events = self.appender.poll(now, wait);
        self.now = now;
        let (mut bytes, mut failed) = (0, None);
        for event in events {
            match event {
                Event::Written { rid, address } => {
                    self.health.wrote();
                    bytes += self.written(rid, address);
                }
                Event::Lost { rid, why } => {
                    match why {
                        Loss::NoSpace => self.is_short(now),
                        Loss::OverLimit => self.is_over_limit(now),
                        Loss::Failed(kind) => failed = Some(kind),
                        Loss::NoRoom | Loss::SourceGone | Loss::WrongSum | Loss::TooLarge => {}
                    }
                    let is_moved = matches!(self.ordered.get(&rid), Some(Ordered::Moved(_)));
                    self.lost(rid, why);
                    // What was to be kept has no other place yet: its file stays, and is tried again later.
                    if is_moved && matches!(why, Loss::Failed(_)) {
                        self.put_off();
                    }
                }
                Event::Short => self.is_short(now),
                Event::Sealed(file) => self.is_over(file),
                Event::Suspect(file) => {
                    failed = failed.or(Some(ErrorKind::Other));
                    tracing::warn!(file = file.0, "the disk failed to write a file of the tier; it is closed");
                    self.failed.insert(file);
                }
            }
        }
        // One write that fails is told of its file, and of each record in it.
        if let Some(kind) = failed {
            self.health.failed(now, kind);
        }
        let still: Vec<FileNumber> = self.failed.extract_if(.., |file| !self.appender.is_busy(*file)).collect();
        for file in still {
            self.is_over(file);
            self.is_to_be_read_back(file);
        }
        self.rate.wrote(now, bytes, !self.ordered.is_empty());
        self.fitness = self.health.fitness(now, self.appender.owed_for(now));
        let is_stuck = (now < self.stuck_until || !self.evicts) && !self.has_room();
        if is_stuck && !self.evicts {
            self.says_that_it_keeps_all(now);
        }
        let window = if self.fitness == Fitness::Good && !is_stuck { self.rate.window() } else { 0 };
        let is_to_be_told = self.is_mounted && (window == 0) != (self.told_window == Some(0));
        let mut said = Vec::new();
        if !self.answers.is_empty() || !self.sealed.is_empty() || is_to_be_told {
            let (written, sealed) = (std::mem::take(&mut self.answers), std::mem::take(&mut self.sealed));
            self.told_window = Some(window);
            said.push(ToMaster::Written { written, window, sealed });
        }
        said.extend(self.damaged.drain(..).map(|(key, rid)| ToMaster::Damaged { key, rid }));
        said.extend(self.read_some_back(now));
        // Its driver may find something that nobody needs before anything that lives is given up.
        if lacked_room || !self.lacks_room() {
            said.extend(self.make_room(now));
        }
        said
    }

    fn is_over(&mut self, file: FileNumber) {
        // It may have been retired while its last sync was under way.
        if !self.appender.files().contains_key(&file) {
            return;
        }
        self.over.insert(file);
        self.sealed.push(file);
    }

    /// Bytes of the object.
    fn written(&mut self, rid: Rid, address: Address) -> u64 {
        let Some(ordered) = self.ordered.remove(&rid) else { return 0 };
        let (bytes, is_good) = match &ordered {
            Ordered::Source(source, _, since) => {
                self.in_vain = 0;
                let is_good = source.is_same() || mutant!(StampsAreReadOnce);
                if is_good {
                    self.counts.object_written(source.size(), since.elapsed());
                }
                (source.size(), is_good)
            }
            Ordered::Moved(bytes) => (*bytes, true),
        };
        self.answers.push((rid, is_good.then_some(address)));
        self.has_moved(rid, bytes);
        bytes
    }

    fn lost(&mut self, rid: Rid, why: Loss) {
        tracing::debug!(rid = format_args!("{:#x}", rid.0), ?why, "an object was not written to its tier");
        if !self.failed.is_empty() || matches!(why, Loss::Failed(_)) {
            self.lost.insert(rid);
        }
        let Some(ordered) = self.ordered.remove(&rid) else { return };
        self.answers.push((rid, None));
        match ordered {
            Ordered::Moved(bytes) => self.has_moved(rid, bytes),
            Ordered::Source(source, key, _) if why == Loss::WrongSum && source.is_same() => {
                self.damaged.push((key, source.placement()));
            }
            Ordered::Source(..) => {}
        }
    }

    /// The file system has less room than the tier may take, or tiers that share a limit have reached it: what it has
    /// must do for a while.
    fn is_short(&mut self, now: Duration) {
        let used = self.used();
        if self.short.is_none() {
            tracing::warn!(
                bytes = used,
                "there is no room for another file of the tier: its oldest files are given up for new ones. Its file \
                 system is full, or has less than the tier may take (MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES), or all \
                 tiers below its path have what they may (MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES)"
            );
        }
        self.is_short_of(used, now);
    }

    /// Others have what it would need: it is not written for a while, and keeps what it has.
    fn is_over_limit(&mut self, now: Duration) {
        if now >= self.stuck_until {
            tracing::warn!(
                "the tier is not written for a minute: others below its path have nearly all that \
                 MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES allows. Raise it, or remove a folder that is of no use"
            );
            self.stuck_until = now + STUCK;
        }
        self.is_short_of(self.used(), now);
    }

    fn is_short_of(&mut self, used: u64, now: Duration) {
        // What it had when that was found is more than there is where another one has taken some of it since.
        self.short = Some((self.short.map_or(used, |(found, _)| found.min(used)), now + SHORT_FOR));
        self.limit_appender();
    }
}
