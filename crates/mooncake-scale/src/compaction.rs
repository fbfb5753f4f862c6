//! A pool whose log is compacted: how long the slices of the snapshot hold the lock, how long all of it takes beside a
//! client that goes on, and what it needs of memory.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use mooncake_core::{AsideFull, Core, SnapshotSlice};
use mooncake_master::log::{Compactor, Living, Log, LogClosed};
use mooncake_master::machine::commit::End;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use crate::pool::{Pool, REQUEST, key};

/// Longest wait for a compaction.
const LONGEST: Duration = Duration::from_secs(600);

/// What a slice of a master's snapshot is.
const SLICE: usize = mooncake_master::log::SNAPSHOT_SLICE;

fn slice(core: &mut Core, most: usize) -> (Result<Option<SnapshotSlice>, AsideFull>, usize) {
    let slice = core.snapshot_slice(most);
    let taken = |slice: &SnapshotSlice| slice.records.iter().map(Vec::len).sum();
    let steps = slice.as_ref().ok().and_then(Option::as_ref).map_or(0, taken);
    (slice, steps)
}

/// A snapshot, while objects come and go between its slices.
pub fn snapshot(pool: &mut Pool) {
    let Pool { core, holds, .. } = pool;
    holds.measure("snapshot, its beginning", || (core.begin_snapshot(), 0));
    for count in 0.. {
        let Pool { core, holds, .. } = pool;
        let before = core.touched();
        let taken = holds.measure("snapshot, a slice", || slice(core, SLICE)).expect("little is put aside");
        holds.touched("snapshot, a slice", core.touched().wrapping_sub(before));
        if taken.is_none() {
            break;
        }
        if count % 100 == 0 {
            let from = pool.fresh(REQUEST as u64);
            let keys: Vec<[u8; 64]> = (from..from + REQUEST as u64).map(key).collect();
            pool.put(1, &keys, "put_start, 512 keys, beside a snapshot");
        }
    }
    let Pool { core, holds, .. } = pool;
    let walk = holds.measure("snapshot, its end", || (core.end_snapshot(), 0));
    drop(walk);
}

/// What a compaction beside a client that puts came to.
#[derive(Debug, Serialize)]
pub struct Compaction {
    /// From its beginning to the last file that it removes.
    pub seconds: f64,
    /// Of the snapshot.
    pub bytes: u64,
    /// The longest hold of the lock for a slice on the processor, microseconds.
    pub longest_slice_us: f64,
    /// Slices.
    pub slices: u64,
    /// All holds for slices together, on the processor, seconds.
    pub held_seconds: f64,
    /// Keys put a second before it, and beside it.
    pub put_before: f64,
    /// See there.
    pub put_beside: f64,
    /// Resident memory before it, MiB.
    pub resident_before: u64,
    /// The most beside it.
    pub resident_most: u64,
}

struct Beside(Mutex<Pool>);

impl Living for Beside {
    fn begin_snapshot(&self) -> Option<End> {
        let mut pool = self.0.lock();
        pool.core.begin_snapshot();
        Some(pool.log.end_of_queue())
    }

    fn snapshot_slice(&self, most: usize) -> Option<Result<Option<SnapshotSlice>, AsideFull>> {
        let mut pool = self.0.lock();
        let Pool { core, holds, .. } = &mut *pool;
        let slice = holds.measure("slice", || slice(core, most));
        MutexGuard::unlock_fair(pool);
        Some(slice)
    }

    fn end_snapshot(&self) {
        let walk = self.0.lock().core.end_snapshot();
        drop(walk);
    }

    fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.log().commit(number, |_| {})
    }
}

impl Beside {
    fn log(&self) -> Arc<Log> {
        self.0.lock().log.clone()
    }

    /// Puts as long as it may; keys a second.
    fn put_while(&self, mut goes_on: impl FnMut() -> bool) -> f64 {
        let (began, mut count) = (Instant::now(), 0);
        while goes_on() {
            let mut pool = self.0.lock();
            let from = pool.fresh(REQUEST as u64);
            let keys: Vec<[u8; 64]> = (from..from + REQUEST as u64).map(key).collect();
            pool.put(1, &keys, "put");
            count += keys.len();
        }
        count as f64 / began.elapsed().as_secs_f64()
    }
}

/// Compacts the log of a pool, which is in some folder.
pub fn measure(pool: Pool, folder: &Path) -> Result<Compaction, Box<dyn std::error::Error>> {
    let (log, beside) = (pool.log.clone(), Arc::new(Beside(Mutex::new(pool))));
    let until = |time| {
        let end = Instant::now() + time;
        move || Instant::now() < end
    };
    let put_before = beside.put_while(until(Duration::from_secs(2)));
    let (wanted, receiver) = sync_channel(1);
    std::fs::write("/proc/self/clear_refs", "5")?;
    let resident_before = resident("VmRSS")?;
    let compactor = Compactor::start(log.clone(), beside.clone(), receiver, None, None)?;
    let began = Instant::now();
    wanted.send(())?;
    let done = || log.stats().snapshots + log.stats().snapshots_failed > 0;
    let put_beside = beside.put_while(|| !done() && began.elapsed() < LONGEST);
    let seconds = began.elapsed().as_secs_f64();
    let resident_most = resident("VmHWM")?;
    drop(compactor);
    let pool = beside.0.lock();
    let (_, slices) = pool.holds.iter().find(|(kind, _)| *kind == "slice").ok_or("there was no snapshot")?;
    Ok(Compaction {
        seconds,
        bytes: snapshot_bytes(folder)?,
        longest_slice_us: slices.longest.as_nanos() as f64 / 1e3,
        slices: slices.cpu.len() as u64,
        held_seconds: slices.sum().as_secs_f64(),
        put_before,
        put_beside,
        resident_before,
        resident_most,
    })
}

/// Of this process, MiB.
fn resident(what: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).ok_or("no such line")?;
    Ok(line.split_whitespace().next().ok_or("no figure")?.parse::<u64>()? / 1024)
}

/// Size of the snapshot in a log's folder.
fn snapshot_bytes(folder: &Path) -> std::io::Result<u64> {
    let entries = std::fs::read_dir(folder.join("current"))?.filter_map(Result::ok);
    let snapshots = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "snap"));
    Ok(snapshots.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum())
}

impl fmt::Display for Compaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "compaction: {:.1} s, a snapshot of {} MiB", self.seconds, self.bytes >> 20)?;
        writeln!(
            f,
            "slices: {}, the longest {:.0} us on the processor, all together {:.1} s",
            self.slices, self.longest_slice_us, self.held_seconds
        )?;
        writeln!(f, "keys put a second: {:.0} before it, {:.0} beside it", self.put_before, self.put_beside)?;
        writeln!(f, "resident: {} MiB before it, {} MiB at most", self.resident_before, self.resident_most)
    }
}
