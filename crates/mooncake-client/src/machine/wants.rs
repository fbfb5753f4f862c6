//! What a store's threads want of its anchor.

use std::sync::atomic::{AtomicBool, Ordering};

/// Flags that any thread raises, and that the anchor looks at when it wakes.
#[derive(Debug, Default)]
pub struct Wants {
    ping: AtomicBool,
    resume: AtomicBool,
    closing: AtomicBool,
    ending: AtomicBool,
}

impl Wants {
    /// A pong now.
    pub fn ping(&self) {
        self.ping.store(true, Ordering::Release);
    }

    /// A fresh list for the master of what this store holds.
    pub fn resume(&self) {
        self.resume.store(true, Ordering::Release);
    }

    /// The store is being closed: no other session is to begin.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// It is closed; the session goes on until its last view has ended and the master knows.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Whether the store is being closed, or is closed.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether the session is to end with its last view.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Whether a pong was wanted since the last look.
    pub fn take_ping(&self) -> bool {
        self.ping.swap(false, Ordering::AcqRel)
    }

    /// Whether a fresh list was wanted since the last look.
    pub fn take_resume(&self) -> bool {
        self.resume.swap(false, Ordering::AcqRel)
    }
}
