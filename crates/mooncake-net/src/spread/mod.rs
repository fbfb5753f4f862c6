//! One request over several addresses of a peer: its lanes draw chunks from one queue.

pub(crate) mod addresses;
pub(crate) mod queue;

use std::time::Instant;

use mooncake_os::{Deadline, WaitError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use queue::{ChunkQueue, Next};

/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = 256 << 10;

/// A request of more bytes draws its chunks over all addresses; one of at most so many goes over one of them.
pub const ONE_ADDRESS_BYTES_MAX: u64 = 1 << 20;

/// The queue of one request, for lanes in threads of their own.
#[derive(Debug)]
pub struct Spread {
    queue: Mutex<ChunkQueue>,
    /// A chunk has come back, or the request is over.
    changed: Condvar,
}

impl Spread {
    /// As of [`ChunkQueue::new`].
    pub fn new(chunks: usize, lanes: usize, repeats: bool) -> Spread {
        Spread { queue: Mutex::new(ChunkQueue::new(chunks, lanes, repeats, Instant::now())), changed: Condvar::new() }
    }

    /// A chunk, if the lane may have one now.
    pub fn take(&self, lane: usize) -> Option<usize> {
        match self.queue.lock().next(lane, Instant::now()) {
            Next::Chunk(chunk) => Some(chunk),
            Next::Wait | Next::Over => None,
        }
    }

    /// A chunk for a lane that has none under way. `None`: the request is over. Asks the hook of the deadline
    /// meanwhile.
    pub fn wait(&self, lane: usize, deadline: &Deadline<'_>) -> Result<Option<usize>, WaitError> {
        let mut queue = self.queue.lock();
        loop {
            match queue.next(lane, Instant::now()) {
                Next::Chunk(chunk) => return Ok(Some(chunk)),
                Next::Over => return Ok(None),
                Next::Wait => {}
            }
            MutexGuard::unlocked(&mut queue, || deadline.check())?;
            if !queue.is_over() {
                self.changed.wait_for(&mut queue, Deadline::SLICE / 10);
            }
        }
    }

    /// Bytes of the lane have moved.
    pub fn moved(&self, lane: usize) {
        self.queue.lock().moved(lane, Instant::now());
    }

    /// The oldest chunk of the lane is done.
    pub fn done(&self, lane: usize) {
        let mut queue = self.queue.lock();
        queue.done(lane, Instant::now());
        if queue.is_over() {
            self.changed.notify_all();
        }
    }

    /// As of [`ChunkQueue::give_back`].
    pub fn give_back(&self, lane: usize) {
        self.change(|queue| queue.give_back(lane));
    }

    /// As of [`ChunkQueue::failed`].
    pub fn failed(&self, lane: usize) {
        self.change(|queue| queue.failed(lane));
    }

    /// The request ends, unless it is done.
    pub fn stop(&self) {
        self.change(ChunkQueue::stop);
    }

    /// All chunks are done.
    pub fn is_done(&self) -> bool {
        self.queue.lock().is_done()
    }

    /// No lane takes a chunk any more.
    pub fn is_over(&self) -> bool {
        self.queue.lock().is_over()
    }

    /// As of [`ChunkQueue::is_left_behind`].
    pub fn is_left_behind(&self, lane: usize) -> bool {
        self.queue.lock().is_left_behind(lane, Instant::now())
    }

    fn change(&self, change: impl FnOnce(&mut ChunkQueue)) {
        change(&mut self.queue.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lane_that_waits_gets_what_another_one_returns_and_hears_of_the_end() {
        let spread = Spread::new(1, 2, true);
        let patient = Deadline::after(Duration::from_secs(20), &|| false);
        assert_eq!(spread.take(0), Some(0));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let chunk = spread.wait(1, &patient).unwrap();
                spread.done(1);
                chunk
            });
            spread.failed(0);
            assert_eq!(other.join().unwrap(), Some(0));
        });
        assert_eq!(spread.wait(1, &patient).unwrap(), None);
        assert!(spread.is_done());
    }

    #[test]
    fn a_wait_ends_at_its_callers_wish() {
        let spread = Spread::new(1, 2, true);
        assert_eq!(spread.take(0), Some(0));
        let asked = AtomicBool::new(false);
        let wish = || asked.swap(true, Ordering::Relaxed);
        let ended = spread.wait(1, &Deadline::after(Duration::from_secs(20), &wish));
        assert_eq!(ended, Err(WaitError::Interrupted));
    }
}
