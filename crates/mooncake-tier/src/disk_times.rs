//! How long reads and writes of a process's tiers take, and what they move, whichever tier they are of: what
//! `mooncake_ssd_*` of a client's page tell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mooncake_metrics::{CALL_LATENCY_NS, Distribution, Histogram, Unit};

/// Reads and writes of disks; a sync is neither.
#[derive(Debug)]
pub struct DiskTimes {
    reads: Direction,
    writes: Direction,
}

/// One reading of a direction.
#[derive(Debug, Clone)]
pub struct DirectionTimes {
    /// Bytes of operations that succeeded.
    pub bytes: u64,
    /// How long each operation took, succeeded or not.
    pub latency: Distribution,
}

/// One reading of [`DiskTimes`].
#[derive(Debug, Clone)]
pub struct DiskTotals {
    /// Reads.
    pub reads: DirectionTimes,
    /// Writes.
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
    pub(crate) fn took(&self, is_read: bool, began: Instant) {
        self.direction(is_read).latency.since(began);
    }

    pub(crate) fn moved(&self, is_read: bool, bytes: u64) {
        self.direction(is_read).bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn totals(&self) -> DiskTotals {
        DiskTotals { reads: self.reads.read(), writes: self.writes.read() }
    }

    fn direction(&self, is_read: bool) -> &Direction {
        if is_read { &self.reads } else { &self.writes }
    }
}

impl Direction {
    fn new() -> Direction {
        Direction { bytes: AtomicU64::new(0), latency: Histogram::new(Unit::Microseconds, CALL_LATENCY_NS) }
    }

    fn read(&self) -> DirectionTimes {
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
