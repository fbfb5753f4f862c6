//! What the tests of the machines have in common.

use std::cell::Cell;

use mooncake_memory::CopyError;

use super::Stamps;

pub const KIB: u64 = 1024;

/// A rid.
pub const fn rid(epoch: u16, counter: u64) -> u64 {
    (epoch as u64) << 48 | counter << 1
}

/// Plain stamps, one per KiB.
#[derive(Debug)]
pub struct Granules(Vec<Cell<u64>>);

impl Granules {
    pub fn new(count: usize) -> Granules {
        Granules(vec![Cell::new(0); count])
    }

    /// As a writer does before its first byte.
    pub fn stamp(&self, rid: u64, offset: u64, len: u64) {
        self.extent(offset, len).unwrap().iter().for_each(|stamp| stamp.set(rid));
    }

    fn extent(&self, offset: u64, len: u64) -> Result<&[Cell<u64>], CopyError> {
        let bytes = self.0.len() as u64 * KIB;
        let end = offset.checked_add(len).filter(|end| *end <= bytes);
        let end = end.ok_or(CopyError::OutOfRange { offset, len, bytes })?;
        Ok(&self.0[(offset / KIB) as usize..end.div_ceil(KIB) as usize])
    }
}

impl Stamps for Granules {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        Ok(self.extent(offset, len)?.iter().map(Cell::get).max().unwrap_or(0))
    }

    fn tombstone(&self, rid: u64, offset: u64, len: u64) -> Result<(), CopyError> {
        self.extent(offset, len)?.iter().for_each(|stamp| stamp.set(stamp.get().max(rid | 1)));
        Ok(())
    }
}
