//! What a pool of many objects costs its master's memory, at what rate it fills, and how long a restart takes to read
//! it.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_core::{Config, Core, REMOVAL_SLOTS, RecordRef, RemoveAll};
use mooncake_master::log::{FileHeader, FileKind, Progress, Replay, SnapshotFile, recover};
use serde::{Deserialize, Serialize};

use crate::holds::Holds;
use crate::pool::{Pool, REQUEST, Size, key, log_in};

/// Boot of the host under which its log is written.
const BOOT: [u8; 16] = [7; 16];

/// Objects that are put last before a figure is taken, of whose puts the rate is.
const RATED: u64 = 200_000;

/// One moment of the pool's life.
#[derive(Debug, Serialize, Deserialize)]
pub struct Phase {
    /// What was done.
    pub phase: String,
    /// Objects that are there.
    pub objects: u64,
    /// Memory of the process in use, MB.
    pub rss_mb: f64,
    /// The most that was in use so far, MB.
    pub peak_mb: f64,
    /// Bytes in use above the start, an object.
    pub bytes_an_object: f64,
    /// Thousands of objects in a second: of those put last on the processor, read back or removed of all.
    pub thousands_a_second: f64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// The pool's life.
#[derive(Debug, Serialize)]
pub struct Phases(pub Vec<Phase>);

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<28} {:>10} {:>8} {:>9} {:>10} {:>10} {:>8}",
            "after", "objects", "RSS, MB", "peak, MB", "B/object", "1,000/s", "seconds"
        )?;
        for phase in &self.0 {
            let Phase { phase, objects, rss_mb, peak_mb, bytes_an_object, thousands_a_second, seconds } = phase;
            writeln!(
                f,
                "{phase:<28} {objects:>10} {rss_mb:>8.1} {peak_mb:>9.1} {bytes_an_object:>10.1} \
                 {thousands_a_second:>10.0} {seconds:>8.2}"
            )?;
        }
        Ok(())
    }
}

/// Lives it. With a folder its log is written there and read back by processes of their own: as it is, and as a
/// snapshot.
pub fn live(size: Size, folder: Option<&Path>) -> Result<Phases, Box<dyn std::error::Error>> {
    let before = Memory::now()?;
    let mut phases = Vec::new();
    let mut pool = Pool::new(size, log_in(folder)?);
    let mut filled = 0;
    for (target, name) in [(size.objects / 10, "filling, the first tenth"), (size.objects, "filling")] {
        let began = Instant::now();
        while filled < target.min(size.objects) {
            if filled + RATED <= target {
                pool.holds = Holds::default();
            }
            put(&mut pool, filled, "put_start");
            filled += REQUEST as u64;
        }
        let there = pool.core.objects() as u64;
        phases.push(Memory::now()?.phase(name, &before, there, rate(&pool.holds), began.elapsed()));
    }
    let began = Instant::now();
    pool.holds = Holds::default();
    for _ in 0..size.objects.div_ceil(10 * REQUEST as u64) {
        let fresh = pool.fresh(REQUEST as u64);
        put(&mut pool, fresh, "put_start, 512 keys in a full pool");
    }
    let there = pool.core.objects() as u64;
    phases.push(Memory::now()?.phase("a tenth anew", &before, there, rate(&pool.holds), began.elapsed()));
    if let Some(folder) = folder {
        // What is removed behind this is not in it.
        pool.log = Arc::new(log_in(None)?);
        phases.push(read_back(folder)?);
        phases.push(snapshot(&mut pool, folder)?);
    }
    let began = Instant::now();
    let mut cursor = RemoveAll::new(&mut pool.core, true);
    while !pool.quietly(|core, now, fx| core.remove_all_slice(now, &mut cursor, REMOVAL_SLOTS, fx)) {}
    let removed = there as f64 / began.elapsed().as_secs_f64() / 1e3;
    // Their memory goes back in steps.
    pool.tick("tick, a removal has ended");
    mooncake_os::trim_heap();
    phases.push(Memory::now()?.phase("remove_all", &before, pool.core.objects() as u64, removed, began.elapsed()));
    Ok(Phases(phases))
}

fn put(pool: &mut Pool, from: u64, kind: &'static str) {
    let keys: Vec<_> = (from..from + REQUEST as u64).map(key).collect();
    pool.put(1 + from / REQUEST as u64 % pool.size().segments, &keys, kind);
}

/// Thousands of objects put in a second of all holds that put any.
fn rate(holds: &Holds) -> f64 {
    let puts = || holds.iter().filter(|(kind, _)| kind.starts_with("put_"));
    let ended: usize = puts().filter(|(kind, _)| *kind == "put_end").map(|(_, puts)| puts.cpu.len()).sum();
    let time: Duration = puts().map(|(_, puts)| puts.sum()).sum();
    ended as f64 * REQUEST as f64 / time.as_secs_f64() / 1e3
}

/// Writes a snapshot beside the log, and reads that back.
pub fn snapshot(pool: &mut Pool, folder: &Path) -> Result<Phase, Box<dyn std::error::Error>> {
    let folder = folder.join("snapshot");
    std::fs::create_dir_all(folder.join("current"))?;
    let header = FileHeader { kind: FileKind::Snapshot, log_id: 1, lsn: 1, boot_id: BOOT };
    let mut file = SnapshotFile::create(&folder.join("current"), &header)?;
    pool.core.snapshot().try_for_each(|record| file.put(&record))?;
    file.finish()?;
    read_back(&folder)
}

/// Another process reads the log back: memory that this one has used tells nothing of it.
pub fn read_back(folder: &Path) -> Result<Phase, Box<dyn std::error::Error>> {
    let output = Command::new(std::env::current_exe()?).arg("--recover").arg(folder).arg("--json").output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Reads a master's log, as its start does.
pub fn recovered(folder: &Path) -> Result<Phase, Box<dyn std::error::Error>> {
    let before = Memory::now()?;
    let began = Instant::now();
    let mut replayed = Replayed(Core::new(Config::default()));
    let found = recover(&folder.join("current"), &BOOT, &mut replayed)?.ok_or("there is no log")?;
    let seconds = began.elapsed();
    let name = match found.snapshot_bytes > found.log_file_bytes {
        true => "a restart behind a snapshot",
        false => "a restart without one",
    };
    let objects = replayed.0.objects() as u64;
    Ok(Memory::now()?.phase(name, &before, objects, objects as f64 / seconds.as_secs_f64() / 1e3, seconds))
}

/// The core of a master that starts.
struct Replayed(Core);

impl Replay for Replayed {
    fn apply(&mut self, record: RecordRef<'_>) -> Result<(), String> {
        self.0.replay(record).map_err(|error| error.to_string())
    }

    fn expect(&mut self, objects: usize) {
        self.0.expect(objects);
    }

    fn foresee(&mut self, records: &[RecordRef<'_>], _: Progress) {
        self.0.foresee(records);
    }
}

/// Of this process.
#[derive(Debug)]
pub struct Memory {
    rss_mb: f64,
    peak_mb: f64,
}

impl Memory {
    /// What it has now.
    pub fn now() -> std::io::Result<Memory> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let kib = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim_end_matches("kB").trim().parse().unwrap_or(f64::NAN)
        };
        Ok(Memory { rss_mb: kib("VmRSS:") * 1.024e-3, peak_mb: kib("VmHWM:") * 1.024e-3 })
    }

    /// A phase that has ended: with so many objects, and at what rate.
    pub fn phase(&self, phase: &str, before: &Memory, objects: u64, rate: f64, time: Duration) -> Phase {
        Phase {
            phase: phase.to_owned(),
            objects,
            rss_mb: self.rss_mb,
            peak_mb: self.peak_mb,
            bytes_an_object: (self.rss_mb - before.rss_mb) * 1e6 / objects.max(1) as f64,
            thousands_a_second: rate,
            seconds: time.as_secs_f64(),
        }
    }
}
