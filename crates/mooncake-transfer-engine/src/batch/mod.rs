//! Batches: requests that are carried out in the background, and their handles.

pub(crate) mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_os::forked;
use parking_lot::{Condvar, Mutex};

use crate::error::EngineError;
use crate::notify::Notify;
use crate::request::{PeerId, Request};

/// Names a batch: its place in the table, and how often that was used. Never 0 and never all ones; one that was freed
/// names nothing again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// How far a request has come, with Mooncake's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Not done yet.
    Waiting = 0,
    /// All its bytes are in place.
    Completed = 4,
    /// Not done by its deadline. Nothing touches its memory any more.
    Timeout = 5,
    /// It failed. Nothing touches its memory any more.
    Failed = 6,
}

impl Status {
    fn of(raw: u8) -> Status {
        match raw {
            4 => Status::Completed,
            5 => Status::Timeout,
            6 => Status::Failed,
            _ => Status::Waiting,
        }
    }
}

/// One request of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskStatus {
    /// How far it is.
    pub status: Status,
    /// Bytes that have certainly arrived.
    pub transferred: u64,
}

pub(crate) struct Task {
    pub peer: PeerId,
    pub request: Request,
    status: AtomicU8,
}

pub(crate) struct Batch {
    capacity: usize,
    state: Mutex<State>,
    /// Tasks that are not done, as callers are told.
    unfinished: AtomicUsize,
    failed: AtomicUsize,
    timed_out: AtomicUsize,
    done: Condvar,
    pub deadline: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct State {
    tasks: Vec<Arc<Vec<Task>>>,
    /// Tasks whose outcome is not known yet. Callers learn of an outcome later, with [`Batch::unfinished`].
    open: usize,
    /// Sent to this peer when all tasks are done.
    notify: Option<(PeerId, Notify)>,
    error: Option<String>,
    /// Called when no task is under way any more, each with the number that [`Batch::forget`] takes.
    hooks: Vec<(u64, Hook)>,
    next_hook: u64,
}

/// What is done once a batch is.
pub(crate) type Hook = Box<dyn FnOnce() + Send>;

impl Batch {
    fn new(capacity: usize) -> Batch {
        let zero = || AtomicUsize::new(0);
        let (unfinished, failed, timed_out) = (zero(), zero(), zero());
        let deadline = Mutex::new(None);
        Batch { capacity, state: Mutex::default(), unfinished, failed, timed_out, done: Condvar::new(), deadline }
    }

    /// Adds requests; gives them as tasks for the workers.
    pub fn add(
        &self,
        requests: Vec<(PeerId, Request)>,
        notify: Option<(PeerId, Notify)>,
        deadline: Instant,
    ) -> Result<Arc<Vec<Task>>, EngineError> {
        let mut state = self.state.lock();
        let queued: usize = state.tasks.iter().map(|tasks| tasks.len()).sum();
        let more = requests.len();
        if queued + more > self.capacity {
            return Err(EngineError::TooManyRequests { capacity: self.capacity, queued, more });
        }
        let task = |(peer, request)| Task { peer, request, status: AtomicU8::new(Status::Waiting as u8) };
        let tasks = Arc::new(requests.into_iter().map(task).collect::<Vec<_>>());
        self.unfinished.fetch_add(more, Ordering::SeqCst);
        state.open += more;
        state.tasks.push(tasks.clone());
        state.notify = notify.or(state.notify.take());
        let mut latest = self.deadline.lock();
        *latest = Some(latest.map_or(deadline, |latest| latest.max(deadline)));
        Ok(tasks)
    }

    /// Tasks have ended. The message that goes out now, if that was the last of them.
    pub fn end(&self, tasks: &[Task], result: &Result<(), EngineError>) -> Option<(PeerId, Notify)> {
        let status = match result {
            Ok(()) => Status::Completed,
            Err(EngineError::Timeout { .. }) => Status::Timeout,
            Err(_) => Status::Failed,
        };
        let mut state = self.state.lock();
        for task in tasks {
            task.status.store(status as u8, Ordering::SeqCst);
        }
        match status {
            Status::Timeout => self.timed_out.fetch_add(tasks.len(), Ordering::SeqCst),
            Status::Failed => self.failed.fetch_add(tasks.len(), Ordering::SeqCst),
            _ => 0,
        };
        if let Err(error) = result {
            state.error.get_or_insert_with(|| error.to_string());
        }
        state.open -= tasks.len();
        if state.open == 0 && state.error.is_none() && state.notify.is_some() {
            // The message goes out before callers learn that the batch is done: [`Batch::finish`] follows.
            return state.notify.take();
        }
        drop(state);
        self.finish(tasks.len());
        None
    }

    /// Tells callers that so many tasks are done.
    pub fn finish(&self, count: usize) {
        let hooks = {
            let mut state = self.state.lock();
            if self.unfinished.fetch_sub(count, Ordering::SeqCst) != count {
                return;
            }
            self.done.notify_all();
            std::mem::take(&mut state.hooks)
        };
        for (_, hook) in hooks {
            hook();
        }
    }

    /// `hook` is called once no task is under way: at once, in this thread, if none is. Gives the number that
    /// [`Batch::forget`] takes it back by.
    pub fn when_done(&self, hook: Hook) -> u64 {
        let mut state = self.state.lock();
        state.next_hook += 1;
        let number = state.next_hook;
        if self.unfinished() > 0 {
            state.hooks.push((number, hook));
        } else {
            drop(state);
            hook();
        }
        number
    }

    /// A hook that has not been called will not be.
    pub fn forget(&self, number: u64) {
        let forgotten: Vec<_> = {
            let mut state = self.state.lock();
            state.hooks.extract_if(.., |(other, _)| *other == number).collect()
        };
        // What it captures is dropped without the lock.
        drop(forgotten);
    }

    pub fn task(&self, index: usize) -> Option<TaskStatus> {
        let state = self.state.lock();
        let mut index = index;
        for tasks in &state.tasks {
            if let Some(task) = tasks.get(index) {
                let status = Status::of(task.status.load(Ordering::SeqCst));
                let transferred = if status == Status::Completed { task.request.local.len() as u64 } else { 0 };
                return Some(TaskStatus { status, transferred });
            }
            index -= tasks.len();
        }
        None
    }

    /// Of all tasks: failed as soon as one has.
    pub fn status(&self) -> Status {
        // Read first: a task that fails from here on still counts as unfinished.
        let unfinished = self.unfinished();
        if self.failed.load(Ordering::SeqCst) > 0 {
            Status::Failed
        } else if self.timed_out.load(Ordering::SeqCst) > 0 {
            Status::Timeout
        } else if unfinished > 0 {
            Status::Waiting
        } else {
            Status::Completed
        }
    }

    /// Why a task failed, the first that did.
    pub fn error(&self) -> Option<String> {
        self.state.lock().error.clone()
    }

    pub fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::SeqCst)
    }

    /// Waits until no task is under way; false if that takes longer.
    pub fn wait(&self, timeout: Duration) -> bool {
        // None: later than any clock will show.
        let until = Instant::now().checked_add(timeout);
        let mut state = self.state.lock();
        while self.unfinished() > 0 {
            match until {
                Some(until) if self.done.wait_until(&mut state, until).timed_out() => return self.unfinished() == 0,
                Some(_) => {}
                None => self.done.wait(&mut state),
            }
        }
        true
    }
}

/// All batches of an engine.
#[derive(Default)]
pub(crate) struct Batches {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    list: Vec<(u32, Option<Arc<Batch>>)>,
    free: Vec<u32>,
}

impl Batches {
    pub fn allocate(&self, capacity: usize) -> BatchId {
        if forked() {
            // A thread of the parent may have held the lock at the fork, and nothing unlocks it here.
            return BatchId(0);
        }
        let mut table = self.table.lock();
        let index = table.free.pop().unwrap_or_else(|| {
            table.list.push((0, None));
            table.list.len() as u32 - 1
        });
        let entry = &mut table.list[index as usize];
        entry.0 = (entry.0 + 1) & 0x7fff_ffff;
        entry.1 = Some(Arc::new(Batch::new(capacity)));
        BatchId((u64::from(entry.0) << 32) | (u64::from(index) + 1))
    }

    pub fn get(&self, id: BatchId) -> Result<Arc<Batch>, EngineError> {
        if forked() {
            return Err(EngineError::Forked);
        }
        let table = self.table.lock();
        let index = (id.0 as u32).wrapping_sub(1) as usize;
        let found = table.list.get(index).filter(|(generation, _)| u64::from(*generation) == id.0 >> 32);
        found.and_then(|(_, batch)| batch.clone()).ok_or(EngineError::NoSuchBatch(id.0))
    }

    pub fn free(&self, id: BatchId) -> Result<(), EngineError> {
        let batch = self.get(id)?;
        let unfinished = batch.unfinished();
        if unfinished > 0 {
            return Err(EngineError::BatchBusy { unfinished });
        }
        let mut table = self.table.lock();
        let index = id.0 as u32 - 1;
        // Another caller may have freed it since.
        let entry = &mut table.list[index as usize];
        if u64::from(entry.0) != id.0 >> 32 || entry.1.take().is_none() {
            return Err(EngineError::NoSuchBatch(id.0));
        }
        table.free.push(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_request() -> Vec<(PeerId, Request)> {
        let local = mooncake_memory::leak_shared(1).unwrap();
        vec![(PeerId::SELF, Request { opcode: crate::request::Opcode::Write, local, remote: 0 })]
    }

    #[test]
    fn who_asks_while_a_batch_fails_is_never_told_that_it_is_done() {
        let request = one_request();
        let failed = || Err(EngineError::InvalidArgument("no".into()));
        let late = || Err(EngineError::Timeout { peer: "p".into(), what: "it", waited: Duration::ZERO });
        for round in 0..20_000 {
            let batch = Batch::new(1);
            let tasks = batch.add(request.clone(), None, Instant::now()).unwrap();
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| {
                    loop {
                        match batch.status() {
                            Status::Waiting => {}
                            end => return end,
                        }
                    }
                });
                batch.end(&tasks, &if round % 2 == 0 { failed() } else { late() });
                assert_ne!(asked.join().unwrap(), Status::Completed, "in round {round}");
            });
        }
    }

    #[test]
    fn a_wait_without_an_end_is_a_wait() {
        let batch = Batch::new(1);
        let tasks = batch.add(one_request(), None, Instant::now()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| batch.wait(Duration::MAX));
            batch.end(&tasks, &Ok(()));
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn an_id_names_one_batch_for_ever() {
        let batches = Batches::default();
        let one = batches.allocate(1);
        assert!(one.0 != 0 && one.0 != u64::MAX && batches.get(one).is_ok());
        batches.free(one).unwrap();
        let two = batches.allocate(1);
        assert_ne!(one, two);
        for wrong in [one, BatchId(0), BatchId(u64::MAX), BatchId(two.0 + 1), BatchId(two.0 ^ 1 << 40)] {
            assert!(matches!(batches.get(wrong), Err(EngineError::NoSuchBatch(_))), "{wrong:?}");
            assert!(matches!(batches.free(wrong), Err(EngineError::NoSuchBatch(_))), "{wrong:?}");
        }
        assert_eq!(batches.get(two).unwrap().status(), Status::Completed, "of no tasks, all are done");
    }
}
