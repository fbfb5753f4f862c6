//! Times, tickets and extents.

use mooncake_ids::Rid;
use serde::{Deserialize, Serialize};

/// Microseconds on the caller's monotonic clock. Passed in, never read here,
/// never logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Time {
    /// This moment plus a number of milliseconds.
    pub const fn plus_ms(self, ms: u64) -> Time {
        Time(self.0 + ms * 1000)
    }
}

/// A segment's number in this log: short, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentNo(pub u32);

/// A run of bytes in a segment. `offset` is a multiple of [`mooncake_ids::GRANULE`]; the
/// space taken is `length` rounded up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Segment that holds it.
    pub segment: SegmentNo,
    /// First byte.
    pub offset: u64,
    /// Bytes of the object in it.
    pub length: u64,
}

/// One placement of an object's bytes. One extent until striping comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Replica {
    /// Its id; the stamps over its extent carry the same number.
    pub rid: Rid,
    /// Where it lies.
    pub extent: Extent,
}

/// A parked request; the shell maps it to the connection that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);
