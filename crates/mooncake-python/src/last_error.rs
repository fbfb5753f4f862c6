//! Why the last call failed, in words, per store and thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

/// Threads that end leave their last error behind; so many are kept.
const MOST_THREADS: usize = 256;

thread_local! {
    /// The store that this thread called last.
    static CALLED: Cell<u64> = const { Cell::new(0) };
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Errors of one store. A thread that called it last sees its own outcome, and so
/// does an event loop whose calls run elsewhere: they are noted as its own when it
/// takes their results. A thread that called another store, or none, sees the newest.
pub struct LastError {
    store: u64,
    /// Number of entries below, so that success costs no lock.
    count: AtomicUsize,
    errors: Mutex<Errors>,
}

#[derive(Default)]
struct Errors {
    by_thread: HashMap<ThreadId, (u64, String)>,
    counter: u64,
}

impl LastError {
    /// None so far.
    pub fn new() -> Self {
        Self {
            store: NEXT.fetch_add(1, Ordering::Relaxed),
            count: AtomicUsize::new(0),
            errors: Mutex::new(Errors::default()),
        }
    }

    /// A call of this thread begins: what its previous one left no longer counts.
    pub fn clear(&self) {
        CALLED.set(self.store);
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut errors = self.errors.lock();
            errors.by_thread.remove(&thread::current().id());
            self.count.store(errors.by_thread.len(), Ordering::Relaxed);
        }
    }

    /// The call of this thread failed. The first reason of a call is kept.
    pub fn set(&self, reason: impl FnOnce() -> String) {
        let mut errors = self.errors.lock();
        let id = thread::current().id();
        if errors.by_thread.contains_key(&id) {
            return;
        }
        if errors.by_thread.len() >= MOST_THREADS {
            let oldest = errors.by_thread.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| *id);
            oldest.map(|oldest| errors.by_thread.remove(&oldest));
        }
        errors.counter += 1;
        let at = errors.counter;
        errors.by_thread.insert(id, (at, reason()));
        self.count.store(errors.by_thread.len(), Ordering::Relaxed);
    }

    /// The reason, or "".
    pub fn get(&self) -> String {
        let errors = self.errors.lock();
        let found = if CALLED.get() == self.store {
            errors.by_thread.get(&thread::current().id())
        } else {
            errors.by_thread.values().max_by_key(|(at, _)| *at)
        };
        found.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}
