//! How long a call may wait, and how its caller may end that.

use std::time::{Duration, Instant};

/// Longest time that a wait goes on without a look at the clock and at the
/// caller's wish. Signals end a call within 100 ms.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// A transfer slower than this has failed, however steadily it drips: bytes a second.
pub const SLOWEST: u64 = 4 << 20;

/// A caller's patience.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// When the call fails at the latest.
    pub deadline: Instant,
    /// Asked every 50 ms while the call waits; true ends it.
    pub interrupted: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Wait<'static> {
    /// Waits until a moment, and cannot be interrupted.
    pub fn until(deadline: Instant) -> Self {
        Wait { deadline, interrupted: &|| false }
    }
}

impl Wait<'_> {
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// The rest of the patience, at most one slice, never zero.
    pub(crate) fn slice(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), SLICE)
    }
}
