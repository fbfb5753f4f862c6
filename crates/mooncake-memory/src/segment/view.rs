//! Bytes of a segment borrowed in place.

use std::ops::Deref;
use std::sync::Arc;

use crate::segment::mapping::Mapping;

/// Bytes of a pinned object in the mapped segment. Keeps the mapping alive; the
/// pin is the caller's to keep for as long, and to return.
#[derive(Debug, Clone)]
pub struct MappedView {
    mapping: Arc<Mapping>,
    offset: u64,
    len: usize,
}

impl MappedView {
    /// The caller has checked the range.
    pub(crate) fn new(mapping: Arc<Mapping>, offset: u64, len: u64) -> Self {
        Self { mapping, offset, len: len as usize }
    }

    /// The mapping that the bytes lie in.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// First byte in the segment.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for MappedView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping, which this view keeps. The owner of the memory never lets a process store to a
        // pinned extent. Pages that it should give back nevertheless read as zeros, never as a signal: pages of the
        // huge pool, which would be one, are not given back while they are mapped.
        unsafe { std::slice::from_raw_parts(self.mapping.address(self.offset), self.len) }
    }
}

impl AsRef<[u8]> for MappedView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
