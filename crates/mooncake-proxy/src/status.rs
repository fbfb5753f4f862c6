//! Everything that pages and scripts show of a proxy, in one reading: `GET /status`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mooncake_http::Problem;
use mooncake_metrics::Latency;
use mooncake_os::AboutProcess;
use serde::Serialize;

use crate::counts::Totals;
use crate::history::{Columns, Latencies, Rates};
use crate::instances::instance::{Health, Instance, Kind};
use crate::problems::{Found, problems};
use crate::proxy::Proxy;

/// A proxy, as it is now.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    version: &'static str,
    state: &'static str,
    host: String,
    pid: u32,
    time_ms: u64,
    uptime_seconds: f64,
    model: Option<String>,
    scheduling: &'static str,
    problems: Vec<Problem>,
    prefill_node_count: usize,
    decode_node_count: usize,
    prefill_nodes: Vec<String>,
    decode_nodes: Vec<String>,
    /// `totals.requests`, where it was before there were totals.
    requests: u64,
    running: usize,
    running_max: usize,
    waiting: usize,
    waiting_max: usize,
    totals: Totals,
    rates: Rates,
    latency_us: Latencies,
    history: Columns,
    instances: Vec<InstanceStatus>,
}

/// An instance.
#[derive(Debug, Serialize)]
struct InstanceStatus {
    r#type: &'static str,
    instance: String,
    bootstrap: Option<String>,
    health: &'static str,
    /// Why it is out of service.
    reason: String,
    /// Since it is out of service.
    down_seconds: Option<f64>,
    /// Until it is asked again whether it is well.
    next_check_seconds: Option<f64>,
    in_flight: u32,
    requests: u64,
    failures: u64,
    requests_per_second: f64,
    failures_per_second: f64,
    /// Of prompts (prefill), or of first bytes (decode).
    latency_us: Option<Latency>,
}

impl Proxy {
    /// Reads it.
    pub fn status(&self) -> Status {
        let now = Instant::now();
        let (all, leaving) = (self.fleet.all(), self.fleet.leaving());
        let sample = self.sample(now);
        let (running, waiting) = sample.requests;
        let ((rates, latency_us), history, has_long_waits) = {
            let history = self.history.lock();
            (history.recent(&sample), history.columns(), waiting > 0 && history.has_long_waits())
        };
        let is_stopping = self.is_stopping.load(Ordering::Relaxed);
        let found = Found { fleet: &self.fleet, rates: &rates, has_long_waits, is_stopping, now };
        let state = match is_stopping {
            true => "stopping",
            false if self.fleet.available(Kind::Decode, &[]).is_empty() => "not serving",
            false => "serving",
        };
        let named = |kind| -> Vec<String> {
            all.iter().filter(|one| one.kind == kind).map(|one| one.address.authority()).collect()
        };
        let (prefill_nodes, decode_nodes) = (named(Kind::Prefill), named(Kind::Decode));
        let here = all.iter().map(|one| self.shown(one, false, now));
        let instances = here.chain(leaving.iter().map(|one| self.shown(one, true, now))).collect();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            state,
            host: AboutProcess::this().host,
            pid: std::process::id(),
            time_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64),
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            model: self.options.model.clone(),
            scheduling: self.options.scheduling.name(),
            problems: problems(&found),
            prefill_node_count: prefill_nodes.len(),
            decode_node_count: decode_nodes.len(),
            prefill_nodes,
            decode_nodes,
            requests: sample.totals.requests,
            running,
            running_max: self.admission.running_max,
            waiting,
            waiting_max: self.admission.waiting_max,
            totals: sample.totals,
            rates,
            latency_us,
            history,
            instances,
        }
    }

    fn shown(&self, one: &Instance, leaving: bool, now: Instant) -> InstanceStatus {
        let seconds = |time: Duration| Some(time.as_secs_f64());
        let (health, reason, down_seconds, next_check_seconds) = match one.health() {
            _ if leaving => ("leaving", String::new(), None, None),
            Health::Well => ("ok", String::new(), None, None),
            Health::Resting { reason, since, until } => {
                // It may be under way.
                let check = match one.is_being_checked.load(Ordering::Relaxed) {
                    true => Duration::ZERO,
                    false => self.next_check(until, now).saturating_duration_since(now),
                };
                ("out of service", reason, seconds(now.saturating_duration_since(since)), seconds(check))
            }
        };
        let recent = one.recent(now);
        InstanceStatus {
            r#type: one.kind.name(),
            instance: one.address.authority(),
            bootstrap: one.address.bootstrap(),
            health,
            reason,
            down_seconds,
            next_check_seconds,
            in_flight: one.under_way(),
            requests: one.requests.load(Ordering::Relaxed),
            failures: one.failures.load(Ordering::Relaxed),
            requests_per_second: recent.requests,
            failures_per_second: recent.failures,
            latency_us: recent.took,
        }
    }

    /// When an instance that rests until then is asked: the first look at all of them after that.
    fn next_check(&self, until: Instant, now: Instant) -> Instant {
        let (interval, last) = (self.options.check_interval, *self.checked_at.lock());
        let looks = until.max(now).saturating_duration_since(last).as_secs_f64() / interval.as_secs_f64();
        last + interval * (looks.ceil() as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ProxyOptions;

    #[test]
    fn an_instance_is_asked_at_the_first_look_after_its_rest() {
        let second = Duration::from_secs(1);
        for (every, rest, check) in
            [(5 * second, second, 5 * second), (5 * second, 7 * second, 10 * second), (second / 20, second, second)]
        {
            let proxy = Proxy::new(ProxyOptions { check_interval: every, ..ProxyOptions::default() }).unwrap();
            let last = *proxy.checked_at.lock();
            assert_eq!(proxy.next_check(last + rest, last), last + check);
            assert_eq!(proxy.next_check(last, last), last + every, "it was looked for just now");
        }
    }
}
