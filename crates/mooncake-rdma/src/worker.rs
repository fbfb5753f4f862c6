//! The thread of a card for calls that may hang.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use mooncake_os::{Deadline, WaitError, forked, thread};
use parking_lot::Mutex;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other, in the order in which they were given. A job whose caller has left runs all the same,
/// and what it holds is dropped by this thread: to drop a queue pair may hang as to destroy it may. It ends when it is
/// dropped, behind its last job.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Mutex<Sender<Job>>,
}

/// Why a job's result is not there.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It has not ended yet, or not begun.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// It panicked, or this is a forked child, which has no such thread.
    #[error("its thread is gone")]
    Gone,
}

impl Worker {
    pub fn start() -> io::Result<Worker> {
        let (jobs, given) = channel::<Job>();
        let builder = std::thread::Builder::new().name("mooncake-rdma".into());
        thread::start(builder, move || {
            for job in given {
                if forked() {
                    return;
                }
                // Whoever waits for it finds that its result never comes.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            }
        })?;
        Ok(Worker { jobs: Mutex::new(jobs) })
    }

    /// Gives it a job that nobody waits for.
    pub fn give(&self, job: Job) -> Result<(), WorkerError> {
        if forked() {
            std::mem::forget(job);
            return Err(WorkerError::Gone);
        }
        self.jobs.lock().send(job).map_err(|left| {
            // No thread is there to drop what it holds, and the caller must not hang.
            std::mem::forget(left);
            WorkerError::Gone
        })
    }

    /// Gives it a job, and waits for its result until then.
    pub fn run<T: Send + 'static>(
        &self,
        deadline: &Deadline<'_>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (tell, told) = channel();
        self.give(Box::new(move || drop(tell.send(job()))))?;
        loop {
            match told.recv_timeout(deadline.slice()) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(WorkerError::Gone),
                Err(RecvTimeoutError::Timeout) => deadline.check()?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_job_that_hangs_keeps_those_behind_it_and_no_caller() {
        let worker = Worker::start().unwrap();
        let (release, released) = channel::<()>();
        let soon = || Deadline::at(Instant::now() + Duration::from_millis(30));
        assert!(matches!(worker.run(&soon(), move || released.recv()), Err(WorkerError::Wait(_))));
        let (done, has_done) = channel();
        assert!(matches!(worker.run(&soon(), move || done.send(7)), Err(WorkerError::Wait(_))));
        release.send(()).unwrap();
        assert_eq!(has_done.recv_timeout(Duration::from_secs(5)), Ok(7));
        let long = || Deadline::at(Instant::now() + Duration::from_secs(5));
        assert!(matches!(worker.run(&long(), || panic!("a job's")), Err::<(), _>(WorkerError::Gone)));
        assert_eq!(worker.run(&long(), || 8).unwrap(), 8);
    }
}
