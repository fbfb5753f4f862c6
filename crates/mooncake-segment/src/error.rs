//! What can go wrong with a link or a server, by whose fault.

use std::io;
use std::time::Duration;

use mooncake_memory::{CopyError, MemoryError};
use mooncake_os::{ProcessError, is_short_of_descriptors};

use crate::epoch::Epoch;
use crate::protocol::frames::Status;

/// A read, a write or a view failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The extent is another placement's by now: look the key up once more.
    #[error("{segment}: its place has been given to another object since (it was rid {rid:#x}); look the key up again")]
    Stale {
        /// Segment asked.
        segment: String,
        /// Rid of the placement.
        rid: u64,
    },
    /// The bytes are this placement's and yet wrong: report the replica.
    #[error("{segment}: checksum {actual:#010x} instead of {expected:#010x} over the bytes of rid {rid:#x}")]
    Checksum {
        /// Segment of the bytes.
        segment: String,
        /// Rid of the placement.
        rid: u64,
        /// CRC-32C of the object.
        expected: u32,
        /// CRC-32C of what came.
        actual: u32,
    },
    /// A write came too late: its reservation has ended, and its extent may be another's.
    #[error("{segment}: write of rid {rid:#x} refused: {reason}")]
    Superseded {
        /// Segment of the extent.
        segment: String,
        /// Rid of the refused write.
        rid: u64,
        /// What was found there.
        reason: String,
    },
    /// The owner answered and refused.
    #[error("{segment}: refused: {status}")]
    Refused {
        /// Segment asked.
        segment: String,
        /// Its answer.
        status: Status,
    },
    /// No placement has that rid.
    #[error("{rid:#x} is no rid of a placement")]
    NotAPlacement {
        /// What was given.
        rid: u64,
    },
    /// The caller's memory, or the mapping, could not be used.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A piece given to the call is not accessible memory of this process.
    #[error("the memory given to the call cannot be used: {source}")]
    CallerMemory {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The segment could not be mapped: to be written, or for a view.
    #[error("{segment}: {source}")]
    Map {
        /// Which one.
        segment: String,
        /// What is wrong with it.
        source: MemoryError,
    },
    /// No byte moved for too long, or the call's deadline passed.
    #[error("{segment}: {what} after {waited:?}; the peer is stopped, overloaded or cut off")]
    Timeout {
        /// Segment whose owner was waited for.
        segment: String,
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The caller's `interrupted` said so.
    #[error("interrupted")]
    Interrupted,
    /// The connection or the owner is gone.
    #[error("{segment}: {what}: {source}")]
    Broken {
        /// Its segment.
        segment: String,
        /// The step that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The segment has been given back.
    #[error("{segment}: the segment is gone")]
    Gone {
        /// Which one it was.
        segment: String,
    },
    /// This process is a forked child of the one that opened the link.
    #[error("this process was forked from the one that opened the link; set up a new store in a fresh process")]
    Forked,
}

impl TransferError {
    /// Whether this process has no descriptor left, which says nothing of the owner.
    pub fn is_short_of_descriptors(&self) -> bool {
        matches!(self, TransferError::Broken { source, .. } if is_short_of_descriptors(source))
    }

    /// Whether the same may go well in a moment: it says nothing of the placement.
    pub fn is_passing(&self) -> bool {
        let is_crowded = matches!(self, TransferError::Refused { status: Status::Busy | Status::Overloaded, .. });
        is_crowded || matches!(self, TransferError::Timeout { .. }) || self.is_short_of_descriptors()
    }

    /// Whether the owner's answer means a miss rather than a failure.
    pub fn is_stale(&self) -> bool {
        matches!(self, TransferError::Stale { .. })
    }
}

/// A write failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct WriteError {
    /// Why.
    #[source]
    pub error: TransferError,
    /// No byte of this write can land any more: the writer may say so to the
    /// master (`writer_done`), and the extent comes back without a fence.
    pub settled: bool,
}

/// No link to a segment could be made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No allowed path leads to the segment.
    #[error("segment {segment} cannot be reached: {reason}")]
    NoPath {
        /// Name and UUID of the segment.
        segment: String,
        /// What was tried, and why each failed.
        reason: String,
        /// Its owner stands still, is cut off or has too much to do: it may be reached in a moment.
        passing: bool,
    },
    /// This process may not open what a link takes.
    #[error(
        "segment {segment} cannot be reached: no descriptor is left of the {limit} that this process may have; raise \
         its limit of open files (`ulimit -n`, LimitNOFILE=): {reason}"
    )]
    OutOfDescriptors {
        /// Name and UUID of the segment.
        segment: String,
        /// How many files this process may have open.
        limit: usize,
        /// What was tried, and why each failed.
        reason: String,
    },
    /// The last attempt has just failed; not tried again so soon.
    #[error("segment {segment} could not be reached {ago:?} ago: {reason}")]
    Avoided {
        /// Name and UUID of the segment.
        segment: String,
        /// When that was.
        ago: Duration,
        /// What failed then.
        reason: String,
        /// As of [`LinkError::NoPath`].
        passing: bool,
    },
    /// The caller's hook ended the call.
    #[error("interrupted")]
    Interrupted,
    /// The call's deadline passed.
    #[error("segment {segment}: the call ended before a connection was made")]
    Timeout {
        /// Name and UUID of the segment.
        segment: String,
    },
    /// The placement was reserved in a session whose links these are not.
    #[error("segment {segment}: the session that reserved the space is not the one of these links")]
    SessionOver {
        /// Name and UUID of the segment.
        segment: String,
    },
    /// The links are closed.
    #[error("the store is closed")]
    Closed,
    /// This process is a forked child.
    #[error("this process was forked from the one that set the store up; set up a new store in a fresh process")]
    Forked,
}

impl LinkError {
    /// Whether the same may go well in a moment: it says nothing of what the owner holds.
    pub fn is_passing(&self) -> bool {
        match self {
            LinkError::OutOfDescriptors { .. } | LinkError::Timeout { .. } => true,
            LinkError::NoPath { passing, .. } | LinkError::Avoided { passing, .. } => *passing,
            _ => false,
        }
    }
}

/// An owner was asked to obey an epoch, and obeys another one of the same number. What is taken of the one says nothing
/// of the other, so its segments open in neither until a higher epoch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("asked to obey the epoch {} of id {:08x}, but obeys that of id {:08x}", asked.number, asked.id, obeyed.id)]
pub struct TwoEpochs {
    /// What the owner was asked for.
    pub asked: Epoch,
    /// What it was asked for before.
    pub obeyed: Epoch,
}

/// A segment server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The TCP port cannot be had.
    #[error("data lanes cannot listen on {address}: {source}; choose another address or port")]
    Bind {
        /// Address asked for.
        address: std::net::SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another resource is missing.
    #[error("segment server: {what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process could not be named.
    #[error(transparent)]
    Process(#[from] ProcessError),
}
