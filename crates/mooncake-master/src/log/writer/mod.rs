//! The log while it is written. Frames queue up under the core's lock. A thread that needs its frame in the file writes
//! all frames that wait, then sends what they cause.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use mooncake_core::{Effects, Epoch};
use mooncake_metrics::{Distribution, Histogram, Unit};
use mooncake_wire::message::LogPosition;
use parking_lot::{Mutex, MutexGuard};

use super::files::{self, FILE_HEADER, FileHeader, FileKind};
use super::folder::{Folder, Locked, sync_folders};
use super::recovery::Recovered;
use super::step::{Step, step, sync};
use super::witness::{self, Witness};
use super::{LogError, frame};
use crate::machine::commit::{self, Batch, CommitDriver, End, Queue};
use crate::machine::delivery::Delivery;
use crate::machine::hello::Standing;

/// Buffers larger than this are not kept between commits.
const BUFFER_KEPT: usize = 256 << 10;

/// The master stops: nothing can be logged, so nothing may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log is closed; the master stops")]
pub struct LogClosed;

/// Figures for the metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogStats {
    /// Frames are written to a file.
    pub enabled: bool,
    /// The log broke in this run and was renamed away.
    pub lost: bool,
    /// Bytes of log files since the last snapshot.
    pub bytes: u64,
    /// Frames since the start.
    pub frames: u64,
    /// Writes since the start: group commit makes them fewer than frames.
    pub writes: u64,
    /// Snapshots written.
    pub snapshots: u64,
    /// Snapshots that failed.
    pub snapshots_failed: u64,
}

/// Everything that metrics tell of a log.
#[derive(Debug, Clone)]
pub struct LogReading {
    /// Figures.
    pub stats: LogStats,
    /// Writes.
    pub append: Distribution,
    /// Waits for the disk.
    pub fsync: Distribution,
    /// Snapshots.
    pub snapshot: Distribution,
    /// Bytes of torn tail that the start cut.
    pub torn_bytes: u64,
    /// Time that the start took to read the log.
    pub replay: Duration,
}

impl Default for LogReading {
    fn default() -> Self {
        Log::new(0, 0, None, false).read()
    }
}

/// How long the log's work takes.
#[derive(Debug)]
struct Timing {
    append: Histogram,
    fsync: Histogram,
    snapshot: Histogram,
}

/// Mooncake's bounds for snapshots, nanoseconds.
const SNAPSHOT_NS: &[u64] = &[
    0,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    180_000_000_000,
    240_000_000_000,
    300_000_000_000,
];

/// The master's log; without a [`Sink`] it only counts positions.
#[derive(Debug)]
pub struct Log {
    pub(super) queue: Mutex<Queue<Vec<u8>>>,
    pub(super) writer: Mutex<Writer>,
    /// One at a time has a snapshot taken for the log.
    pub(super) snapshotting: Mutex<()>,
    /// Highest queue number that is committed and delivered.
    done: AtomicU64,
    /// Last LSN that is in the file.
    lsn: AtomicU64,
    log_id: AtomicU64,
    /// What `log_id` began as.
    first_id: u64,
    /// [`witness::pack`]ed: readers take both halves at once.
    pub(super) epoch: AtomicU64,
    /// Frames are encoded.
    pub(super) enabled: AtomicBool,
    pub(super) lost: AtomicBool,
    /// Set under the lock of the writer.
    closed: AtomicBool,
    /// A commit takes its time: threads that have something else to do do not wait for it.
    is_slow: AtomicBool,
    pub(super) fsync: bool,
    bytes: AtomicU64,
    frames: AtomicU64,
    writes: AtomicU64,
    pub(super) snapshots: AtomicU64,
    pub(super) snapshots_failed: AtomicU64,
    timing: Timing,
    start: Mutex<(u64, Duration)>,
}

#[derive(Debug)]
pub(super) struct Writer {
    pub sink: Option<Sink>,
    /// What is left of a log that was lost in this run.
    pub lost: Option<LostLog>,
    spare: Batch<Vec<u8>>,
}

/// What a new log is begun with where one was lost.
#[derive(Debug)]
pub(super) struct LostLog {
    /// Still locked: no other master begins there meanwhile.
    pub folder: Folder,
    pub boot_id: [u8; 16],
    pub upkeep: Upkeep,
}

/// What keeps a log short, and vouches for it.
#[derive(Debug, Clone)]
pub(super) struct Upkeep {
    compact_min: u64,
    compactor: Option<SyncSender<()>>,
    /// Folder of the witness.
    pub witnesses: Option<PathBuf>,
}

impl Default for Upkeep {
    /// None.
    fn default() -> Upkeep {
        Upkeep { compact_min: u64::MAX, compactor: None, witnesses: None }
    }
}

/// What a rotation leaves.
#[derive(Debug)]
pub(super) struct Rotated {
    /// The log's folder.
    pub folder: PathBuf,
    /// Header of the log file that is written from now on.
    pub open: FileHeader,
    /// For as long as its caller writes in the folder: the log itself may be closed meanwhile.
    pub _locked: Locked,
}

/// Where frames go.
#[derive(Debug)]
pub struct Sink {
    pub(super) folder: Folder,
    file: File,
    /// LSN of the first frame of `file`, which is in its name.
    first: u64,
    boot_id: [u8; 16],
    log_id: u64,
    pub(super) witness: Option<Witness>,
    since_snapshot: u64,
    pub(super) snapshot_bytes: u64,
    pub(super) upkeep: Upkeep,
}

impl Sink {
    /// Starts a new log file of a log that ends at `last_lsn`: on the disk, header and name, before its first frame,
    /// so that whatever a power loss leaves says that this boot has written to the log (`docs/safety.md`, rule 18). The
    /// witness is given as it was found when it vouches for the log, and anew otherwise: it says nothing until the
    /// raised epoch is in that log.
    pub fn open(
        folder: Folder,
        log_id: u64,
        last_lsn: u64,
        boot_id: [u8; 16],
        witness: Option<Witness>,
    ) -> Result<Sink, LogError> {
        let header = FileHeader { kind: FileKind::Log, log_id, lsn: last_lsn + 1, boot_id };
        // A log that was lost on a full disk must not keep the next one from starting.
        let file = folder.with_room(|| {
            let current = folder.create_current()?;
            remove_temporaries(&current);
            files::start(&current, &header, true)
        })?;
        // A master that died while it began a log anew.
        if let Err(error) = folder.remove_begun() {
            tracing::warn!(%error, "what was begun of a log is not removed");
        }
        Ok(Sink { witness, ..Sink::of(folder, file, &header, Upkeep::default()) })
    }

    pub(super) fn of(folder: Folder, file: File, header: &FileHeader, upkeep: Upkeep) -> Sink {
        let FileHeader { lsn: first, boot_id, log_id, .. } = *header;
        Sink { folder, file, first, boot_id, log_id, witness: None, since_snapshot: 0, snapshot_bytes: 0, upkeep }
    }

    /// Says how large the replayed files are, which compactor to tell when the log outgrows them, and where witnesses
    /// lie.
    pub fn keep_with(&mut self, found: &Recovered, compact_min: u64, compactor: SyncSender<()>, witnesses: &Path) {
        let Recovered { snapshot_bytes, log_file_bytes, .. } = *found;
        self.snapshot_bytes = snapshot_bytes;
        self.since_snapshot = log_file_bytes;
        self.upkeep = Upkeep { compact_min, compactor: Some(compactor), witnesses: Some(witnesses.to_owned()) };
    }

    fn append(&mut self, bytes: &[u8], lsn: u64, sync: bool, raised: Option<Epoch>, timing: &Timing) -> io::Result<()> {
        let began = Instant::now();
        self.file.write_all(bytes)?;
        timing.append.since(began);
        if sync || raised.is_some() {
            let began = Instant::now();
            if sync {
                self.file.sync_data()?;
                step(Step::Synced, &self.folder.current())?;
            }
            // The raised epoch is on the disk before its first rid goes out (`docs/safety.md`, rules 17 and 18), and so
            // is all that lies before it: a start does not read past a gap.
            if raised.is_some() {
                self.sync_all()?;
            }
            timing.fsync.since(began);
        }
        // Behind the append and before any reply: the witness never says more than the log has, and a log that lost
        // what a reply told is behind it (`docs/safety.md`, rule 18).
        if let Some(witness) = &mut self.witness
            && let Err(error) = match raised {
                Some(epoch) => witness.store_raised(lsn, epoch),
                None => witness.store(lsn),
            }
        {
            // A witness that stays behind would vouch for a shorter log.
            tracing::warn!(%error, "witness not written: the next start raises the epoch");
            witness.remove();
            self.witness = None;
        }
        self.since_snapshot += bytes.len() as u64;
        // A restart reads both, and a pool that is full for good goes through its log at half of a snapshot's speed.
        if self.since_snapshot > self.upkeep.compact_min.max(self.snapshot_bytes / 2)
            && let Some(compactor) = &self.upkeep.compactor
            && let Err(TrySendError::Disconnected(())) = compactor.try_send(())
        {
            self.upkeep.compactor = None;
        }
        Ok(())
    }

    /// Every byte of the log so far, and the names of its files, reach the disk.
    fn sync_all(&self) -> io::Result<()> {
        sync_files(&self.files()?)?;
        self.folder.sync();
        Ok(())
    }

    /// Those of the log so far, open.
    fn files(&self) -> io::Result<Vec<(File, PathBuf)>> {
        let mut files = Vec::new();
        for kind in [FileKind::Snapshot, FileKind::Log] {
            for (_, path) in files::list(&self.folder.current(), kind)? {
                match File::open(&path) {
                    Ok(file) => files.push((file, path)),
                    // Covered by a snapshot since, which is on the disk.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(files)
    }
}

#[cfg(test)]
impl Log {
    /// Frames go to another file from now on.
    pub fn write_to(&self, file: File) {
        self.writer.lock().sink.as_mut().expect("there is a log").file = file;
    }
}

fn sync_files(files: &[(File, PathBuf)]) -> io::Result<()> {
    files.iter().try_for_each(|(file, path)| sync(Step::Synced, file, path))
}

/// Snapshots that were being written when a master died.
fn remove_temporaries(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "tmp")
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "unfinished snapshot not removed");
        }
    }
}

/// A commit, under the lock of the writer.
struct Committing<'a, F> {
    log: &'a Log,
    sink: &'a mut Option<Sink>,
    lost: &'a mut Option<LostLog>,
    deliver: F,
}

impl<F: Fn(Delivery)> CommitDriver for Committing<'_, F> {
    type Frames = Vec<u8>;
    type Closed = LogClosed;

    fn append(&mut self, bytes: &mut Vec<u8>, end: End) -> Result<(), LogClosed> {
        let Self { log, sink, lost, .. } = self;
        if let Some(open) = sink
            && !bytes.is_empty()
        {
            log.writes.fetch_add(1, Ordering::Relaxed);
            match open.append(bytes, end.lsn, log.fsync, end.raised, &log.timing) {
                Ok(()) => log.bytes.store(open.since_snapshot, Ordering::Relaxed),
                // Before anything of this batch is told (`docs/safety.md`, rule 19).
                Err(error) => log.lose(sink, lost, &error)?,
            }
        }
        Ok(())
    }

    fn show(&mut self, lsn: u64) {
        // Grows only: positions are stored in the order of the commits.
        self.log.lsn.store(lsn, Ordering::Release);
    }

    fn deliver(&mut self, delivery: Delivery) {
        (self.deliver)(delivery);
    }

    fn done(&mut self, number: u64) {
        self.log.done.store(number, Ordering::Release);
    }
}

impl Log {
    /// A log that goes on at `last_lsn`.
    pub fn new(log_id: u64, last_lsn: u64, sink: Option<Sink>, fsync: bool) -> Log {
        Log {
            queue: Mutex::new(Queue::new(last_lsn)),
            done: AtomicU64::new(0),
            lsn: AtomicU64::new(last_lsn),
            log_id: AtomicU64::new(log_id),
            first_id: log_id,
            epoch: AtomicU64::new(0),
            enabled: AtomicBool::new(sink.is_some()),
            lost: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            fsync: fsync && sink.is_some(),
            bytes: AtomicU64::new(sink.as_ref().map_or(0, |s| s.since_snapshot)),
            frames: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            snapshots_failed: AtomicU64::new(0),
            timing: Timing {
                append: Histogram::of_latencies(),
                fsync: Histogram::of_latencies(),
                snapshot: Histogram::new(Unit::Milliseconds, SNAPSHOT_NS),
            },
            start: Mutex::default(),
            writer: Mutex::new(Writer { sink, lost: None, spare: Batch::default() }),
            snapshotting: Mutex::default(),
        }
    }

    /// Each commit waits for the disk.
    pub fn is_fsync(&self) -> bool {
        self.fsync && self.is_enabled()
    }

    /// There is a disk that a commit may wait for.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Everything up to `number` is in the log and delivered.
    pub fn is_done(&self, number: u64) -> bool {
        self.done.load(Ordering::Acquire) >= number
    }

    /// Id of the log; another one once the log was lost.
    pub fn log_id(&self) -> u64 {
        self.log_id.load(Ordering::Acquire)
    }

    /// The epoch that the last record of one began, as others are told it: the first one of a log is that log's, and
    /// has an id of its own.
    pub fn epoch(&self) -> Epoch {
        match witness::unpack(self.epoch.load(Ordering::Acquire)) {
            Epoch { number: 1, id: 0 } => Epoch { number: 1, id: self.first_id as u32 | 1 },
            epoch => epoch,
        }
    }

    /// Last LSN that is in the file.
    pub fn lsn(&self) -> u64 {
        self.lsn.load(Ordering::Acquire)
    }

    /// Where the log stands behind every operation so far. Meant for callers that hold the core's lock.
    pub fn standing(&self) -> Standing {
        let Epoch { number, id } = self.epoch();
        let lsn = self.queue.lock().lsn();
        let position = LogPosition { log_id: self.log_id(), epoch: number.into(), lsn, epoch_id: id };
        Standing { position, first_id: self.first_id }
    }

    /// Where the log is once everything is written that was done so far. Meant for callers that hold the core's lock.
    pub fn end_of_queue(&self) -> End {
        self.queue.lock().end()
    }

    /// Says which epoch a replayed log is in.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.store(witness::pack(epoch), Ordering::Release);
    }

    /// Queues what an operation left behind, its records as one frame (`docs/safety.md`, rule 17). Called under the
    /// core's lock, so that positions follow the order of the operations. Returns what to [`Log::commit`], `None` when
    /// there is nothing.
    pub fn enqueue(&self, effects: &mut Effects) -> Option<u64> {
        if effects.is_empty() {
            return None;
        }
        let number = self.queue.lock().push(effects, |bytes, records, lsn, raised| {
            if let Some(raised) = raised {
                self.set_epoch(raised);
            }
            if self.enabled.load(Ordering::Acquire) {
                let start = frame::begin(bytes);
                for record in records {
                    frame::put_record(record, bytes);
                }
                frame::finish(bytes, start, self.log_id(), lsn);
            }
            self.frames.fetch_add(1, Ordering::Relaxed);
        });
        Some(number)
    }

    /// Returns once everything up to `number` is in the log and delivered.
    pub fn commit(&self, number: u64, deliver: impl Fn(Delivery)) -> Result<(), LogClosed> {
        if self.is_done(number) {
            return Ok(());
        }
        self.commit_in(self.writer.lock(), number, deliver)
    }

    /// [`Log::commit`], unless another one is in the midst of it for longer than `timeout`: false then, and at once
    /// for as long as that one is, so that a thread loses that time once.
    pub fn commit_soon(&self, number: u64, timeout: Duration, deliver: impl Fn(Delivery)) -> Result<bool, LogClosed> {
        if self.is_done(number) {
            return Ok(true);
        }
        let patiently = || match self.is_slow.load(Ordering::Relaxed) {
            true => None,
            false => self.writer.try_lock_for(timeout),
        };
        match self.writer.try_lock().or_else(patiently) {
            Some(writer) => self.commit_in(writer, number, deliver).map(|()| true),
            None => {
                // If that one is through by now the next one sets it right.
                self.is_slow.store(true, Ordering::Relaxed);
                Ok(false)
            }
        }
    }

    fn commit_in(
        &self,
        mut writer: MutexGuard<'_, Writer>,
        number: u64,
        deliver: impl Fn(Delivery),
    ) -> Result<(), LogClosed> {
        // The commit that this thread waited for has taken its frame too. That counts also where the log was closed
        // since.
        if self.is_done(number) {
            return Ok(());
        }
        if self.is_closed() {
            return Err(LogClosed);
        }
        // All frames that wait go in one write (`docs/safety.md`, rule 17).
        let Writer { sink, lost, spare } = &mut *writer;
        let end = self.queue.lock().take(spare);
        commit::commit(&mut Committing { log: self, sink, lost, deliver }, spare, end)?;
        if self.is_slow.load(Ordering::Relaxed) {
            self.is_slow.store(false, Ordering::Relaxed);
        }
        spare.frames.clear();
        if spare.frames.capacity() > BUFFER_KEPT {
            spare.frames = Vec::new();
        }
        Ok(())
    }

    /// Has every byte that was committed so far on the disk, whatever each commit waits for. What a tier has survives
    /// a power loss, so that what removes it in bulk does as well (`docs/safety.md`, rule T10).
    ///
    /// Calls that append go on meanwhile.
    pub fn sync(&self) -> Result<(), LogClosed> {
        if self.is_fsync() {
            return Ok(());
        }
        let began = Instant::now();
        let all = self.writer.lock().sink.as_ref().map(|open| (open.files(), open.folder.folders()));
        let Some((files, folders)) = all else { return Ok(()) };
        match files.and_then(|files| sync_files(&files)).map(|()| sync_folders(&folders)) {
            Ok(()) => self.timing.fsync.since(began),
            // What a disk does not take, it may not have (`docs/safety.md`, rule 19).
            Err(error) => {
                let mut writer = self.writer.lock();
                let Writer { sink, lost, .. } = &mut *writer;
                self.lose(sink, lost, &error)?;
            }
        }
        Ok(())
    }

    /// Closes the current log file and starts the next; `None` without a log.
    ///
    /// The calls that append wait for as long as this takes, so that only a log whose calls wait for the disk anyhow
    /// waits for it here. Otherwise the caller syncs the new file, beside the appends to it, before anything else goes.
    pub(super) fn rotate(&self) -> Result<Option<Rotated>, LogError> {
        let mut writer = self.writer.lock();
        let Some(sink) = &mut writer.sink else { return Ok(None) };
        let next = self.lsn() + 1;
        let header = FileHeader { kind: FileKind::Log, log_id: sink.log_id, lsn: next, boot_id: sink.boot_id };
        let current = sink.folder.current();
        // Nothing since the last rotation: the log file that is open starts right there. Asked of the sink, not of the
        // folder, where a file of that name may be a failed rotation's.
        if sink.first != header.lsn {
            sink.file = files::start(&current, &header, self.fsync)?;
            sink.first = header.lsn;
        }
        Ok(Some(Rotated { folder: current, open: header, _locked: sink.folder.locked() }))
    }

    /// Accounts for a snapshot of everything before the last rotation, at least.
    pub(super) fn compacted(&self, snapshot_bytes: u64, took: Duration) {
        self.timing.snapshot.took(took);
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        let mut writer = self.writer.lock();
        if let Some(sink) = &mut writer.sink {
            sink.snapshot_bytes = snapshot_bytes;
            sink.since_snapshot = sink.file.metadata().map_or(0, |data| data.len().saturating_sub(FILE_HEADER as u64));
            self.bytes.store(sink.since_snapshot, Ordering::Relaxed);
        }
    }

    /// Ends the log: no commit succeeds from here on. The lock is given back, as soon as no compaction writes there any
    /// more.
    pub fn close(&self) {
        let mut writer = self.writer.lock();
        self.closed.store(true, Ordering::Release);
        writer.lost = None;
        if let Some(sink) = writer.sink.take()
            && self.fsync
            && let Err(error) = sink.file.sync_all()
        {
            tracing::error!(%error, "log not synced at the end");
        }
    }

    /// The log broke in this run, and none has been begun anew since.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether no commit succeeds any more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Figures for the metrics.
    pub fn stats(&self) -> LogStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStats {
            enabled: self.is_enabled() && !self.is_lost(),
            lost: self.is_lost(),
            bytes: read(&self.bytes),
            frames: read(&self.frames),
            writes: read(&self.writes),
            snapshots: read(&self.snapshots),
            snapshots_failed: read(&self.snapshots_failed),
        }
    }

    /// Figures and timings for the metrics.
    pub fn read(&self) -> LogReading {
        let (torn_bytes, replay) = *self.start.lock();
        LogReading {
            stats: self.stats(),
            append: self.timing.append.read(),
            fsync: self.timing.fsync.read(),
            snapshot: self.timing.snapshot.read(),
            torn_bytes,
            replay,
        }
    }

    /// Says how the start found the log, and how long it took to read.
    pub fn replayed(&self, torn_bytes: u64, took: Duration) {
        *self.start.lock() = (torn_bytes, took);
    }

    /// Gives up a log to which an append failed: what is in the file is no longer the truth. The master renames it away
    /// before the next reply and goes on without it (`docs/safety.md`, rule 19). An error: it cannot be renamed, and
    /// the log is closed.
    fn lose(&self, sink: &mut Option<Sink>, lost: &mut Option<LostLog>, cause: &io::Error) -> Result<(), LogClosed> {
        let Some(broken) = sink.take() else { return Ok(()) };
        self.lost.store(true, Ordering::Relaxed);
        match self.give_up(broken) {
            Ok((path, left)) => {
                *lost = Some(left);
                tracing::error!(
                    %cause, renamed_to = %path.unwrap_or_default().display(),
                    "LOG LOST: an append failed. The master goes on WITHOUT A LOG: A RESTART NOW FORGETS EVERY OBJECT. \
                     Free space, then have a new log begun, without a restart: POST /api/v1/start_log to the metrics \
                     port"
                );
                Ok(())
            }
            Err(error) => {
                self.closed.store(true, Ordering::Release);
                tracing::error!(%cause, %error, "an append to the log failed and the log cannot be renamed away; the \
                    master stops");
                Err(LogClosed)
            }
        }
    }

    /// Takes a log out of its place, so that no start reads it. Under the lock of the writer.
    ///
    /// An operator may put the log back, so the master goes on under another id: what replies tell from here on is not
    /// that log's. A log that was only begun beside that place cannot be put back: its id goes on.
    pub(super) fn give_up(&self, mut broken: Sink) -> Result<(Option<PathBuf>, LostLog), LogError> {
        let was_whole = !broken.folder.is_beside();
        let path = broken.folder.give_up()?;
        // Rids are given out without this log from here on: no witness may vouch for it if an operator puts it back
        // (`docs/safety.md`, rule 18).
        if let Some(witness) = &broken.witness {
            witness.remove();
        }
        self.encode_no_more();
        if was_whole {
            self.log_id.store(crate::random::number(), Ordering::Release);
        }
        self.bytes.store(0, Ordering::Relaxed);
        let Sink { folder, boot_id, upkeep, .. } = broken;
        Ok((path, LostLog { folder, boot_id, upkeep }))
    }

    /// Under the queue's lock: a frame is encoded for one log or for none.
    pub(super) fn encode_no_more(&self) {
        let mut queue = self.queue.lock();
        *queue.frames() = Vec::new();
        self.enabled.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
