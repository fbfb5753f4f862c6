//! One thread for what takes long at the end of a segment: punching gigabytes
//! and unmapping them. The thread that hears of the end has deadlines of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use mooncake_os::thread;
use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs in their order. The thread starts with the first one and ends when
/// nothing is left to do.
#[derive(Default)]
pub(in crate::link) struct GiveBackThread {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: bool,
}

impl GiveBackThread {
    pub(in crate::link) fn later(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.running {
            return;
        }
        let inside = self.clone();
        let builder = std::thread::Builder::new().name("mooncake-reclaim".into());
        match thread::start(builder, move || inside.run()) {
            Ok(_) => state.running = true,
            // It stays on the list: the next one tries again.
            Err(e) => tracing::error!("no thread to give memory back: {e}"),
        }
    }

    fn run(&self) {
        loop {
            let job = {
                let mut state = self.state.lock();
                let job = state.jobs.pop_front();
                state.running = job.is_some();
                job
            };
            let Some(job) = job else { return };
            job();
        }
    }
}

impl std::fmt::Debug for GiveBackThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GiveBackThread").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn jobs_are_done_one_at_a_time_in_their_order_by_a_thread_that_ends_with_the_last() {
        let give_back_thread = Arc::<GiveBackThread>::default();
        for _ in 0..3 {
            let (done, order) = channel();
            let (release, held) = channel::<()>();
            let first = done.clone();
            give_back_thread.later(move || {
                let _ = held.recv();
                first.send(0).unwrap();
            });
            for number in 1..20 {
                let done = done.clone();
                give_back_thread.later(move || done.send(number).unwrap());
            }
            drop(done);
            assert!(order.recv_timeout(Duration::from_millis(50)).is_err(), "the first one has not done yet");
            drop(release);
            assert!(order.iter().eq(0..20));
            let until = std::time::Instant::now() + Duration::from_secs(5);
            while Arc::strong_count(&give_back_thread) > 1 {
                assert!(std::time::Instant::now() < until, "its thread has nothing to do");
                std::thread::yield_now();
            }
        }
    }
}
