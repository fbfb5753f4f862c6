//! What a call has to move, cut where a key of either end changes.

use std::sync::Arc;

use mooncake_rdma::Work;
use mooncake_verbs::{Operation, Piece, Remote};

use super::keys::PeerKeys;
use super::rail::Rail;
use super::ring::{RING_BYTES, StagedWork};
use super::working_memory::{Known, WorkingMemory};
use crate::request::{Opcode, Request};
use crate::transport::PathError;

/// No key opens an address of the peer.
pub(crate) struct NoKey;

impl From<NoKey> for PathError {
    fn from(_: NoKey) -> PathError {
        PathError::Unsuitable("the peer lends no memory for RDMA there".into())
    }
}

/// Parts of a call, each of one region at either end, on every card.
pub(crate) struct Plan {
    parts: Vec<Part>,
    /// Of local memory that is not registered.
    staged: Vec<StagedPart>,
    /// What local memory is registered as, which it stays for as long as a card may touch it.
    pub held: Vec<Known>,
    keys: Arc<PeerKeys>,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    operation: Operation,
    /// Which of the held ranges.
    here: usize,
    addr: usize,
    len: usize,
    remote: u64,
}

#[derive(Debug, Clone, Copy)]
struct StagedPart {
    operation: Operation,
    local: mooncake_memory::ForeignRange,
    remote: u64,
}

impl Plan {
    /// Parts of at most so many bytes.
    pub fn new(
        memory: &WorkingMemory,
        keys: Arc<PeerKeys>,
        requests: &[Request],
        part_bytes: usize,
    ) -> Result<Plan, NoKey> {
        let mut plan = Plan {
            parts: Vec::with_capacity(requests.len()),
            staged: Vec::new(),
            held: Vec::new(),
            bytes: 0,
            keys: keys.clone(),
        };
        for request in requests {
            let (local, len) = (request.local, request.local.len());
            if len == 0 {
                continue;
            }
            plan.bytes += len as u64;
            let held = plan.held.iter().position(|held| held.registered.holds(local)).or_else(|| {
                plan.held.push(memory.find(local)?);
                Some(plan.held.len() - 1)
            });
            let operation = match request.opcode {
                Opcode::Read => Operation::Read,
                Opcode::Write => Operation::Write,
            };
            let mut at = 0;
            while at < len {
                let remote = request.remote + at as u64;
                // Keys of all cards open the same ranges.
                let (_, there) = keys.part(0, remote, (len - at).min(part_bytes) as u64).ok_or(NoKey)?;
                let there = there as usize;
                let piece = held.and_then(|held| {
                    Some((held, plan.held[held].registered.piece(0, local.addr() + at, there)?.bytes() as usize))
                });
                at += match piece {
                    Some((here, len)) => {
                        plan.parts.push(Part { operation, here, addr: local.addr() + at, len, remote });
                        len
                    }
                    None => {
                        let there = there.min(RING_BYTES);
                        plan.staged.push(StagedPart { operation, local: local.part(at, there), remote });
                        there
                    }
                };
            }
        }
        Ok(plan)
    }

    /// How many parts it has whose local end is registered.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// One of them, as a lane of that rail names its ends.
    pub fn work(&self, nth: usize, rail: &Rail) -> Work {
        let part = &self.parts[nth];
        let local = self.held[part.here].registered.piece(rail.number, part.addr, part.len);
        Work {
            operation: part.operation,
            local: local.filter(|piece: &Piece| piece.bytes() as usize == part.len).expect("cut alike on every card"),
            remote: self.remote(part.remote, part.len, rail),
        }
    }

    /// Those whose local end is not registered.
    pub fn staged(&self, rail: &Rail) -> Vec<StagedWork> {
        let work = |part: &StagedPart| StagedWork {
            operation: part.operation,
            local: part.local,
            remote: self.remote(part.remote, part.local.len(), rail),
        };
        self.staged.iter().map(work).collect()
    }

    fn remote(&self, addr: u64, len: usize, rail: &Rail) -> Remote {
        let found = self.keys.part(rail.peer_number, addr, len as u64);
        found.filter(|(_, there)| *there == len as u64).expect("each buffer has a key for each card").0
    }
}
