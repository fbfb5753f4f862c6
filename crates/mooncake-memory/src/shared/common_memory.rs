//! Memory that several processes use as their own.

use std::os::fd::OwnedFd;

use crate::error::MemoryError;
use crate::shared::allocator::{allocate_common, free_host_memory, map_common, shared_block_file};

/// A mapping of memory that processes have in common: zero and populated when it is made, at an address of its own in
/// each of them, and there as long as any of them has it. A holder of an address inside gives it up before this is
/// dropped.
#[derive(Debug)]
pub struct CommonMemory {
    addr: usize,
    len: usize,
    id: u64,
}

impl CommonMemory {
    /// Makes at least so many bytes, whole pages. Limits of the process, its memory cgroup and its host are looked at
    /// first.
    pub fn make(bytes: u64) -> Result<CommonMemory, MemoryError> {
        let block = allocate_common(bytes)?;
        Ok(CommonMemory { addr: block.addr, len: block.len, id: block.id })
    }

    /// Maps what another process has made with as many bytes and sent. Refuses what that one could still shorten.
    pub fn map(file: OwnedFd, bytes: u64) -> Result<CommonMemory, MemoryError> {
        let block = map_common(file, bytes)?;
        Ok(CommonMemory { addr: block.addr, len: block.len, id: block.id })
    }

    /// First address in this process.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes, whole pages.
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// A descriptor for another process that is to have it too; none in a forked child.
    pub fn file(&self) -> Option<OwnedFd> {
        shared_block_file(self.id)
    }
}

impl Drop for CommonMemory {
    fn drop(&mut self) {
        // SAFETY: mapped when this was made, once; all holders of addresses in it have given them up.
        unsafe { free_host_memory(self.addr) };
    }
}
