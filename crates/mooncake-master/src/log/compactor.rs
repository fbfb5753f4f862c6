//! Replaces old segments by a snapshot, in the background and beside the live
//! core: it replays the closed files into a core of its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_core::{Config, Core, RecordRef};

use super::segment_file::{self, FileHeader, FileKind, FrameFile, Next};
use super::step::{Step, step};
use super::writer::{Log, Rotated};
use super::{LogError, frame, snapshot};

/// When the thread looks up.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// From its sleep, for the end of the master.
    looks_up: Duration,
    /// After a failure, so that a full disk is not hammered.
    retries: Duration,
}

const USUAL: Pace = Pace { looks_up: Duration::from_millis(200), retries: Duration::from_secs(30) };

/// The background thread; stops when dropped.
#[derive(Debug)]
pub struct Compactor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compactor {
    /// Starts the thread. `wanted` gets a message when the log is large.
    pub fn start(
        log: Arc<Log>,
        wanted: Receiver<()>,
        config: Config,
        freed: Option<fn()>,
    ) -> std::io::Result<Compactor> {
        Compactor::start_at(log, wanted, config, freed, USUAL)
    }

    fn start_at(
        log: Arc<Log>,
        wanted: Receiver<()>,
        config: Config,
        freed: Option<fn()>,
        pace: Pace,
    ) -> std::io::Result<Compactor> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("log-compactor".into()).spawn(move || {
            loop {
                match wanted.recv_timeout(pace.looks_up) {
                    Ok(()) => {}
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout) if !stopped.load(Ordering::Relaxed) => continue,
                    Err(_) => return,
                }
                match compact(&log, &config, &stopped) {
                    Ok(()) => {}
                    Err(_) if stopped.load(Ordering::Relaxed) => return,
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

/// One snapshot of everything up to now; then what it covers is removed.
pub(super) fn compact(log: &Log, config: &Config, stop: &AtomicBool) -> Result<(), LogError> {
    let began = Instant::now();
    let Some(Rotated { folder, open, snapshot: header }) = log.rotate()? else { return Ok(()) };
    // Appends go on meanwhile. What says under which boot the log was written must not go before its successor is on
    // the disk: a witness of another host would vouch for what a power loss leaves.
    segment_file::make_durable(&open).map_err(LogError::io("syncing", open))?;
    let mut core = Core::new(config.clone());
    replay_closed(&folder, header.lsn, &mut core, stop)?;
    let bytes = snapshot::write(&folder, &header, core.snapshot(), stop)
        .map_err(LogError::io("writing a snapshot in", &folder))?;
    drop(core);
    remove_covered(&folder, header.lsn);
    log.compacted(bytes, began.elapsed());
    tracing::info!(lsn = header.lsn, bytes, "log compacted");
    Ok(())
}

fn replay_closed(folder: &Path, last: u64, core: &mut Core, stop: &AtomicBool) -> Result<(), LogError> {
    let list = |kind| segment_file::list(folder, kind).map_err(LogError::io("listing", folder));
    let mut at = 0;
    let mut apply = |record: RecordRef<'_>| {
        if stop.load(Ordering::Relaxed) {
            return Err("the master stops".to_owned());
        }
        core.replay(record).map_err(|error| error.to_string())
    };
    if let Some((_, path)) = list(FileKind::Snapshot)?.last() {
        at = snapshot::read(path, 0, &mut apply)?.lsn;
    }
    for (first, path) in list(FileKind::Segment)? {
        if first > last {
            break;
        }
        let io = |source| LogError::Io { action: "reading", path: path.clone(), source };
        let damage = |reason: &str| LogError::Foreign { path: path.clone(), reason: reason.to_owned() };
        let (mut file, header) = FrameFile::open(&path).map_err(io)?;
        let header: FileHeader = header.ok_or_else(|| damage("has lost its header"))?;
        loop {
            match file.next(header.log_id).map_err(io)? {
                Next::Frame { lsn, .. } if lsn <= at => {}
                Next::Frame { lsn, payload } if lsn == at + 1 && lsn <= last => {
                    for record in frame::records(payload) {
                        let record = record.map_err(|e| e.to_string());
                        record.and_then(&mut apply).map_err(|reason| LogError::Replay {
                            path: path.clone(),
                            lsn,
                            reason,
                        })?;
                    }
                    at = lsn;
                }
                Next::End => break,
                Next::Frame { .. } | Next::Damage => return Err(damage("is damaged")),
            }
        }
    }
    if at != last {
        let reason = format!("ends at LSN {at} instead of {last}");
        return Err(LogError::Foreign { path: folder.join("log"), reason });
    }
    Ok(())
}

/// Removes older files; a failure leaves them for the next time, reading skips them.
fn remove_covered(folder: &Path, last: u64) {
    let old = |kind, keep: &dyn Fn(u64) -> bool| {
        segment_file::list(folder, kind).unwrap_or_default().into_iter().filter(move |(lsn, _)| !keep(*lsn)).collect()
    };
    let snapshots: Vec<_> = old(FileKind::Snapshot, &|lsn| lsn >= last);
    let segments: Vec<_> = old(FileKind::Segment, &|lsn| lsn > last);
    for (_, path) in snapshots.into_iter().chain(segments) {
        if let Err(error) = fs::remove_file(&path).and_then(|()| step(Step::Removed, &path)) {
            tracing::warn!(path = %path.display(), %error, "old log file not removed");
        }
    }
}

#[cfg(test)]
mod tests;
