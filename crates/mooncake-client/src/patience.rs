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
    #[error("it is {0} and no master's control port")]
    Wrong(WrongPort),
}

/// What listens where a master was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WrongPort {
    /// Of a master's metrics, for instance.
    #[error("an HTTP server")]
    Http,
    /// An owner's, for bytes.
    #[error("the data port of a storage node, or of a store that lends memory,")]
    Data,
    /// Where a storage node tells programs of its host about the pool.
    #[error("the port of a storage node")]
    Node,
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
