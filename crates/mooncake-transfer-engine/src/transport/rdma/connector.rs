//! How an initiator connects a lane to a peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mooncake_net::{Connect, Connection};
use mooncake_os::{Deadline, WaitError, hex, random_bytes};
use mooncake_rdma::{CarryError, Lane, Nic, PeerEnd, WorkerError};
use mooncake_verbs::{Mtu, VerbsError};

use crate::error::EngineError;
use crate::protocol::connection::{ConnectionBody, OurConnection};
use crate::transport::context::Context;
use crate::transport::{none_free, too_soon};

/// Lanes of one rail at a time; a peer tells them by their number, and keeps no more ends than that.
pub(crate) const LANES_MAX: usize = 8;

/// A local card and a peer's.
#[derive(Debug, Clone)]
pub(crate) struct Rail {
    /// The place of the local card among the engine's.
    pub number: usize,
    pub nic: Arc<Nic>,
    /// The place of the peer's card among its own.
    pub peer_number: usize,
    pub peer_nic: String,
}

/// Numbers of a rail's lanes.
#[derive(Debug, Default)]
pub(crate) struct Slots(AtomicU64);

impl Slots {
    fn take(self: &Arc<Slots>) -> Option<Slot> {
        let free = |taken: u64| (0..LANES_MAX as u64).find(|slot| taken & (1 << slot) == 0);
        let with = |taken| free(taken).map(|slot| taken | 1 << slot);
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with).ok()?;
        Some(Slot { of: self.clone(), number: free(before).expect("it was there") })
    }
}

/// One of them, in use as long as this lives.
#[derive(Debug)]
struct Slot {
    of: Arc<Slots>,
    number: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.0.fetch_and(!(1 << self.number), Ordering::SeqCst);
    }
}

/// A lane between calls.
#[derive(Debug)]
pub(crate) struct PooledLane {
    pub lane: Lane,
    /// What the peer knows it by.
    pub id: String,
    _slot: Slot,
}

impl Connection for PooledLane {
    fn is_alive(&self) -> bool {
        self.lane.is_usable()
    }

    fn is_reusable(&self) -> bool {
        self.lane.is_usable()
    }
}

/// Why a call on a lane failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    /// It was not made.
    #[error(transparent)]
    Connect(#[from] EngineError),
    /// It was drained.
    #[error(transparent)]
    Carry(#[from] CarryError),
}

/// Connects lanes of a rail for one call.
pub(crate) struct LaneConnector<'a> {
    pub context: &'a Context,
    pub peer: &'a str,
    pub rail: &'a Rail,
    pub slots: &'a Arc<Slots>,
}

impl Connect for LaneConnector<'_> {
    type Connection = PooledLane;
    type Error = LaneError;

    fn open(&self, deadline: &Deadline<'_>) -> Result<PooledLane, LaneError> {
        let slot = self.slots.take().ok_or_else(|| self.failed("all lanes of the rail are in use"))?;
        let deadline = deadline.within(self.context.options.connect_timeout);
        let nic = self.rail.nic.clone();
        let lane = self.on_card(&deadline, move || Lane::new(&nic))?.map_err(|error| self.failed(error))?;
        let id: [u8; 8] = random_bytes().map_err(EngineError::os("random bytes"))?;
        let id = hex(&id);
        let mut lane = self.connect(lane, &slot, &id, &deadline)?;
        lane.prove(&deadline).map_err(|error| {
            let why = format!(
                "a write of nothing is not acknowledged ({}); are the networks of {} and {}@{} one, and is MC_MTU the same?",
                error.reason,
                self.rail.nic.name(),
                self.peer,
                self.rail.peer_nic
            );
            self.failed(why)
        })?;
        Ok(PooledLane { lane, id, _slot: slot })
    }

    fn is_lost(&self, _error: &LaneError) -> bool {
        // A write is repeated only after the lane's end there is gone: not by the pool.
        false
    }

    fn none_free(&self, error: WaitError) -> LaneError {
        none_free(self.peer, error).into()
    }

    fn too_soon(&self, reason: &str, ago: Duration) -> LaneError {
        too_soon(self.peer, reason, ago).into()
    }
}

impl LaneConnector<'_> {
    /// Has the peer make its ends, then connects this side's to them.
    fn connect(&self, lane: Lane, slot: &Slot, id: &str, deadline: &Deadline<'_>) -> Result<Lane, LaneError> {
        let directory = self.context.directory()?;
        let nic = &self.rail.nic;
        let (numbers, psn): (Vec<u32>, Vec<u32>) = lane.ends().into_iter().unzip();
        let asked = ConnectionBody {
            local_nic_path: format!("{}@{}#{}", directory.own_name(), nic.name(), slot.number),
            local_lid: nic.lid(),
            local_gid: nic.gid().to_string(),
            peer_nic_path: format!("{}@{}", self.peer, self.rail.peer_nic),
            qp_num: numbers,
            reply_msg: String::new(),
            mooncake_rs: Some(OurConnection {
                lane: id.to_owned(),
                psn,
                mtu: nic.mtu().bytes(),
                reads: nic.reads().into(),
                retire: Vec::new(),
            }),
        };
        let reply = directory.ask_to_connect(self.peer, asked.encode(), deadline)?;
        let reply: ConnectionBody = serde_json::from_slice(&reply)
            .map_err(|error| EngineError::malformed(self.peer, format!("its answer to a connection: {error}")))?;
        if !reply.reply_msg.is_empty() {
            return Err(self.failed(format!("it refuses: {}", reply.reply_msg)));
        }
        let ends = peer_ends(&reply, lane.ends().len()).map_err(|reason| EngineError::malformed(self.peer, reason))?;
        let connected = self.on_card(deadline, move || lane.connect(&ends).map(|()| lane))?;
        connected.map_err(|error| self.failed(error))
    }

    /// Makes a call on the card's own thread, which it may keep.
    fn on_card<T: Send + 'static>(
        &self,
        deadline: &Deadline<'_>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LaneError> {
        self.rail.nic.run(deadline, call).map_err(|error| match error {
            WorkerError::Wait(WaitError::Interrupted) => EngineError::Interrupted.into(),
            error => self.failed(format!("{}: {error}", self.rail.nic.name())),
        })
    }

    fn failed(&self, why: impl std::fmt::Display) -> LaneError {
        let source = std::io::Error::other(why.to_string());
        EngineError::Socket { peer: self.peer.to_owned(), what: "connect by RDMA", source }.into()
    }
}

/// The sender's ends of a message that connects so many.
pub(super) fn peer_ends(body: &ConnectionBody, count: usize) -> Result<Vec<PeerEnd>, String> {
    let gid = body.gid().ok_or_else(|| format!("its GID is {:?}", body.local_gid))?;
    if body.qp_num.len() != count {
        return Err(format!("it has {} queue pairs for {count}", body.qp_num.len()));
    }
    let ours = body.mooncake_rs.as_ref().filter(|ours| ours.psn.len() == count);
    let mtu = match ours {
        Some(ours) => Some(Mtu::of_bytes(ours.mtu).ok_or_else(|| format!("its largest packet is {}", ours.mtu))?),
        None => None,
    };
    let reads = ours.map(|ours| u8::try_from(ours.reads).unwrap_or(u8::MAX));
    let psn = |nth: usize| ours.map_or(0, |ours| ours.psn[nth] & 0x00ff_ffff);
    let ends = body.qp_num.iter().enumerate();
    Ok(ends
        .map(|(nth, &queue_pair)| PeerEnd { gid, lid: body.local_lid, queue_pair, psn: psn(nth), mtu, reads })
        .collect())
}

impl From<VerbsError> for LaneError {
    fn from(error: VerbsError) -> LaneError {
        EngineError::Memory(error.to_string()).into()
    }
}
