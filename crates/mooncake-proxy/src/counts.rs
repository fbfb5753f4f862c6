//! What the proxy has counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use mooncake_metrics::{Distribution, Histogram, Kind as Metric, Page, Unit};
use serde::Serialize;

use crate::instances::fleet::Fleet;
use crate::instances::instance::{Instance, Kind, REQUEST_NS};

#[derive(Debug)]
pub(crate) struct Counts {
    answered: [AtomicU64; 3],
    failed: [AtomicU64; 2],
    decode_only: [AtomicU64; 3],
    broke_off: AtomicU64,
    cancelled: AtomicU64,
    rejected: [AtomicU64; 2],
    queued: Histogram,
    prefill: Histogram,
    first_byte: Histogram,
    head: Histogram,
    whole: Histogram,
}

/// What has been counted since the start.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Totals {
    /// Answered: the next three.
    pub requests: u64,
    /// With success.
    pub ok: u64,
    /// With 4xx.
    pub refused: u64,
    /// With 5xx.
    pub failed: u64,
    /// Attempts at an instance that failed before a byte of the answer was passed on.
    pub attempts_failed: u64,
    /// Prompts that the decode instance computed.
    pub decode_only: u64,
    /// Answers that broke off after their first byte.
    pub broke_off: u64,
    /// Requests whose client went before their answer was over.
    pub cancelled: u64,
    /// Of the refused ones, those that found the queue, or the room for bodies, full.
    pub rejected: u64,
}

/// The times of requests, as far as observed.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    pub queued: Distribution,
    pub prefill: Distribution,
    pub first_byte: Distribution,
    pub whole: Distribution,
}

/// Why no prefill instance's work was used for a prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DecodeOnlyReason {
    /// It was cheaper.
    Chosen,
    /// None did what it was asked.
    NoPrefill,
    /// Between these instances it cannot be passed on.
    NotFetchable,
}

/// What is full where a request is sent away.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rejection {
    /// So many wait already.
    Queue,
    /// So many bytes of bodies are held already.
    Bodies,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The client went before its answer was over.
    ClientGone,
    /// The answer was passed on to its end.
    Whole,
    /// The instance ended the answer in its midst.
    BrokeOff,
}

impl End {
    pub fn name(self) -> &'static str {
        match self {
            End::ClientGone => "client_gone",
            End::Whole => "whole",
            End::BrokeOff => "broke_off",
        }
    }
}

impl Default for Counts {
    fn default() -> Counts {
        let histogram = || Histogram::new(Unit::Seconds, REQUEST_NS);
        Counts {
            answered: Default::default(),
            failed: Default::default(),
            decode_only: Default::default(),
            broke_off: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            rejected: Default::default(),
            queued: histogram(),
            prefill: histogram(),
            first_byte: histogram(),
            head: histogram(),
            whole: histogram(),
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

    pub fn failed(&self, kind: Kind) {
        self.failed[of(kind)].fetch_add(1, Ordering::Relaxed);
    }

    /// A decode instance has to compute a prompt.
    pub fn decode_only(&self, why: DecodeOnlyReason) {
        self.decode_only[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A request is over.
    pub fn ended(&self, end: End, after: Duration) {
        match end {
            End::Whole => {}
            End::BrokeOff => _ = self.broke_off.fetch_add(1, Ordering::Relaxed),
            End::ClientGone => _ = self.cancelled.fetch_add(1, Ordering::Relaxed),
        }
        self.whole.took(after);
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

    /// A request is sent away for want of room.
    pub fn rejected(&self, why: Rejection) {
        self.rejected[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn totals(&self) -> Totals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let sum = |counts: &[AtomicU64]| counts.iter().map(read).sum();
        Totals {
            requests: sum(&self.answered),
            ok: read(&self.answered[0]),
            refused: read(&self.answered[1]),
            failed: read(&self.answered[2]),
            attempts_failed: sum(&self.failed),
            decode_only: sum(&self.decode_only),
            broke_off: read(&self.broke_off),
            cancelled: read(&self.cancelled),
            rejected: sum(&self.rejected),
        }
    }

    pub fn times(&self) -> Times {
        Times {
            queued: self.queued.read(),
            prefill: self.prefill.read(),
            first_byte: self.first_byte.read(),
            whole: self.whole.read(),
        }
    }

    /// Everything, as Prometheus reads it: with the requests that wait and those under way, and the lines that were
    /// left out.
    pub fn page(&self, requests: (usize, usize), left_out: u64, fleet: &Fleet) -> String {
        let mut page = Page::text(&[]);
        write(&mut page, self, requests, left_out, &named(fleet));
        page.finish()
    }
}

/// The part of `docs/metrics.md` that is about the proxy.
pub fn metrics_page() -> String {
    let mut page = Page::table();
    page.section("The proxy: requests and instances");
    write(&mut page, &Counts::default(), (0, 0), 0, &BTreeMap::new());
    let about = "`/metrics` of `mooncake_proxy`. Instances are called `prefill/HOST:PORT` and `decode/HOST:PORT`.";
    format!("\n# Metrics of the proxy\n\n{about}\n{}", page.finish())
}

/// One name, and the instances that have it: the one that is here, if any, and any that left with requests under way.
#[derive(Default)]
struct Named {
    here: Option<Arc<Instance>>,
    leaving: Vec<Arc<Instance>>,
}

impl Named {
    fn sum(&self, value: fn(&Instance) -> u64) -> u64 {
        self.here.iter().chain(&self.leaving).map(|one| value(one)).sum()
    }
}

fn named(fleet: &Fleet) -> BTreeMap<String, Named> {
    let name = |one: &Instance| format!("{}/{}", one.kind.name(), one.address);
    let mut named: BTreeMap<String, Named> = BTreeMap::new();
    for one in fleet.leaving() {
        named.entry(name(&one)).or_default().leaving.push(one);
    }
    for one in fleet.all() {
        let entry = named.entry(name(&one)).or_default();
        entry.here = Some(one);
    }
    named
}

fn write(
    page: &mut Page,
    counts: &Counts,
    (waiting, under_way): (usize, usize),
    left_out: u64,
    instances: &BTreeMap<String, Named>,
) {
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let classes = ["2xx", "4xx", "5xx"].into_iter().zip(counts.answered.iter().map(read));
    page.labelled(Metric::Counter, "mooncake_proxy_requests_total", "code", "requests answered", classes);
    let kinds = ["prefill", "decode"].into_iter().zip(counts.failed.iter().map(read));
    let help = "attempts at an instance that failed before a byte of the answer was passed on";
    page.labelled(Metric::Counter, "mooncake_proxy_attempts_failed_total", "kind", help, kinds);
    let reasons = ["chosen", "no_prefill", "not_fetchable"].into_iter().zip(counts.decode_only.iter().map(read));
    let help = "requests whose prompt the decode instance computed: as the cheaper way, because no prefill instance \
        did, or because it cannot be fetched from one";
    page.labelled(Metric::Counter, "mooncake_proxy_decode_only_total", "reason", help, reasons);
    let help = "answers that the decode instance broke off after their first byte";
    page.counter("mooncake_proxy_broken_answers_total", help, read(&counts.broke_off));
    let help = "requests whose client went before their answer was over";
    page.counter("mooncake_proxy_cancelled_total", help, read(&counts.cancelled));
    let full = ["queue", "bodies"].into_iter().zip(counts.rejected.iter().map(read));
    let help = "requests that were answered 429: the queue is full (--max_waiting), or the room for bodies \
        (--max_bodies_size)";
    page.labelled(Metric::Counter, "mooncake_proxy_rejected_total", "full", help, full);
    page.counter("mooncake_proxy_access_lines_left_out_total", "lines of the access log that nobody took", left_out);
    page.gauge("mooncake_proxy_running", "requests under way", under_way);
    page.gauge("mooncake_proxy_queue_length", "requests that wait for their turn", waiting);
    let mut of_each = |kind, name, help, value: fn(&Named) -> u64| {
        let values = instances.iter().map(|(name, one)| (name.as_str(), value(one)));
        page.labelled(kind, name, "instance", help, values);
    };
    of_each(Metric::Gauge, "mooncake_proxy_instance_up", "1: requests go there", |one| {
        one.here.as_ref().is_some_and(|one| one.is_well()).into()
    });
    of_each(Metric::Gauge, "mooncake_proxy_instance_in_flight", "requests it has", |one| {
        one.sum(|one| one.under_way().into())
    });
    of_each(Metric::Counter, "mooncake_proxy_instance_requests_total", "requests it was given", |one| {
        one.sum(|one| one.requests.load(Ordering::Relaxed))
    });
    of_each(Metric::Counter, "mooncake_proxy_instance_failures_total", "requests and checks it failed", |one| {
        one.sum(|one| one.failures.load(Ordering::Relaxed))
    });
    page.histogram("mooncake_proxy_queue_seconds", "from the request to its turn", &counts.queued.read());
    page.histogram("mooncake_proxy_prefill_seconds", "for the prompt to be computed", &counts.prefill.read());
    let help = "from the request to the first byte of the instance's answer";
    page.histogram("mooncake_proxy_first_byte_seconds", help, &counts.first_byte.read());
    page.histogram("mooncake_proxy_response_seconds", "from the request to its answer's head", &counts.head.read());
    page.histogram("mooncake_proxy_request_seconds", "from the request to its answer's end", &counts.whole.read());
}
