//! Memory of this engine that peers of its host map, and copy to and from without asking.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_memory::{MemoryError, RevisionPage};

use crate::memory::buffers::Buffer;
use crate::memory::mappers::{MapperAccess, Mappers};

#[derive(Debug)]
pub(crate) struct Mappable {
    /// Counts the buffers that were unregistered: a peer that copies without asking compares it before and after. Its
    /// note is the number of buffers that peers can map.
    revision_page: RevisionPage,
    count: AtomicU64,
    /// The peers that map memory of ours.
    pub mappers: Arc<Mappers>,
}

impl Mappable {
    pub fn new() -> Result<Mappable, MemoryError> {
        Ok(Mappable { revision_page: RevisionPage::new()?, count: AtomicU64::new(0), mappers: Arc::default() })
    }

    pub fn revision_page(&self) -> &RevisionPage {
        &self.revision_page
    }

    /// Buffers are about to be lent.
    pub fn add(&self, buffers: &[Arc<Buffer>]) {
        let more = mappable(buffers);
        self.note(self.count.fetch_add(more, Ordering::SeqCst) + more);
    }

    /// Buffers were unregistered. Returns all accesses that are active now. A peer that enters later sees the new
    /// revision and looks the buffer up again.
    pub fn remove(&self, buffers: &[Arc<Buffer>]) -> Vec<MapperAccess> {
        if !buffers.iter().any(|buffer| buffer.lent) {
            return Vec::new();
        }
        let fewer = mappable(buffers);
        self.note(self.count.fetch_sub(fewer, Ordering::SeqCst) - fewer);
        self.revision_page.advance();
        if fewer > 0 { self.mappers.active() } else { Vec::new() }
    }

    /// Of two writes at once the older number may stay, which does no harm: peers take it for a hint.
    fn note(&self, count: u64) {
        self.revision_page.set_note(count);
    }
}

fn mappable(buffers: &[Arc<Buffer>]) -> u64 {
    buffers.iter().filter(|buffer| buffer.lent && buffer.block.is_some()).count() as u64
}
