//! A short look before a long sleep.
//!
//! An answer from the same host, or from a near one, is there within a few
//! microseconds; putting the thread to sleep and waking it costs several times
//! that, most of all on virtual machines, where an idle processor is handed
//! back to the host. So a waiting thread asks for a moment first.
//!
//! Asking takes processor time, which others may need. Therefore at most half
//! of the processors' number of threads of a process ask at a time, and asking
//! in vain makes the next ones skip it: once, twice, four times, and so on.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Longest that a thread asks. About what the sleep costs that it may save.
pub const MOMENT: Duration = Duration::from_micros(40);

/// Longest work of others that is waited for awake. Two wake-ups after more are
/// less than a tenth of it.
const WORK_MAX: Duration = Duration::from_micros(800);

/// Asks between two looks at the clock.
const ASKS: u32 = 8;

/// Most waits that skip asking after it was in vain again and again.
const SKIPPED_MAX: u32 = 256;

static ASKING: AtomicUsize = AtomicUsize::new(0);

/// Asks `ready` again and again for a moment. `None`: not ready by then, or
/// not asked; the caller sleeps until it is.
pub fn busy_poll<T>(history: &PollHistory, ready: impl FnMut() -> Option<T>) -> Option<T> {
    busy_poll_behind(history, Duration::ZERO, ready)
}

/// The same for an answer that is known to take some work: the moment begins
/// when that is done. Work of more than `WORK_MAX` is slept through, and
/// the history learns nothing of it.
pub fn busy_poll_behind<T>(history: &PollHistory, work: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    if work > WORK_MAX || history.skips() {
        return None;
    }
    let _permit = Permit::take()?;
    let until = Instant::now() + work + MOMENT;
    loop {
        for _ in 0..ASKS {
            if let Some(answer) = ready() {
                history.helped();
                return Some(answer);
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            history.was_in_vain();
            return None;
        }
    }
}

/// One `recv` of a blocking socket, awake for a moment first. 0 is the end of the stream.
pub fn recv_busy_poll(history: &PollHistory, socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
    recv_busy_poll_behind(history, Duration::ZERO, socket, bytes)
}

/// The same where the answer takes some work: see [`busy_poll_behind`].
pub fn recv_busy_poll_behind(
    history: &PollHistory,
    work: Duration,
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<usize, Errno> {
    let mut read = |flags| rustix::net::recv(socket, &mut *bytes, flags).map(|(count, _)| count);
    busy_poll_behind(history, work, || match read(RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => None,
        outcome => Some(outcome),
    })
    .unwrap_or_else(|| read(RecvFlags::empty()))
}

/// Whether a read of a socket would not wait: bytes, the end or an error are there.
pub fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let peeked = rustix::net::recv(socket, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(peeked, Err(Errno::AGAIN))
}

/// Whether the peer has ended its side of a socket, whatever it has left there to be read.
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
}

/// What a peer's answers were like lately: whether asking is worth it.
#[derive(Debug, Default)]
pub struct PollHistory {
    /// Waits that are still to skip asking.
    skip: AtomicU32,
    /// How many to skip after the next time in vain.
    penalty: AtomicU32,
}

impl PollHistory {
    /// Nothing known yet.
    pub const fn new() -> PollHistory {
        PollHistory { skip: AtomicU32::new(0), penalty: AtomicU32::new(0) }
    }

    // Threads that share a history may lose each other's updates: it is an estimate.
    /// Whether the next wait is to be slept through from its beginning. Told once a wait.
    pub fn skips(&self) -> bool {
        let skip = self.skip.load(Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
        }
        skip > 0
    }

    /// The answer came while it was waited for awake.
    pub fn helped(&self) {
        if self.penalty.load(Relaxed) > 0 {
            self.penalty.store(0, Relaxed);
        }
    }

    /// It did not.
    pub fn was_in_vain(&self) {
        let penalty = self.penalty.load(Relaxed);
        self.skip.store(penalty, Relaxed);
        self.penalty.store((penalty * 2).clamp(1, SKIPPED_MAX), Relaxed);
    }
}

/// The right to ask, of which there are few.
struct Permit;

impl Permit {
    fn take() -> Option<Permit> {
        if ASKING.fetch_add(1, Relaxed) < busy_polls_max() {
            return Some(Permit);
        }
        ASKING.fetch_sub(1, Relaxed);
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        ASKING.fetch_sub(1, Relaxed);
    }
}

/// How many threads of a process may wait awake at a time: half of the processors; none where there is only one.
pub fn busy_polls_max() -> usize {
    static BUSY_POLLS_MAX: OnceLock<usize> = OnceLock::new();
    *BUSY_POLLS_MAX.get_or_init(|| std::thread::available_parallelism().map_or(0, |count| count.get() / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_there_is_taken() {
        assert_eq!(busy_poll(&PollHistory::new(), || Some(7)).unwrap_or(7), 7);
    }

    #[test]
    fn asking_in_vain_is_done_ever_more_rarely() {
        let history = PollHistory::new();
        let mut skipped = Vec::new();
        for _ in 0..10 {
            let mut skips = 0;
            while history.skips() {
                skips += 1;
            }
            skipped.push(skips);
            history.was_in_vain();
        }
        assert_eq!(skipped, [0, 0, 1, 2, 4, 8, 16, 32, 64, 128]);
        history.helped();
        while history.skips() {}
        history.was_in_vain();
        assert!(!history.skips(), "one answer in time and the next wait asks again");
    }
}
