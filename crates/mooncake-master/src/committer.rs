//! Commits that are waited for without a thread, or by nobody: one thread does those of all, however long its disk
//! stands and however many ask meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::log::LogClosed;
use crate::shared::Shared;

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

    /// Has everything up to `number` committed by a thread beside those that serve connections.
    pub fn ask(shared: &Arc<Shared>, number: u64) -> Commit {
        let committer = &shared.committer;
        let is_under_way = {
            let mut wanted = committer.wanted.lock();
            wanted.number = wanted.number.max(number);
            std::mem::replace(&mut wanted.is_under_way, true)
        };
        if !is_under_way {
            let run = Run { shared: shared.clone(), is_through: false };
            shared.threads.anchors.spawn_blocking(|| run.serve());
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
struct Run {
    shared: Arc<Shared>,
    is_through: bool,
}

impl Run {
    fn serve(mut self) {
        let Committer { wanted, done } = &self.shared.committer;
        loop {
            let number = wanted.lock().number;
            // Its failure stops the master, which is told there.
            if self.shared.commit(number).is_err() {
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

impl Drop for Run {
    /// The log is closed, this thread panicked, or the master stops before it has begun: nobody waits for ever.
    fn drop(&mut self) {
        if !self.is_through {
            self.shared.committer.done.send_replace(None);
            self.shared.failed.notify_one();
        }
    }
}
