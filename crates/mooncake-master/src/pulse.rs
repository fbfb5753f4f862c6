//! The pulse of a thread that serves connections: for how long nothing has been read there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two beats.
const EVERY: Duration = Duration::from_millis(100);

/// Beats where a task of it runs.
#[derive(Debug)]
pub struct Pulse {
    time_origin: Instant,
    /// Microseconds since then, of the last beat.
    last: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { time_origin: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl Pulse {
    /// Beats for as long as it is polled.
    pub async fn beat(self: std::sync::Arc<Self>) {
        loop {
            self.last.store(self.time_origin.elapsed().as_micros() as u64, Ordering::Relaxed);
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Since the last beat, but for the time that one may take to come.
    pub fn silence(&self) -> Duration {
        let last = Duration::from_micros(self.last.load(Ordering::Relaxed));
        self.time_origin.elapsed().saturating_sub(last).saturating_sub(EVERY)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call_loops::Loops;
    use crate::eventually::eventually;

    #[test]
    fn a_thread_that_something_keeps_from_its_sockets_has_no_pulse_until_it_is_back() {
        let (loops, pulse) = (Loops::for_anchors().unwrap(), Arc::<Pulse>::default());
        loops.spawn(pulse.clone().beat());
        eventually("it has begun", || pulse.last.load(Ordering::Relaxed) > 0);
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        loops.spawn(async move { _ = blocked.recv() });
        eventually("it stands still", || pulse.silence() > Duration::from_millis(300));
        drop(release);
        eventually("it beats", || pulse.silence().is_zero());
    }
}
