//! One server of the fleet: how it is, what it is doing, what it has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address::InstanceAddress;
use crate::prefix::InstanceNo;

/// Failures one after another after which an instance is left alone.
const FAILURES: u32 = 3;

/// How long it is left alone, the first time and at most; twice as long each time.
const REST: Duration = Duration::from_secs(1);
const REST_MOST: Duration = Duration::from_secs(30);

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
    in_flight: AtomicU32,
    /// Blocks of prompts that it has been given and that it did not know.
    backlog: AtomicU64,
    pub requests: AtomicU64,
    pub failures: AtomicU64,
    /// It has said that it serves the model, and has answered since.
    pub is_proven: AtomicBool,
}

#[derive(Debug, Default)]
struct Breaker {
    in_a_row: u32,
    /// It is left alone until then, and until it has answered a check.
    resting: Option<(Instant, Duration)>,
    last_error: Option<String>,
}

/// How an instance is, for pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// Left alone, with what went wrong last.
    Resting(String),
}

impl Instance {
    pub fn new(number: InstanceNo, kind: Kind, address: InstanceAddress) -> Instance {
        let (breaker, in_flight) = (Mutex::default(), AtomicU32::new(0));
        let zero = || AtomicU64::new(0);
        let (backlog, requests, failures) = (zero(), zero(), zero());
        let is_proven = AtomicBool::new(false);
        Instance { number, kind, address, breaker, in_flight, backlog, requests, failures, is_proven }
    }

    pub fn is_well(&self) -> bool {
        self.breaker.lock().resting.is_none()
    }

    pub fn health(&self) -> Health {
        let breaker = self.breaker.lock();
        match breaker.resting {
            None => Health::Well,
            Some(_) => Health::Resting(breaker.last_error.clone().unwrap_or_default()),
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn backlog(&self) -> u64 {
        self.backlog.load(Ordering::Relaxed)
    }

    /// A request goes there, with so many blocks that are new to it.
    pub fn take(self: &Arc<Instance>, blocks: u64) -> Lease {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.backlog.fetch_add(blocks, Ordering::Relaxed);
        Lease { instance: self.clone(), blocks }
    }

    /// It did what was asked of it.
    pub fn succeeded(&self) {
        let mut breaker = self.breaker.lock();
        breaker.in_a_row = 0;
        if breaker.resting.take().is_some() {
            tracing::info!(instance = %self.address, kind = self.kind.name(), "back in service");
        }
    }

    /// It did not. `gone`: there is nobody to be asked a second time.
    pub fn failed(&self, now: Instant, why: &str, gone: bool) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut breaker = self.breaker.lock();
        breaker.in_a_row += 1;
        breaker.last_error = Some(why.to_owned());
        if breaker.in_a_row < FAILURES && !gone {
            return;
        }
        let rest = match breaker.resting {
            // Requests that were under way say nothing new.
            Some((until, _)) if now < until => return,
            Some((_, rest)) => (rest * 2).min(REST_MOST),
            None => {
                tracing::warn!(instance = %self.address, kind = self.kind.name(), why, "left alone");
                REST
            }
        };
        breaker.resting = Some((now + rest, rest));
    }

    /// Whether it is time to look if it is well again.
    pub fn is_to_be_checked(&self, now: Instant) -> bool {
        self.breaker.lock().resting.is_none_or(|(until, _)| now >= until)
    }
}

/// A request that an instance has; until this is dropped it counts as its load.
#[derive(Debug)]
pub(crate) struct Lease {
    pub instance: Arc<Instance>,
    blocks: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.instance.in_flight.fetch_sub(1, Ordering::Relaxed);
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
        assert_eq!(one.health(), Health::Resting("500".into()));
        let mut at = begin;
        for rest in [1, 2, 4, 8, 16, 30, 30] {
            let rest = Duration::from_secs(rest);
            assert!(!one.is_to_be_checked(at + rest - Duration::from_millis(1)));
            assert!(one.is_to_be_checked(at + rest));
            at += rest;
            one.failed(at, "refused", true);
        }
        one.succeeded();
        assert!(one.is_well());
        one.failed(at, "500", false);
        assert!(one.is_well(), "it begins anew");
        one.failed(at, "refused", true);
        assert!(!one.is_well(), "nobody is there");
    }

    #[test]
    fn load_is_what_is_under_way() {
        let one = instance();
        let (first, second) = (one.take(5), one.take(7));
        assert_eq!((one.in_flight(), one.backlog()), (2, 12));
        drop(first);
        assert_eq!((one.in_flight(), one.backlog()), (1, 7));
        drop(second);
        assert_eq!((one.in_flight(), one.backlog(), one.requests.load(Ordering::Relaxed)), (0, 0, 2));
    }
}
