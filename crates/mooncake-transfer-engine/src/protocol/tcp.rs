//! Mooncake's TCP data protocol: a header of 24 bytes, the payload, and from version 2 on a status of 8 bytes.
//!
//! All numbers are little endian. Version 1 acknowledges nothing; version 2 answers a write after its bytes are in
//! memory, and puts a status before a read's bytes. A connection carries one request after another.

use crate::protocol::ids::{ConnectionName, EngineId};

use crate::request::Opcode;

pub(crate) const HEADER_LEN: usize = 24;
pub(crate) const STATUS_LEN: usize = 8;

/// The header is of version 2.
const V2: u8 = 0x80;

/// Upper half of a status: `VTCM` as it lies in memory.
const STATUS_MAGIC: u32 = 0x4D43_5456;

/// First word of a hello: a size that no request has.
const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"MCRSHEL\xff");

/// The same of a connection's name, and of the name of one that is to end.
const NAME_MAGIC: u64 = u64::from_le_bytes(*b"MCRSNAM\xff");
const SEVER_MAGIC: u64 = u64::from_le_bytes(*b"MCRSSEV\xff");

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub size: u64,
    pub addr: u64,
    pub opcode: Opcode,
    pub v2: bool,
}

/// What 24 bytes between two payloads can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    Request(Header),
    /// The initiator names the incarnation of the engine that it means; answered by a status. Only between two of us.
    Hello(EngineId),
    /// The initiator names this connection; not answered. Only between two of us, and before the hello, whose answer
    /// says that the name is known.
    Name(ConnectionName),
    /// Nothing that came by the connection of that name is to land any more; answered by a status once that is so.
    Sever(ConnectionName),
}

impl Frame {
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        match self {
            Frame::Request(header) => {
                out[0..8].copy_from_slice(&header.size.to_le_bytes());
                out[8..16].copy_from_slice(&header.addr.to_le_bytes());
                out[16] = header.opcode as u8 | if header.v2 { V2 } else { 0 };
            }
            Frame::Hello(id) => extra(&mut out, HELLO_MAGIC, id),
            Frame::Name(name) => extra(&mut out, NAME_MAGIC, name),
            Frame::Sever(name) => extra(&mut out, SEVER_MAGIC, name),
        }
        out
    }

    /// `None`: nothing that an engine says.
    pub fn decode(raw: &[u8; HEADER_LEN]) -> Option<Frame> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| raw[at + index]));
        let (size, addr) = (word(0), word(8));
        let name = std::array::from_fn(|index| raw[8 + index]);
        match size {
            HELLO_MAGIC => return Some(Frame::Hello(name)),
            NAME_MAGIC => return Some(Frame::Name(name)),
            SEVER_MAGIC => return Some(Frame::Sever(name)),
            _ => {}
        }
        let opcode = match raw[16] & !V2 {
            0 => Opcode::Read,
            1 => Opcode::Write,
            _ => return None,
        };
        addr.checked_add(size)?;
        Some(Frame::Request(Header { size, addr, opcode, v2: raw[16] & V2 != 0 }))
    }
}

fn extra(out: &mut [u8; HEADER_LEN], magic: u64, name: &[u8; 16]) {
    out[0..8].copy_from_slice(&magic.to_le_bytes());
    out[8..24].copy_from_slice(name);
}

/// How a request of version 2 ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    /// The range is not registered, or the engine is another one. The connection ends.
    Rejected,
}

impl Status {
    pub fn encode(self) -> [u8; STATUS_LEN] {
        (u64::from(STATUS_MAGIC) << 32 | self as u64).to_le_bytes()
    }

    pub fn decode(raw: &[u8; STATUS_LEN]) -> Option<Status> {
        let word = u64::from_le_bytes(*raw);
        match (word >> 32 == u64::from(STATUS_MAGIC), word as u32) {
            (true, 0) => Some(Status::Ok),
            (true, _) => Some(Status::Rejected),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        for opcode in [Opcode::Read, Opcode::Write] {
            for v2 in [false, true] {
                let frame = Frame::Request(Header { size: 77, addr: 0x7f00_1234_5678, opcode, v2 });
                assert_eq!(Frame::decode(&frame.encode()), Some(frame));
            }
        }
        for frame in [Frame::Hello, Frame::Name, Frame::Sever].map(|frame| frame(*b"0123456789abcdef")) {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
        for status in [Status::Ok, Status::Rejected] {
            assert_eq!(Status::decode(&status.encode()), Some(status));
        }
    }

    #[test]
    fn the_bytes_are_mooncakes() {
        let header = Header { size: 4096, addr: 0x1000, opcode: Opcode::Write, v2: true };
        let raw = Frame::Request(header).encode();
        assert_eq!(raw[..17], [0, 16, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0x81]);
        assert_eq!(Status::Ok.encode(), [0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut raw = Frame::Request(Header { size: 9, addr: 9, opcode: Opcode::Read, v2: true }).encode();
        raw[16] = 2;
        assert_eq!(Frame::decode(&raw), None);
        let around = Header { size: u64::MAX - 5, addr: 100, opcode: Opcode::Read, v2: true };
        assert_eq!(Frame::decode(&Frame::Request(around).encode()), None);
        assert_eq!(Status::decode(b"HTTP/1.1"), None);
    }
}
