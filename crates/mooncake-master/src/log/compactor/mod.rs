//! Replaces old log files by a snapshot, in the background, of the core that goes on living.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_core::{AsideFull, SnapshotPart, SnapshotSlice};

use super::LogError;
use super::files::{self, FileHeader, FileKind};
use super::snapshot::SnapshotFile;
use super::step::{Step, step};
use super::writer::{Log, LogClosed, Rotated};
use crate::machine::commit::End;

/// Objects and the like that are taken in one hold of the core's lock, each of which takes half a microsecond or less.
pub const SNAPSHOT_SLICE: usize = 512;

/// The core whose log it is. What returns `None` does so where nothing may be read any more: an operation has broken
/// off in the middle.
pub trait Living: Send + Sync {
    /// Begins a snapshot of this moment. Where the log is when everything up to it is written.
    fn begin_snapshot(&self) -> Option<End>;

    /// Goes on with it, over about so many objects.
    fn snapshot_slice(&self, most: usize) -> Option<Result<Option<SnapshotSlice>, AsideFull>>;

    /// Ends it, through or not.
    fn end_snapshot(&self);

    /// Returns once everything up to an operation is in the log.
    fn commit(&self, number: u64) -> Result<(), LogClosed>;
}

/// When the thread looks up.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// From its sleep, for the end of the master.
    looks_up: Duration,
    /// After a failure, so that a full disk is not hammered.
    retries: Duration,
    /// For a snapshot of a log that has frames behind the last one, however few.
    snapshots: Option<Duration>,
}

const USUAL: Pace = Pace { looks_up: Duration::from_millis(200), retries: Duration::from_secs(30), snapshots: None };

/// The background thread; stops when dropped.
#[derive(Debug)]
pub struct Compactor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compactor {
    /// Starts the thread. `wanted` gets a message when the log is large; without one a snapshot comes after `interval`,
    /// if there is anything new to be in it.
    pub fn start(
        log: Arc<Log>,
        living: Arc<impl Living + 'static>,
        wanted: Receiver<()>,
        freed: Option<fn()>,
        interval: Option<Duration>,
    ) -> std::io::Result<Compactor> {
        Compactor::start_at(log, living, wanted, freed, Pace { snapshots: interval, ..USUAL })
    }

    fn start_at(
        log: Arc<Log>,
        living: Arc<impl Living + 'static>,
        wanted: Receiver<()>,
        freed: Option<fn()>,
        pace: Pace,
    ) -> std::io::Result<Compactor> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("log-compactor".into()).spawn(move || {
            let mut last = Instant::now();
            loop {
                match wanted.recv_timeout(pace.looks_up) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Timeout) if !stopped.load(Ordering::Relaxed) => {
                        let due = pace.snapshots.is_some_and(|interval| last.elapsed() >= interval);
                        if !due || log.stats().bytes == 0 {
                            continue;
                        }
                    }
                    Err(_) => return,
                }
                last = Instant::now();
                match or_break_off(&*living, || compact(&log, &*living, &stopped)) {
                    // The log asked again at each append beside it. If it is too large as it is now, the next append
                    // asks.
                    Ok(()) => while wanted.try_recv().is_ok() {},
                    Err(_) if stopped.load(Ordering::Relaxed) => return,
                    // So is one that operations outran: they never wait for a snapshot, and what they change beside it
                    // is bounded. The log's rotation waits, and with it the disk has a pause to catch up.
                    Err(error) => {
                        log.snapshots_failed.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(%error, "log not compacted; it grows on and is tried again");
                        let failed = Instant::now();
                        while failed.elapsed() < pace.retries {
                            if stopped.load(Ordering::Relaxed) {
                                return;
                            }
                            std::thread::sleep(pace.looks_up);
                        }
                    }
                }
                if let Some(freed) = freed {
                    freed();
                }
            }
        })?;
        Ok(Compactor { stop, thread: Some(thread) })
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the log compactor panicked");
        }
    }
}

/// A panic is the work's failure: the thread goes on, the failure is counted and said, and the next one is tried.
pub(super) fn or_break_off<T>(living: &impl Living, work: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        // Nothing is put aside for it any more.
        living.end_snapshot();
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let reason = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(LogError::CompactionBroke { reason })
    })
}

/// One snapshot of a moment from now on; then what it covers is removed.
pub(super) fn compact(log: &Log, living: &impl Living, stop: &AtomicBool) -> Result<(), LogError> {
    let _alone = log.snapshotting.lock();
    let began = Instant::now();
    let Some(rotated) = log.rotate()? else { return Ok(()) };
    let (lsn, bytes) = snapshot(living, &rotated, &|| !stop.load(Ordering::Relaxed))?;
    remove_covered(&rotated.folder, lsn, rotated.open.lsn);
    log.compacted(bytes, began.elapsed());
    tracing::info!(lsn, bytes, milliseconds = began.elapsed().as_millis() as u64, "log compacted");
    Ok(())
}

/// Writes a snapshot of a moment from now on: its LSN, and its size in bytes.
///
/// Its LSN lies in the log file that is open, which stays: replay passes over what the snapshot has. All of the frames
/// up to it are in the file before the snapshot has its name, so that no log is found that is shorter than its
/// snapshot.
pub(super) fn snapshot(
    living: &impl Living,
    rotated: &Rotated,
    goes_on: &dyn Fn() -> bool,
) -> Result<(u64, u64), LogError> {
    let Rotated { folder, open, .. } = rotated;
    // Appends go on meanwhile. What says under which boot the log was written must not go before its successor is on
    // the disk: a witness of another host would vouch for what a power loss leaves.
    let path = folder.join(open.file_name());
    files::make_durable(&path).map_err(LogError::io("syncing", path))?;
    let cut = living.begin_snapshot().ok_or(LogError::Stops)?;
    let taken = take(living, folder, &FileHeader { kind: FileKind::Snapshot, lsn: cut.lsn, ..*open }, goes_on);
    living.end_snapshot();
    let file = taken?;
    living.commit(cut.number).map_err(|LogClosed| LogError::Stops)?;
    let bytes = file.finish().map_err(LogError::io("writing a snapshot in", folder))?;
    Ok((cut.lsn, bytes))
}

/// Takes the snapshot that was begun.
fn take(
    living: &impl Living,
    folder: &Path,
    header: &FileHeader,
    goes_on: &dyn Fn() -> bool,
) -> Result<SnapshotFile, LogError> {
    let io = || LogError::io("writing a snapshot in", folder);
    let mut file = SnapshotFile::create(folder, header).map_err(io())?;
    loop {
        if !goes_on() {
            return Err(LogError::Stops);
        }
        let slice = living.snapshot_slice(SNAPSHOT_SLICE).ok_or(LogError::Stops)?;
        let slice = slice.map_err(|source| LogError::SnapshotOverrun { path: folder.to_owned(), source })?;
        let Some(SnapshotSlice { part, records }) = slice else { return Ok(file) };
        for record in records.into_iter().flatten() {
            match part {
                SnapshotPart::Members | SnapshotPart::Objects => file.put(&record).map_err(io())?,
                SnapshotPart::Unfinished => file.put_last(&record),
            }
        }
        step(Step::Slice, folder).map_err(io())?;
    }
}

/// Removes what a snapshot of `last` covers, but for the log file that is open, which begins with `open`. A failure
/// leaves files for the next time, reading skips them.
fn remove_covered(folder: &Path, last: u64, open: u64) {
    let old = |kind, keep: &dyn Fn(u64) -> bool| {
        files::list(folder, kind).unwrap_or_default().into_iter().filter(move |(lsn, _)| !keep(*lsn)).collect()
    };
    let snapshots: Vec<_> = old(FileKind::Snapshot, &|lsn| lsn >= last);
    let log_files: Vec<_> = old(FileKind::Log, &|lsn| lsn >= open);
    for (_, path) in snapshots.into_iter().chain(log_files) {
        if let Err(error) = fs::remove_file(&path).and_then(|()| step(Step::Removed, &path)) {
            tracing::warn!(path = %path.display(), %error, "old log file not removed");
        }
    }
}

#[cfg(test)]
mod tests;
