//! What the owner of one tier has had its disk do since it took the tier, for those who operate the pool.
//!
//! Every thread that reads or writes counts for itself: a few relaxed additions for an operation of a disk, no lock.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::disk_times::DiskTimes;

/// What an owner reads for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFor {
    /// A reader at a lane.
    Lane,
    /// A copy to memory.
    Promotion,
    /// What is kept of a file that is given up, and what that has.
    Kept,
    /// A record that somebody found bad.
    Recheck,
    /// What is read back as the tier is mounted.
    Proof,
}

/// What is written, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFor {
    /// Bytes of objects that the master has ordered.
    Ordered,
    /// The same of objects that are kept of a file that is given up.
    Kept,
    /// Headers, what fills blocks up, footers and superblocks.
    Rest,
}

/// Bytes of one write, by what they are.
pub(crate) type Parts = [u64; 3];

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    Sync,
}

/// What is counted of one tier.
#[derive(Debug, Default)]
pub struct IoCounts {
    times: [Times; 3],
    failed: [AtomicU64; 3],
    bad_records: AtomicU64,
    read_bytes: [AtomicU64; 5],
    written_bytes: [AtomicU64; 3],
    /// Of objects, of all tiers of the process.
    objects: OnceLock<Arc<DiskTimes>>,
}

#[derive(Debug, Default)]
struct Times {
    count: AtomicU64,
    nanos: AtomicU64,
}

/// Operations of one kind that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Operations {
    /// How many.
    pub count: u64,
    /// How long they took, one after the other.
    pub micros: u64,
    /// Those that failed.
    pub failed: u64,
}

/// One reading of [`IoCounts`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Reads; those that failed, by record.
    pub reads: Operations,
    /// Writes, and files that could not be made.
    pub writes: Operations,
    /// Syncs.
    pub syncs: Operations,
    /// Records whose header or sums are not what the log says.
    pub bad_records: u64,
    /// Bytes that were read for lanes, promotions, what is kept, rechecks and proofs.
    pub read_bytes: [u64; 5],
    /// Bytes that were written: of objects that were ordered, of those that were kept, and all else.
    pub written_bytes: [u64; 3],
}

fn add(to: &AtomicU64, more: u64) {
    to.fetch_add(more, Ordering::Relaxed);
}

impl IoCounts {
    /// From now on objects that are read and written count there. The first one stays.
    pub fn count_objects(&self, objects: Arc<DiskTimes>) {
        _ = self.objects.set(objects);
    }

    /// An object that the master ordered is written.
    pub(crate) fn object_written(&self, bytes: u64, took: Duration) {
        if let Some(objects) = self.objects.get() {
            objects.wrote(bytes, took);
        }
    }

    /// An operation has ended that began then, however it ended.
    pub(crate) fn took(&self, op: Op, began: Instant) {
        let times = &self.times[op as usize];
        add(&times.count, 1);
        add(&times.nanos, u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn failed(&self, op: Op) {
        add(&self.failed[op as usize], 1);
    }

    /// So many bytes were read.
    pub(crate) fn read(&self, by: ReadFor, bytes: u64) {
        add(&self.read_bytes[by as usize], bytes);
    }

    /// A write has succeeded.
    pub(crate) fn wrote(&self, parts: Parts) {
        for (to, bytes) in self.written_bytes.iter().zip(parts) {
            if bytes > 0 {
                add(to, bytes);
            }
        }
    }

    /// A record is not what the log says.
    pub(crate) fn bad_record(&self) {
        add(&self.bad_records, 1);
    }

    /// What was counted so far.
    pub fn totals(&self) -> IoTotals {
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let operations = |op: Op| {
            let times = &self.times[op as usize];
            let (count, nanos, failed) = (load(&times.count), load(&times.nanos), load(&self.failed[op as usize]));
            Operations { count, micros: nanos / 1_000, failed }
        };
        IoTotals {
            reads: operations(Op::Read),
            writes: operations(Op::Write),
            syncs: operations(Op::Sync),
            bad_records: load(&self.bad_records),
            read_bytes: self.read_bytes.each_ref().map(load),
            written_bytes: self.written_bytes.each_ref().map(load),
        }
    }
}

/// What one reader counts, and as what.
#[derive(Debug, Clone)]
pub struct CountedReads {
    /// Of its tier.
    pub counts: Arc<IoCounts>,
    /// What it reads for.
    pub by: ReadFor,
}

impl CountedReads {
    /// A read has ended that began then.
    pub(crate) fn ended(&self, began: Instant, result: &io::Result<usize>) {
        self.counts.took(Op::Read, began);
        if let Ok(bytes) = result {
            self.counts.read(self.by, *bytes as u64);
        }
    }

    /// So much of an object was read, in so long. What an owner reads for itself is no read of an object.
    pub(crate) fn object(&self, bytes: u64, took: Duration) {
        if matches!(self.by, ReadFor::Lane | ReadFor::Promotion)
            && let Some(objects) = self.counts.objects.get()
        {
            objects.read(bytes, took);
        }
    }

    /// A read of a whole, waited for.
    pub(crate) fn waited<T>(&self, bytes: u64, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let began = Instant::now();
        let result = read();
        self.ended(began, &result.as_ref().map(|_| bytes as usize).map_err(|error| error.kind().into()));
        if result.is_err() {
            self.counts.failed(Op::Read);
        }
        result
    }
}
