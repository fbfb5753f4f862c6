//! Numbers with a meaning: times, ids and extents.

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

/// Unit of allocation and of stamps, bytes.
pub const GRANULE: u64 = 1024;

/// Id of one placement: epoch (16 bits) . counter (47 bits) . 0. Grows, is
/// never reused; the low bit set makes a tombstone; 0 means never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rid(pub u64);

impl Rid {
    /// Largest counter of one epoch.
    pub const COUNTER_MAX: u64 = (1 << 47) - 1;

    /// The rid of a counter in an epoch.
    pub const fn new(epoch: u16, counter: u64) -> Rid {
        assert!(counter <= Self::COUNTER_MAX);
        Rid(((epoch as u64) << 48) | (counter << 1))
    }

    /// Its place among the rids of its epoch.
    pub const fn counter(self) -> u64 {
        (self.0 >> 1) & Self::COUNTER_MAX
    }

    /// The epoch that handed it out.
    pub const fn epoch(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// One `setup()` of one store object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// A segment's number in this log: short, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentNo(pub u32);

/// A segment's UUID: random per memory, stored in that memory too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentUuid(pub [u8; 16]);

/// A run of bytes in a segment. `offset` is a multiple of [`GRANULE`]; the
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
