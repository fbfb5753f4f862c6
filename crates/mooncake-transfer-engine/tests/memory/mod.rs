//! Memory that engines lend and move.
#![allow(dead_code)] // Each test binary uses a part of it.

use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::{Opcode, Request};

/// Bytes that stay where they are.
pub struct Memory {
    bytes: Box<[u8]>,
    range: ForeignRange,
}

impl Memory {
    pub fn new(len: usize) -> Memory {
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: the box lives until the test's end, which is after the engines', and is only looked at between
        // transfers.
        let range = unsafe { ForeignRange::new(bytes.as_mut_ptr().expose_provenance(), len) };
        Memory { bytes, range }
    }

    /// Bytes that depend on the seed and their place.
    pub fn filled(len: usize, seed: u64) -> Memory {
        let mut memory = Memory::new(len);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for chunk in memory.bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
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
        // Engines change them behind the compiler's back.
        std::hint::black_box(&self.bytes)
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
