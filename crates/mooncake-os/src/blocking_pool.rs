//! Calls that may take long and that no caller can end: of a resolver, of a metadata service.
//!
//! A thread makes the call. Its caller waits until the deadline and leaves it then: the call ends by itself, and its
//! result is dropped.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use crate::deadline::{Deadline, WaitError};
use crate::permits::{Permit, Permits};
use crate::thread;

/// Threads for such calls, each for one. At most so many at a time: a caller that finds none free waits, until its
/// deadline too, or is [refused](BlockingPool::refusing).
#[derive(Debug, Clone)]
pub struct BlockingPool {
    permits: Arc<Permits>,
    threads_max: usize,
    refuses: bool,
    thread: &'static str,
}

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// Its caller has left it, or found no thread free in time.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// All threads, so many, make calls: this one was not made.
    #[error("{0} calls have not ended yet")]
    Full(usize),
    /// No thread can be started.
    #[error("start a thread: {0}")]
    Start(io::Error),
    /// The call panicked.
    #[error("its thread panicked")]
    Panicked,
}

impl BlockingPool {
    /// At most so many threads, all of this name.
    pub fn new(threads_max: usize, thread: &'static str) -> BlockingPool {
        BlockingPool { permits: Arc::new(Permits::new(threads_max)), threads_max, refuses: false, thread }
    }

    /// The same, but a caller that finds no thread free is refused at once.
    pub fn refusing(threads_max: usize, thread: &'static str) -> BlockingPool {
        BlockingPool { refuses: true, ..BlockingPool::new(threads_max, thread) }
    }

    /// What `call` gives, if it does so before the deadline.
    pub fn run<T: Send + 'static>(
        &self,
        deadline: &Deadline<'_>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockingError> {
        let permit = loop {
            if let Some(permit) = Permit::one(self.permits.clone()) {
                break permit;
            }
            if self.refuses {
                return Err(BlockingError::Full(self.threads_max));
            }
            deadline.check()?;
            std::thread::sleep(deadline.slice());
        };
        let (tell, told) = channel();
        let body = move || {
            let result = call();
            // Before the result is there: its caller may call again at once.
            drop(permit);
            // Its caller may have left.
            let _ = tell.send(result);
        };
        let builder = std::thread::Builder::new().name(self.thread.into());
        thread::start(builder, body).map_err(BlockingError::Start)?;
        loop {
            match told.recv_timeout(deadline.slice()) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => deadline.check()?,
                Err(RecvTimeoutError::Disconnected) => return Err(BlockingError::Panicked),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    const THREADS_MAX: usize = 16;

    #[test]
    fn a_crowd_of_calls_that_do_not_end_is_bounded_and_one_that_ends_makes_room() {
        let pool = BlockingPool::new(THREADS_MAX, "blocking-test");
        let short = Deadline::after(Duration::ZERO, &|| false);
        let (end, ended) = sync_channel::<()>(0);
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..THREADS_MAX {
            let wait = ended.clone();
            let left = pool.run(&short, move || wait.lock().recv());
            assert!(matches!(left, Err(BlockingError::Wait(WaitError::Expired(_)))), "{left:?}");
        }
        let never = pool.run(&short, || unreachable!("there is no room"));
        assert!(matches!(never, Err(BlockingError::Wait(WaitError::Expired(_)))), "{never:?}");
        end.send(()).unwrap();
        let long = Deadline::after(Duration::from_secs(20), &|| false);
        assert_eq!(pool.run(&long, || 7).unwrap(), 7);
    }

    #[test]
    fn a_call_that_ends_makes_room_for_another_and_one_that_is_refused_takes_none() {
        let pool = BlockingPool::refusing(THREADS_MAX, "blocking-test");
        let short = Deadline::after(Duration::ZERO, &|| false);
        let long = Deadline::after(Duration::from_secs(20), &|| false);
        let (end, ended) = sync_channel::<()>(0);
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..THREADS_MAX {
            let wait = ended.clone();
            assert!(matches!(pool.run(&short, move || wait.lock().recv()), Err(BlockingError::Wait(_))));
        }
        for _ in 0..2 {
            let refused = pool.run(&long, || unreachable!("there is no room"));
            assert!(matches!(refused, Err(BlockingError::Full(THREADS_MAX))), "{refused:?}");
        }
        end.send(()).unwrap();
        // Until its thread has given its place back.
        let made = long.wait_until(|| pool.run(&long, || 7).is_ok());
        assert!(made, "there is room for one");
        for _ in 1..THREADS_MAX {
            end.send(()).unwrap();
        }
    }

    #[test]
    fn a_call_that_panics_is_an_error_and_gives_its_thread_back() {
        let pool = BlockingPool::new(1, "blocking-test");
        let long = Deadline::after(Duration::from_secs(20), &|| false);
        let panicked = pool.run(&long, || panic!("as a test wants it"));
        assert!(matches!(panicked, Err::<(), _>(BlockingError::Panicked)), "{panicked:?}");
        assert_eq!(pool.run(&long, || 7).unwrap(), 7);
    }

    #[test]
    fn a_caller_that_gives_up_is_not_kept() {
        let pool = BlockingPool::new(1, "blocking-test");
        let (end, ended) = sync_channel::<()>(0);
        let gave_up = pool.run(&Deadline::after(Duration::from_secs(600), &|| true), move || ended.recv());
        assert!(matches!(gave_up, Err(BlockingError::Wait(WaitError::Interrupted))), "{gave_up:?}");
        end.send(()).unwrap();
    }
}
