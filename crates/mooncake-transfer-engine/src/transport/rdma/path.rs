//! The path to one incarnation of a peer.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_mutant::mutant;
use mooncake_net::Pool;
use mooncake_os::Deadline;
use mooncake_rdma::{CarryError, Nic, Reason, Registered, Work};
use mooncake_verbs::{Operation, Status};
use parking_lot::{Mutex, RwLock};

use super::CARD_TIME;
use super::connector::{LANES_MAX, LaneConnector, LaneError, PooledLane, Rail, Slot, Slots};
use super::keys::PeerKeys;
use super::ring::{Ring, StagedWork};
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
    unsettled: Mutex<Vec<Unsettled>>,
    /// Whether the peer is an engine of ours.
    is_ours: bool,
    pause: Mutex<Option<Pause>>,
}

/// A lane with a write that failed.
#[derive(Debug)]
struct Unsettled {
    /// What a peer of ours knows it by.
    id: String,
    /// Its number: an engine of another make destroys its end when another lane is connected under it.
    slot: Option<Slot>,
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
            is_ours: peer.document.engine_id().is_some(),
            pause: Mutex::default(),
        }
    }

    /// Local and remote pieces of requests. An error says why RDMA cannot carry them.
    fn plan(&self, requests: &[Request]) -> Result<Plan, NoKey> {
        let keys = self.keys.read().clone();
        let slice = self.rail.nic.options().slice_bytes.max(4_096);
        let mut plan = Plan { works: Vec::with_capacity(requests.len()), staged: Vec::new(), held: Vec::new() };
        for request in requests {
            let (local, len) = (request.local, request.local.len());
            if len == 0 {
                continue;
            }
            let here = plan.held.iter().find(|held| held.holds(local)).cloned().or_else(|| {
                let found = self.memory.find(local)?;
                plan.held.push(found.clone());
                Some(found)
            });
            let operation = match request.opcode {
                Opcode::Read => Operation::Read,
                Opcode::Write => Operation::Write,
            };
            let mut at = 0;
            while at < len {
                let remote = request.remote + at as u64;
                let wanted = (len - at).min(slice) as u64;
                let (remote, there) = keys.part(self.rail.peer_number, remote, wanted).ok_or(NoKey)?;
                let there = there as usize;
                let piece = here.as_ref().and_then(|here| here.piece(self.rail.number, local.addr() + at, there));
                at += match piece {
                    Some(local) => {
                        plan.works.push(Work { operation, local, remote });
                        local.bytes() as usize
                    }
                    None => {
                        plan.staged.push(StagedWork { operation, local: local.part(at, there), remote });
                        there
                    }
                };
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
        let Plan { works, staged, held } = plan;
        let held = ManuallyDrop::new(held);
        let stall = context.options.stall_timeout;
        let result = self.lanes.with(&self.connector(context), deadline, |pooled| {
            let carried = carry_on(context, pooled, &works, &staged, deadline, stall);
            if matches!(&carried, Err(LaneError::Carry(error)) if !error.unsettled.is_empty()) {
                let slot = if self.is_ours { None } else { pooled.slot.take() };
                self.unsettled.lock().push(Unsettled { id: pooled.id.clone(), slot });
            }
            carried
        });
        if !matches!(&result, Err(LaneError::Carry(error)) if error.is_stuck) {
            drop(ManuallyDrop::into_inner(held));
        }
        result
    }

    fn connector<'a>(&'a self, context: &'a Context) -> LaneConnector<'a> {
        LaneConnector { context, peer: &self.peer, rail: &self.rail, slots: &self.slots, is_ours: self.is_ours }
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
            LaneError::Local(error) => PathError::Failed(error),
            LaneError::NoRing(reason) => PathError::Unsuitable(reason.into()),
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

/// No key opens an address of the peer.
struct NoKey;

impl From<NoKey> for PathError {
    fn from(_: NoKey) -> PathError {
        PathError::Unsuitable("the peer lends no memory for RDMA there".into())
    }
}

/// Work of a call, and what keeps its memory registered meanwhile.
struct Plan {
    works: Vec<Work>,
    /// Of local memory that is not registered.
    staged: Vec<StagedWork>,
    held: Vec<Arc<Registered>>,
}

/// Carries a plan out on a lane.
fn carry_on(
    context: &Context,
    pooled: &mut PooledLane,
    works: &[Work],
    staged: &[StagedWork],
    deadline: &Deadline<'_>,
    stall: Duration,
) -> Result<(), LaneError> {
    if !works.is_empty() {
        pooled.lane.carry(&mut works.iter().copied(), deadline, stall)?;
    }
    if staged.is_empty() {
        return Ok(());
    }
    let ring = match &mut pooled.ring {
        Some(ring) => ring,
        none => none.insert(Ring::new(&pooled.lane)?),
    };
    ring.carry(context, &mut pooled.lane, staged, deadline, stall)
}

impl Path for RdmaPath {
    fn transfer(&self, context: &Context, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), PathError> {
        if let Some(reason) = self.paused() {
            return Err(PathError::Unsuitable(reason.into()));
        }
        self.retire_abandoned(context, deadline)?;
        let mut plan = self.plan(requests);
        if let Err(NoKey) = plan {
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
        if self.unsettled.lock().is_empty() || mutant!(FailedWritesAreNotRetired) {
            return Ok(());
        }
        let deadline = deadline.within(CARD_TIME);
        if self.is_ours {
            self.retire_by_word(context, &deadline)
        } else {
            self.retire_by_new_lanes(context, &deadline)
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

impl RdmaPath {
    /// An engine of ours is asked to destroy its ends, and says which are gone.
    fn retire_by_word(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let retire: Vec<String> = self.unsettled.lock().iter().map(|lane| lane.id.clone()).collect();
        let directory = context.directory()?;
        let asked = ConnectionBody {
            local_nic_path: format!("{}@{}", directory.own_name(), self.rail.nic.name()),
            peer_nic_path: format!("{}@{}", self.peer, self.rail.peer_nic),
            mooncake_rs: Some(OurConnection { retire: retire.clone(), ..OurConnection::default() }),
            ..ConnectionBody::default()
        };
        let reply = directory.ask_to_connect(&self.peer, asked.encode(), deadline)?;
        let reply: ConnectionBody = serde_json::from_slice(&reply)
            .map_err(|error| EngineError::malformed(&self.peer, format!("its answer to the end of a lane: {error}")))?;
        let retired = reply.mooncake_rs.map_or_else(Vec::new, |ours| ours.retire);
        self.unsettled.lock().retain(|lane| !retired.contains(&lane.id));
        if retire.iter().all(|id| retired.contains(id)) {
            return Ok(());
        }
        let why = "its ends of lanes with writes that failed are not gone; they may still land there";
        Err(EngineError::malformed(&self.peer, why))
    }

    /// An engine of another make destroys what it has under a number when other queue pairs come under it, before it
    /// answers.
    fn retire_by_new_lanes(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        // They stay listed until it has: of several callers none may write before.
        let Some(mut unsettled) = self.unsettled.try_lock_until(deadline.until) else {
            let (peer, what, waited) =
                (self.peer.clone(), "the end of lanes with writes that failed", deadline.waited());
            return Err(EngineError::Timeout { peer, what, waited });
        };
        while let Some(Unsettled { slot: Some(slot), .. }) = unsettled.last() {
            let opened = self.connector(context).open_in(slot, deadline);
            opened.map_err(|error| match error {
                LaneError::Connect(error) | LaneError::Local(error) => error,
                error => EngineError::Memory(error.to_string()),
            })?;
            unsettled.pop();
        }
        Ok(())
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
