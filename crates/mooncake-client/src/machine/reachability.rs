//! Whether the master answers at all: the anchor's pongs decide.
//!
//! A call that expires is one thing when the master has given a pong since it
//! was sent (that call alone fails), another when it has not: then calls fail
//! at once, instead of one deadline each, until the next pong.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mooncake_mutant::mutant;

/// Every call looks here, so no lock is taken for it.
#[derive(Debug, Default)]
pub struct Reachability {
    /// Microseconds since the time origin.
    last_pong: AtomicU64,
    unreachable: AtomicBool,
}

impl Reachability {
    /// The master lives.
    pub fn pong(&self, now: Duration) {
        self.last_pong.store(now.as_micros() as u64, Ordering::Release);
        self.unreachable.store(false, Ordering::Release);
    }

    /// For how long nothing has been heard.
    pub fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_micros(self.last_pong.load(Ordering::Acquire)))
    }

    /// Calls are to fail at once.
    pub fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Acquire)
    }

    /// A call sent at `sent` got no answer. True: the master lives, and that
    /// call alone fails. False: calls fail at once from now on.
    pub fn expired(&self, sent: Duration) -> bool {
        let alive = self.last_pong.load(Ordering::Acquire) >= sent.as_micros() as u64;
        if !alive && !mutant!(SilentMastersAreWaitedFor) {
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
        let (reachability, sent) = (Reachability::default(), Duration::from_millis(2));
        assert!(!reachability.expired(sent));
        assert!(reachability.is_unreachable());
        let now = Duration::from_millis(4);
        assert_eq!(reachability.silence(now), now);
        reachability.pong(now);
        assert_eq!((reachability.is_unreachable(), reachability.silence(now)), (false, Duration::ZERO));
        assert!(reachability.expired(sent));
        assert!(!reachability.is_unreachable());
    }
}
