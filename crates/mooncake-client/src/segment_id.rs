//! Names of segments.

use std::fmt;
use std::str::FromStr;

use mooncake_memory::{uuid_of, uuid_text};

use crate::error::{Cause, StoreError};

/// Name of a segment that a store gives to the pool, its own for good: it stays when the memory has to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub [u8; 16]);

/// Two decimal numbers, as the master's pages name it.
impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&uuid_text(&self.0))
    }
}

impl FromStr for SegmentId {
    type Err = StoreError;

    /// What [`fmt::Display`] writes; anything else names no segment.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        uuid_of(text).map(SegmentId).ok_or_else(|| Cause::NoSuchSegment { id: text.to_owned() }.into())
    }
}
