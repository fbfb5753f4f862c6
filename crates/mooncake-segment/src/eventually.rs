//! Waiting, in tests, for what another thread does.

use std::time::{Duration, Instant};

/// Returns once it holds, which must not take 10 s.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
