//! One server of the fleet: how it is, what it is doing, what it has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_metrics::{Distribution, Histogram, Latency, Samples, Unit};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::instances::address::InstanceAddress;
use crate::instances::peer_to_peer::Engines;

/// Number of an instance, for as long as it is in the fleet.
pub(crate) type InstanceNo = u32;

/// Failures one after another after which an instance is left alone.
const FAILURES: u32 = 3;

/// Letters of what went wrong that are kept: some servers answer with whole pages.
const REASON_MAX: usize = 300;

/// How long it is left alone, the first time and at most; twice as long each time.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Bounds of what a request takes: from a millisecond to half an hour.
pub(crate) const REQUEST_NS: &[u64] = &[
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
    120_000_000_000,
    300_000_000_000,
    600_000_000_000,
    1_800_000_000_000,
];

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It computes prompts.
    Prefill,
    /// It generates answers.
    Decode,
}

impl Kind {
    /// `prefill` or `decode`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Prefill => "prefill",
            Kind::Decode => "decode",
        }
    }
}

/// A server.
#[derive(Debug)]
pub(crate) struct Instance {
    pub number: InstanceNo,
    pub kind: Kind,
    pub address: InstanceAddress,
    breaker: Mutex<Breaker>,
    under_way: AtomicU32,
    /// Blocks of prompts that it has been given and that it did not know.
    backlog: AtomicU64,
    pub requests: AtomicU64,
    pub failures: AtomicU64,
    /// A prefill instance for a prompt, a decode instance for the first byte, from when it was asked.
    times: Histogram,
    samples: Mutex<Samples<Sample>>,
    /// It has said that it serves the model, and has answered since.
    pub is_proven: AtomicBool,
    /// It answers no checks any more.
    pub hangs: Notify,
    /// Changed whenever it begins to rest.
    rested: watch::Sender<()>,
    /// A check of it is under way.
    pub is_being_checked: AtomicBool,
    /// Of its bootstrap service, as far as known.
    engines: Mutex<Engines>,
    rotation: AtomicU32,
}

#[derive(Debug, Default)]
struct Breaker {
    in_a_row: u32,
    resting: Option<Rest>,
    last_error: Option<String>,
}

/// It is left alone.
#[derive(Debug, Clone, Copy)]
struct Rest {
    since: Instant,
    /// Until then, and until it has answered a check.
    until: Instant,
    pause: Duration,
}

/// How an instance is, for pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    Resting {
        /// What went wrong last.
        reason: String,
        since: Instant,
        /// It is not checked before.
        until: Instant,
    },
}

/// What it had done at one moment.
#[derive(Debug)]
struct Sample {
    requests: u64,
    failures: u64,
    times: Distribution,
}

/// What it did lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recent {
    /// A second.
    pub requests: f64,
    /// A second.
    pub failures: f64,
    /// Of a prompt, or of the first byte.
    pub took: Option<Latency>,
}

impl Instance {
    pub fn new(number: InstanceNo, kind: Kind, address: InstanceAddress) -> Instance {
        let (breaker, under_way) = (Mutex::default(), AtomicU32::new(0));
        let zero = || AtomicU64::new(0);
        let (backlog, requests, failures) = (zero(), zero(), zero());
        let (is_proven, is_being_checked) = (AtomicBool::new(false), AtomicBool::new(false));
        let (hangs, rested) = (Notify::new(), watch::Sender::new(()));
        let (engines, rotation) = (Mutex::default(), AtomicU32::new(0));
        Instance {
            number,
            kind,
            address,
            breaker,
            under_way,
            backlog,
            requests,
            failures,
            times: Histogram::new(Unit::Seconds, REQUEST_NS),
            samples: Mutex::default(),
            is_proven,
            hangs,
            rested,
            is_being_checked,
            engines,
            rotation,
        }
    }

    pub fn is_well(&self) -> bool {
        self.breaker.lock().resting.is_none()
    }

    pub fn health(&self) -> Health {
        let breaker = self.breaker.lock();
        match breaker.resting {
            None => Health::Well,
            Some(Rest { since, until, .. }) => {
                Health::Resting { reason: breaker.last_error.clone().unwrap_or_default(), since, until }
            }
        }
    }

    fn read(&self) -> Sample {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Sample { requests: count(&self.requests), failures: count(&self.failures), times: self.times.read() }
    }

    /// Takes a sample: what comes behind it has rates.
    pub fn sample(&self, now: Instant) {
        self.samples.lock().take(now, self.read());
    }

    pub fn recent(&self, now: Instant) -> Recent {
        let (samples, read) = (self.samples.lock(), self.read());
        let Some((seconds, then)) = samples.recent(now) else { return Recent::default() };
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Recent {
            requests: rate(read.requests, then.requests),
            failures: rate(read.failures, then.failures),
            took: Latency::between(&then.times, &read.times),
        }
    }

    pub fn under_way(&self) -> u32 {
        self.under_way.load(Ordering::Relaxed)
    }

    pub fn backlog(&self) -> u64 {
        self.backlog.load(Ordering::Relaxed)
    }

    /// A request goes there, with so many blocks that are new to it.
    pub fn take(self: &Arc<Instance>, blocks: u64) -> Lease {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.backlog.fetch_add(blocks, Ordering::Relaxed);
        Lease { instance: self.clone(), blocks, since: Instant::now() }
    }

    /// Tells when it begins to rest, from now on.
    pub fn rests(&self) -> watch::Receiver<()> {
        self.rested.subscribe()
    }

    pub fn knows_engines(&self) -> bool {
        !self.engines.lock().is_empty()
    }

    pub fn set_engines(&self, engines: Engines) {
        *self.engines.lock() = engines;
    }

    /// The next of its engines, with its rank if there are several; none if none is known.
    pub fn next_engine(&self) -> Option<(Option<u32>, String)> {
        let engines = self.engines.lock();
        let rotation = self.rotation.fetch_add(1, Ordering::Relaxed) as usize % engines.len().max(1);
        let (rank, engine) = engines.iter().nth(rotation)?;
        Some(((engines.len() > 1).then_some(*rank), engine.clone()))
    }

    /// It did what was asked of it.
    pub fn succeeded(&self) {
        let mut breaker = self.breaker.lock();
        breaker.in_a_row = 0;
        if breaker.resting.take().is_some() {
            tracing::info!(instance = %self.address, kind = self.kind.name(), "back in service");
        }
    }

    /// It did not. `gone`: no server is there to be asked a second time.
    pub fn failed(&self, now: Instant, why: &str, gone: bool) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if gone {
            // Another server may answer there next.
            self.is_proven.store(false, Ordering::Relaxed);
            self.engines.lock().clear();
        }
        let mut breaker = self.breaker.lock();
        breaker.in_a_row += 1;
        breaker.last_error = Some(why.chars().take(REASON_MAX).collect());
        if breaker.in_a_row < FAILURES && !gone {
            return;
        }
        let (since, pause) = match breaker.resting {
            // Requests that were under way say nothing new.
            Some(rest) if now < rest.until => return,
            Some(rest) => (rest.since, (rest.pause * 2).min(PAUSE_MAX)),
            None => {
                tracing::warn!(instance = %self.address, kind = self.kind.name(), why, "left alone");
                self.rested.send_replace(());
                (now, PAUSE)
            }
        };
        breaker.resting = Some(Rest { since, until: now + pause, pause });
    }

    /// Whether it is time to look if it is well again.
    pub fn is_to_be_checked(&self, now: Instant) -> bool {
        self.breaker.lock().resting.is_none_or(|rest| now >= rest.until)
    }
}

/// A request that an instance has; until this is dropped it counts as its load.
#[derive(Debug)]
pub(crate) struct Lease {
    pub instance: Arc<Instance>,
    blocks: u64,
    since: Instant,
}

impl Lease {
    /// The instance has done what is measured of it: see [`Instance::recent`].
    pub fn took(&self) {
        self.instance.times.since(self.since);
    }

    /// The prompt is computed; what follows is no backlog.
    pub fn computed(&mut self) {
        self.instance.backlog.fetch_sub(std::mem::take(&mut self.blocks), Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.instance.under_way.fetch_sub(1, Ordering::Relaxed);
        self.instance.backlog.fetch_sub(self.blocks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Arc<Instance> {
        Arc::new(Instance::new(1, Kind::Prefill, "127.0.0.1:1".parse().unwrap()))
    }

    #[test]
    fn one_that_fails_is_left_alone_for_longer_each_time_until_it_answers() {
        let (one, begin) = (instance(), Instant::now());
        for _ in 1..FAILURES {
            one.failed(begin, "500", false);
            assert!(one.is_well());
        }
        one.failed(begin, "500", false);
        let (reason, second) = ("500".to_owned(), Duration::from_secs(1));
        assert_eq!(one.health(), Health::Resting { reason, since: begin, until: begin + second });
        let mut at = begin;
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            let pause = Duration::from_secs(pause);
            assert!(!one.is_to_be_checked(at + pause - Duration::from_millis(1)));
            assert!(one.is_to_be_checked(at + pause));
            at += pause;
            one.failed(at, "refused", true);
        }
        let (reason, until) = ("refused".to_owned(), at + PAUSE_MAX);
        assert_eq!(one.health(), Health::Resting { reason, since: begin, until }, "down since the first failure");
        one.succeeded();
        assert!(one.is_well());
        one.failed(at, "500", false);
        assert!(one.is_well(), "it begins anew");
        one.failed(at, "refused", true);
        assert!(!one.is_well(), "nobody is there");
    }

    #[test]
    fn engines_take_turns_and_are_forgotten_with_their_instance() {
        let one = instance();
        assert_eq!(one.next_engine(), None);
        one.set_engines([(0, "a".to_owned())].into());
        assert_eq!(one.next_engine(), Some((None, "a".into())), "there is no choice to speak of");
        one.set_engines([(0, "a".to_owned()), (3, "b".to_owned())].into());
        let both = [one.next_engine().unwrap(), one.next_engine().unwrap()];
        assert!(both.contains(&(Some(0), "a".into())) && both.contains(&(Some(3), "b".into())));
        one.failed(Instant::now(), "refused", true);
        assert!(!one.knows_engines());
    }

    #[test]
    fn what_it_does_a_second_and_how_fast_is_of_the_last_seconds() {
        let (one, began) = (instance(), Instant::now());
        one.times.took(Duration::from_secs(100));
        one.sample(began);
        for _ in 0..20 {
            drop(one.take(0));
            one.times.took(Duration::from_millis(20));
        }
        let recent = one.recent(began + Duration::from_secs(10));
        assert_eq!((recent.requests, recent.failures), (2.0, 0.0));
        assert_eq!(recent.took, Some(Latency { p50: 25_000.0, p99: 25_000.0 }));
    }

    #[test]
    fn of_a_page_that_a_server_answers_with_only_the_beginning_is_kept() {
        let one = instance();
        one.failed(Instant::now(), &"\u{e9}".repeat(1 << 20), true);
        assert!(matches!(one.health(), Health::Resting { reason, .. } if reason.chars().count() == REASON_MAX));
    }

    #[test]
    fn load_is_what_is_under_way() {
        let one = instance();
        let (first, mut second) = (one.take(5), one.take(7));
        assert_eq!((one.under_way(), one.backlog()), (2, 12));
        drop(first);
        assert_eq!((one.under_way(), one.backlog()), (1, 7));
        second.computed();
        assert_eq!((one.under_way(), one.backlog()), (1, 0));
        drop(second);
        assert_eq!((one.under_way(), one.backlog(), one.requests.load(Ordering::Relaxed)), (0, 0, 2));
    }
}
