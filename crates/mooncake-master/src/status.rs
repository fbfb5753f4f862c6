//! Everything that pages and commands show of a pool, in one reading: `GET /status`.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mooncake_core::{ClientView, Stats, TierState};
use mooncake_http::Problem;
use mooncake_ids::SessionId;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::Level;

use crate::events::Line;
use crate::history::{Columns, Latencies, PutFailures, Rates, Sample, Totals};
use crate::machine::segment_list;
use crate::problems::{Found, problems};
use crate::reading::{ClientReading, clients};
use crate::shared::Shared;

/// A pool, as it is now.
#[derive(Debug, Serialize)]
pub struct Status {
    version: &'static str,
    cluster_id: String,
    /// Random, of this process.
    instance: String,
    state: &'static str,
    host: String,
    pid: u32,
    rpc_address: String,
    http_address: String,
    time_ms: u64,
    uptime_seconds: f64,
    problems: Vec<Problem>,
    memory: Value,
    tiers: Value,
    totals: Totals,
    rates: Rates,
    latency_us: Latencies,
    history: Columns,
    put_failures: PutFailures,
    clients: Vec<ClientStatus>,
    log: Value,
    epoch: u32,
    events: Vec<Told>,
}

/// A line of the log.
#[derive(Debug, Serialize)]
struct Told {
    time_ms: u64,
    severity: &'static str,
    message: String,
}

/// A client. What it said of itself is not proven.
#[derive(Debug, Serialize)]
pub struct ClientStatus {
    client_id: String,
    name: String,
    host: String,
    user: String,
    pod: String,
    program: String,
    pid: u32,
    software: String,
    state: &'static str,
    away_seconds: Option<f64>,
    paths: Vec<&'static str>,
    segments: usize,
    lent_bytes: u64,
    used_bytes: u64,
    pinned_bytes: u64,
    quarantined_bytes: u64,
    tiers: usize,
    tier_capacity_bytes: u64,
    tier_used_bytes: u64,
    stored_objects: u64,
    stored_bytes: u64,
    viewed_bytes: u64,
    unfinished_bytes: u64,
    gets: u64,
    hits: u64,
    got_bytes: u64,
    puts: u64,
    put_bytes: u64,
    exists: u64,
    gets_per_second: f64,
    got_bytes_per_second: f64,
    puts_per_second: f64,
    put_bytes_per_second: f64,
    exists_per_second: f64,
}

/// What a client's segments and tiers add to what the books have under its name.
#[derive(Debug, Default)]
struct Lends {
    quarantined: u64,
    is_closed: bool,
    by_tcp: bool,
    by_memory: bool,
    tiers: usize,
    tier_capacity: u64,
    tier_used: u64,
}

/// Reads it.
pub fn read(shared: &Shared) -> Status {
    let now = Instant::now();
    let stats = shared.read(|core, _| core.stats());
    let log = shared.log.read();
    let sample = Sample::of(&stats, &shared.metrics.read(), &log, now);
    let (rates, latency_us, history, put_failures) = {
        let history = shared.history.lock();
        let (rates, latencies) = history.recent(&sample);
        (rates, latencies, history.columns(), history.put_failures(&sample))
    };
    let clients = clients(shared);
    let is_log_closed = shared.log.is_closed();
    let problems = problems(&Found {
        stats: &stats,
        clients: &clients,
        rates: &rates,
        latencies: &latency_us,
        is_log_lost: shared.log.is_lost(),
        is_log_closed,
    });
    let told = &shared.identity.told;
    Status {
        version: env!("CARGO_PKG_VERSION"),
        cluster_id: told.cluster_id.clone(),
        instance: mooncake_os::hex(&told.instance),
        state: if is_log_closed { "stopping" } else { "serving" },
        host: mooncake_os::AboutProcess::this().host.clone(),
        pid: std::process::id(),
        rpc_address: shared.identity.rpc_address.clone(),
        http_address: told.pages.clone(),
        time_ms: milliseconds(SystemTime::now()),
        uptime_seconds: shared.uptime().as_secs_f64(),
        problems,
        memory: memory(&stats),
        tiers: tiers(&stats),
        totals: sample.totals,
        rates,
        latency_us,
        history,
        put_failures,
        clients: clients_of(shared, &clients),
        log: json!({
            "state": match (log.stats.enabled, log.stats.lost) {
                (true, _) => "on",
                (false, true) => "lost",
                (false, false) => "off",
            },
            "lsn": shared.log.lsn(),
            "bytes": log.stats.bytes,
            "snapshots": log.stats.snapshots,
        }),
        epoch: shared.log.epoch().number.into(),
        events: shared.identity.events.lines().into_iter().map(told_line).collect(),
    }
}

/// What is told of clients.
pub fn clients_of(shared: &Shared, clients: &[ClientReading]) -> Vec<ClientStatus> {
    let (lends, now) = (lends(shared), Instant::now());
    clients.iter().map(|client| told_of(client, &lends, now)).collect()
}

/// What there is to say of a master that has yet to read its log.
pub fn starting(since: Duration) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "state": "recovering",
        "time_ms": milliseconds(SystemTime::now()),
        "uptime_seconds": since.as_secs_f64(),
        "problems": [],
    })
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn memory(stats: &Stats) -> Value {
    json!({
        "capacity_bytes": stats.capacity_bytes,
        "used_bytes": stats.used_bytes,
        "pinned_bytes": stats.pinned_bytes,
        "unfinished_bytes": stats.unfinished_bytes,
        "quarantined_bytes": stats.quarantined_bytes,
        "objects": stats.keys,
        "memory_objects": stats.memory_objects,
        "protected_objects": stats.protected_objects,
        "soft_pinned_objects": stats.soft_pinned_objects,
        "hard_pinned_objects": stats.hard_pinned_objects,
        "views": stats.pins,
        "parked_puts": stats.tickets,
    })
}

fn tiers(stats: &Stats) -> Value {
    json!({
        "live": stats.tiers_live,
        "hidden": stats.tiers_hidden,
        "read_only": stats.tiers_refusing,
        "capacity_bytes": stats.tier_capacity_bytes,
        "used_bytes": stats.tier_bytes,
        "objects": stats.tier_objects,
        "ordered_bytes": stats.tier_ordered_bytes,
        "unwritten_bytes": stats.tier_unwritten_bytes,
    })
}

fn lends(shared: &Shared) -> HashMap<SessionId, Lends> {
    let mut all: HashMap<SessionId, Lends> = HashMap::new();
    for segment in segment_list::list(shared) {
        let endpoint = segment.endpoint();
        let of = all.entry(segment.session).or_default();
        of.quarantined += segment.quarantined;
        of.is_closed |= segment.is_live() && !segment.open;
        of.by_tcp |= !endpoint.tcp.is_empty();
        of.by_memory |= !endpoint.unix_socket.is_empty();
    }
    shared.read(|core, _| {
        for tier in core.tiers().filter(|tier| tier.state != TierState::Hidden) {
            let of = all.entry(tier.session).or_default();
            of.tiers += 1;
            // What is adopted, or left, has room of the tiers beside it.
            of.tier_capacity += if tier.is_adopted || tier.is_left { 0 } else { tier.capacity };
            of.tier_used += tier.bytes;
        }
    });
    all
}

fn told_of(client: &ClientReading, lends: &HashMap<SessionId, Lends>, now: Instant) -> ClientStatus {
    let ClientReading { view, seen } = client;
    let (about, usage, rates) = (seen.about(), seen.usage(), seen.rates(now));
    let nothing = Lends::default();
    let lends = lends.get(&view.session).unwrap_or(&nothing);
    let paths = [(lends.by_tcp, "tcp"), (lends.by_memory, "shm")];
    ClientStatus {
        client_id: view.session.0.to_string(),
        name: view.name.clone(),
        host: about.host,
        user: about.user,
        pod: about.pod,
        program: about.program,
        pid: about.pid,
        software: about.software,
        state: match view {
            ClientView { is_bereft: true, .. } => "waits_for_heir",
            ClientView { away_us: Some(_), .. } => "away",
            _ if lends.is_closed => "closed",
            _ => "ok",
        },
        away_seconds: view.away_us.map(|away_us| away_us as f64 / 1e6),
        paths: paths.into_iter().filter_map(|(is_one, name)| is_one.then_some(name)).collect(),
        segments: view.segments,
        lent_bytes: view.lent,
        used_bytes: view.used,
        pinned_bytes: view.pinned,
        quarantined_bytes: lends.quarantined,
        tiers: lends.tiers,
        tier_capacity_bytes: lends.tier_capacity,
        tier_used_bytes: lends.tier_used,
        stored_objects: view.stored_objects,
        stored_bytes: view.stored,
        viewed_bytes: view.viewed,
        unfinished_bytes: view.unfinished,
        gets: usage.gets,
        hits: usage.hits,
        got_bytes: usage.got_bytes,
        puts: usage.puts,
        put_bytes: usage.put_bytes,
        exists: usage.exists,
        gets_per_second: rates.gets,
        got_bytes_per_second: rates.got_bytes,
        puts_per_second: rates.puts,
        put_bytes_per_second: rates.put_bytes,
        exists_per_second: rates.exists,
    }
}

fn told_line(line: Line) -> Told {
    let severity = match line.level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        _ => "info",
    };
    Told { time_ms: milliseconds(line.at), severity, message: line.text }
}
