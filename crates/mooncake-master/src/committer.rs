//! Commits that a task awaits without holding a thread, or that no task awaits. One thread does them all, however long
//! its disk stands and however many tasks ask meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::call_loops::Loops;
use crate::log::LogClosed;

/// Whose commits these are.
pub trait Commits: Send + Sync + 'static {
    /// Its committer.
    fn committer(&self) -> &Committer;

    /// Where there is a thread beside the ones that serve connections.
    fn threads(&self) -> &Loops;

    /// Returns when everything up to `number` is in the log and delivered. Its failure stops the master, which is told
    /// there.
    fn commit(&self, number: u64) -> Result<(), LogClosed>;

    /// The thread is no more, and had not done all: the master cannot go on.
    fn broke_off(&self);
}

/// Brings into the log what it is asked for.
#[derive(Debug)]
pub struct Committer {
    wanted: Mutex<Wanted>,
    /// Everything up to this number is in the log and delivered. `None`: nothing more will be.
    done: watch::Sender<Option<u64>>,
}

#[derive(Debug, Default)]
struct Wanted {
    number: u64,
    is_under_way: bool,
}

impl Default for Committer {
    fn default() -> Committer {
        Committer { wanted: Mutex::default(), done: watch::Sender::new(Some(0)) }
    }
}

/// A commit that another thread does.
#[derive(Debug)]
pub struct Commit(Option<(u64, watch::Receiver<Option<u64>>)>);

impl Commit {
    /// One that was done in place.
    pub fn in_place() -> Commit {
        Commit(None)
    }

    /// Has everything up to `number` committed by a thread beside the ones that serve connections.
    pub fn ask<C: Commits>(commits: &Arc<C>, number: u64) -> Commit {
        let committer = commits.committer();
        let is_under_way = {
            let mut wanted = committer.wanted.lock();
            wanted.number = wanted.number.max(number);
            std::mem::replace(&mut wanted.is_under_way, true)
        };
        if !is_under_way {
            let run = Run { commits: commits.clone(), is_through: false };
            commits.threads().spawn_blocking(|| run.serve());
        }
        Commit(Some((number, committer.done.subscribe())))
    }

    /// Returns when it is done.
    pub async fn done(&mut self) -> Result<(), LogClosed> {
        let Some((number, done)) = &mut self.0 else { return Ok(()) };
        let done = done.wait_for(|done| done.is_none_or(|done| done >= *number)).await;
        done.is_ok_and(|done| done.is_some()).then_some(()).ok_or(LogClosed)
    }
}

/// The one thread's work, until nothing more is wanted.
struct Run<C: Commits> {
    commits: Arc<C>,
    is_through: bool,
}

impl<C: Commits> Run<C> {
    fn serve(mut self) {
        let Committer { wanted, done } = self.commits.committer();
        loop {
            let number = wanted.lock().number;
            if self.commits.commit(number).is_err() {
                return;
            }
            done.send_replace(Some(number));
            let mut wanted = wanted.lock();
            if wanted.number == number {
                wanted.is_under_way = false;
                self.is_through = true;
                return;
            }
        }
    }
}

impl<C: Commits> Drop for Run<C> {
    /// The log is closed, this thread panicked, or the master stops before it has begun: no task waits for ever.
    fn drop(&mut self) {
        if !self.is_through {
            self.commits.committer().done.send_replace(None);
            self.commits.broke_off();
        }
    }
}
