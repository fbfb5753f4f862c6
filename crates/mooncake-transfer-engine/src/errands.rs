//! Calls of others that may take long and that nobody can end: the resolver's, a metadata service's.
//!
//! A thread carries one out; its caller waits for it as long as it has patience, and leaves it otherwise. What was left
//! ends by itself, and nobody learns how.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use crate::error::EngineError;
use crate::transport::stall::{Patience, SLICE};

/// Most threads at a time. Who wants one more waits, with patience too.
const MOST: usize = 16;

/// How many are under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Errands {
    busy: Arc<AtomicUsize>,
}

/// Given back when the errand ends, with or without its caller.
struct Taken(Arc<AtomicUsize>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Errands {
    /// What `body` gives, if it does so while its caller has patience. `whom` and `what` are for the error.
    pub fn run<T: Send + 'static>(
        &self,
        whom: &str,
        what: &'static str,
        patience: &Patience<'_>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let taken = loop {
            if let Some(taken) = self.take() {
                break taken;
            }
            patience.check(whom, what)?;
            std::thread::sleep(left(patience));
        };
        let (tell, told) = channel();
        let builder = std::thread::Builder::new().name("mooncake-errand".into());
        let errand = move || {
            let result = body();
            drop(taken);
            // Its caller may have left.
            let _ = tell.send(result);
        };
        mooncake_os::thread::start(builder, errand).map_err(EngineError::socket(whom, "start a thread"))?;
        loop {
            match told.recv_timeout(left(patience)) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => patience.check(whom, what)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(EngineError::Memory(format!("{whom}: {what}: its thread panicked")));
                }
            }
        }
    }

    fn take(&self) -> Option<Taken> {
        let more = |busy| (busy < MOST).then_some(busy + 1);
        let taken = self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.ok().map(|_| Taken(self.busy.clone()))
    }
}

fn left(patience: &Patience<'_>) -> std::time::Duration {
    patience.deadline.saturating_duration_since(Instant::now()).min(SLICE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_crowd_of_errands_that_do_not_end_is_bounded_and_one_that_ends_makes_room() {
        let errands = Errands::default();
        let began = Instant::now();
        let short = Patience { began, deadline: began, interrupted: &|| false };
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
        let ended = Arc::new(parking_lot::Mutex::new(ended));
        for _ in 0..MOST {
            let wait = ended.clone();
            let left = errands.run("a", "b", &short, move || wait.lock().recv());
            assert!(matches!(left, Err(EngineError::Timeout { .. })));
        }
        let never = errands.run("a", "b", &short, || unreachable!("there is no room"));
        assert!(matches!(never, Err(EngineError::Timeout { .. })), "{never:?}");
        end.send(()).unwrap();
        let long = Patience { deadline: began + Duration::from_secs(20), ..short };
        assert_eq!(errands.run("a", "b", &long, || 7).unwrap(), 7);
    }
}
