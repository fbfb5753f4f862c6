//! Requests: bytes to be moved, and between whom.

use mooncake_memory::ForeignRange;

use crate::error::EngineError;

/// Which way a request's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// From the peer's memory to the local one.
    Read = 0,
    /// From the local memory to the peer's.
    Write = 1,
}

/// Bytes to be moved.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The direction.
    pub opcode: Opcode,
    /// This process's end, and how many bytes. It needs not be registered. Nothing else may use it until the request
    /// has ended.
    pub local: ForeignRange,
    /// Address in the peer's process, inside one of its registered buffers.
    pub remote: u64,
}

/// A peer that this engine has opened; 0 is itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    /// This engine.
    pub const SELF: PeerId = PeerId(0);
}

/// Bytes of all requests; an error if that is more than there can be, or a range runs over the end of all addresses.
pub(crate) fn total(requests: &[Request]) -> Result<u64, EngineError> {
    let mut bytes = 0_u64;
    for Request { local, remote, .. } in requests {
        let len = local.len() as u64;
        for addr in [*remote, local.addr() as u64] {
            if addr.checked_add(len).is_none() {
                return Err(EngineError::InvalidArgument(format!("{len} bytes at {addr:#x} are no memory")));
            }
        }
        bytes = bytes.checked_add(len).ok_or_else(|| {
            EngineError::InvalidArgument(format!("{} requests of more bytes than can be counted", requests.len()))
        })?;
    }
    Ok(bytes)
}
