//! What is to be written to a tier: bytes in this process's own memory, or read from another one's.

use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, SegmentMemory, Verify, copy_for_disk, crc32c};
use mooncake_tier::owner::Source;

/// An extent of a segment that this store lends.
pub(super) struct OwnExtent {
    pub memory: Arc<SegmentMemory>,
    pub rid: Rid,
    pub offset: u64,
    pub len: u64,
}

impl Source for OwnExtent {
    fn size(&self) -> u64 {
        self.len
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        self.memory.mapping().crc_of(self.rid, self.offset + at, len).ok()
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        let mut destination = [Destination::for_disk(into)];
        self.memory.mapping().read(self.rid, self.offset + at, &mut destination, Verify::Skip).is_ok()
    }

    fn is_same(&self) -> bool {
        matches!(self.memory.mapping().check_stamps(self.rid, self.offset, self.len), Ok(true))
    }

    fn placement(&self) -> Rid {
        self.rid
    }
}

/// A copy, which was the placement's when it was made.
pub(super) struct Copied(pub Rid, pub Vec<u8>);

impl Source for Copied {
    fn size(&self) -> u64 {
        self.1.len() as u64
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        Some(crc32c(&self.1[at as usize..][..len as usize]))
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        copy_for_disk(&self.1[at as usize..][..into.len()], into);
        true
    }

    fn is_same(&self) -> bool {
        true
    }

    fn placement(&self) -> Rid {
        self.0
    }
}
