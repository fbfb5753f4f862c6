//! How an initiator connects a lane to a peer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mooncake_net::{Connect, Connection};
use mooncake_os::{Deadline, WaitError, hex, random_bytes};
use mooncake_rdma::{CarryError, Lane, PeerEnd, WorkerError};
use mooncake_verbs::{Mtu, VerbsError};
use parking_lot::Mutex;

use super::rail::Rail;
use super::ring::Ring;
use crate::error::EngineError;
use crate::protocol::connection::{ConnectionBody, OurConnection};
use crate::transport::context::Context;
use crate::transport::{none_free, too_soon};

/// Lanes of one rail at a time; a peer tells them by their number, and keeps no more ends than that.
pub(crate) const LANES_MAX: usize = 8;

/// Numbers of a rail's lanes.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    taken: Mutex<[bool; LANES_MAX]>,
    /// Lists of queue pairs that a peer of another make may have under each number. An engine of another make takes a
    /// list that it has for the same connection, which it is not where a card gives numbers out again.
    held: Mutex<[Vec<Vec<u32>>; LANES_MAX]>,
}

impl Slots {
    /// One that is free; a lane that is being closed frees its own in a moment.
    fn take(self: &Arc<Slots>, deadline: &Deadline<'_>) -> Option<Slot> {
        let mut found = None;
        deadline.within(Duration::from_secs(1)).wait_until(|| {
            let mut taken = self.taken.lock();
            found = taken.iter().position(|taken| !taken);
            if let Some(number) = found {
                taken[number] = true;
            }
            found.is_some()
        });
        found.map(|number| Slot { of: self.clone(), number })
    }
}

/// One of them, in use as long as this lives.
#[derive(Debug)]
pub(crate) struct Slot {
    of: Arc<Slots>,
    number: usize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.taken.lock()[self.number] = false;
    }
}

/// A lane between calls.
#[derive(Debug)]
pub(crate) struct PooledLane {
    pub lane: Lane,
    /// What the peer knows it by, if it is one of ours.
    pub id: String,
    /// Its number, unless a write on it failed that is to be retired under the same one.
    pub slot: Option<Slot>,
    /// Where memory that is not registered is copied through; made when it is first needed.
    pub ring: Option<Ring>,
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
    /// The caller's memory is not there.
    #[error(transparent)]
    Local(EngineError),
    /// There is no registered memory for what is not registered.
    #[error("memory of this side is not registered, and there is none to copy through: {0}")]
    NoRing(String),
}

/// Connects lanes of a rail for one call.
pub(crate) struct LaneConnector<'a> {
    pub context: &'a Context,
    pub peer: &'a str,
    pub rail: &'a Rail,
    /// Whether the peer is an engine of ours.
    pub is_ours: bool,
}

impl Connect for LaneConnector<'_> {
    type Connection = PooledLane;
    type Error = LaneError;

    fn open(&self, deadline: &Deadline<'_>) -> Result<PooledLane, LaneError> {
        let slot = self.rail.slots.take(deadline).ok_or_else(|| self.failed("all lanes of the rail are in use"))?;
        let deadline = deadline.within(self.context.options.connect_timeout);
        let (mut lane, id) = self.open_in(&slot, &deadline)?;
        lane.prove(&deadline).map_err(|error| {
            let why = format!(
                "a write of nothing is not acknowledged ({}); are the networks of {} and {}@{} one, and is MC_MTU the \
                 same?",
                error.reason,
                self.rail.nic.name(),
                self.peer,
                self.rail.peer_nic
            );
            self.failed(why)
        })?;
        Ok(PooledLane { lane, id, slot: Some(slot), ring: None })
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
    /// A connected lane, and what the peer knows it by. Where the peer had a lane under that number, its end of that
    /// one is gone.
    pub fn open_in(&self, slot: &Slot, deadline: &Deadline<'_>) -> Result<(Lane, String), LaneError> {
        let id: [u8; 8] = random_bytes().map_err(EngineError::os("random bytes"))?;
        let id = hex(&id);
        for _ in 0..2 {
            let count = match self.rail.peer_count.load(Ordering::Relaxed) {
                0 => self.rail.nic.options().queue_pairs,
                known => known,
            };
            let lane = self.make(slot, count, deadline)?;
            match self.connect(lane, slot, &id, deadline)? {
                Connected::Lane(lane) => return Ok((*lane, id)),
                // Only as many as its own are taken by an engine of another make.
                Connected::OtherCount(count) => self.rail.peer_count.store(count, Ordering::Relaxed),
            }
        }
        Err(self.failed("it wants another number of queue pairs each time"))
    }

    /// With queue pairs that are not all the same as any that the peer may have under the number.
    fn make(&self, slot: &Slot, count: usize, deadline: &Deadline<'_>) -> Result<Lane, LaneError> {
        let (nic, is_ours) = (self.rail.nic.clone(), self.is_ours);
        let held = slot.of.held.lock()[slot.number].clone();
        let made = self.on_card(deadline, move || {
            // While those before it are there no other has their numbers.
            let mut before = Vec::new();
            loop {
                let lane = if is_ours { Lane::with_queue_pairs(&nic, count) } else { Lane::from_zero(&nic, count) }?;
                if !held.contains(&numbers(&lane)) {
                    return Ok(lane);
                }
                before.push(lane);
            }
        })?;
        made.map_err(|error: VerbsError| self.failed(error))
    }

    /// Has the peer make its ends, then connects this side's to them.
    fn connect(&self, lane: Lane, slot: &Slot, id: &str, deadline: &Deadline<'_>) -> Result<Connected, LaneError> {
        let directory = self.context.directory()?;
        let nic = &self.rail.nic;
        let (own_numbers, psn): (Vec<u32>, Vec<u32>) = lane.ends().into_iter().unzip();
        let asked = ConnectionBody {
            local_nic_path: format!("{}@{}#{}.{}", directory.own_name(), nic.name(), slot.number, self.rail.tag),
            local_lid: nic.lid(),
            local_gid: nic.gid().to_string(),
            peer_nic_path: format!("{}@{}", self.peer, self.rail.peer_nic),
            qp_num: own_numbers.clone(),
            reply_msg: String::new(),
            mooncake_rs: self.is_ours.then(|| OurConnection {
                lane: id.to_owned(),
                psn,
                mtu: nic.mtu().bytes(),
                reads: nic.reads().into(),
                retire: Vec::new(),
            }),
        };
        if !self.is_ours {
            slot.of.held.lock()[slot.number].push(own_numbers.clone());
        }
        let reply = directory.ask_to_connect(self.peer, asked.encode(), deadline)?;
        let reply: ConnectionBody = serde_json::from_slice(&reply)
            .map_err(|error| EngineError::malformed(self.peer, format!("its answer to a connection: {error}")))?;
        let own = lane.ends().len();
        if !reply.reply_msg.is_empty() {
            slot.of.held.lock()[slot.number].retain(|list| *list != own_numbers);
            // It says which it has.
            if !self.is_ours && !reply.qp_num.is_empty() && reply.qp_num.len() != own {
                return Ok(Connected::OtherCount(reply.qp_num.len()));
            }
            return Err(self.failed(format!("it refuses: {}", reply.reply_msg)));
        }
        if !self.is_ours {
            slot.of.held.lock()[slot.number] = vec![own_numbers];
        }
        let ends = peer_ends(&reply, own).map_err(|reason| EngineError::malformed(self.peer, reason))?;
        let connected = self.on_card(deadline, move || lane.connect(&ends).map(|()| lane))?;
        connected.map(|lane| Connected::Lane(Box::new(lane))).map_err(|error| self.failed(error))
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

/// What becomes of a lane that a peer was asked to connect.
enum Connected {
    Lane(Box<Lane>),
    /// It has so many queue pairs for a lane, and takes no other number.
    OtherCount(usize),
}

fn numbers(lane: &Lane) -> Vec<u32> {
    lane.ends().into_iter().map(|(number, _)| number).collect()
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

impl Drop for PooledLane {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            // It may take as long as the card does.
            let _ = self.lane.nic().give(move || drop(ring));
        }
    }
}
