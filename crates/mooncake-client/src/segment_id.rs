//! Names of segments.

use std::fmt;
use std::str::FromStr;

use mooncake_ids::SegmentUuid;

use crate::error::{Cause, StoreError};

/// Name of a segment that a store gives to the pool, its own for good: it stays when the memory has to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub SegmentUuid);

/// Two decimal numbers, as the master's pages name it.
impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SegmentId {
    type Err = StoreError;

    /// What [`fmt::Display`] writes; anything else names no segment.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        text.parse().map(SegmentId).map_err(|_| Cause::NoSuchSegment { id: text.to_owned() }.into())
    }
}
