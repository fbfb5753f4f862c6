//! Threads that wait for the disk, where io_uring cannot be had.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Completion, Operation, Queue};
use crate::slots::Slot;

/// Most threads of a queue.
const WORKERS_MAX: usize = 16;

/// Operations that threads carry out. They are started as they are needed, and end with the queue, each behind the
/// operation that it is in.
#[derive(Debug)]
pub struct Threads {
    depth: usize,
    under_way: usize,
    workers: usize,
    work: Arc<Work>,
    told: Sender<Completion>,
    ended: Receiver<Completion>,
}

#[derive(Debug, Default)]
struct Work {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    operations: VecDeque<(u64, Operation<Arc<File>>)>,
    idle: usize,
    is_over: bool,
}

impl Threads {
    /// For that many operations at a time.
    pub fn new(depth: usize) -> Threads {
        let (told, ended) = channel();
        Threads { depth, under_way: 0, workers: 0, work: Arc::default(), told, ended }
    }

    fn start_worker(&mut self) {
        let (work, told) = (self.work.clone(), self.told.clone());
        let started = std::thread::Builder::new().name("tier-disk".to_owned()).spawn(move || serve(&work, &told));
        match started {
            Ok(_) => self.workers += 1,
            // Those that there are do its work, too.
            Err(error) if self.workers > 0 => tracing::debug!(%error, "no further thread for the disk"),
            Err(error) => self.fail_all(&error),
        }
    }

    /// Without a thread every operation has failed.
    fn fail_all(&mut self, error: &io::Error) {
        let operations = std::mem::take(&mut self.work.state.lock().operations);
        for (tag, operation) in operations {
            let result = Err(io::Error::new(error.kind(), error.to_string()));
            let _ = self.told.send(Completion { tag, result, slot: operation.into_slot() });
        }
    }
}

impl Queue for Threads {
    type File = Arc<File>;

    fn has_room(&self) -> bool {
        self.under_way < self.depth
    }

    fn submit(&mut self, tag: u64, operation: Operation<Arc<File>>) {
        debug_assert!(self.has_room());
        self.under_way += 1;
        let needs_worker = {
            let mut state = self.work.state.lock();
            state.operations.push_back((tag, operation));
            state.operations.len() > state.idle
        };
        if needs_worker && self.workers < self.depth.min(WORKERS_MAX) {
            self.start_worker();
        }
        self.work.changed.notify_one();
    }

    fn next(&mut self, wait: Duration) -> Option<Completion> {
        if self.under_way == 0 {
            return None;
        }
        let ended = self.ended.try_recv().ok().or_else(|| self.ended.recv_timeout(wait).ok())?;
        self.under_way -= 1;
        Some(ended)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.work.state.lock();
        state.is_over = true;
        // What has not begun never does.
        state.operations.clear();
        self.work.changed.notify_all();
    }
}

fn serve(work: &Work, told: &Sender<Completion>) {
    loop {
        let (tag, operation) = {
            let mut state = work.state.lock();
            loop {
                if let Some(next) = state.operations.pop_front() {
                    break next;
                }
                if state.is_over {
                    return;
                }
                state.idle += 1;
                work.changed.wait(&mut state);
                state.idle -= 1;
            }
        };
        let (result, slot) = carry_out(operation);
        if told.send(Completion { tag, result, slot }).is_err() {
            return;
        }
    }
}

fn carry_out(operation: Operation<Arc<File>>) -> (io::Result<usize>, Option<Slot>) {
    match operation {
        Operation::Read { file, offset, mut slot, len } => {
            let result = whole(len, |done| file.read_at(&mut slot[done..len], offset + done as u64));
            (result, Some(slot))
        }
        Operation::Write { file, offset, slot, len } => {
            let result = whole(len, |done| file.write_at(&slot[done..len], offset + done as u64));
            (result, Some(slot))
        }
        Operation::Sync { file } => (file.sync_data().map(|()| 0), None),
    }
}

/// Calls until all is moved, or nothing more is.
fn whole(len: usize, mut call: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl<F> Operation<F> {
    /// Its slot, given back undone.
    fn into_slot(self) -> Option<Slot> {
        match self {
            Operation::Read { slot, .. } | Operation::Write { slot, .. } => Some(slot),
            Operation::Sync { .. } => None,
        }
    }
}
