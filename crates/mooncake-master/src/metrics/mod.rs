//! Counters of the shell, and the pages that tell them: Prometheus text, and `docs/metrics.md`.
//!
//! Nothing here takes a lock when it counts.

mod not_here;
mod page;
pub(crate) mod summary;
mod tiers;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mooncake_metrics::{Distribution, Histogram, Unit};
use mooncake_wire::RequestKind;
use mooncake_wire::message::Refusal;

pub use page::{CLIENTS_TOLD, ClientFigures, Reading, TierReading, reference_page};

/// Kinds of requests that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reserve.
    PutStart,
    /// Commit.
    PutEnd,
    /// Abort.
    PutRevoke,
    /// Lookup and pin.
    GetReplicaList,
    /// Existence.
    ExistKey,
    /// Remove by key.
    Remove,
    /// Remove everything.
    RemoveAll,
    /// Remove by pattern.
    RemoveByRegex,
    /// Drop replicas by key.
    ReplicaClear,
    /// Mount.
    MountSegment,
    /// Unmount.
    UnmountSegment,
    /// Beat of an anchor.
    Ping,
    /// Coming back with segments.
    RemountSegment,
    /// Return views.
    Unpin,
}

impl Op {
    /// All of them, in the order of the summary.
    pub const ALL: [Op; 14] = [
        Op::PutStart,
        Op::PutEnd,
        Op::PutRevoke,
        Op::GetReplicaList,
        Op::ExistKey,
        Op::Remove,
        Op::RemoveAll,
        Op::RemoveByRegex,
        Op::ReplicaClear,
        Op::MountSegment,
        Op::UnmountSegment,
        Op::Ping,
        Op::RemountSegment,
        Op::Unpin,
    ];

    /// Name in metrics.
    pub fn metric_name(self) -> &'static str {
        match self {
            Op::PutStart => "put_start",
            Op::PutEnd => "put_end",
            Op::PutRevoke => "put_revoke",
            Op::GetReplicaList => "get_replica_list",
            Op::ExistKey => "exist_key",
            Op::Remove => "remove",
            Op::RemoveAll => "remove_all",
            Op::RemoveByRegex => "remove_by_regex",
            Op::ReplicaClear => "replica_clear",
            Op::MountSegment => "mount_segment",
            Op::UnmountSegment => "unmount_segment",
            Op::Ping => "ping",
            Op::RemountSegment => "remount_segment",
            Op::Unpin => "unpin",
        }
    }

    /// What one of it does, for texts: "requests to ...".
    fn purpose(self) -> &'static str {
        match self {
            Op::PutStart => "reserve room for an object",
            Op::PutEnd => "commit a written object",
            Op::PutRevoke => "give up a reserved object",
            Op::GetReplicaList => "find where an object lies",
            Op::ExistKey => "ask whether an object exists",
            Op::Remove => "remove a key",
            Op::RemoveAll => "remove every object",
            Op::RemoveByRegex => "remove the keys that match a pattern",
            Op::ReplicaClear => "drop copies of an object",
            Op::MountSegment => "lend a segment to the pool",
            Op::UnmountSegment => "take a segment back from the pool",
            Op::Ping => "keep a session alive (heartbeats)",
            Op::RemountSegment => "bring segments back after a lost connection",
            Op::Unpin => "return readers' views",
        }
    }

    /// Mooncake has counters for batches of it.
    fn has_batches(self) -> bool {
        use Op::{ExistKey, GetReplicaList, PutEnd, PutRevoke, PutStart, ReplicaClear};
        matches!(self, PutStart | PutEnd | PutRevoke | GetReplicaList | ExistKey | ReplicaClear)
    }

    /// It has counters for requests of one key.
    fn has_singles(self) -> bool {
        self != Op::ReplicaClear
    }
}

/// Counters of one kind of request.
#[derive(Debug, Default)]
pub struct OpCounters {
    requests: AtomicU64,
    failures: AtomicU64,
    batch_requests: AtomicU64,
    batch_failures: AtomicU64,
    batch_partial: AtomicU64,
    batch_items: AtomicU64,
    batch_failed_items: AtomicU64,
}

/// One reading of [`OpCounters`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OpReading {
    /// Requests for one key.
    pub requests: u64,
    /// Requests for one key that failed.
    pub failures: u64,
    /// Requests for several keys.
    pub batch_requests: u64,
    /// Those with no key that succeeded.
    pub batch_failures: u64,
    /// Those with some keys that did not.
    pub batch_partial: u64,
    /// Keys in them.
    pub batch_items: u64,
    /// Keys in them that failed.
    pub batch_failed_items: u64,
}

/// Counters of the shell.
#[derive(Debug)]
pub struct Metrics {
    ops: [OpCounters; Op::ALL.len()],
    latencies: [Histogram; RequestKind::ALL.len()],
    refusals: [AtomicU64; REFUSALS.len()],
    value_sizes: Histogram,
    partial_allocations: AtomicU64,
    hit_bytes: AtomicU64,
    existing: AtomicU64,
    existing_of_batches: AtomicU64,
}

/// Kinds of refusals, by their number in the protocol.
pub const REFUSALS: [&str; 10] = [
    "unspecified",
    "version",
    "token",
    "unknown_session",
    "bad_request",
    "read_only",
    "internal",
    "overloaded",
    "not_kept",
    "old_claim",
];

const VALUE_BYTES: &[u64] = &[4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            ops: Default::default(),
            latencies: RequestKind::ALL.map(|_| Histogram::of_latencies()),
            refusals: Default::default(),
            value_sizes: Histogram::new(Unit::Bytes, VALUE_BYTES),
            partial_allocations: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            existing: AtomicU64::new(0),
            existing_of_batches: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts a request for `items` keys of which `failed` failed.
    pub fn count(&self, op: Op, items: usize, failed: usize) {
        let counters = &self.ops[op as usize];
        if (items <= 1 && op.has_singles()) || !op.has_batches() {
            add(&counters.requests, 1);
            if failed > 0 {
                add(&counters.failures, 1);
            }
            return;
        }
        add(&counters.batch_requests, 1);
        add(&counters.batch_items, items as u64);
        if failed == items {
            add(&counters.batch_failures, 1);
        } else if failed > 0 {
            add(&counters.batch_partial, 1);
        }
        if failed > 0 {
            add(&counters.batch_failed_items, failed as u64);
        }
    }

    /// Counts a batch as that many requests, as Mooncake does for removes.
    pub fn count_items(&self, op: Op, items: usize, failed: usize) {
        let counters = &self.ops[op as usize];
        add(&counters.requests, items as u64);
        add(&counters.failures, failed as u64);
    }

    /// Counts an object that got room; `partly`: with fewer replicas than asked for.
    pub fn placed(&self, size: u64, partly: bool) {
        self.value_sizes.observe(size);
        if partly {
            add(&self.partial_allocations, 1);
        }
    }

    /// Counts bytes of objects that were found.
    pub fn hit_bytes(&self, bytes: u64) {
        add(&self.hit_bytes, bytes);
    }

    /// Counts keys of a put, of `items`, that are objects already: apart from each other as its requests are.
    pub fn existing(&self, items: usize, existing: usize) {
        add(if items <= 1 { &self.existing } else { &self.existing_of_batches }, existing as u64);
    }

    /// Counts how long the answer to a request took.
    pub fn answered(&self, what: RequestKind, began: Instant) {
        self.latencies[what as usize].since(began);
    }

    /// Counts a refusal.
    pub fn refused(&self, refusal: &Refusal) {
        let known = usize::try_from(refusal.kind).ok().and_then(|kind| self.refusals.get(kind));
        add(known.unwrap_or(&self.refusals[0]), 1);
    }

    /// Counters of a kind of request.
    pub fn reading(&self, op: Op) -> OpReading {
        let counters = &self.ops[op as usize];
        OpReading {
            requests: get(&counters.requests),
            failures: get(&counters.failures),
            batch_requests: get(&counters.batch_requests),
            batch_failures: get(&counters.batch_failures),
            batch_partial: get(&counters.batch_partial),
            batch_items: get(&counters.batch_items),
            batch_failed_items: get(&counters.batch_failed_items),
        }
    }

    /// Puts that got fewer replicas than they asked for.
    pub fn partial_allocations(&self) -> u64 {
        get(&self.partial_allocations)
    }

    /// Everything at once.
    pub fn read(&self) -> ShellReading {
        ShellReading {
            ops: Op::ALL.map(|op| self.reading(op)),
            latencies: self.latencies.iter().map(Histogram::read).collect(),
            refusals: self.refusals.iter().map(get).collect(),
            value_sizes: self.value_sizes.read(),
            partial_allocations: self.partial_allocations(),
            hit_bytes: get(&self.hit_bytes),
            existing: get(&self.existing),
            existing_of_batches: get(&self.existing_of_batches),
        }
    }
}

/// One reading of [`Metrics`].
#[derive(Debug)]
pub struct ShellReading {
    ops: [OpReading; Op::ALL.len()],
    latencies: Vec<Distribution>,
    refusals: Vec<u64>,
    value_sizes: Distribution,
    partial_allocations: u64,
    hit_bytes: u64,
    existing: u64,
    existing_of_batches: u64,
}

impl ShellReading {
    /// How long answers to one kind of request took.
    pub fn latency(&self, what: RequestKind) -> &Distribution {
        &self.latencies[what as usize]
    }

    /// Bytes of objects that were found.
    pub fn hit_bytes(&self) -> u64 {
        self.hit_bytes
    }

    /// Bytes of objects that got room.
    pub fn placed_bytes(&self) -> u64 {
        self.value_sizes.sum
    }
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::refusal::Kind;

    use super::*;

    #[test]
    fn every_kind_of_refusal_has_its_name() {
        for (number, name) in REFUSALS.into_iter().enumerate() {
            let kind = Kind::try_from(number as i32).expect("a kind of the protocol");
            assert_eq!(kind.as_str_name().to_ascii_lowercase(), name);
        }
        assert!(Kind::try_from(REFUSALS.len() as i32).is_err(), "a new kind needs a name here");
    }

    #[test]
    fn a_batch_counts_once_and_by_its_keys() {
        let metrics = Metrics::default();
        metrics.count(Op::ExistKey, 1, 0);
        metrics.count(Op::ExistKey, 5, 2);
        metrics.count(Op::ExistKey, 3, 3);
        metrics.count(Op::ReplicaClear, 1, 0);
        let cleared = metrics.reading(Op::ReplicaClear);
        assert_eq!(
            (cleared.requests, cleared.batch_requests, cleared.batch_items),
            (0, 1, 1),
            "there are batches only"
        );
        let read = metrics.reading(Op::ExistKey);
        assert_eq!((read.requests, read.failures), (1, 0));
        assert_eq!((read.batch_requests, read.batch_partial, read.batch_failures), (2, 1, 1));
        assert_eq!((read.batch_items, read.batch_failed_items), (8, 5));
        assert!(Op::ALL.into_iter().enumerate().all(|(at, op)| op as usize == at), "counters are found by their place");
    }
}
