//! What a store counts: its calls with their bytes and times, and its requests to the master.
//!
//! A call costs two looks at the clock and three additions: no lock, no memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_metrics::{Distribution, Histogram, Kind, Page, Unit};
use mooncake_wire::RequestKind;

use crate::tier_metrics::{TierMetrics, TierReading};

/// Bounds of latencies, nanoseconds: Mooncake's.
const BOUNDS_NS: &[u64] = &[
    50_000,
    75_000,
    125_000,
    150_000,
    200_000,
    250_000,
    300_000,
    400_000,
    500_000,
    750_000,
    1_000_000,
    1_500_000,
    2_000_000,
    3_000_000,
    5_000_000,
    7_000_000,
    15_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    20_000_000_000,
];

/// Calls of a store that move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    BatchGet,
    GetInto,
    BatchGetInto,
    GetRanges,
    GetBuffer,
    BatchGetBuffer,
    Put,
    BatchPut,
    Upsert,
    BatchUpsert,
}

impl Operation {
    const ALL: [Operation; 11] = [
        Operation::Get,
        Operation::BatchGet,
        Operation::GetInto,
        Operation::BatchGetInto,
        Operation::GetRanges,
        Operation::GetBuffer,
        Operation::BatchGetBuffer,
        Operation::Put,
        Operation::BatchPut,
        Operation::Upsert,
        Operation::BatchUpsert,
    ];

    pub fn get(keys: usize) -> Operation {
        if keys == 1 { Operation::Get } else { Operation::BatchGet }
    }

    pub fn get_into(keys: usize) -> Operation {
        if keys == 1 { Operation::GetInto } else { Operation::BatchGetInto }
    }

    pub fn get_buffer(keys: usize) -> Operation {
        if keys == 1 { Operation::GetBuffer } else { Operation::BatchGetBuffer }
    }

    pub fn write(replace: bool, keys: usize) -> Operation {
        match (replace, keys) {
            (false, 1) => Operation::Put,
            (false, _) => Operation::BatchPut,
            (true, 1) => Operation::Upsert,
            (true, _) => Operation::BatchUpsert,
        }
    }

    /// In a label.
    fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::BatchGet => "batch_get",
            Operation::GetInto => "get_into",
            Operation::BatchGetInto => "batch_get_into",
            Operation::GetRanges => "get_into_ranges",
            Operation::GetBuffer => "get_buffer",
            Operation::BatchGetBuffer => "batch_get_buffer",
            Operation::Put => "put",
            Operation::BatchPut => "batch_put",
            Operation::Upsert => "upsert",
            Operation::BatchUpsert => "batch_upsert",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Operation::Put | Operation::BatchPut | Operation::Upsert | Operation::BatchUpsert)
    }

    fn is_batch(self) -> bool {
        use Operation::{BatchGet, BatchGetBuffer, BatchGetInto, BatchPut, BatchUpsert, GetRanges};
        matches!(self, BatchGet | BatchGetInto | GetRanges | BatchGetBuffer | BatchPut | BatchUpsert)
    }
}

/// Counters of one store.
#[derive(Debug)]
pub(crate) struct Metrics {
    operations: [OperationCounters; Operation::ALL.len()],
    requests: [Histogram; RequestKind::ALL.len()],
    cluster_id: Option<String>,
    kept: KeptCounters,
    /// What it has to do with tiers, as their reader.
    pub tiers: TierMetrics,
}

/// Of memory that outlives its process.
#[derive(Debug, Default)]
struct KeptCounters {
    is_kept: AtomicU64,
    tenure: AtomicU64,
    awaiting: AtomicU64,
}

/// How it is with memory that outlives its process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// It is held, and the master waits for the next process.
    pub is_kept: bool,
    /// How manieth owner this process is; 0: it keeps none.
    pub tenure: u32,
    /// Segments that wait for processes that an earlier owner let in.
    pub awaiting: usize,
}

#[derive(Debug)]
struct OperationCounters {
    bytes: AtomicU64,
    latency: Histogram,
}

/// A call that is under way; it counts when it has ended.
#[derive(Debug)]
pub(crate) struct Timer<'m> {
    metrics: &'m Metrics,
    began: Instant,
}

impl Metrics {
    /// Nothing has happened. `cluster_id` is told with everything.
    pub fn new(cluster_id: Option<String>) -> Metrics {
        let latency = || Histogram::new(Unit::Microseconds, BOUNDS_NS);
        Metrics {
            operations: Operation::ALL.map(|_| OperationCounters { bytes: AtomicU64::new(0), latency: latency() }),
            requests: RequestKind::ALL.map(|_| latency()),
            cluster_id,
            kept: KeptCounters::default(),
            tiers: TierMetrics::default(),
        }
    }

    /// How it is with memory that outlives this process.
    pub fn keeps(&self, Kept { is_kept, tenure, awaiting }: Kept) {
        self.kept.is_kept.store(is_kept.into(), Ordering::Relaxed);
        self.kept.tenure.store(tenure.into(), Ordering::Relaxed);
        self.kept.awaiting.store(awaiting as u64, Ordering::Relaxed);
    }

    /// A call begins.
    pub fn begin(&self) -> Timer<'_> {
        Timer { metrics: self, began: Instant::now() }
    }

    /// A request to the master has ended, however.
    pub fn asked(&self, what: RequestKind, began: Instant) {
        self.requests[what as usize].since(began);
    }

    /// Everything at once.
    pub fn read(&self) -> Reading {
        Reading {
            operations: Operation::ALL.map(|operation| {
                let counters = &self.operations[operation as usize];
                (counters.bytes.load(Ordering::Relaxed), counters.latency.read())
            }),
            requests: RequestKind::ALL.map(|kind| self.requests[kind as usize].read()),
            kept: [&self.kept.is_kept, &self.kept.tenure, &self.kept.awaiting].map(|it| it.load(Ordering::Relaxed)),
            tiers: self.tiers.reading(),
        }
    }

    /// The Prometheus page.
    pub fn page(&self) -> String {
        let mut labels = vec![("client_mode", "real")];
        labels.extend(self.cluster_id.as_deref().map(|id| ("cluster_id", id)));
        let mut page = Page::text(&labels);
        self.read().tell(&mut page);
        page.finish()
    }
}

impl Timer<'_> {
    /// The call has ended, and moved so many bytes.
    pub fn moved(self, operation: Operation, bytes: u64) {
        let counters = &self.metrics.operations[operation as usize];
        counters.latency.since(self.began);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// One reading of [`Metrics`].
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// Bytes and times, by operation.
    operations: [(u64, Distribution); Operation::ALL.len()],
    requests: [Distribution; RequestKind::ALL.len()],
    kept: [u64; 3],
    tiers: TierReading,
}

impl Reading {
    fn of(&self, wanted: impl Fn(Operation) -> bool) -> impl Iterator<Item = (Operation, u64, &Distribution)> {
        let all = Operation::ALL.into_iter().zip(&self.operations);
        all.filter(move |(operation, _)| wanted(*operation))
            .map(|(operation, (bytes, latency))| (operation, *bytes, latency))
    }

    fn bytes(&self, writes: bool) -> u64 {
        self.of(|operation| operation.writes() == writes).map(|(_, bytes, _)| bytes).sum()
    }

    fn latency(&self, writes: bool, batch: bool) -> Distribution {
        let wanted = |operation: Operation| operation.writes() == writes && operation.is_batch() == batch;
        let mut whole = Distribution::nothing(Unit::Microseconds, BOUNDS_NS);
        self.of(wanted).for_each(|(_, _, latency)| whole.add(latency));
        whole
    }

    fn tell(&self, out: &mut Page) {
        // Tens of buckets for each call that was never made would be most of the page.
        let all_of_them = out.is_reference();
        let happened = |latency: &Distribution| all_of_them || latency.count() > 0;
        out.section("A client: bytes and calls");
        out.counter("mooncake_transfer_read_bytes", "bytes of objects that were read", self.bytes(false));
        out.counter("mooncake_transfer_write_bytes", "bytes of objects that were stored", self.bytes(true));
        for (name, help, writes, batch) in [
            ("mooncake_transfer_get_latency", "reads of one object, microseconds", false, false),
            ("mooncake_transfer_put_latency", "writes of one object, microseconds", true, false),
            ("mooncake_transfer_batch_get_latency", "reads of several objects, microseconds", false, true),
            ("mooncake_transfer_batch_put_latency", "writes of several objects, microseconds", true, true),
        ] {
            out.histogram(name, help, &self.latency(writes, batch));
        }
        out.section("A client: by operation");
        for (writes, names) in [(false, READ_NAMES), (true, WRITE_NAMES)] {
            let [count, bytes, latency] = names;
            let calls = if writes { "calls that store" } else { "calls that read" };
            let all = || self.of(move |operation| operation.writes() == writes);
            let counts = all().map(|(operation, _, latency)| (operation.name(), latency.count()));
            out.labelled(Kind::Counter, count, "operation", &format!("{calls}, succeeded or not"), counts);
            let moved = all().map(|(operation, bytes, _)| (operation.name(), bytes));
            out.labelled(Kind::Counter, bytes, "operation", &format!("bytes of objects moved by {calls}"), moved);
            let made = all().filter(|(_, _, latency)| happened(latency));
            let times = made.map(|(operation, _, latency)| (operation.name(), latency));
            out.histograms(latency, "operation", &format!("microseconds of {calls}"), times);
        }
        out.section("A client: requests to the master");
        let requests = || RequestKind::ALL.into_iter().zip(&self.requests).filter(|(kind, _)| kind.is_call());
        let counts = requests().map(|(kind, latency)| (kind.name(), latency.count()));
        out.labelled(
            Kind::Counter,
            "mooncake_client_rpc_count",
            "rpc_name",
            "requests to the master, answered or not",
            counts,
        );
        let made = requests().filter(|(_, latency)| happened(latency));
        let times = made.map(|(kind, latency)| (kind.name(), latency));
        let help = "from the call to its answer or failure, retries and waits included, microseconds";
        out.histograms("mooncake_client_rpc_latency", "rpc_name", help, times);
        self.tiers.tell(out);
        let [is_kept, tenure, awaiting] = self.kept;
        if tenure > 0 || all_of_them {
            out.section("A client whose memory outlives its process");
            out.gauge("mooncake_client_memory_kept", "1: it is held, and the master waits for the next one", is_kept);
            out.gauge("mooncake_client_memory_tenure", "how manieth process it is that has this memory", tenure);
            out.gauge(
                "mooncake_client_segments_awaiting_former_users",
                "segments that a process may still write, or look at, that an earlier one let in",
                awaiting,
            );
        }
    }

    /// One line for people; with `since`, an earlier reading and how long ago it was, rates of bytes too.
    pub fn summary(&self, since: Option<(&Reading, Duration)>) -> String {
        let mut parts = Vec::new();
        for (name, writes, batch) in
            [("Get", false, false), ("BatchGet", false, true), ("Put", true, false), ("BatchPut", true, true)]
        {
            parts.push(format!("{name}: {}", times(&self.latency(writes, batch))));
        }
        for (name, writes) in [("Read", false), ("Written", true)] {
            let bytes = self.bytes(writes);
            let rate = since.map(|(then, ago)| {
                let rate = (bytes - then.bytes(writes)) as f64 / ago.as_secs_f64().max(0.001);
                format!(" ({}/s)", mooncake_metrics::bytes(rate as u64))
            });
            parts.push(format!("{name}: {}{}", mooncake_metrics::bytes(bytes), rate.unwrap_or_default()));
        }
        let asked = RequestKind::ALL.into_iter().zip(&self.requests).filter(|(_, latency)| latency.count() > 0);
        let asked: Vec<String> = asked.map(|(kind, latency)| format!("{}={}", kind.name(), times(latency))).collect();
        parts.push(format!("RPC: {}", if asked.is_empty() { "none".to_owned() } else { asked.join(", ") }));
        parts.join(" | ")
    }
}

const READ_NAMES: [&str; 3] = [
    "mooncake_transfer_read_operation_count",
    "mooncake_transfer_read_operation_bytes",
    "mooncake_transfer_read_operation_latency",
];

const WRITE_NAMES: [&str; 3] = [
    "mooncake_transfer_write_operation_count",
    "mooncake_transfer_write_operation_bytes",
    "mooncake_transfer_write_operation_latency",
];

/// Number, median and 99th percentile, as bounds.
fn times(latency: &Distribution) -> String {
    let at_most = |share: f64| match latency.quantile(share) {
        Some(bound) => format!("<={} us", latency.unit.show(bound)),
        None => "more".to_owned(),
    };
    match latency.count() {
        0 => "0".to_owned(),
        count => format!("{count} (p50 {}, p99 {})", at_most(0.5), at_most(0.99)),
    }
}

/// The part of `docs/metrics.md` that is about clients.
pub fn reference_page() -> String {
    let mut page = Page::table();
    Metrics::new(None).read().tell(&mut page);
    format!(
        "\n# Metrics of clients\n\n\
         `/metrics` of `mooncake_client --enable_http_server` (port 9300), and of a store that was set up with \
         `enable_client_http_server`, under the names of Mooncake's client. Each has the label \
         `client_mode=\"real\"`, and `cluster_id` where `MC_STORE_CLUSTER_ID` is set. A batch of one counts as a \
         single call. Histograms with a label are left out until there is something to tell.\n{}",
        page.finish()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list_and_bounds_grow() {
        assert!(Operation::ALL.into_iter().enumerate().all(|(at, operation)| operation as usize == at));
        assert!(BOUNDS_NS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn no_two_metrics_say_the_same() {
        let page = reference_page();
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let mut said: Vec<&str> = rows.map(|row| row.split('|').nth(3).unwrap()).collect();
        said.sort_unstable();
        assert!(said.len() > 10 && said.windows(2).all(|two| two[0] != two[1]), "{said:?}");
    }

    #[test]
    fn a_call_counts_once_under_its_name_and_in_the_whole() {
        let metrics = Metrics::new(Some("blue".to_owned()));
        metrics.begin().moved(Operation::GetInto, 4096);
        metrics.begin().moved(Operation::Get, 4);
        metrics.begin().moved(Operation::BatchUpsert, 100);
        metrics.asked(RequestKind::Lookup, Instant::now());
        let page = metrics.page();
        let labels = "client_mode=\"real\",cluster_id=\"blue\"";
        for line in [
            format!("mooncake_transfer_read_bytes{{{labels}}} 4100"),
            format!("mooncake_transfer_write_bytes{{{labels}}} 100"),
            format!("mooncake_transfer_get_latency_count{{{labels}}} 2"),
            format!("mooncake_transfer_get_latency_bucket{{{labels},le=\"50\"}} 2"),
            format!("mooncake_transfer_put_latency_count{{{labels}}} 0"),
            format!("mooncake_transfer_batch_put_latency_count{{{labels}}} 1"),
            format!("mooncake_transfer_read_operation_bytes{{{labels},operation=\"get_into\"}} 4096"),
            format!("mooncake_transfer_write_operation_count{{{labels},operation=\"batch_upsert\"}} 1"),
            format!("mooncake_client_rpc_count{{{labels},rpc_name=\"lookup\"}} 1"),
            format!("mooncake_client_rpc_latency_bucket{{{labels},rpc_name=\"lookup\",le=\"+Inf\"}} 1"),
        ] {
            assert!(page.lines().any(|other| other == line), "{line}\n{page}");
        }
        let summary = metrics.read().summary(Some((&Metrics::new(None).read(), Duration::from_secs(2))));
        assert!(
            summary.contains("Get: 2 (p50 <=50 us") && summary.contains("Written: 100.00 B (50.00 B/s)"),
            "{summary}"
        );
        assert!(summary.ends_with("lookup=1 (p50 <=50 us, p99 <=50 us)"), "{summary}");
    }
}
