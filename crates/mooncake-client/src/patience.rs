//! How long a caller waits for the master, and why a connection did not do what was asked.

use std::io;
use std::time::{Duration, Instant};

use mooncake_wire::FrameError;
use rustix::io::Errno;

/// Longest time that a wait goes on without a look at the clock and at the
/// caller's interrupt hook.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Why a connection did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer in time")]
    Deadline,
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("it speaks HTTP and is no master's control port")]
    Http,
}

impl From<Errno> for ConnectionError {
    fn from(errno: Errno) -> Self {
        ConnectionError::Io(errno.into())
    }
}

/// A caller's patience while it waits for the master.
pub(crate) struct Patience<'a> {
    pub deadline: Instant,
    /// Asked at every slice; an error ends the wait.
    pub check: &'a dyn Fn() -> Result<(), ConnectionError>,
}

impl Patience<'_> {
    /// Asks whether to go on, and for how long at most until the next look.
    pub fn look(&self) -> Result<Duration, ConnectionError> {
        (self.check)()?;
        match self.deadline.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left.min(SLICE)),
            _ => Err(ConnectionError::Deadline),
        }
    }
}
