//! How long a call may wait: until its deadline, until its caller has had enough, and never without a byte moving.

use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};
use rustix::io::Errno;

use crate::error::EngineError;

/// Longest wait without a look at the clock and at the caller's wish.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Between two looks at what other processes do, which tell nobody: most likely it is over very soon. Later it is not.
const LOOK: Duration = Duration::from_micros(50);
const LATER_LOOK: Duration = Duration::from_millis(5);

/// A caller's patience.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    pub began: Instant,
    pub deadline: Instant,
    /// Asked every 50 ms; true ends the call.
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Patience<'a> {
    /// From now on, for so long.
    pub fn lasting(long: Duration, interrupted: &'a (dyn Fn() -> bool + Sync)) -> Patience<'a> {
        let began = Instant::now();
        Patience { began, deadline: began + long, interrupted }
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// An error if the caller has waited long enough for what `whom` does.
    pub fn check(&self, whom: &str, what: &'static str) -> Result<(), EngineError> {
        if (self.interrupted)() {
            return Err(EngineError::Interrupted);
        }
        match self.is_over() {
            true => Err(EngineError::Timeout { peer: whom.to_owned(), what, waited: self.began.elapsed() }),
            false => Ok(()),
        }
    }

    /// Looks often whether something is so that nobody tells of, while there is patience; whether it is so in the end.
    pub fn wait_until(&self, mut is_so: impl FnMut() -> bool) -> bool {
        let (began, mut asked) = (Instant::now(), None);
        while !is_so() {
            let now = Instant::now();
            if now >= self.deadline {
                return false;
            }
            if asked.is_none_or(|asked| now.duration_since(asked) >= SLICE) {
                if (self.interrupted)() {
                    return false;
                }
                asked = Some(now);
            }
            std::thread::sleep((now.duration_since(began) / 8).clamp(LOOK, LATER_LOOK));
        }
        true
    }

    /// Waits until something is so, while there is patience; whether it is so in the end. `changed` tells of it, under
    /// the lock.
    pub fn park_until<T>(
        &self,
        state: &mut MutexGuard<'_, T>,
        changed: &Condvar,
        mut is_so: impl FnMut(&T) -> bool,
    ) -> bool {
        while !is_so(state) {
            // The caller's hook may wait for a lock of the caller's, whose holder waits for this one.
            if self.is_over() || MutexGuard::unlocked(state, || (self.interrupted)()) {
                return is_so(state);
            }
            if !is_so(state) {
                changed.wait_until(state, self.deadline.min(Instant::now() + SLICE));
            }
        }
        true
    }
}

/// The patience of one exchange with a peer.
pub(crate) struct Pace<'a> {
    peer: &'a str,
    patience: &'a Patience<'a>,
    stall: Duration,
    moved: Instant,
    looked: Instant,
}

impl<'a> Pace<'a> {
    pub fn new(peer: &'a str, patience: &'a Patience<'a>, stall: Duration) -> Pace<'a> {
        let now = Instant::now();
        Pace { peer, patience, stall, moved: now, looked: now }
    }

    /// Bytes have moved. Those that never stand still are no reason to go on for ever.
    pub fn moved(&mut self) -> Result<(), EngineError> {
        self.moved = Instant::now();
        if self.moved.duration_since(self.looked) < SLICE {
            return Ok(());
        }
        self.looked = self.moved;
        self.check("moving its bytes")
    }

    /// A system call failed: nothing if it is worth another try.
    pub fn failed(&self, error: io::Error, what: &'static str) -> Result<(), EngineError> {
        match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::AGAIN) => self.check(what),
            Some(Errno::FAULT) => Err(EngineError::Memory(format!("the local memory is not there: {what}"))),
            _ => Err(EngineError::Socket { peer: self.peer.to_owned(), what, source: error }),
        }
    }

    /// An error if the caller has waited long enough.
    pub fn check(&self, what: &'static str) -> Result<(), EngineError> {
        if (self.patience.interrupted)() {
            return Err(EngineError::Interrupted);
        }
        let now = Instant::now();
        let waited = if now >= self.patience.deadline {
            now.duration_since(self.patience.began)
        } else if now.duration_since(self.moved) > self.stall {
            self.stall
        } else {
            return Ok(());
        };
        Err(EngineError::Timeout { peer: self.peer.to_owned(), what, waited })
    }
}
