//! Why the last call failed, in words and as a code, per store and thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use crate::code::INVALID_PARAMS;

/// Threads that end leave their last error behind; so many are kept.
const THREADS_MAX: usize = 256;

thread_local! {
    /// The store that this thread called last.
    static CALLED: Cell<u64> = const { Cell::new(0) };
    /// Reasons that calls of this thread have left, in whatever stores: without any, a call costs no lock. Too many
    /// where a store is gone, or has forgotten one.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// Whether the call that this thread is in has its reason.
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Errors of one store. A thread that called it last sees its own outcome, and so
/// does an event loop whose calls run elsewhere: they are noted as its own when it
/// takes their results. A thread that called another store, or none, sees the newest.
pub struct LastError {
    store: u64,
    errors: Mutex<Errors>,
}

#[derive(Default)]
struct Errors {
    by_thread: HashMap<ThreadId, Reason>,
    counter: u64,
}

struct Reason {
    at: u64,
    code: i64,
    text: String,
}

impl LastError {
    /// None so far.
    pub fn new() -> Self {
        Self { store: NEXT.fetch_add(1, Ordering::Relaxed), errors: Mutex::new(Errors::default()) }
    }

    /// A call of this thread begins: what its previous one left no longer counts.
    pub fn clear(&self) {
        CALLED.set(self.store);
        NOTED.set(false);
        let left = LEFT.get();
        if left > 0 && self.errors.lock().by_thread.remove(&thread::current().id()).is_some() {
            LEFT.set(left - 1);
        }
    }

    /// Whether the call of this thread has its reason: another one would be passed over.
    pub fn is_noted(&self) -> bool {
        NOTED.get() && CALLED.get() == self.store
    }

    /// The call of this thread was refused, with -600. The first reason of a call is kept.
    pub fn set(&self, reason: impl FnOnce() -> String) {
        self.set_code(INVALID_PARAMS, reason);
    }

    /// The call of this thread failed with that code. The first reason of a call is kept.
    pub fn set_code(&self, code: i64, reason: impl FnOnce() -> String) {
        if self.is_noted() {
            return;
        }
        NOTED.set(CALLED.get() == self.store);
        let mut errors = self.errors.lock();
        let id = thread::current().id();
        if errors.by_thread.contains_key(&id) {
            return;
        }
        if errors.by_thread.len() >= THREADS_MAX {
            let oldest = errors.by_thread.iter().min_by_key(|(_, reason)| reason.at).map(|(id, _)| *id);
            oldest.map(|oldest| errors.by_thread.remove(&oldest));
        }
        errors.counter += 1;
        let at = errors.counter;
        errors.by_thread.insert(id, Reason { at, code, text: reason() });
        LEFT.set(LEFT.get() + 1);
    }

    /// The reason, or "".
    pub fn get(&self) -> String {
        self.read(|reason| reason.text.clone())
    }

    /// The code that the reason belongs to, or 0.
    pub fn code(&self) -> i64 {
        self.read(|reason| reason.code)
    }

    fn read<T: Default>(&self, what: impl FnOnce(&Reason) -> T) -> T {
        let errors = self.errors.lock();
        let found = if CALLED.get() == self.store {
            errors.by_thread.get(&thread::current().id())
        } else {
            errors.by_thread.values().max_by_key(|reason| reason.at)
        };
        found.map(what).unwrap_or_default()
    }
}
