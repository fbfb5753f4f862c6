//! Counters of the shell, and the Prometheus page: names of the reference
//! where they have a meaning here, and our own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_core::{SegmentState, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::log::LogStats;
use crate::shared::Shared;

/// Kinds of requests that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reserve.
    PutStart,
    /// Commit.
    PutEnd,
    /// Give up.
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
    /// Mount.
    MountSegment,
    /// Unmount.
    UnmountSegment,
    /// Ping.
    Ping,
    /// Return views.
    Unpin,
}

impl Op {
    /// All of them, in the order of the summary.
    pub const ALL: [Op; 12] = [
        Op::PutStart,
        Op::PutEnd,
        Op::PutRevoke,
        Op::GetReplicaList,
        Op::ExistKey,
        Op::Remove,
        Op::RemoveAll,
        Op::RemoveByRegex,
        Op::MountSegment,
        Op::UnmountSegment,
        Op::Ping,
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
            Op::MountSegment => "mount_segment",
            Op::UnmountSegment => "unmount_segment",
            Op::Ping => "ping",
            Op::Unpin => "unpin",
        }
    }

    /// The reference has counters for batches of it.
    fn has_batches(self) -> bool {
        matches!(self, Op::PutStart | Op::PutEnd | Op::PutRevoke | Op::GetReplicaList | Op::ExistKey)
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
    /// Those that failed.
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
    value_sizes: Histogram,
    partial_allocations: AtomicU64,
    hit_bytes: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let buckets = [4096.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];
        Metrics {
            ops: Default::default(),
            value_sizes: Histogram::new(buckets),
            partial_allocations: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts a request for `items` keys of which `failed` failed.
    pub fn count(&self, op: Op, items: usize, failed: usize) {
        let counters = &self.ops[op as usize];
        if items <= 1 || !op.has_batches() {
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

    /// Counts a batch as that many requests, as the reference does for removes.
    pub fn count_items(&self, op: Op, items: usize, failed: usize) {
        let counters = &self.ops[op as usize];
        add(&counters.requests, items as u64);
        add(&counters.failures, failed as u64);
    }

    /// Counts an object that got room; `partly`: with fewer replicas than asked for.
    pub fn placed(&self, size: u64, partly: bool) {
        self.value_sizes.observe(size as f64);
        if partly {
            add(&self.partial_allocations, 1);
        }
    }

    /// Counts bytes of objects that were found.
    pub fn hit_bytes(&self, bytes: u64) {
        add(&self.hit_bytes, bytes);
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
}

/// The Prometheus page.
pub fn page(shared: &Arc<Shared>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register(
        "master_value_size_bytes",
        "Sizes of the objects that got room",
        shared.metrics.value_sizes.clone(),
    );
    let (stats, segments) = shared.read(|core, _| {
        let segments = core
            .segments()
            .filter(|view| view.state == SegmentState::Live)
            .map(|view| (view.name.to_owned(), view.used, view.capacity))
            .collect();
        (core.stats(), segments)
    });
    let page = Page { shared: shared.clone(), stats, segments, log: shared.log.stats() };
    registry.register_collector(Box::new(page));
    let mut out = String::new();
    prometheus_client::encoding::text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Page {
    shared: Arc<Shared>,
    stats: Stats,
    segments: Vec<(String, u64, u64)>,
    log: LogStats,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut out = Writer { encoder: &mut encoder };
        self.reference_gauges(&mut out)?;
        self.reference_counters(&mut out)?;
        self.requests(&mut out)?;
        self.own_gauges(&mut out)?;
        self.own_counters(&mut out)
    }
}

impl Page {
    fn reference_gauges(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let s = &self.stats;
        out.gauge("master_allocated_bytes", "Bytes taken in live segments", s.used_bytes)?;
        out.gauge("master_total_capacity_bytes", "Bytes of live segments", s.capacity_bytes)?;
        out.gauge("master_key_count", "Objects that can be read now", s.keys)?;
        out.gauge("master_soft_pin_key_count", "Soft-pinned objects", s.soft_pinned_objects)?;
        out.gauge("master_active_clients", "Clients that are here", s.sessions.saturating_sub(s.sessions_away))?;
        out.gauge("mem_cache_nums_", "Objects in memory", s.keys)?;
        out.gauge("master_put_start_discarded_staging_size", "Bytes in quarantine", s.quarantined_bytes)?;
        out.labelled(
            "segment_allocated_bytes",
            "Bytes taken in a segment",
            self.segments.iter().map(|(name, used, _)| (name, *used)),
        )?;
        out.labelled(
            "segment_total_capacity_bytes",
            "Bytes of a segment",
            self.segments.iter().map(|(name, _, bytes)| (name, *bytes)),
        )
    }

    /// Counters that the reference names without `_total` are gauges here: the
    /// text format appends `_total` to every counter, and the names are what dashboards know.
    fn reference_counters(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let s = &self.stats;
        let metrics = &self.shared.metrics;
        out.gauge("mem_cache_hit_nums_", "Lookups that found an object", s.lookup_hits)?;
        out.counter("mem_cache_hit_bytes", "Bytes of objects that lookups found", get(&metrics.hit_bytes))?;
        out.gauge("valid_get_nums_", "Lookups that found an object", s.lookup_hits)?;
        out.gauge("total_get_nums_", "Lookups", s.lookup_keys)?;
        out.counter("master_successful_evictions", "Objects evicted", s.evicted_objects)?;
        out.counter("master_attempted_evictions", "Objects evicted", s.evicted_objects)?;
        out.gauge("master_evicted_key_count", "Objects evicted", s.evicted_objects)?;
        out.gauge("master_evicted_size_bytes", "Bytes evicted", s.evicted_bytes)?;
        out.gauge("master_successful_evictions_mem", "Objects evicted", s.evicted_objects)?;
        out.gauge("master_attempted_evictions_mem", "Objects evicted", s.evicted_objects)?;
        out.gauge("master_evicted_key_count_mem", "Objects evicted", s.evicted_objects)?;
        out.gauge("master_evicted_size_bytes_mem", "Bytes evicted", s.evicted_bytes)?;
        out.gauge("master_put_start_discard_cnt", "Unfinished puts that met their deadline", s.puts_expired)?;
        out.gauge("master_put_start_release_cnt", "Extents that left quarantine", s.fences_done)?;
        let failed = s.put_full + s.put_too_large;
        out.counter("master_put_start_alloc_failures", "Keys that found no room", failed)?;
        let partial = metrics.partial_allocations();
        out.counter("master_put_start_partial_allocations", "Keys that got fewer replicas than asked", partial)
    }

    fn requests(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        for op in Op::ALL {
            let name = op.metric_name();
            let reading = self.shared.metrics.reading(op);
            out.counter(&format!("master_{name}_requests"), "Requests for one key", reading.requests)?;
            out.counter(&format!("master_{name}_failures"), "Those that failed", reading.failures)?;
            if !op.has_batches() {
                continue;
            }
            let mut batch =
                |what: &str, help: &str, value| out.counter(&format!("master_batch_{name}_{what}"), help, value);
            batch("requests", "Requests for several keys", reading.batch_requests)?;
            batch("failures", "Those with no key that succeeded", reading.batch_failures)?;
            batch("partial_successes", "Those with some keys that failed", reading.batch_partial)?;
            batch("items", "Keys in them", reading.batch_items)?;
            batch("failed_items", "Keys in them that failed", reading.batch_failed_items)?;
        }
        Ok(())
    }

    fn own_gauges(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let s = &self.stats;
        out.gauge("mooncake_pinned_bytes", "Bytes under views of readers", s.pinned_bytes)?;
        out.gauge("mooncake_pins", "Views of readers", s.pins)?;
        out.gauge("mooncake_unfinished_bytes", "Bytes of puts under way", s.unfinished_bytes)?;
        out.gauge("mooncake_replaced_bytes", "Bytes of values that puts under way replace", s.replaced_bytes)?;
        out.gauge("mooncake_unfinished_puts", "Puts under way", s.unfinished_puts)?;
        out.gauge("mooncake_quarantined_bytes", "Bytes whose owner has not fenced them yet", s.quarantined_bytes)?;
        out.gauge(
            "mooncake_quarantined_extents",
            "Extents whose owner has not fenced them yet",
            s.quarantined_extents,
        )?;
        out.gauge("mooncake_sessions", "Clients, here or away", s.sessions)?;
        out.gauge("mooncake_sessions_away", "Clients that are away", s.sessions_away)?;
        out.gauge("mooncake_segments_live", "Segments that can be read", s.segments_live)?;
        out.gauge("mooncake_segments_hidden", "Segments whose owner is away", s.segments_hidden)?;
        out.gauge("mooncake_segments_closed", "Live segments that take nothing new yet", s.segments_closed)?;
        out.gauge("mooncake_protected_objects", "Objects protected by a lookup", s.protected_objects)?;
        out.gauge("mooncake_hard_pinned_objects", "Hard-pinned objects", s.hard_pinned_objects)?;
        out.gauge("mooncake_parked_puts", "Puts that wait for room or for another put", s.tickets)?;
        out.gauge("mooncake_epoch", "Number of this reign over the log", u64::from(self.shared.log.epoch()))?;
        out.gauge("mooncake_log_enabled", "1 = changes are logged", u64::from(self.log.enabled))?;
        out.gauge("mooncake_log_lost", "1 = the log broke in this run and was renamed away", u64::from(self.log.lost))?;
        out.gauge("mooncake_log_bytes", "Bytes of log behind the last snapshot", self.log.bytes)?;
        out.gauge("mooncake_connections", "Control connections", self.shared.connections.len() as u64)
    }

    fn own_counters(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let s = &self.stats;
        out.counter("mooncake_exists_keys", "Keys of existence queries", s.exists_keys)?;
        out.counter("mooncake_exists_hits", "Those that were there", s.exists_hits)?;
        out.counter(
            "mooncake_lookup_then_miss",
            "Objects said to exist and missed a moment later",
            s.lookup_then_miss,
        )?;
        out.counter("mooncake_protection_broken", "Protected objects evicted for want of others", s.protection_broken)?;
        out.counter("mooncake_put_keys", "Keys of puts", s.put_keys)?;
        out.counter("mooncake_put_placed", "Those that got room", s.put_placed)?;
        out.counter("mooncake_put_exists", "Those that were there already", s.put_exists)?;
        out.counter("mooncake_put_busy", "Those with another put under way", s.put_busy)?;
        out.counter("mooncake_put_full", "Those that found no room", s.put_full)?;
        out.counter("mooncake_put_too_large", "Those that can never fit", s.put_too_large)?;
        out.counter("mooncake_put_refused", "Those refused for their size or a cap", s.put_refused)?;
        out.counter("mooncake_puts_committed", "Puts that became objects", s.puts_committed)?;
        out.counter("mooncake_puts_revoked", "Puts without a good replica", s.puts_revoked)?;
        out.counter("mooncake_puts_superseded", "Ends of puts that were no more", s.puts_superseded)?;
        out.counter("mooncake_removed_objects", "Objects removed", s.removed_objects)?;
        out.counter("mooncake_bad_replicas", "Replicas found bad and dropped", s.replicas_bad)?;
        out.counter("mooncake_log_frames", "Frames logged", self.log.frames)?;
        out.counter("mooncake_log_writes", "Writes of the log", self.log.writes)?;
        out.counter("mooncake_log_snapshots", "Snapshots written", self.log.snapshots)?;
        out.counter("mooncake_log_snapshots_failed", "Snapshots that failed", self.log.snapshots_failed)
    }
}

struct Writer<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Writer<'_, '_> {
    /// `name` without the `_total` that the format appends.
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstGauge::new(as_gauge(value)).encode(self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn labelled<'v>(&mut self, name: &str, help: &str, values: impl Iterator<Item = (&'v String, u64)>) -> fmt::Result {
        let mut metric: MetricEncoder<'_> = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (segment, value) in values {
            let labels = [("segment", segment.as_str())];
            ConstGauge::new(as_gauge(value)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// The text format's gauges are signed.
fn as_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
