//! Reads of tiers past their owners: this process gets the files of those on its host from them, and opens those on a
//! file system that it shares with them by itself; it reads records from the disk to its own slots, from where they are
//! proven and copied in one pass. What cannot be read so is read by a lane.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use mooncake_ids::{FileSystemUuid, SegmentUuid, TierUuid};
use mooncake_memory::{CopyError, Destination, crc32c, fill_destinations, total_of_destinations};
use mooncake_os::{BlockingPool, Deadline};
use mooncake_segment::{RecordAddress, RecordFiles, SegmentAddress, TransferError};
use mooncake_tier::address::{Address, BLOCK, FileNumber, Geometry};
use mooncake_tier::disk_times::DiskTimes;
use mooncake_tier::io_counts::{CountedReads, IoCounts, ReadFor};
use mooncake_tier::medium::Files;
use mooncake_tier::medium::folder::{Engine, Folder, FolderQueue, NameFile};
use mooncake_tier::reader::at_disk::AtDisk;
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use parking_lot::Mutex;

/// Readers of a tier that are kept while no call needs them.
const IDLE_MAX: usize = 4;

/// Buffers that reads of one call of a tier have at most.
const OF_ONE_READER: usize = 32;

/// The disk has so long for the next read that it owes.
const STALL_LIMIT: Duration = Duration::from_secs(3);

/// What is kept of a tier that nothing is read of, until another one is met.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// A tier whose files its owner did not give is read by lanes for so long.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// A part of an object to be read.
pub(crate) struct DirectRead<'t, 'a> {
    pub record: RecordAddress,
    /// The first byte of it.
    pub from: u64,
    /// As many bytes as are wanted.
    pub destinations: &'t mut [Destination<'a>],
    /// CRC-32C of the object, if it is to be the log's.
    pub crc: Option<u32>,
}

/// Tiers that this store reads by itself.
#[derive(Debug)]
pub(crate) struct DirectReads {
    files: Arc<RecordFiles>,
    engine: Option<Engine>,
    slots: Slots,
    /// Of all tiers; none where nothing is counted.
    counts: Option<Arc<IoCounts>>,
    tiers: Mutex<HashMap<SegmentUuid, Arc<DirectTier>>>,
    reads: AtomicU64,
    is_closed: AtomicBool,
    /// The file system that this store shares with others.
    shared: OnceLock<SharedFolder>,
}

/// Where tiers lie on a file system that stores share.
#[derive(Debug, Clone)]
pub(crate) struct SharedFolder {
    pub file_system: FileSystemUuid,
    /// The folder of all their folders.
    pub path: PathBuf,
    /// Says which file system is here.
    pub name_file: NameFile,
    /// A file system of a network may never answer: no caller opens a file on its own thread.
    pub opening: BlockingPool,
}

struct DirectTier {
    files: LentFiles,
    uuid: TierUuid,
    geometry: Geometry,
    at_disk: AtDisk,
    idle: Mutex<Vec<Reader<LentFiles>>>,
    used_at: Mutex<Instant>,
}

impl DirectReads {
    /// With so many buffers for all readers of the store together, each of a megabyte and a little. Without an engine,
    /// by io_uring where that can be had. Objects that are read so count in `disk`.
    pub fn new(files: RecordFiles, slots: usize, engine: Option<Engine>, disk: Option<&Arc<DiskTimes>>) -> DirectReads {
        let counts = disk.map(|disk| {
            let counts = IoCounts::default();
            counts.count_objects(disk.clone());
            Arc::new(counts)
        });
        let (slots, reads, is_closed) = (Slots::new(slots), AtomicU64::new(0), AtomicBool::new(false));
        let (tiers, shared) = (Mutex::default(), OnceLock::new());
        DirectReads { files: Arc::new(files), engine, slots, counts, tiers, reads, is_closed, shared }
    }

    /// From now on tiers on that file system are read below this folder.
    pub fn shares(&self, folder: SharedFolder) {
        // A store finds one, as it is set up or later.
        let _ = self.shared.set(folder);
        // Those that it met before are met anew, with that folder.
        self.tiers.lock().clear();
    }

    /// How many tiers can be read at the same time without one of them finding all buffers in use.
    pub fn at_once(&self) -> usize {
        (self.slots.count() / OF_ONE_READER).max(1)
    }

    /// Reads all of them; none for what is to be read by a lane. `file_system` is the one on which the tier lies, where
    /// clients share it.
    pub fn read(
        &self,
        tier: &Arc<SegmentAddress>,
        file_system: Option<FileSystemUuid>,
        reads: &mut [DirectRead<'_, '_>],
        deadline: &Deadline<'_>,
    ) -> Vec<Option<Result<(), TransferError>>> {
        let by_lane = |reads: &[DirectRead<'_, '_>]| reads.iter().map(|_| None).collect();
        let Some(direct) = self.tier(tier, file_system) else { return by_lane(reads) };
        let Some(mut reader) = direct.take_reader(&self.slots, self.counts.as_ref()) else { return by_lane(reads) };
        let failures: Vec<Cell<Option<CopyError>>> = reads.iter().map(|_| Cell::default()).collect();
        // What the disk owes is waited for as long as it goes on answering.
        let moved = Cell::new(Instant::now());
        let places: Vec<RecordPlace> = reads.iter().map(|read| direct.record_place(&read.record)).collect();
        let mut sinks: Vec<_> = reads
            .iter_mut()
            .zip(&failures)
            .map(|(read, failure)| {
                let (from, crc, len) = (read.from, read.crc, total_of_destinations(read.destinations));
                let (destinations, moved) = (&mut *read.destinations, &moved);
                let sink = move |at: u64, bytes: &[u8]| {
                    moved.set(Instant::now());
                    fill_destinations(destinations, at - from, bytes).unwrap_or_else(|error| {
                        failure.set(Some(error));
                        // No sum of these bytes: the read ends here.
                        !crc32c(bytes)
                    })
                };
                ((from, len, crc), sink)
            })
            .collect();
        let mut wants: Vec<Want<'_>> = sinks
            .iter_mut()
            .zip(places)
            .map(|(((from, len, crc), sink), place)| Want { place, from: *from, len: *len, crc: *crc, sink })
            .collect();
        let mut asked = None;
        let time_left = || {
            // The caller's hook may have to wait for a lock: it is not asked at each record.
            if asked.is_none_or(|asked: Instant| asked.elapsed() >= Deadline::SLICE) {
                if deadline.check().is_err() {
                    return Duration::ZERO;
                }
                asked = Some(Instant::now());
            }
            STALL_LIMIT.saturating_sub(moved.get().elapsed()).min(deadline.slice())
        };
        let results = reader.read(&mut wants, time_left);
        drop(wants);
        drop(sinks);
        // One that the disk owes an answer gives its slots back as it goes.
        if !results.iter().any(|result| matches!(result, Err(Miss::Late))) {
            direct.keep(reader);
        }
        let ended = results.into_iter().zip(&failures).zip(reads);
        let ended = ended.map(|((result, failure), read)| self.ended(&direct, result, failure.take(), read, deadline));
        ended.collect()
    }

    /// Reads that gave what was asked for.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Lets go of every file.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.tiers.lock().clear();
        self.files.close();
    }

    fn tier(&self, address: &Arc<SegmentAddress>, file_system: Option<FileSystemUuid>) -> Option<Arc<DirectTier>> {
        let shared = self.shared.get().filter(|shared| file_system == Some(shared.file_system));
        let folder = shared.map(|shared| TierFolder {
            path: shared.path.join(TierUuid(address.uuid.0).to_string()),
            shared: shared.clone(),
        });
        if folder.is_none() && !self.files.can_reach(address) {
            return None;
        }
        let mut tiers = self.tiers.lock();
        if self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        let known = tiers.get(&address.uuid).filter(|tier| *tier.files.address == **address);
        let tier = match known {
            Some(tier) => tier.clone(),
            None => {
                // One that is Gone is read no more: its files and rings go with it.
                tiers.retain(|_, tier| tier.used_at.lock().elapsed() < KEPT_FOR);
                let tier = Arc::new(DirectTier::new(address, self.files.clone(), folder, self.engine)?);
                tiers.insert(address.uuid, tier.clone());
                tier
            }
        };
        *tier.used_at.lock() = Instant::now();
        (!tier.files.are_refused()).then_some(tier)
    }

    fn ended(
        &self,
        tier: &DirectTier,
        result: Result<(), Miss>,
        failure: Option<CopyError>,
        read: &DirectRead<'_, '_>,
        deadline: &Deadline<'_>,
    ) -> Option<Result<(), TransferError>> {
        let segment = || tier.files.address.display_name().to_string();
        if let Some(error) = failure {
            return Some(Err(error.into()));
        }
        match result {
            Ok(()) => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                Some(Ok(()))
            }
            Err(Miss::Gone | Miss::Wrong | Miss::NoSuchBytes) => {
                Some(Err(TransferError::Stale { segment: segment(), rid: read.record.rid.0 }))
            }
            Err(Miss::Late) if deadline.is_interrupted() => Some(Err(TransferError::Interrupted)),
            Err(Miss::Late) => {
                let (what, waited) = ("its disk did not answer", deadline.waited());
                Some(Err(TransferError::Timeout { segment: segment(), what, waited }))
            }
            Err(Miss::NoSlot) => None,
            Err(miss @ (Miss::Failed(_) | Miss::Away)) => {
                tracing::debug!(tier = segment(), %miss, "its files cannot be read: its owner reads them for a while");
                tier.files.refuse();
                None
            }
        }
    }
}

impl fmt::Debug for DirectTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectTier").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

impl DirectTier {
    fn new(
        address: &Arc<SegmentAddress>,
        files: Arc<RecordFiles>,
        folder: Option<TierFolder>,
        engine: Option<Engine>,
    ) -> Option<DirectTier> {
        Some(DirectTier {
            uuid: TierUuid(address.uuid.0),
            geometry: Geometry::of_file_blocks(address.tier_file_blocks)?,
            files: LentFiles { address: address.clone(), owner: files, folder, lent: Arc::default(), engine },
            at_disk: AtDisk::default(),
            idle: Mutex::default(),
            used_at: Mutex::new(Instant::now()),
        })
    }

    fn record_place(&self, record: &RecordAddress) -> RecordPlace {
        RecordPlace {
            tier: self.uuid,
            address: Address(record.offset / BLOCK),
            rid: record.rid,
            size: record.size,
            key_bytes: record.key_bytes as usize,
        }
    }

    fn take_reader(&self, slots: &Slots, counts: Option<&Arc<IoCounts>>) -> Option<Reader<LentFiles>> {
        if let Some(idle) = self.idle.lock().pop() {
            return Some(idle);
        }
        let mut reader = Reader::new(self.files.clone(), self.geometry, slots.clone()).ok()?;
        reader.knows(self.at_disk.clone());
        if let Some(counts) = counts {
            // By whom matters to owners alone.
            reader.counts(CountedReads { counts: counts.clone(), by: ReadFor::Lane });
        }
        Some(reader)
    }

    fn keep(&self, mut reader: Reader<LentFiles>) {
        if self.files.folder.is_some() {
            // What others have written since is sure to be seen by who opens a file afterwards.
            reader.close_files();
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(reader);
        }
    }
}

/// Files of a tier that its owner has lent to this process, where readers that have the same one open share it; or that
/// this process opens below `folder`.
#[derive(Debug, Clone)]
struct LentFiles {
    address: Arc<SegmentAddress>,
    owner: Arc<RecordFiles>,
    folder: Option<TierFolder>,
    lent: Arc<Mutex<Lent>>,
    /// What carries reads out; none for whatever can be had.
    engine: Option<Engine>,
}

/// The folder of a tier on a file system that stores share.
#[derive(Debug, Clone)]
struct TierFolder {
    path: PathBuf,
    shared: SharedFolder,
}

impl TierFolder {
    /// Where the whole file system is missing, nothing is known of its files.
    fn open(&self, number: FileNumber) -> io::Result<Arc<File>> {
        let (path, shared) = (self.path.clone(), self.shared.clone());
        let open = move || match Folder::to_look_at(&path).and_then(|folder| folder.open_file(number)) {
            Err(error) if error.kind() == ErrorKind::NotFound && !shared.name_file.is_here() => {
                Err(io::Error::other(format!("{} is not what it was: is it mounted?", shared.name_file.path.display())))
            }
            opened => opened,
        };
        let opened = self.shared.opening.run(&Deadline::after(STALL_LIMIT, &|| false), open);
        opened.map_err(|error| io::Error::other(format!("open a file below {}: {error}", self.path.display())))?
    }
}

#[derive(Debug, Default)]
struct Lent {
    open: HashMap<FileNumber, Weak<File>>,
    /// One could not be had, or read.
    refused_at: Option<Instant>,
}

impl LentFiles {
    fn are_refused(&self) -> bool {
        self.lent.lock().refused_at.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    fn refuse(&self) {
        self.lent.lock().refused_at = Some(Instant::now());
    }
}

impl Files for LentFiles {
    type File = Arc<File>;
    type Queue = FolderQueue;

    fn open_file(&self, number: FileNumber) -> io::Result<Arc<File>> {
        // Of a mount or an owner that does not answer, one file is waited for, and not each that a batch needs.
        if let Some(folder) = &self.folder {
            if self.are_refused() {
                return Err(io::Error::other("a file there could not be opened a moment ago"));
            }
            let opened = folder.open(number);
            if opened.as_ref().is_err_and(|error| error.kind() != ErrorKind::NotFound) {
                self.refuse();
            }
            return opened;
        }
        if let Some(file) = self.lent.lock().open.get(&number).and_then(Weak::upgrade) {
            return Ok(file);
        }
        if self.are_refused() {
            return Err(io::Error::other("its owner gave no file a moment ago"));
        }
        let file = match self.owner.open(&self.address, number.0) {
            Ok(file) => Arc::new(file),
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
            Err(error) => {
                self.refuse();
                return Err(error);
            }
        };
        let mut lent = self.lent.lock();
        lent.open.retain(|_, file| file.strong_count() > 0);
        lent.open.insert(number, Arc::downgrade(&file));
        Ok(file)
    }

    fn queue(&self, depth: usize) -> io::Result<FolderQueue> {
        let engine = self.engine;
        match FolderQueue::new(engine.unwrap_or(Engine::Ring), depth) {
            Ok(queue) => Ok(queue),
            Err(error) if engine.is_some() => Err(error),
            // Where the kernel has none, or does not let this process.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
            Err(_) => FolderQueue::new(Engine::Threads, depth),
        }
    }
}
