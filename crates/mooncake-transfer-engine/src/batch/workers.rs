//! Threads that carry batches out.
//!
//! Requests wait in a queue for each peer, and few threads serve a peer at a time, so that one that does not answer
//! occupies no more. Threads start as they are needed, and end when there has been nothing to do for a while.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_os::Deadline;
use parking_lot::{Condvar, Mutex};

use crate::batch::{Batch, Task};
use crate::error::EngineError;
use crate::peers::initiator::Initiator;
use crate::request::{PeerId, Request};

/// Threads that work for one peer at a time.
const THREADS_PER_PEER_MAX: usize = 2;

/// A thread without work ends after this.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest that the end of the engine waits for threads.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Most requests, and bytes, that a thread takes at a time, so that others have their share.
const WORK_REQUESTS_MAX: usize = 256;
const WORK_BYTES_MAX: u64 = 64 << 20;

struct Work {
    batch: Arc<Batch>,
    tasks: Arc<Vec<Task>>,
    range: Range<usize>,
    deadline: Instant,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// Threads at work for the peer.
    busy: usize,
    /// The peer is among those that are ready.
    is_ready: bool,
}

impl Queue {
    /// How many more threads may serve the peer and would have something to do.
    fn room(&self) -> usize {
        self.work.len().min(THREADS_PER_PEER_MAX - self.busy)
    }
}

#[derive(Default)]
struct State {
    queues: HashMap<PeerId, Queue>,
    /// Peers with work and a thread to spare, in turn; each once.
    ready: VecDeque<PeerId>,
    threads: usize,
    /// How many of them are at work.
    busy: usize,
    closed: bool,
}

impl State {
    /// Puts a peer in the queue of those that are ready, if there is something to do for it.
    fn queue_up(&mut self, peer: PeerId) {
        let Some(queue) = self.queues.get_mut(&peer) else { return };
        if !queue.is_ready && queue.room() > 0 {
            queue.is_ready = true;
            self.ready.push_back(peer);
        }
    }

    /// The next work in turn.
    fn take(&mut self) -> Option<(PeerId, Work)> {
        let peer = self.ready.pop_front()?;
        let queue = self.queues.get_mut(&peer)?;
        queue.is_ready = false;
        let work = queue.work.pop_front()?;
        queue.busy += 1;
        self.busy += 1;
        self.queue_up(peer);
        Some((peer, work))
    }

    /// Threads that are needed beside those that wait for work or have just been started, up to `most` in all.
    fn wanted(&self, most: usize) -> usize {
        let room = self.ready.iter().filter_map(|peer| self.queues.get(peer)).map(Queue::room);
        // Each that is ready has room for one at least.
        let could_work: usize = room.take(most).sum();
        could_work.saturating_sub(self.threads - self.busy).min(most.saturating_sub(self.threads))
    }
}

pub(crate) struct Workers {
    initiator: Arc<Initiator>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Workers {
    /// No thread yet. Threads carry requests out by this initiator.
    pub fn new(initiator: Arc<Initiator>) -> Workers {
        Workers { initiator, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Takes tasks of a batch on.
    pub fn add(
        self: &Arc<Self>,
        batch: &Arc<Batch>,
        tasks: &Arc<Vec<Task>>,
        deadline: Instant,
    ) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(EngineError::Closed);
        }
        let mut at = 0;
        while at < tasks.len() {
            let peer = tasks[at].peer;
            let mut bytes = 0;
            let alike = tasks[at..].iter().take(WORK_REQUESTS_MAX).take_while(|task| {
                let len = task.request.local.len() as u64;
                bytes = u64::saturating_add(bytes, len);
                task.peer == peer && (bytes <= WORK_BYTES_MAX || bytes == len)
            });
            let end = at + alike.count();
            let work = Work { batch: batch.clone(), tasks: tasks.clone(), range: at..end, deadline };
            state.queues.entry(peer).or_default().work.push_back(work);
            state.queue_up(peer);
            at = end;
        }
        for _ in 0..state.wanted(self.initiator.node.context.options.worker_threads) {
            let workers = self.clone();
            let builder = std::thread::Builder::new().name("mooncake-batch".into());
            match mooncake_os::thread::start(builder, move || workers.run()) {
                Ok(_) => state.threads += 1,
                Err(source) if state.threads == 0 => {
                    state.queues.clear();
                    state.ready.clear();
                    return Err(EngineError::Os { what: "start a thread", source });
                }
                Err(_) => break,
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Begins nothing more, and fails what waits. Waits for the threads, which may send notifications, for a few
    /// seconds or until the caller's hook ends it. Transfers under way are counted and waited for by
    /// [`crate::peers::calls::Calls`].
    pub fn close(&self, interrupted: &(dyn Fn() -> bool + Sync)) {
        let left: Vec<Work> = {
            let mut state = self.state.lock();
            state.closed = true;
            state.ready.clear();
            state.queues.values_mut().flat_map(|queue| queue.work.drain(..)).collect()
        };
        for work in left {
            let tasks = &work.tasks[work.range.clone()];
            if work.batch.end(tasks, &Err(EngineError::Closed)).is_some() {
                work.batch.finish(tasks.len());
            }
        }
        self.changed.notify_all();
        let mut state = self.state.lock();
        let deadline = Deadline::after(CLOSE_TIMEOUT, interrupted);
        if !deadline.park_until(&mut state, &self.changed, |state| state.threads == 0) {
            tracing::warn!(threads = state.threads, "threads of batches go on after the end of their engine");
        }
    }

    fn run(&self) {
        let initiator = &self.initiator;
        while let Some((peer, work)) = self.next() {
            let tasks = &work.tasks[work.range.clone()];
            let requests: Vec<Request> = tasks.iter().map(|task| task.request).collect();
            let result = match Instant::now() >= work.deadline {
                true => {
                    let (what, waited) = ("waiting for its turn", initiator.node.context.options.transfer_timeout);
                    Err(EngineError::Timeout { peer: initiator.peer_name(peer), what, waited })
                }
                false => {
                    let deadline = Deadline { began: Instant::now(), until: work.deadline, interrupted: &|| false };
                    let transfer = || initiator.transfer(peer, &requests, &deadline);
                    // Whoever waits for the batch is told, whatever happens.
                    catch_unwind(AssertUnwindSafe(transfer)).unwrap_or_else(|_| {
                        Err(EngineError::Panicked(format!("{}: a transfer", initiator.peer_name(peer))))
                    })
                }
            };
            if let Err(error) = &result {
                tracing::debug!(peer = initiator.peer_name(peer), %error, "requests of a batch failed");
            }
            if let Some((to, notify)) = work.batch.end(tasks, &result) {
                let deadline = work.batch.deadline.lock().unwrap_or(work.deadline);
                if let Err(error) = initiator.tell_of_batch(to, &notify, deadline) {
                    tracing::warn!(%error, "a batch is done, and its notification did not arrive");
                }
                work.batch.finish(tasks.len());
            }
            self.done(peer);
        }
    }

    fn next(&self) -> Option<(PeerId, Work)> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.take() {
                return Some(next);
            }
            let until = Instant::now() + IDLE_TIME_MAX;
            if !state.closed {
                let timed_out = self.changed.wait_until(&mut state, until).timed_out();
                if !timed_out || !state.ready.is_empty() {
                    continue;
                }
            }
            state.threads -= 1;
            if state.closed {
                self.changed.notify_all();
            }
            return None;
        }
    }

    fn done(&self, peer: PeerId) {
        let mut state = self.state.lock();
        state.busy -= 1;
        let Some(queue) = state.queues.get_mut(&peer) else { return };
        queue.busy -= 1;
        if queue.work.is_empty() && queue.busy == 0 {
            state.queues.remove(&peer);
        }
        // This thread takes what is next, of this peer or of another.
        state.queue_up(peer);
    }
}
