//! What a queue pair is asked to do.

use std::mem::zeroed;
use std::ptr;

use crate::abi::{IbvSendWr, IbvSge, SEND_FENCE, SEND_INLINE, SEND_SIGNALED, WR_RDMA_READ, WR_RDMA_WRITE};
use crate::region::Piece;

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What its completion is known by.
    pub id: u64,
    /// In which direction bytes go.
    pub operation: Operation,
    /// This side's end.
    pub local: Local<'a>,
    /// The peer's end.
    pub remote: Remote,
    /// It starts when all earlier READs of its queue pair have completed.
    pub fenced: bool,
    /// Its success is told. A failure is told always.
    pub signaled: bool,
}

/// In which direction bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// From here to the peer.
    Write,
    /// From the peer to here.
    Read,
}

/// This side's end of a request.
#[derive(Debug, Clone, Copy)]
pub enum Local<'a> {
    /// Registered memory, one piece behind the other; none: a request of no bytes.
    Pieces(&'a [Piece]),
    /// Bytes that are taken as the request is posted, for a WRITE within the queue pair's
    /// [limit](crate::QueuePairOptions::inline_bytes).
    Inline(&'a [u8]),
}

/// The peer's end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// An address of the peer's process.
    pub addr: u64,
    /// What the peer has registered it by.
    pub key: u32,
}

/// Requests that are posted together, with one ring of the device's doorbell. Its room is used again and again.
#[derive(Default)]
pub struct Chain {
    requests: Vec<IbvSendWr>,
    pieces: Vec<IbvSge>,
    bytes: Vec<u8>,
}

// SAFETY: its pointers are set as it is posted, and mean nothing before and after.
unsafe impl Send for Chain {}
// SAFETY: as above; nothing reads them through a shared reference.
unsafe impl Sync for Chain {}

impl Chain {
    /// An empty one.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Empties it, as it is behind every post.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
        self.bytes.clear();
    }

    /// Adds a request behind the others.
    pub fn push(&mut self, request: Request<'_>) {
        let mut flags = 0;
        let count = match request.local {
            Local::Pieces(pieces) => {
                let all = pieces.iter().map(|piece| IbvSge { addr: piece.addr, length: piece.len, lkey: piece.key });
                self.pieces.extend(all);
                pieces.len()
            }
            Local::Inline(bytes) => {
                flags |= SEND_INLINE;
                // An offset until it is posted, as the bytes may still move.
                self.pieces.push(IbvSge { addr: self.bytes.len() as u64, length: bytes.len() as u32, lkey: 0 });
                self.bytes.extend_from_slice(bytes);
                1
            }
        };
        if request.fenced {
            flags |= SEND_FENCE;
        }
        if request.signaled {
            flags |= SEND_SIGNALED;
        }
        // SAFETY: numbers and pointers, for which 0 is a value.
        let mut posted: IbvSendWr = unsafe { zeroed() };
        posted.wr_id = request.id;
        posted.num_sge = count as i32;
        posted.opcode = match request.operation {
            Operation::Write => WR_RDMA_WRITE,
            Operation::Read => WR_RDMA_READ,
        };
        posted.send_flags = flags;
        posted.remote_addr = request.remote.addr;
        posted.rkey = request.remote.key;
        self.requests.push(posted);
    }

    /// Has the success of the last request told; true if it would not have been.
    pub fn signal_last(&mut self) -> bool {
        let Some(last) = self.requests.last_mut() else { return false };
        let was_silent = last.send_flags & SEND_SIGNALED == 0;
        last.send_flags |= SEND_SIGNALED;
        was_silent
    }

    /// Links all requests, once, and says where the first one is.
    pub(crate) fn link(&mut self) -> *mut IbvSendWr {
        let Chain { requests, pieces, bytes } = self;
        let first = requests.as_mut_ptr();
        let mut at = 0;
        for nth in 0..requests.len() {
            let is_last = nth + 1 == requests.len();
            let request = &mut requests[nth];
            let count = request.num_sge as usize;
            let own = &mut pieces[at..at + count];
            at += count;
            if request.send_flags & SEND_INLINE != 0 {
                for piece in own.iter_mut() {
                    piece.addr = bytes[piece.addr as usize..].as_ptr().expose_provenance() as u64;
                }
            }
            request.sg_list = own.as_mut_ptr();
            request.next = if is_last { ptr::null_mut() } else { first.wrapping_add(nth + 1) };
        }
        if requests.is_empty() { ptr::null_mut() } else { first }
    }

    /// Which of its requests a pointer of the library's names.
    pub(crate) fn position(&self, request: *const IbvSendWr) -> usize {
        let offset = request.addr().wrapping_sub(self.requests.as_ptr().addr());
        (offset / size_of::<IbvSendWr>()).min(self.requests.len())
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("requests", &self.requests.len()).field("bytes", &self.bytes.len()).finish()
    }
}
