//! The path to one incarnation of a peer.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_net::Pool;
use mooncake_os::Deadline;
use mooncake_rdma::{CarryError, Nic, Reason, Registered, Work};
use mooncake_verbs::{Operation, Status};
use parking_lot::{Mutex, RwLock};

use super::CARD_TIME;
use super::connector::{LANES_MAX, LaneConnector, LaneError, PooledLane, Rail, Slots};
use super::keys::PeerKeys;
use super::working_memory::WorkingMemory;
use crate::error::EngineError;
use crate::protocol::connection::{ConnectionBody, OurConnection};
use crate::request::{Opcode, Request};
use crate::transport::context::Context;
use crate::transport::{Path, PathError, PathStatus, PeerInfo, pool_limits};

/// Longest pause of a rail that fails again and again.
const PAUSE_MAX: Duration = Duration::from_secs(600);

pub(crate) struct RdmaPath {
    peer: String,
    rail: Rail,
    memory: Arc<WorkingMemory>,
    keys: RwLock<Arc<PeerKeys>>,
    lanes: Pool<PooledLane>,
    slots: Arc<Slots>,
    /// Lanes with writes that failed: until the peer has destroyed their ends there, bytes may land.
    unsettled: Mutex<Vec<String>>,
    pause: Mutex<Option<Pause>>,
}

/// The rail failed, and is left out for a while.
#[derive(Debug, Clone)]
struct Pause {
    until: Instant,
    long: Duration,
    reason: String,
}

impl RdmaPath {
    pub fn new(nics: Arc<[Arc<Nic>]>, memory: Arc<WorkingMemory>, peer: &PeerInfo<'_>) -> RdmaPath {
        let keys = PeerKeys::of(peer.document);
        let rail = rail(&nics, &keys.nics);
        RdmaPath {
            peer: peer.name.to_owned(),
            rail,
            memory,
            keys: RwLock::new(Arc::new(keys)),
            lanes: Pool::new(pool_limits(LANES_MAX)),
            slots: Arc::default(),
            unsettled: Mutex::default(),
            pause: Mutex::default(),
        }
    }

    /// Local and remote pieces of requests. An error says why RDMA cannot carry them.
    fn plan(&self, requests: &[Request]) -> Result<Plan, Unplanned> {
        let keys = self.keys.read().clone();
        let slice = self.rail.nic.options().slice_bytes.max(4_096);
        let mut plan = Plan { works: Vec::with_capacity(requests.len()), held: Vec::new() };
        for request in requests {
            let (local, len) = (request.local, request.local.len());
            if len == 0 {
                continue;
            }
            let here = match plan.held.iter().find(|held| held.holds(local)) {
                Some(held) => held.clone(),
                None => {
                    let found = self.memory.find(local).ok_or(Unplanned::Local)?;
                    plan.held.push(found.clone());
                    found
                }
            };
            let operation = match request.opcode {
                Opcode::Read => Operation::Read,
                Opcode::Write => Operation::Write,
            };
            let mut at = 0;
            while at < len {
                let remote = request.remote + at as u64;
                let wanted = (len - at).min(slice);
                let (remote, there) =
                    keys.part(self.rail.peer_number, remote, wanted as u64).ok_or(Unplanned::Remote)?;
                let piece = here.piece(self.rail.number, local.addr() + at, there as usize).ok_or(Unplanned::Local)?;
                at += piece.bytes() as usize;
                plan.works.push(Work { operation, local: piece, remote });
            }
        }
        Ok(plan)
    }

    /// Keys of memory that the peer has registered since.
    fn fetch_keys(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let document = context.directory()?.document(&self.peer, deadline)?;
        let keys = PeerKeys::of(&document);
        // A card that went is at another place, and the rail that there is names it by its own.
        if keys.nics.get(self.rail.peer_number) == Some(&self.rail.peer_nic) {
            *self.keys.write() = Arc::new(keys);
        }
        Ok(())
    }

    fn carry(&self, context: &Context, plan: Plan, deadline: &Deadline<'_>) -> Result<(), LaneError> {
        // A card that does not stop may touch them at any time.
        let held = ManuallyDrop::new(plan.held);
        let by = LaneConnector { context, peer: &self.peer, rail: &self.rail, slots: &self.slots };
        let stall = context.options.stall_timeout;
        let result = self.lanes.with(&by, deadline, |pooled| {
            let carried = pooled.lane.carry(&mut plan.works.iter().copied(), deadline, stall);
            if carried.as_ref().is_err_and(|error| error.is_unsettled) {
                self.unsettled.lock().push(pooled.id.clone());
            }
            carried.map_err(LaneError::Carry)
        });
        if !matches!(&result, Err(LaneError::Carry(error)) if error.is_stuck) {
            drop(ManuallyDrop::into_inner(held));
        }
        result
    }

    fn paused(&self) -> Option<String> {
        let pause = self.pause.lock();
        pause.as_ref().filter(|pause| Instant::now() < pause.until).map(|pause| pause.reason.clone())
    }

    /// Leaves the rail out: for longer each time that it fails without having worked in between.
    fn leave_out(&self, reason: String) -> PathError {
        let mut pause = self.pause.lock();
        let long = pause.as_ref().map_or(self.rail.nic.options().rail_pause, |before| 2 * before.long).min(PAUSE_MAX);
        tracing::warn!(
            peer = self.peer,
            nic = self.rail.nic.name(),
            peer_nic = self.rail.peer_nic,
            reason,
            ?long,
            "a rail is left out"
        );
        *pause = Some(Pause { until: Instant::now() + long, long, reason: reason.clone() });
        PathError::Unsuitable(reason.into())
    }

    /// What a call that failed comes to: an error, or other transports are tried.
    fn after(&self, error: LaneError, deadline: &Deadline<'_>) -> PathError {
        match error {
            LaneError::Connect(error @ (EngineError::Interrupted | EngineError::Closed)) => PathError::Failed(error),
            LaneError::Connect(error) => self.leave_out(error.to_string()),
            LaneError::Carry(CarryError { is_stuck: true, reason, nic, .. }) => {
                let why =
                    format!("{nic} does not stop ({reason}); memory of this call stays registered, and it may change");
                PathError::Failed(EngineError::Memory(why))
            }
            LaneError::Carry(error) => match error.reason {
                Reason::Interrupted => PathError::Failed(EngineError::Interrupted),
                Reason::Expired => {
                    let (peer, waited) = (self.peer.clone(), deadline.waited());
                    PathError::Failed(EngineError::Timeout { peer, what: "a transfer by RDMA", waited })
                }
                reason => self.leave_out(reason.to_string()),
            },
        }
    }
}

/// Why there is no plan.
enum Unplanned {
    /// Memory of this side is not registered.
    Local,
    /// No key opens this address of the peer.
    Remote,
}

impl From<Unplanned> for PathError {
    fn from(unplanned: Unplanned) -> PathError {
        PathError::Unsuitable(match unplanned {
            Unplanned::Local => "memory of this side is not registered".into(),
            Unplanned::Remote => "the peer lends no memory for RDMA there".into(),
        })
    }
}

/// Work of a call, and what keeps its memory registered meanwhile.
struct Plan {
    works: Vec<Work>,
    held: Vec<Arc<Registered>>,
}

impl Path for RdmaPath {
    fn transfer(&self, context: &Context, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), PathError> {
        if let Some(reason) = self.paused() {
            return Err(PathError::Unsuitable(reason.into()));
        }
        if context.buffers.are_any_on_device(requests) {
            return Err(PathError::Unsuitable("memory of a device goes by TCP".into()));
        }
        self.retire_abandoned(context, deadline)?;
        let mut plan = self.plan(requests);
        if let Err(Unplanned::Remote) = plan {
            self.fetch_keys(context, deadline)?;
            plan = self.plan(requests);
        }
        let mut result = self.carry(context, plan?, deadline);
        if let Err(LaneError::Carry(CarryError { reason: Reason::Failed(Status::REMOTE_ACCESS), .. })) = &result {
            // It may have registered its memory anew.
            self.retire_abandoned(context, deadline)?;
            self.fetch_keys(context, deadline)?;
            result = self.carry(context, self.plan(requests)?, deadline);
            if let Err(LaneError::Carry(CarryError { reason: Reason::Failed(Status::REMOTE_ACCESS), .. })) = &result {
                self.retire_abandoned(context, deadline)?;
                let Request { local, remote: addr, .. } = requests[0];
                let (owner, len) = (self.peer.clone(), local.len() as u64);
                return Err(PathError::Failed(EngineError::NotRegistered { owner, addr, len }));
            }
        }
        match result {
            Ok(()) => {
                *self.pause.lock() = None;
                Ok(())
            }
            Err(error) => Err(self.after(error, deadline)),
        }
    }

    fn retire_abandoned(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let retire = self.unsettled.lock().clone();
        if retire.is_empty() {
            return Ok(());
        }
        let directory = context.directory()?;
        let asked = ConnectionBody {
            local_nic_path: format!("{}@{}", directory.own_name(), self.rail.nic.name()),
            peer_nic_path: format!("{}@{}", self.peer, self.rail.peer_nic),
            mooncake_rs: Some(OurConnection { retire: retire.clone(), ..OurConnection::default() }),
            ..ConnectionBody::default()
        };
        let reply = directory.ask_to_connect(&self.peer, asked.encode(), &deadline.within(CARD_TIME))?;
        let reply: ConnectionBody = serde_json::from_slice(&reply)
            .map_err(|error| EngineError::malformed(&self.peer, format!("its answer to the end of a lane: {error}")))?;
        let retired = reply.mooncake_rs.map_or_else(Vec::new, |ours| ours.retire);
        self.unsettled.lock().retain(|id| !retired.contains(id));
        match retire.iter().all(|id| retired.contains(id)) {
            true => Ok(()),
            false => {
                let why = "its ends of lanes with writes that failed are not gone; they may still land there";
                Err(EngineError::malformed(&self.peer, why))
            }
        }
    }

    fn close_idle(&self, now: Instant) {
        self.lanes.close_idle(now);
    }

    fn status(&self) -> PathStatus {
        match self.paused() {
            Some(reason) => PathStatus::Down(format!("RDMA is left out: {reason}")),
            None => PathStatus::Up(format!("{} to {}", self.rail.nic.name(), self.rail.peer_nic)),
        }
    }
}

/// The local card and the peer's: of the same name, else at the same place, else any.
fn rail(nics: &[Arc<Nic>], peer: &[String]) -> Rail {
    let same = nics.iter().enumerate().find_map(|(number, nic)| {
        let peer_number = peer.iter().position(|name| name == nic.name())?;
        Some((number, peer_number))
    });
    let (number, peer_number) = same.unwrap_or((0, 0));
    Rail { number, nic: nics[number].clone(), peer_number, peer_nic: peer[peer_number].clone() }
}
