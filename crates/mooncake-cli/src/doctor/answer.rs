//! An answer that is waited for, and not for long.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Longest wait for one answer. A master's own limit is 3 s: its error says more than that nothing came.
pub const LIMIT: Duration = Duration::from_millis(3_500);

/// What a thread of its own reads: a name service, a file system or a peer may take for ever.
///
/// A thread that never comes back ends with the process.
#[derive(Debug)]
pub struct Answer<T> {
    receiver: Receiver<T>,
    since: Instant,
}

impl<T: Send + 'static> Answer<T> {
    /// Begins to read it.
    pub fn of(read: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let (sender, receiver) = sync_channel(1);
        // Without a thread the sender is gone at once, and so is the wait.
        let _ = Builder::new().name("mooncake-doctor".into()).spawn(move || {
            let _ = sender.send(read());
        });
        Answer { receiver, since: Instant::now() }
    }

    /// The answer; none if it takes longer than [`LIMIT`] since it began.
    pub fn wait(self) -> Option<T> {
        self.wait_for(LIMIT)
    }

    /// The answer; none if it takes longer than that since it began.
    pub fn wait_for(self, limit: Duration) -> Option<T> {
        self.receiver.recv_timeout(limit.saturating_sub(self.since.elapsed())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forever() -> u8 {
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn answers_come_side_by_side_and_one_that_does_not_come_is_given_up() {
        let (never, one, other) = (Answer::of(forever), Answer::of(|| 1), Answer::of(|| 2));
        assert_eq!((one.wait(), other.wait()), (Some(1), Some(2)));
        assert_eq!(never.wait_for(Duration::from_millis(20)), None);
    }

    #[test]
    fn one_that_came_in_time_is_there_however_late_it_is_asked_for() {
        let one = Answer::of(|| 1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(one.wait_for(Duration::ZERO), Some(1));
    }
}
