//! Memory that engines lend and move.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use mooncake_memory::{ForeignRange, allocate_shared};
use mooncake_transfer_engine::{Opcode, Request};

/// Bytes that stay where they are.
pub struct Memory {
    /// None: it is never freed.
    _bytes: Option<Box<[u8]>>,
    range: ForeignRange,
}

impl Memory {
    pub fn new(len: usize) -> Memory {
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: the box lives until the test's end, which is after the engines', and is only looked at between
        // transfers.
        let range = unsafe { ForeignRange::new(bytes.as_mut_ptr().expose_provenance(), len) };
        Memory { _bytes: Some(bytes), range }
    }

    /// Memory that peers of this host map.
    pub fn mappable(len: usize) -> Memory {
        let addr = allocate_shared(len as u64).unwrap();
        // SAFETY: mapped until the process ends, and only looked at between transfers.
        Memory { _bytes: None, range: unsafe { ForeignRange::new(addr, len) } }
    }

    /// Bytes that depend on the seed and their place.
    pub fn filled(len: usize, seed: u64) -> Memory {
        let mut bytes = vec![0; len];
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for chunk in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let memory = Memory::new(len);
        memory.range.write_from(&bytes).unwrap();
        memory
    }

    pub fn range(&self) -> ForeignRange {
        self.range
    }

    pub fn addr(&self) -> u64 {
        self.range.addr() as u64
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn bytes(&self) -> &[u8] {
        let at = std::ptr::with_exposed_provenance(self.range.addr());
        // SAFETY: the memory lives as long as this does, and is only looked at between transfers.
        let bytes = unsafe { std::slice::from_raw_parts(at, self.range.len()) };
        // Engines change them behind the compiler's back.
        std::hint::black_box(bytes)
    }

    pub fn write_to(&self, remote: u64) -> Request {
        Request { opcode: Opcode::Write, local: self.range, remote }
    }

    pub fn read_from(&self, remote: u64) -> Request {
        Request { opcode: Opcode::Read, local: self.range, remote }
    }
}

/// Memory that no process has.
pub fn nowhere(len: usize) -> ForeignRange {
    // SAFETY: page 1 is nobody's; the kernel says so.
    unsafe { ForeignRange::new(4096, len) }
}
