//! One thread for what takes long at the end of a segment: punching gigabytes
//! and unmapping them. Whoever hears of the end has deadlines of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs in their order. The thread starts with the first one and ends when
/// nothing is left to do.
#[derive(Default)]
pub(super) struct Reclaimer {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: bool,
}

impl Reclaimer {
    pub(super) fn later(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.running {
            return;
        }
        let inside = self.clone();
        match std::thread::Builder::new().name("mooncake-reclaim".into()).spawn(move || inside.run()) {
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

impl std::fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reclaimer").finish_non_exhaustive()
    }
}
