//! Whether the master answers at all: the anchor's pongs decide.
//!
//! A call that expires is one thing when the master has given a pong since it
//! was sent (that call alone fails), another when it has not: then calls fail
//! at once, instead of one deadline each, until the next pong.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[derive(Debug)]
pub(crate) struct Reachability {
    start: Instant,
    /// Microseconds after `start`.
    last_pong: AtomicU64,
    unreachable: AtomicBool,
    /// What the anchor's last try to come back ran into.
    trouble: Mutex<Option<String>>,
}

impl Reachability {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            last_pong: AtomicU64::new(0),
            unreachable: AtomicBool::new(false),
            trouble: Mutex::default(),
        }
    }

    /// The master lives.
    pub fn pong(&self) {
        self.last_pong.store(self.start.elapsed().as_micros() as u64, Ordering::Release);
        self.unreachable.store(false, Ordering::Release);
    }

    /// Since when nothing has been heard.
    pub fn silence(&self) -> Duration {
        let last = Duration::from_micros(self.last_pong.load(Ordering::Acquire));
        self.start.elapsed().saturating_sub(last)
    }

    pub fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Acquire)
    }

    /// Notes why there is no connection. True if that is news.
    pub fn explain(&self, trouble: Option<&str>) -> bool {
        let mut known = self.trouble.lock();
        let news = known.as_deref() != trouble;
        *known = trouble.map(str::to_owned);
        news
    }

    /// Why there is no connection, as far as anybody knows.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// A call sent at `sent` got no answer. True: the master lives, and that
    /// call alone fails. False: calls fail at once from now on.
    pub fn expired(&self, sent: Instant) -> bool {
        let sent = sent.saturating_duration_since(self.start).as_micros() as u64;
        let alive = self.last_pong.load(Ordering::Acquire) >= sent;
        if !alive {
            self.unreachable.store(true, Ordering::Release);
        }
        alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_makes_it_unreachable_and_a_pong_ends_that() {
        let reach = Reachability::new();
        std::thread::sleep(Duration::from_millis(2));
        let sent = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(!reach.expired(sent));
        assert!(reach.is_unreachable());
        reach.pong();
        assert!(!reach.is_unreachable());
        assert!(reach.expired(sent));
        assert!(!reach.is_unreachable());
    }
}
