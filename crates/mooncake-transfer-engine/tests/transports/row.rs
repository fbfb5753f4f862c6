//! The transports that keep the promises, each forced by the options of its engines and the memory of its target.

use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, PeerId};

use crate::memory::Memory;

/// One transport, or one of its ways to copy.
#[derive(Debug)]
pub struct Row {
    /// What its peer in another process is started as.
    pub role: &'static str,
    /// As reports name it.
    pub path: &'static str,
    pub same_host: bool,
    /// The target's memory can be mapped.
    is_mapped: bool,
}

/// The target's memory is mapped by the initiator, which copies alone.
pub const MAPPED: Row = Row { role: "lender of mapped memory", path: "same host", same_host: true, is_mapped: true };

/// The destination's process copies out of the other one.
pub const PROCESSES: Row = Row { role: "lender of its own", path: "same host", same_host: true, is_mapped: false };

pub const TCP: Row = Row { role: "lender by TCP", path: "tcp", same_host: false, is_mapped: false };

impl Row {
    pub fn of_role(role: &str) -> Option<&'static Row> {
        [&MAPPED, &PROCESSES, &TCP].into_iter().find(|row| row.role == role)
    }

    pub fn engine(&self) -> Engine {
        self.engine_with(EngineOptions::default())
    }

    pub fn engine_with(&self, options: EngineOptions) -> Engine {
        Engine::new("127.0.0.1", EngineOptions { same_host: self.same_host, ..options }).unwrap()
    }

    /// Memory for a target to lend.
    pub fn memory(&self, len: usize) -> Memory {
        if self.is_mapped { Memory::mappable(len) } else { Memory::new(len) }
    }

    /// An initiator, a target with registered memory, and the peer's id.
    pub fn pair(&self, bytes: usize) -> (Engine, Engine, PeerId, Memory) {
        let (target, initiator) = (self.engine(), self.engine());
        let there = self.memory(bytes);
        target.register(&[there.range()], "cpu:0").unwrap();
        let peer = initiator.open(target.name()).unwrap();
        (initiator, target, peer, there)
    }

    /// Bytes have gone to the peer as this row has them go.
    pub fn has_moved_bytes(&self, initiator: &Engine) -> bool {
        let link = &initiator.links()[0];
        let mapped = link.reason.contains("blocks of its memory mapped");
        link.by_path.iter().any(|(path, bytes)| *path == self.path && *bytes > 0) && mapped == self.is_mapped
    }

    /// The peer takes part in requests of this kind: while it stands still they do, too.
    pub fn needs_the_peer(&self, opcode: Opcode) -> bool {
        !self.same_host || (!self.is_mapped && opcode == Opcode::Write)
    }
}
