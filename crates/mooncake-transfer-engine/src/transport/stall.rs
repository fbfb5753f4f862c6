//! How long an exchange with a peer goes on: until its call's deadline, and never for long without a byte moving.

use std::io;
use std::time::{Duration, Instant};

use mooncake_net::Spread;
use mooncake_os::Deadline;
use rustix::io::Errno;

use crate::error::EngineError;

/// Ends one exchange with a peer at its deadline, even while bytes move, and when none has moved for `stall_timeout`.
pub(crate) struct StallTimer<'a> {
    peer: &'a str,
    deadline: &'a Deadline<'a>,
    stall_timeout: Duration,
    moved: Instant,
    looked: Instant,
    /// Told of bytes that move.
    told: Option<(&'a Spread, usize)>,
}

impl<'a> StallTimer<'a> {
    pub fn new(peer: &'a str, deadline: &'a Deadline<'a>, stall_timeout: Duration) -> StallTimer<'a> {
        let now = Instant::now();
        StallTimer { peer, deadline, stall_timeout, moved: now, looked: now, told: None }
    }

    /// Of a lane of that number, of several that carry one request.
    pub fn of_one(self, spread: &'a Spread, lane: usize) -> StallTimer<'a> {
        StallTimer { told: Some((spread, lane)), ..self }
    }

    /// Notes that bytes have moved. An error at the deadline all the same: a peer that sends a byte now and then does
    /// not keep its caller for ever.
    pub fn moved(&mut self) -> Result<(), EngineError> {
        self.moved = Instant::now();
        if let Some((spread, lane)) = self.told {
            spread.moved(lane);
        }
        if self.moved.duration_since(self.looked) < Deadline::SLICE {
            return Ok(());
        }
        self.looked = self.moved;
        self.check("moving its bytes")
    }

    /// After a system call that failed: `Ok` if it is worth another try.
    pub fn failed(&self, error: io::Error, what: &'static str) -> Result<(), EngineError> {
        match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::AGAIN) => self.check(what),
            Some(Errno::FAULT) => Err(EngineError::Memory(format!("the local memory is not there: {what}"))),
            _ => Err(EngineError::Socket { peer: self.peer.to_owned(), what, source: error }),
        }
    }

    /// An error if the exchange is to end.
    pub fn check(&self, what: &'static str) -> Result<(), EngineError> {
        if self.deadline.is_interrupted() {
            return Err(EngineError::Interrupted);
        }
        let now = Instant::now();
        let waited = if now >= self.deadline.until {
            now.duration_since(self.deadline.began)
        } else if now.duration_since(self.moved) > self.stall_timeout {
            self.stall_timeout
        } else {
            return Ok(());
        };
        Err(EngineError::Timeout { peer: self.peer.to_owned(), what, waited })
    }
}
