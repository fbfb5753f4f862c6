//! What the proxy has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use mooncake_metrics::{Histogram, Kind as Metric, Page, Unit};

use crate::instance::{Instance, Kind};
use crate::proxy::Proxy;

/// Bounds of what a request takes: 1-2.5-5 from a millisecond to ten minutes.
const REQUEST_NS: &[u64] = &[
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    600_000_000_000,
];

#[derive(Debug)]
pub(crate) struct Counts {
    answered: [AtomicU64; 3],
    retried: [AtomicU64; 2],
    decode_only: [AtomicU64; 2],
    broke_off: AtomicU64,
    cancelled: AtomicU64,
    queued: Histogram,
    prefill: Histogram,
    first_byte: Histogram,
    head: Histogram,
}

impl Default for Counts {
    fn default() -> Counts {
        let histogram = || Histogram::new(Unit::Seconds, REQUEST_NS);
        Counts {
            answered: Default::default(),
            retried: Default::default(),
            decode_only: Default::default(),
            broke_off: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            queued: histogram(),
            prefill: histogram(),
            first_byte: histogram(),
            head: histogram(),
        }
    }
}

fn of(kind: Kind) -> usize {
    usize::from(kind == Kind::Decode)
}

impl Counts {
    pub fn answered(&self, status: StatusCode, after: Duration) {
        let class = match status.as_u16() {
            ..=399 => 0,
            400..=499 => 1,
            _ => 2,
        };
        self.answered[class].fetch_add(1, Ordering::Relaxed);
        self.head.took(after);
    }

    pub fn retried(&self, kind: Kind) {
        self.retried[of(kind)].fetch_add(1, Ordering::Relaxed);
    }

    /// No prefill instance computed a prompt: because that was `chosen`, or because none did what it was asked.
    pub fn decode_only(&self, chosen: bool) {
        self.decode_only[usize::from(!chosen)].fetch_add(1, Ordering::Relaxed);
    }

    /// A stream ended in its midst.
    pub fn broke_off(&self) {
        self.broke_off.fetch_add(1, Ordering::Relaxed);
    }

    /// A client went before its answer was over.
    pub fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    pub fn queued(&self, time: Duration) {
        self.queued.took(time);
    }

    pub fn prefilled(&self, time: Duration) {
        self.prefill.took(time);
    }

    pub fn first_byte(&self, time: Duration) {
        self.first_byte.took(time);
    }

    pub fn requests(&self) -> u64 {
        self.answered.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl Proxy {
    /// Everything, as Prometheus reads it.
    pub fn metrics_page(&self) -> String {
        let mut page = Page::text(&[]);
        let (all, leaving) = (self.fleet.all(), self.fleet.leaving());
        let instances: Vec<Arc<Instance>> = all.into_iter().chain(leaving).collect();
        write(&mut page, &self.counts, self.admission.waiting(), self.admission.running(), &instances);
        page.finish()
    }
}

/// The part of `docs/metrics.md` that is about the proxy.
pub fn metrics_page() -> String {
    let mut page = Page::table();
    page.section("The proxy: requests and instances");
    write(&mut page, &Counts::default(), 0, 0, &[]);
    let about = "`/metrics` of `mooncake_proxy`. Instances are called `prefill/HOST:PORT` and `decode/HOST:PORT`.";
    format!("\n# Metrics of the proxy\n\n{about}\n{}", page.finish())
}

fn write(page: &mut Page, counts: &Counts, waiting: usize, running: usize, instances: &[Arc<Instance>]) {
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let classes = ["2xx", "4xx", "5xx"].into_iter().zip(counts.answered.iter().map(read));
    page.labelled(Metric::Counter, "mooncake_proxy_requests_total", "code", "requests answered", classes);
    let kinds = ["prefill", "decode"].into_iter().zip(counts.retried.iter().map(read));
    let help = "attempts at an instance that failed before a byte of the answer was passed on";
    page.labelled(Metric::Counter, "mooncake_proxy_attempts_failed_total", "kind", help, kinds);
    let reasons = ["chosen", "no_prefill"].into_iter().zip(counts.decode_only.iter().map(read));
    let help =
        "requests whose prompt the decode instance computed: as the cheaper way, or because no prefill instance did";
    page.labelled(Metric::Counter, "mooncake_proxy_decode_only_total", "reason", help, reasons);
    let help = "answers that the decode instance broke off after their first byte";
    page.counter("mooncake_proxy_broken_answers_total", help, read(&counts.broke_off));
    let help = "answers that were not over when their client went";
    page.counter("mooncake_proxy_cancelled_total", help, read(&counts.cancelled));
    page.gauge("mooncake_proxy_running", "requests under way", running);
    page.gauge("mooncake_proxy_queue_length", "requests that wait for their turn", waiting);
    let names: Vec<String> = instances.iter().map(|one| format!("{}/{}", one.kind.name(), one.address)).collect();
    let mut of_each = |kind, name, help, value: fn(&Instance) -> u64| {
        let values = names.iter().map(String::as_str).zip(instances.iter().map(|one| value(one)));
        page.labelled(kind, name, "instance", help, values);
    };
    of_each(Metric::Gauge, "mooncake_proxy_instance_up", "1: requests go there", |one| u64::from(one.is_well()));
    of_each(Metric::Gauge, "mooncake_proxy_instance_in_flight", "requests it has", |one| one.in_flight().into());
    of_each(Metric::Counter, "mooncake_proxy_instance_requests_total", "requests it was given", |one| {
        one.requests.load(Ordering::Relaxed)
    });
    of_each(Metric::Counter, "mooncake_proxy_instance_failures_total", "requests and checks it failed", |one| {
        one.failures.load(Ordering::Relaxed)
    });
    page.histogram("mooncake_proxy_queue_seconds", "from the request to its turn", &counts.queued.read());
    page.histogram("mooncake_proxy_prefill_seconds", "for the prompt to be computed", &counts.prefill.read());
    let help = "from the request to the first byte of the instance's answer";
    page.histogram("mooncake_proxy_first_byte_seconds", help, &counts.first_byte.read());
    page.histogram("mooncake_proxy_response_seconds", "from the request to its answer's head", &counts.head.read());
}
