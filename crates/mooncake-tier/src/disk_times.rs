//! Objects that a process writes to tiers and reads from them, whichever they are, and how long that takes: what
//! `mooncake_ssd_*` of a client's page tell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mooncake_metrics::{Distribution, Histogram, Unit};

/// Bounds of latencies of disks, nanoseconds: Mooncake's.
const BOUNDS_NS: &[u64] = &[
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// Objects that were read and written.
#[derive(Debug)]
pub struct DiskTimes {
    reads: Direction,
    writes: Direction,
}

/// One reading of a direction.
#[derive(Debug, Clone)]
pub struct DirectionTimes {
    /// Bytes of values.
    pub bytes: u64,
    /// How long each object took.
    pub latency: Distribution,
}

/// One reading of [`DiskTimes`].
#[derive(Debug, Clone)]
pub struct DiskTotals {
    /// Objects that were read for callers and to be promoted.
    pub reads: DirectionTimes,
    /// Objects that were written as the master ordered.
    pub writes: DirectionTimes,
}

#[derive(Debug)]
struct Direction {
    bytes: AtomicU64,
    latency: Histogram,
}

impl Default for DiskTimes {
    fn default() -> DiskTimes {
        DiskTimes { reads: Direction::new(), writes: Direction::new() }
    }
}

impl DiskTimes {
    /// An object was read, or as many bytes of it, since the call that reads it began.
    pub(crate) fn read(&self, bytes: u64, took: Duration) {
        self.reads.add(bytes, took);
    }

    /// An object was written, since it was ordered.
    pub(crate) fn wrote(&self, bytes: u64, took: Duration) {
        self.writes.add(bytes, took);
    }

    /// What was counted so far.
    pub fn totals(&self) -> DiskTotals {
        DiskTotals { reads: self.reads.totals(), writes: self.writes.totals() }
    }
}

impl Direction {
    fn new() -> Direction {
        Direction { bytes: AtomicU64::new(0), latency: Histogram::new(Unit::Microseconds, BOUNDS_NS) }
    }

    fn add(&self, bytes: u64, took: Duration) {
        self.latency.took(took);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn totals(&self) -> DirectionTimes {
        DirectionTimes { bytes: self.bytes.load(Ordering::Relaxed), latency: self.latency.read() }
    }
}

impl DiskTotals {
    /// Reads and writes together.
    pub fn both(&self) -> DirectionTimes {
        let mut both = self.reads.clone();
        both.bytes += self.writes.bytes;
        both.latency.add(&self.writes.latency);
        both
    }
}
