//! What can be wrong with the records of a log.

use crate::state::extents::ExtentError;
use crate::state::object::REPLICAS_MAX;

/// A record that contradicts those before it. The log is damaged or of another version: do not go on with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Two extents share granules, or one lies outside its segment.
    #[error("segment {segment}, rid {rid:#x}: {source}")]
    Extent {
        /// Number of the segment.
        segment: u32,
        /// The placement.
        rid: u64,
        /// What is wrong.
        source: ExtentError,
    },
    /// An extent that no allocation can have made.
    #[error("rid {rid:#x}: offset {offset} and length {length} are not an extent")]
    NotAnExtent {
        /// The placement.
        rid: u64,
        /// Its offset.
        offset: u64,
        /// Its length.
        length: u64,
    },
    /// A session that was never opened, or is over.
    #[error("session {0} is not open")]
    UnknownSession(u64),
    /// A segment that was never mounted, or is Gone.
    #[error("segment {0} is not mounted")]
    UnknownSegment(u32),
    /// A rid that is neither unfinished nor in quarantine nor pinned.
    #[error("{record} names rid {rid:#x}, which is not there")]
    UnknownRid {
        /// Kind of the record.
        record: &'static str,
        /// The rid.
        rid: u64,
    },
    /// An object that is not there, or has no such replica.
    #[error("{record} names an object of {key_len} bytes of key with rid {rid:#x}, which is not there")]
    UnknownObject {
        /// Kind of the record.
        record: &'static str,
        /// Length of its key.
        key_len: usize,
        /// The rid.
        rid: u64,
    },
    /// Something that can be there once only is there twice.
    #[error("{what} {id:#x} is there already")]
    Twice {
        /// Kind of the thing.
        what: &'static str,
        /// Its number.
        id: u64,
    },
    /// A reservation or object without replicas.
    #[error("{0} without replicas")]
    Empty(&'static str),
    /// A reservation or object with more replicas than any has.
    #[error("{of} with {count} replicas; the most is {REPLICAS_MAX}")]
    Replicas {
        /// Kind of the thing.
        of: &'static str,
        /// How many it has.
        count: usize,
    },
    /// An epoch lower than the one before.
    #[error("epoch {to} after epoch {from}")]
    EpochBackwards {
        /// The epoch before.
        from: u16,
        /// The one of the record.
        to: u16,
    },
}
