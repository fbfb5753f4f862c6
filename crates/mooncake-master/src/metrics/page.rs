//! What is told, name by name: names of Mooncake where they have a meaning here, and our own.

use mooncake_core::{Stats, TierState, TierStats, TierView, Time};
use mooncake_metrics::{Kind, Page};
use mooncake_wire::RequestKind;

use super::not_here;
use super::{Metrics, Op, REFUSALS, ShellReading};
use crate::log::{LogReading, LogStats};

/// `docs/metrics.md`.
pub fn reference_page() -> String {
    let nothing = Reading {
        stats: Stats::default(),
        quarantine_age_us: 0,
        tier_order_age_us: 0,
        segments: Vec::new(),
        tiers: Vec::new(),
        clients: Vec::new(),
        clients_untold: 0,
        shell: Metrics::default().read(),
        log: LogReading::default(),
        epoch: 0,
        lsn: 0,
        connections: 0,
        displaced: 0,
        peer_faults: 0,
    };
    let mut out = Page::table();
    nothing.tell(&mut out);
    let tables = out.finish();
    format!(
        "# Metrics\n\n\
         `/metrics` of the master's metrics port (9003) is Prometheus text. This page is generated from the code that \
         tells it: `make reference`. Names that begin with `master_`, `mem_cache_`, `segment_`, `valid_` and `total_` \
         are those of Mooncake's master, their odd endings included, so that its dashboard works; the rest are our \
         own. Counters begin at 0 with the process. [Operations](operations.md) says what to look at first.\n{tables}"
    )
}

/// Everything as of one moment.
#[derive(Debug)]
pub struct Reading {
    /// What the core counts.
    pub stats: Stats,
    /// Of the oldest extent in quarantine.
    pub quarantine_age_us: u64,
    /// Of the order that an owner of a tier has owed an answer to for longest.
    pub tier_order_age_us: u64,
    /// Live segments: name, bytes taken, bytes in all.
    pub segments: Vec<(String, u64, u64)>,
    /// Tiers that are not forgotten.
    pub tiers: Vec<TierReading>,
    /// Clients that have figures of their own, each of another name: no more than [`CLIENTS_TOLD`].
    pub clients: Vec<ClientFigures>,
    /// The others.
    pub clients_untold: u64,
    /// What the shell counts.
    pub shell: ShellReading,
    /// What the log counts.
    pub log: LogReading,
    /// Number of the epoch.
    pub epoch: u32,
    /// Where the log stands.
    pub lsn: u64,
    /// Control connections.
    pub connections: u64,
    /// Control connections that were closed to make room.
    pub displaced: u64,
    /// Faults of peers.
    pub peer_faults: u64,
}

/// Clients with figures of their own, which a scrape has for each: those that have been here for longest.
pub const CLIENTS_TOLD: usize = 128;

/// One client.
#[derive(Debug, Clone, Default)]
pub struct ClientFigures {
    /// "host:port".
    pub name: String,
    /// Bytes that it lends.
    pub lent: u64,
    /// Bytes on that which views or hard pins keep.
    pub pinned: u64,
    /// Bytes of the objects that it stored, and that are still there.
    pub stored: u64,
    /// Bytes under its views.
    pub viewed: u64,
    /// Bytes in its unfinished puts.
    pub unfinished: u64,
    /// Objects that it looked up.
    pub gets: u64,
    /// Bytes of those that there were.
    pub got_bytes: u64,
    /// Objects that it stored.
    pub puts: u64,
    /// Bytes that it got room for.
    pub put_bytes: u64,
}

/// One tier.
#[derive(Debug, Clone, Default)]
pub struct TierReading {
    /// Owner and UUID.
    pub label: String,
    /// It can be read.
    pub live: bool,
    /// Bytes that its files may take.
    pub capacity: u64,
    /// Bytes of objects that it has.
    pub bytes: u64,
    /// Objects that it has.
    pub records: u64,
    /// Bytes that its owner may be asked to write at a time.
    pub window: u64,
    /// How often it would be filled in a day, as in the last hour.
    pub fills_per_day: f64,
    /// What its owner says of its disk, if it has the tier and says it.
    pub stats: Option<TierStats>,
}

impl TierReading {
    /// As of that time.
    pub fn of(tier: &TierView<'_>, now: Time) -> TierReading {
        TierReading {
            label: format!("{}/{}", tier.spec.name, tier.spec.uuid),
            live: tier.state == TierState::Live,
            capacity: tier.capacity,
            bytes: tier.bytes,
            records: tier.records,
            window: tier.window,
            fills_per_day: tier.fills_per_day(now),
            stats: tier.stats.copied(),
        }
    }
}

impl Reading {
    /// The Prometheus page.
    pub fn page(&self) -> String {
        let mut out = Page::text(&[]);
        self.tell(&mut out);
        out.finish()
    }

    fn tell(&self, out: &mut Page) {
        self.tell_pool(out);
        self.tell_cache(out);
        self.tell_puts(out);
        self.tell_evictions(out);
        self.tell_tiers(out);
        self.tell_requests(out);
        self.tell_latencies(out);
        self.tell_safety(out);
        self.tell_clients(out);
        self.tell_log(out);
        not_here::tell(out);
    }

    fn tell_pool(&self, out: &mut Page) {
        let s = &self.stats;
        out.section("The pool");
        out.labelled(Kind::Gauge, "mooncake_master_info", "version", "1, with the version", [(VERSION, 1)]);
        out.gauge("master_allocated_bytes", "bytes taken in all live segments", s.used_bytes);
        out.gauge("master_total_capacity_bytes", "bytes of all live segments", s.capacity_bytes);
        out.gauge("master_key_count", "objects that can be read now", s.keys);
        out.gauge("mem_cache_nums_", "objects with a copy in memory", s.memory_objects);
        let used = self.segments.iter().map(|(name, used, _)| (name.as_str(), *used));
        out.labelled(Kind::Gauge, "segment_allocated_bytes", "segment", "bytes taken in a live segment", used);
        let bytes = self.segments.iter().map(|(name, _, bytes)| (name.as_str(), *bytes));
        out.labelled(Kind::Gauge, "segment_total_capacity_bytes", "segment", "bytes of a live segment", bytes);
        out.gauge("mooncake_segments_live", "segments that can be read", s.segments_live);
        out.gauge(
            "mooncake_segments_hidden",
            "segments whose owner is away: not read, nothing forgotten",
            s.segments_hidden,
        );
        out.counter("mooncake_segments_mounted_total", "segments that were mounted", s.counters.segments_mounted);
        out.counter("mooncake_segments_gone_total", "segments that left for good", s.counters.segments_gone);
        out.counter(
            "mooncake_segments_cut_total",
            "segments whose owner could not get all the memory that it announced",
            s.counters.segments_cut,
        );
        out.gauge("master_soft_pin_key_count", "soft-pinned objects", s.soft_pinned_objects);
        out.gauge("mooncake_hard_pinned_objects", "hard-pinned objects", s.hard_pinned_objects);
        out.counter("mooncake_removed_objects_total", "objects removed by request", s.counters.removed_objects);
        out.counter(
            "mooncake_cleared_objects_total",
            "objects of which copies were dropped by request (batch_replica_clear)",
            s.counters.cleared_objects,
        );
    }

    fn tell_cache(&self, out: &mut Page) {
        let s = &self.stats;
        out.section("Hits");
        out.counter("total_get_nums_", "keys looked up by gets", s.counters.lookup_keys);
        out.counter("valid_get_nums_", "keys looked up by gets, and found", s.counters.lookup_hits);
        let in_memory = s.counters.lookup_hits - s.counters.tier_hits;
        out.counter("mem_cache_hit_nums_", "keys looked up by gets, and found in memory", in_memory);
        out.counter(
            "mem_cache_hit_bytes_total",
            "bytes of the objects that gets looked up and found in memory",
            self.shell.hit_bytes.saturating_sub(s.counters.tier_hit_bytes),
        );
        out.counter("file_cache_hit_nums_", "keys looked up by gets, and found on a tier alone", s.counters.tier_hits);
        let help = "bytes of the objects that gets looked up and found on a tier alone";
        out.counter("file_cache_hit_bytes_total", help, s.counters.tier_hit_bytes);
        let ratio = (s.counters.lookup_keys > 0).then(|| in_memory as f64 / s.counters.lookup_keys as f64);
        let help = "keys found in memory by keys looked up, 0 to 1, since the start; no value before the first get";
        out.gauge_if("mooncake_memory_hit_ratio", help, ratio);
        out.counter("mooncake_exists_keys_total", "keys of existence queries", s.counters.exists_keys);
        out.counter("mooncake_exists_hits_total", "keys of existence queries, and found", s.counters.exists_hits);
    }

    fn tell_puts(&self, out: &mut Page) {
        let s = &self.stats;
        out.section("Puts");
        out.histogram("master_value_size_bytes", "sizes of the objects that got room", &self.shell.value_sizes);
        out.counter("mooncake_put_keys_total", "keys of puts that were answered", s.counters.put_keys);
        out.counter("mooncake_put_placed_total", "keys of puts that got room", s.counters.put_placed);
        out.counter("mooncake_put_exists_total", "keys of puts that were there already", s.counters.put_exists);
        let help = "keys that were there already, of requests for one key each";
        out.counter("master_put_start_object_already_exists_total", help, self.shell.existing);
        let help = "keys that were there already, of requests for several keys";
        out.counter("master_batch_put_start_object_already_exists_total", help, self.shell.existing_of_batches);
        out.counter("mooncake_put_busy_total", "keys of puts with another put under way", s.counters.put_busy);
        out.counter("mooncake_put_full_total", "keys of puts that found no room", s.counters.put_full);
        out.counter("mooncake_put_too_large_total", "keys of puts that can never fit", s.counters.put_too_large);
        out.counter(
            "mooncake_put_refused_total",
            "keys of puts refused for their size or a cap",
            s.counters.put_refused,
        );
        out.counter(
            "master_put_start_alloc_failures_total",
            "keys that found no room, or that can never fit",
            s.counters.put_full + s.counters.put_too_large,
        );
        out.counter(
            "master_put_start_partial_allocations_total",
            "keys that got fewer replicas than asked for",
            self.shell.partial_allocations,
        );
        out.counter("mooncake_puts_committed_total", "puts that became objects", s.counters.puts_committed);
        out.counter(
            "mooncake_puts_revoked_total",
            "puts given up by their writer, or without a good replica",
            s.counters.puts_aborted,
        );
        out.gauge("mooncake_unfinished_puts", "puts under way", s.unfinished_puts);
        out.gauge("mooncake_parked_puts", "requests that wait for room or for another put", s.tickets);
    }

    fn tell_each_tier(&self, out: &mut Page) {
        type Figure = fn(&TierReading) -> u64;
        let figures: [(&str, &str, Figure); 5] = [
            (
                "state",
                "2: it can be read; 1: its owner is away or has just come back, or its disk does not answer",
                |tier| 1 + u64::from(tier.live),
            ),
            ("capacity_bytes", "bytes that its files may take", |tier| tier.capacity),
            ("live_bytes", "bytes of objects that it has", |tier| tier.bytes),
            ("objects", "objects that it has", |tier| tier.records),
            ("window_bytes", "bytes that its owner may be asked to write at a time; 0: it is not written", |tier| {
                tier.window
            }),
        ];
        for (name, help, value) in figures {
            let values = self.tiers.iter().map(|tier| (tier.label.as_str(), value(tier)));
            out.labelled(Kind::Gauge, &format!("mooncake_tier_{name}"), "tier", help, values);
        }
        let help = "how often it would be filled in a day, as in the last hour";
        let fills = self.tiers.iter().map(|tier| (tier.label.as_str(), tier.fills_per_day));
        out.labelled(Kind::Gauge, "mooncake_tier_fills_per_day", "tier", help, fills);
    }

    /// From tiers to memory.
    fn tell_promotions(&self, out: &mut Page) {
        let counters = &self.stats.counters;
        out.gauge("master_promotion_in_flight", "copies from tiers to memory under way", self.stats.promotions);
        let figures = [
            ("admitted_total", "copies from tiers to memory that began", counters.promotions_begun),
            ("completed_total", "copies from tiers to memory that ended well", counters.promotions_done),
            ("completed_bytes_total", "bytes copied from tiers to memory", counters.promoted_bytes),
            ("failed_total", "copies from tiers to memory that failed", counters.promotions_failed),
            ("cancelled_total", "copies whose object had left when they were through", counters.promotions_cancelled),
            ("expired_total", "copies that their owners did not answer in time", counters.promotions_expired),
            (
                "rejected_frequency_total",
                "gets of objects that had been read too rarely to be copied to memory",
                counters.promotions_rarely_read,
            ),
            (
                "rejected_watermark_total",
                "objects not copied to memory for want of room",
                counters.promotions_without_room,
            ),
            ("rejected_cap_total", "objects not copied as too many were waiting", counters.promotions_too_many),
        ];
        for (name, help, value) in figures {
            out.counter(&format!("master_promotion_{name}"), help, value);
        }
    }

    fn tell_tiers(&self, out: &mut Page) {
        let (s, counters) = (&self.stats, &self.stats.counters);
        out.section("Tiers");
        out.gauge("mooncake_tiers_live", "tiers that can be read", s.tiers_live);
        out.gauge(
            "mooncake_tiers_adopted",
            "of these, folders of earlier processes beside a store's own",
            s.tiers_adopted,
        );
        out.gauge("mooncake_tiers_hidden", "tiers whose owner is away: not read, nothing forgotten", s.tiers_hidden);
        let refusing =
            "live tiers that are not written: their disk fails or does not answer, or they are full for good";
        out.gauge("mooncake_tiers_refusing", refusing, s.tiers_refusing);
        out.gauge("master_total_file_capacity_bytes", "bytes that live tiers may take", s.tier_capacity_bytes);
        out.gauge("master_allocated_file_size_bytes", "bytes of objects on live tiers", s.tier_bytes);
        out.gauge("file_cache_nums_", "objects on live tiers, in memory too or not", s.tier_objects);
        out.gauge("mooncake_tier_ordered_bytes", "bytes that are to be written to tiers now", s.tier_ordered_bytes);
        let age = "how long the oldest order has waited for its owner's answer; 0 without one";
        out.gauge("mooncake_tier_order_age_seconds", age, self.tier_order_age_us as f64 / 1e6);
        let unwritten = "bytes in memory with a tier near it of objects that no tier has: lost if that memory goes now";
        out.gauge("mooncake_tier_unwritten_bytes", unwritten, s.tier_unwritten_bytes);
        out.counter("mooncake_tier_orders_total", "objects that owners were asked to write", counters.tier_orders);
        out.labelled(
            Kind::Counter,
            "mooncake_tier_orders_refused_total",
            "why",
            "objects not written: the tier has as many as it may have, or what is left of --tier_writes_per_day is for \
             those that were read",
            [("keys_limit", counters.tier_orders_refused), ("writes_per_day", counters.tier_orders_spared)],
        );
        out.counter(
            "mooncake_tier_orders_expired_total",
            "orders that their owners did not answer within 30 s",
            counters.tier_orders_expired,
        );
        out.counter(
            "mooncake_tier_written_objects_total",
            "objects that came to a tier",
            counters.tier_written_objects,
        );
        out.counter(
            "mooncake_tier_written_bytes_total",
            "bytes of objects that came to a tier",
            counters.tier_written_bytes,
        );
        out.counter(
            "mooncake_tier_dropped_objects_total",
            "objects that left a tier as the file that they were in was given up",
            counters.tier_dropped_objects,
        );
        out.counter(
            "mooncake_tier_dropped_bytes_total",
            "bytes of objects that left a tier with their file",
            counters.tier_dropped_bytes,
        );
        self.tell_each_tier(out);
        super::tiers::tell_disks(&self.tiers, out);
        self.tell_promotions(out);
        out.counter(
            "mooncake_evicted_clean_objects_total",
            "objects evicted from memory that a tier has",
            counters.evicted_clean_objects,
        );
        out.counter(
            "mooncake_evicted_unwritten_objects_total",
            "objects evicted before a tier had them, though there was one",
            counters.evicted_unwritten_objects,
        );
        out.counter(
            "mooncake_evicted_unwritten_bytes_total",
            "bytes of objects evicted before a tier had them",
            counters.evicted_unwritten_bytes,
        );
    }

    fn tell_evictions(&self, out: &mut Page) {
        let s = &self.stats;
        out.section("Eviction");
        for (tries, successes, of) in [
            ("master_attempted_evictions_total", "master_successful_evictions_total", ""),
            ("master_attempted_evictions_mem", "master_successful_evictions_mem", MEMORY),
        ] {
            out.counter(tries, &format!("times that a put had to evict for room{of}"), s.counters.evictions_attempted);
            out.counter(
                successes,
                &format!("times that a put evicted and got room{of}"),
                s.counters.evictions_successful,
            );
        }
        for (keys, bytes, of) in [
            ("master_evicted_key_count", "master_evicted_size_bytes", ""),
            ("master_evicted_key_count_mem", "master_evicted_size_bytes_mem", MEMORY),
        ] {
            out.counter(keys, &format!("objects evicted{of}"), s.counters.evicted_objects);
            out.counter(bytes, &format!("bytes of the replicas of evicted objects{of}"), s.counters.evicted_bytes);
        }
    }

    fn tell_requests(&self, out: &mut Page) {
        out.section("Requests");
        for (op, read) in Op::ALL.into_iter().zip(&self.shell.ops) {
            let name = op.metric_name();
            let mut tell = |what: &str, help: &str, value| out.counter(&format!("master_{what}_total"), help, value);
            let purpose = op.purpose();
            let one = if op.has_batches() { ", one key each" } else { "" };
            if op.has_singles() {
                tell(&format!("{name}_requests"), &format!("requests to {purpose}{one}"), read.requests);
                tell(&format!("{name}_failures"), &format!("failed requests to {purpose}{one}"), read.failures);
            }
            if op.has_batches() {
                let mut batch = |what: &str, help: &str, value| {
                    tell(&format!("batch_{name}_{what}"), &format!("{help} to {purpose}"), value);
                };
                batch("requests", "requests for several keys", read.batch_requests);
                batch("failures", "requests for several keys, all of which failed,", read.batch_failures);
                batch("partial_successes", "requests for several keys, some of which failed,", read.batch_partial);
                batch("items", "keys in requests for several keys", read.batch_items);
                batch("failed_items", "failed keys in requests for several keys", read.batch_failed_items);
            }
        }
        out.gauge("mooncake_connections", "control connections", self.connections);
        out.counter(
            "mooncake_connections_displaced_total",
            "connections closed to make room: for calls, while they rested, or before their hello",
            self.displaced,
        );
    }

    fn tell_latencies(&self, out: &mut Page) {
        out.section("Latencies");
        let timed = RequestKind::ALL.iter().map(|timed| timed.name()).zip(&self.shell.latencies);
        out.histograms(
            "mooncake_request_duration_seconds",
            "op",
            "from a whole request to its encoded answer, the log's append included; `put_start_waiting` may wait for \
             room",
            timed,
        );
        out.histogram(
            "mooncake_log_append_duration_seconds",
            "one write of the log, of one or more operations",
            &self.log.append,
        );
        out.histogram(
            "mooncake_log_fsync_duration_seconds",
            "one wait for the disk, with `--wal=fsync` or at a raise of the epoch",
            &self.log.fsync,
        );
        out.histogram("master_snapshot_duration_ms", "milliseconds of one snapshot of the log", &self.log.snapshot);
    }

    #[expect(clippy::too_many_lines, reason = "one call for each metric")]
    fn tell_safety(&self, out: &mut Page) {
        let s = &self.stats;
        out.section("Safety: what holds space");
        out.gauge("mooncake_pins", "readers' views", s.pins);
        out.gauge("mooncake_pinned_bytes", "bytes under readers' views or hard pins", s.pinned_bytes);
        out.counter("mooncake_pins_taken_total", "views taken", s.counters.pins_taken);
        out.gauge("mooncake_unfinished_bytes", "bytes of puts under way", s.unfinished_bytes);
        out.gauge("mooncake_replaced_bytes", "bytes of values that puts under way replace", s.replaced_bytes);
        out.gauge(
            "mooncake_quarantined_bytes",
            "bytes whose owner has yet to prove that nobody writes there",
            s.quarantined_bytes,
        );
        out.gauge(
            "master_put_start_discarded_staging_size",
            "bytes in quarantine, under Mooncake's name",
            s.quarantined_bytes,
        );
        out.gauge(
            "mooncake_quarantined_extents",
            "regions whose owner has yet to prove that nobody writes there",
            s.quarantined_extents,
        );
        out.gauge(
            "mooncake_quarantine_age_seconds",
            "how long the oldest region in quarantine has waited for proof; 0 without one",
            self.quarantine_age_us as f64 / 1e6,
        );
        out.gauge(
            "mooncake_protected_objects",
            "objects that an existence query found a moment ago",
            s.protected_objects,
        );

        out.section("Safety: what happened");
        out.counter("mooncake_fences_asked_total", "fences that owners were asked for", s.counters.fences_asked);
        out.counter(
            "mooncake_fences_done_total",
            "regions that came back from quarantine with proof",
            s.counters.fences_done,
        );
        out.counter(
            "master_put_start_release_cnt",
            "regions that came back from quarantine, under Mooncake's name",
            s.counters.fences_done,
        );
        out.counter("mooncake_puts_expired_total", "unfinished puts that met their deadline", s.counters.puts_expired);
        out.counter(
            "master_put_start_discard_cnt",
            "unfinished puts that met their deadline, under Mooncake's name",
            s.counters.puts_expired,
        );
        out.counter(
            "mooncake_puts_superseded_total",
            "ends of puts that were no more: refused",
            s.counters.puts_superseded,
        );
        out.counter(
            "mooncake_stale_messages_total",
            "client messages ignored because their object or session no longer exists, or is another client's",
            s.counters.stale_messages,
        );
        out.counter(
            "mooncake_replies_repeated_total",
            "mutations that came again and changed nothing",
            s.counters.replies_repeated,
        );
        out.counter(
            "mooncake_large_requests_total",
            "requests of more than 512 keys from older clients: others wait longer for each",
            s.counters.large_requests,
        );
        out.counter(
            "mooncake_bad_replica_reports_total",
            "replicas that readers found bad",
            s.counters.replicas_reported,
        );
        out.counter(
            "mooncake_bad_replicas_total",
            "replicas that readers found bad, and their owner too: dropped",
            s.counters.replicas_bad,
        );
        out.counter(
            "mooncake_good_replicas_reported_total",
            "replicas that readers found bad, and their owner good: kept",
            s.counters.replicas_cleared,
        );
        out.counter(
            "mooncake_lookup_then_miss_total",
            "objects said to exist, evicted, and missed a moment later",
            s.counters.lookup_then_miss,
        );
        out.counter(
            "mooncake_protection_broken_total",
            "objects looked up a moment ago, and evicted for want of others",
            s.counters.protection_broken,
        );
        out.gauge(
            "mooncake_epoch",
            "epoch: raised whenever a master cannot prove that its log is complete; placements \
            of older epochs take no writes",
            self.epoch,
        );
        out.counter(
            "mooncake_epoch_raises_total",
            "times that the epoch was raised in this run",
            s.counters.epoch_raises,
        );
        out.gauge(
            "mooncake_segments_closed",
            "live segments that take nothing until their owner obeys the epoch",
            s.segments_closed,
        );
        let refusals = REFUSALS.into_iter().zip(self.shell.refusals.iter().copied());
        out.labelled(
            Kind::Counter,
            "mooncake_refusals_total",
            "kind",
            "hellos and requests refused as a whole",
            refusals,
        );
        out.counter(
            "mooncake_peer_faults_total",
            "connections refused or cut for what the peer sent, did not send, or for their number",
            self.peer_faults,
        );
    }

    fn tell_clients(&self, out: &mut Page) {
        let s = &self.stats;
        out.section("Clients");
        out.gauge("master_active_clients", "clients that are here", s.sessions.saturating_sub(s.sessions_away));
        out.gauge("mooncake_sessions", "clients, here or away", s.sessions);
        out.gauge("mooncake_sessions_away", "clients that are not heard at the moment", s.sessions_away);
        out.gauge(
            "mooncake_sessions_bereft",
            "clients whose process has ended and whose memory waits for the next one",
            s.sessions_bereft,
        );
        out.counter("mooncake_sessions_opened_total", "clients that came", s.counters.sessions_opened);
        out.counter("mooncake_sessions_resumed_total", "clients that came back", s.counters.sessions_resumed);
        out.counter("mooncake_sessions_lost_total", "times that a client went away", s.counters.sessions_lost);
        out.counter(
            "mooncake_sessions_closed_total",
            "clients that closed, or left before they did anything",
            s.counters.sessions_closed,
        );
        out.counter("mooncake_sessions_died_total", "clients whose process was proven gone", s.counters.sessions_died);
        out.counter(
            "mooncake_sessions_expired_total",
            "clients that were away for too long",
            s.counters.sessions_expired,
        );
        self.tell_each_client(out);
    }

    fn tell_each_client(&self, out: &mut Page) {
        type Figure = fn(&ClientFigures) -> u64;
        let figures: [(Kind, &str, &str, Figure); 9] = [
            (Kind::Gauge, "mooncake_client_lent_bytes", "bytes that a client lends to the pool", |it| it.lent),
            (
                Kind::Gauge,
                "mooncake_client_pinned_bytes",
                "bytes that views or hard pins keep on what a client lends",
                |it| it.pinned,
            ),
            (
                Kind::Gauge,
                "mooncake_client_stored_bytes",
                "bytes of the objects that a client stored and that are still there; those of a snapshot that was read \
                 count for nobody",
                |it| it.stored,
            ),
            (Kind::Gauge, "mooncake_client_viewed_bytes", "bytes that a client's views keep in memory", |it| it.viewed),
            (Kind::Gauge, "mooncake_client_unfinished_bytes", "bytes in a client's unfinished puts", |it| {
                it.unfinished
            }),
            (Kind::Counter, "mooncake_client_gets_total", "objects that a client looked up", |it| it.gets),
            (Kind::Counter, "mooncake_client_got_bytes_total", "bytes of the objects that a client found", |it| {
                it.got_bytes
            }),
            (Kind::Counter, "mooncake_client_puts_total", "objects that a client stored", |it| it.puts),
            (Kind::Counter, "mooncake_client_put_bytes_total", "bytes that a client got room for", |it| it.put_bytes),
        ];
        for (kind, name, help, figure) in figures {
            let values = self.clients.iter().map(|client| (client.name.as_str(), figure(client)));
            out.labelled(kind, name, "client", help, values);
        }
        out.gauge(
            "mooncake_clients_untold",
            "clients without figures of their own: 128 have some, one of each name; /get_clients has all",
            self.clients_untold,
        );
    }

    fn tell_log(&self, out: &mut Page) {
        let LogStats { enabled, lost, bytes, frames, writes, snapshots, snapshots_failed } = self.log.stats;
        out.section("The log");
        out.gauge("mooncake_log_enabled", "1: changes are logged", u8::from(enabled));
        out.gauge(
            "mooncake_log_lost",
            "1: the log broke in this run and was renamed away; POST /api/v1/start_log begins a new one",
            u8::from(lost),
        );
        out.gauge("mooncake_log_position", "number of the log's last operation (LSN)", self.lsn);
        out.gauge("mooncake_log_bytes", "bytes behind the last snapshot", bytes);
        out.counter("mooncake_log_frames_total", "operations logged", frames);
        out.counter(
            "mooncake_log_writes_total",
            "writes of the log: fewer than operations, as those that wait go together",
            writes,
        );
        out.gauge(
            "mooncake_log_torn_bytes",
            "bytes of an unfinished write that the last start cut off",
            self.log.torn_bytes,
        );
        out.gauge(
            "mooncake_log_replay_seconds",
            "how long the last start took to read the log",
            self.log.replay.as_secs_f64(),
        );
        out.counter("master_snapshot_success", "snapshots of the log that were written", snapshots);
        out.counter("master_snapshot_fail", "snapshots of the log that failed, and are tried again", snapshots_failed);
    }
}

/// Names of Mooncake that tell memory apart from what else may hold objects there.
const MEMORY: &str = ", from memory: all of them";
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(test)]
mod tests {
    use mooncake_core::Counters;

    use super::*;

    #[test]
    fn every_name_is_told_once_with_its_help_and_says_its_unit() {
        let mut names: Vec<String> = Vec::new();
        let page = reference_page();
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let name = row.split('`').nth(1).unwrap().split('{').next().unwrap();
            assert!(!names.iter().any(|other| other == name), "{name} is there twice");
            assert!(row.split('|').nth(3).is_some_and(|help| help.trim().len() > 3), "{row}");
            names.push(name.to_owned());
            let counter = row.split('|').nth(2).unwrap().trim() == "counter";
            if name.starts_with("mooncake_") {
                assert_eq!(counter, name.ends_with("_total"), "{name}");
            }
        }
        assert!(names.len() > 100, "{}", names.len());
    }

    #[test]
    fn no_two_metrics_say_the_same() {
        let page = reference_page();
        let mut said: Vec<(&str, &str)> = Vec::new();
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let (name, help) = (row.split('|').nth(1).unwrap(), row.split('|').nth(3).unwrap());
            let other = said.iter().find(|(_, other)| *other == help);
            assert!(other.is_none(), "{name} and {other:?}: {help}");
            said.push((name, help));
        }
    }

    #[test]
    fn the_text_has_what_the_page_has() {
        let listed = reference_page();
        let mut text = Page::text(&[]);
        let reading = Reading {
            stats: Stats {
                counters: Counters { lookup_keys: 4, lookup_hits: 3, ..Counters::default() },
                ..Stats::default()
            },
            quarantine_age_us: 1_500_000,
            tier_order_age_us: 2_500_000,
            segments: vec![("a:1".to_owned(), 3, 8)],
            tiers: vec![TierReading {
                label: "a:1/07".to_owned(),
                live: true,
                fills_per_day: 1.25,
                ..Default::default()
            }],
            clients: vec![ClientFigures { name: "a:1".to_owned(), lent: 8, gets: 5, ..Default::default() }],
            clients_untold: 3,
            shell: Metrics::default().read(),
            log: LogReading::default(),
            epoch: 2,
            lsn: 9,
            connections: 1,
            displaced: 0,
            peer_faults: 0,
        };
        reading.tell(&mut text);
        let text = text.finish();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap();
            assert!(listed.contains(&format!("| `{name}")), "{name} is not on the page");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        }
        for line in [
            "mooncake_memory_hit_ratio 0.75",
            "mooncake_quarantine_age_seconds 1.5",
            "segment_allocated_bytes{segment=\"a:1\"} 3",
            "mooncake_tier_state{tier=\"a:1/07\"} 2",
            "mooncake_tier_fills_per_day{tier=\"a:1/07\"} 1.25",
            "mooncake_tier_order_age_seconds 2.5",
            "mooncake_client_lent_bytes{client=\"a:1\"} 8",
            "mooncake_client_gets_total{client=\"a:1\"} 5",
            "mooncake_clients_untold 3",
            "mooncake_request_duration_seconds_bucket{op=\"exists\",le=\"0.000001\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
