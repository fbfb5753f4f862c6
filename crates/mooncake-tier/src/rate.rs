//! How fast a tier is written, by which its owner says how much may be ordered.

use std::time::Duration;

/// What it may have under order before it has measured how fast it writes.
const WINDOW_FIRST: u64 = 16 << 20;

/// Time that a window is for.
const WINDOW_TIME: Duration = Duration::from_millis(500);

/// How fast it writes, measured while it does: time in which nothing is ordered says nothing of the disk.
pub(crate) struct Rate {
    /// Since then something is ordered, and was not counted.
    busy_since: Option<Duration>,
    busy: Duration,
    bytes: u64,
    window: u64,
}

impl Rate {
    pub fn new() -> Rate {
        Rate { busy_since: None, busy: Duration::ZERO, bytes: 0, window: WINDOW_FIRST }
    }

    /// Bytes that are written in half a second.
    pub fn window(&self) -> u64 {
        self.window
    }

    pub fn wrote(&mut self, now: Duration, bytes: u64, goes_on: bool) {
        self.busy += self.busy_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.busy_since = goes_on.then_some(now);
        self.bytes += bytes;
        if self.busy >= WINDOW_TIME {
            let measured = u128::from(self.bytes) * WINDOW_TIME.as_nanos() / self.busy.as_nanos();
            // However slow it is: none would mean that it is not to be written.
            self.window = u64::try_from(measured).unwrap_or(u64::MAX).max(WINDOW_FIRST);
            (self.busy, self.bytes) = (Duration::ZERO, 0);
        }
    }
}
