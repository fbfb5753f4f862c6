//! Memory that cards know.

use std::sync::Arc;

use mooncake_memory::ForeignRange;
use mooncake_verbs::{Access, Piece, Region, VerbsError};

use crate::nic::Nic;

/// A range with a region of each card of a user, in chunks where it is longer than a region may be.
#[derive(Debug)]
pub struct Registered {
    range: ForeignRange,
    chunk_bytes: usize,
    /// By card, then by chunk.
    regions: Vec<Vec<Region>>,
}

/// A part of a range that one region holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// First byte's address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

impl Registered {
    /// Registers a range on all of these cards, or on none. It takes as long as the kernel needs to pin each page.
    pub fn new(nics: &[Arc<Nic>], range: ForeignRange, access: Access) -> Result<Registered, VerbsError> {
        let limit = |nic: &Arc<Nic>| nic.options().region_bytes.min(nic.context().limits().region_bytes);
        let chunk_bytes = nics.iter().map(limit).min().unwrap_or(0).max(4_096);
        // A piece of a request ends where a chunk does.
        let chunk_bytes = usize::try_from(chunk_bytes).unwrap_or(usize::MAX) & !4_095;
        let register = |nic: &Arc<Nic>| {
            let starts = (0..range.len()).step_by(chunk_bytes);
            let part = |at: usize| range.part(at, chunk_bytes.min(range.len() - at));
            starts.map(|at| Region::register(nic.domain(), part(at), access, None)).collect()
        };
        let regions = nics.iter().map(register).collect::<Result<Vec<Vec<Region>>, VerbsError>>()?;
        Ok(Registered { range, chunk_bytes, regions })
    }

    /// What it is of.
    pub fn range(&self) -> ForeignRange {
        self.range
    }

    /// Its parts, and what peers name each by, a key for each card.
    pub fn chunks(&self) -> impl Iterator<Item = (Chunk, Vec<u32>)> + '_ {
        let count = self.regions.first().map_or(0, Vec::len);
        (0..count).map(move |nth| {
            let range = self.regions[0][nth].range();
            let keys = self.regions.iter().map(|of_nic| of_nic[nth].remote_key()).collect();
            (Chunk { addr: range.addr() as u64, len: range.len() as u64 }, keys)
        })
    }

    /// A piece from an address on for a request of a card, as long as is wanted or as one chunk goes; none if the
    /// address is not inside.
    pub fn piece(&self, nic: usize, addr: usize, len: usize) -> Option<Piece> {
        let offset = addr.checked_sub(self.range.addr()).filter(|offset| *offset < self.range.len())?;
        let (nth, at) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        let region = self.regions.get(nic)?.get(nth)?;
        region.piece(at, len.min(region.range().len() - at))
    }

    /// Whether all of a range is inside.
    pub fn holds(&self, range: ForeignRange) -> bool {
        let offset = range.addr().checked_sub(self.range.addr());
        offset.is_some_and(|offset| offset <= self.range.len() && range.len() <= self.range.len() - offset)
    }

    /// Unregisters it on all cards: behind this none of them touches it. It waits for what they have under way. What
    /// cannot be unregistered stays so until the process ends; the first error.
    pub fn give_up(self) -> Result<(), VerbsError> {
        let mut result = Ok(());
        for region in self.regions.into_iter().flatten() {
            if let Err((left, error)) = region.give_up() {
                std::mem::forget(left);
                result = result.and(Err(error));
            }
        }
        result
    }
}
