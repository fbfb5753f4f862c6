//! Puts under way: whose reservations the heartbeat renews.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Younger puts need no renewal: their deadline is 30 s away.
const YOUNG: Duration = Duration::from_secs(5);

/// The reservations of one put call.
#[derive(Debug)]
pub(crate) struct PutProgress {
    rids: Vec<u64>,
    since: Instant,
    /// Writes of it under way; each fails by itself when no byte moves.
    writing: AtomicU32,
    /// A write has ended since the last look.
    moved: AtomicBool,
}

impl PutProgress {
    pub fn begin_write(&self) {
        self.writing.fetch_add(1, Ordering::Relaxed);
    }

    pub fn end_write(&self) {
        self.moved.store(true, Ordering::Relaxed);
        self.writing.fetch_sub(1, Ordering::Relaxed);
    }

    fn has_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed) || self.writing.load(Ordering::Relaxed) > 0
    }
}

/// All puts of a store that are under way.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    puts: Mutex<Vec<Arc<PutProgress>>>,
}

impl Progress {
    pub fn begin(&self, rids: Vec<u64>) -> Arc<PutProgress> {
        let put = Arc::new(PutProgress {
            rids,
            since: Instant::now(),
            writing: AtomicU32::new(0),
            moved: AtomicBool::new(false),
        });
        self.puts.lock().push(put.clone());
        put
    }

    pub fn end(&self, put: &Arc<PutProgress>) {
        let mut puts = self.puts.lock();
        if let Some(at) = puts.iter().position(|other| Arc::ptr_eq(other, put)) {
            puts.swap_remove(at);
        }
    }

    /// Another session began: it has no reservations yet, and its first ones may have the same numbers.
    pub fn start_over(&self) {
        self.puts.lock().clear();
    }

    /// Reservations whose puts have got on since the last call.
    pub fn moved(&self) -> Vec<u64> {
        let puts = self.puts.lock();
        let old = puts.iter().filter(|put| put.since.elapsed() > YOUNG && put.has_moved());
        old.flat_map(|put| put.rids.iter().copied()).collect()
    }
}
