//! Threads beside the callers' own, for large transfers over several connections: few for the whole engine.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most at a time, for all callers and all peers together.
const MOST: usize = 16;

/// How many are at work.
#[derive(Debug, Default)]
pub(crate) struct StripeThreads {
    busy: AtomicUsize,
}

impl StripeThreads {
    /// As many as are free, none perhaps, and no more than wanted.
    pub fn take(&self, wanted: usize) -> Taken<'_> {
        let mut count = 0;
        let _ = self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |busy| {
            count = wanted.min(MOST - busy);
            Some(busy + count)
        });
        Taken { of: self, count }
    }
}

/// Given back when it ends.
pub(crate) struct Taken<'a> {
    of: &'a StripeThreads,
    count: usize,
}

impl Taken<'_> {
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.of.busy.fetch_sub(self.count, Ordering::SeqCst);
    }
}
