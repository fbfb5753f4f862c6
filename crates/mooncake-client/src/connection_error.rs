//! Why a connection to the master did not do what was asked.

use std::io;

use mooncake_net::ConnectError;
use mooncake_os::WaitError;
use mooncake_wire::FrameError;
use rustix::io::Errno;

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

impl From<WaitError> for ConnectionError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Interrupted => ConnectionError::Interrupted,
            WaitError::Expired(_) => ConnectionError::Deadline,
        }
    }
}

impl From<ConnectError> for ConnectionError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Interrupted => ConnectionError::Interrupted,
            ConnectError::Untried => ConnectionError::Deadline,
            ConnectError::Io(error) if error.kind() == io::ErrorKind::TimedOut => ConnectionError::Deadline,
            ConnectError::Io(error) => error.into(),
        }
    }
}
