//! How many requests are under way, and how many wait for their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fault::Fault;

/// So many requests at a time, and so many more in a queue; a request that comes then is sent away.
#[derive(Debug)]
pub(crate) struct Admission {
    turns: Arc<Semaphore>,
    pub running_max: usize,
    pub waiting_max: usize,
    waiting: AtomicUsize,
}

/// A request under way, until this is dropped.
pub(crate) type Turn = OwnedSemaphorePermit;

impl Admission {
    pub fn new(under_way: usize, waiting: usize) -> Admission {
        let running_max = under_way.clamp(1, Semaphore::MAX_PERMITS);
        let turns = Arc::new(Semaphore::new(running_max));
        Admission { turns, running_max, waiting_max: waiting, waiting: AtomicUsize::new(0) }
    }

    /// Waits for a turn, first come, first served. A caller that goes leaves the queue.
    pub async fn enter(&self) -> Result<Turn, Fault> {
        if let Ok(turn) = self.turns.clone().try_acquire_owned() {
            return Ok(turn);
        }
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= self.waiting_max {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(Fault::Crowded { waiting: self.waiting_max });
        }
        let _in_queue = InQueue(&self.waiting);
        Ok(self.turns.clone().acquire_owned().await.expect("it is never closed"))
    }

    pub fn under_way(&self) -> usize {
        self.running_max - self.turns.available_permits()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

struct InQueue<'a>(&'a AtomicUsize);

impl Drop for InQueue<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_finds_the_queue_full_is_sent_away_and_others_get_their_turn() {
        let admission = Arc::new(Admission::new(1, 1));
        let first = admission.enter().await.unwrap();
        let queue = admission.clone();
        let second = tokio::spawn(async move { queue.enter().await });
        while admission.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(admission.enter().await, Err(Fault::Crowded { waiting: 1 })));
        drop(first);
        let second = second.await.unwrap().unwrap();
        let queue = admission.clone();
        let gone = tokio::spawn(async move { queue.enter().await.map(drop) });
        while admission.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        while admission.waiting() > 0 {
            tokio::task::yield_now().await;
        }
        drop(second);
        assert!(admission.enter().await.is_ok());
    }
}
