//! The path to one incarnation of a peer: a rail of each local card.

use std::sync::Arc;
use std::time::Instant;

use mooncake_mutant::mutant;
use mooncake_net::Taken;
use mooncake_os::{Deadline, WaitError};
use mooncake_rdma::{CarryError, Gone, Lane, Nic, Reason, Topology, carry, choose, request_bytes};
use mooncake_verbs::Status;
use parking_lot::{Mutex, RwLock};

use super::CARD_TIME;
use super::connector::{LaneConnector, LaneError, PooledLane};
use super::keys::PeerKeys;
use super::passive::RETIRED_MAX;
use super::plan::{NoKey, Plan};
use super::rail::{Rail, Unsettled};
use super::ring::Ring;
use super::working_memory::WorkingMemory;
use crate::error::EngineError;
use crate::protocol::connection::{ConnectionBody, OurConnection};
use crate::request::Request;
use crate::transport::context::Context;
use crate::transport::{Path, PathError, PathStatus, PeerInfo};

pub(crate) struct RdmaPath {
    peer: String,
    /// Whether the peer is an engine of ours.
    is_ours: bool,
    /// One at least.
    rails: Vec<Rail>,
    topology: Arc<Topology>,
    memory: Arc<WorkingMemory>,
    keys: RwLock<Arc<PeerKeys>>,
    /// Memory of calls whose cards did not stop, until they have.
    stuck: Mutex<Vec<(Plan, Vec<Gone>)>>,
}

/// What a try of a call came to that did not succeed.
enum Failed {
    /// A rail failed, and is left out; others may do.
    Rail(String),
    /// The peer's card refuses the key.
    Key,
    /// Cards do not stop; so far.
    Stuck(Vec<Gone>),
    /// Nothing else would help here.
    Path(PathError),
}

impl RdmaPath {
    pub fn new(
        nics: &[Arc<Nic>],
        topology: Arc<Topology>,
        memory: Arc<WorkingMemory>,
        peer: &PeerInfo<'_>,
    ) -> RdmaPath {
        let keys = PeerKeys::of(peer.document);
        RdmaPath {
            peer: peer.name.to_owned(),
            is_ours: peer.document.engine_id().is_some(),
            rails: Rail::of_all(nics, &keys.nics),
            topology,
            memory,
            keys: RwLock::new(Arc::new(keys)),
            stuck: Mutex::default(),
        }
    }

    fn plan(&self, requests: &[Request]) -> Result<Plan, NoKey> {
        let bytes = requests.iter().map(|request| request.local.len() as u64).sum();
        let healthy = self.rails.iter().filter(|rail| rail.paused().is_none()).count();
        let most = self.rails[0].nic.options().slice_bytes as u64;
        let part_bytes = request_bytes(bytes, healthy, most) as usize;
        Plan::new(&self.memory, self.keys.read().clone(), requests, part_bytes)
    }

    /// Keys of memory that the peer has registered since.
    fn fetch_keys(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let document = context.directory()?.document(&self.peer, deadline)?;
        let keys = PeerKeys::of(&document);
        // Where cards have come or gone there the rails name others by their places.
        let is_same = |rail: &Rail| keys.nics.get(rail.peer_number) == Some(&rail.peer_nic);
        if self.rails.iter().all(is_same) {
            *self.keys.write() = Arc::new(keys);
        }
        Ok(())
    }

    /// The rails that carry a plan, by their numbers.
    fn chosen(&self, plan: &Plan) -> Vec<usize> {
        let location = plan.held.first().map_or("*", |held| &held.location);
        let (near, _) = self.topology.near_and_far(location);
        let states: Vec<_> = self.rails.iter().map(|rail| rail.state(&near)).collect();
        choose(&states, plan.bytes)
    }

    /// Carries a plan out by the rails that are healthy. One that fails is left out, and the others try again.
    fn carry(&self, context: &Context, plan: Plan, deadline: &Deadline<'_>) -> Result<(), Failed> {
        let mut result = Err(Failed::Rail(String::new()));
        // One more for lanes of before whose peer has gone since.
        for _ in 0..self.rails.len() + 2 {
            let chosen = self.chosen(&plan);
            if chosen.is_empty() {
                break;
            }
            result = self.carry_by(context, &plan, &chosen, deadline);
            if !matches!(result, Err(Failed::Rail(_))) {
                break;
            }
            // What of it may still land must not land over what goes again.
            if let Err(error) = self.retire_abandoned(context, deadline) {
                result = Err(Failed::Path(PathError::Failed(error)));
                break;
            }
        }
        if let Err(Failed::Rail(reason)) = &mut result
            && reason.is_empty()
        {
            *reason = self.reason_of_pauses();
        }
        if let Err(Failed::Stuck(gone)) = &mut result {
            // They may touch what it is of at any time.
            self.stuck.lock().push((plan, std::mem::take(gone)));
        }
        result
    }

    fn carry_by(
        &self,
        context: &Context,
        plan: &Plan,
        chosen: &[usize],
        deadline: &Deadline<'_>,
    ) -> Result<(), Failed> {
        let mut taken: Vec<(&Rail, Taken<'_, PooledLane>)> = Vec::with_capacity(chosen.len());
        let mut failed = None;
        for &nth in chosen {
            let rail = &self.rails[nth];
            match rail.lanes.take(&self.connector(context, rail), deadline) {
                Ok(lane) => taken.push((rail, lane)),
                Err(LaneError::Connect(error @ (EngineError::Interrupted | EngineError::Closed))) => {
                    return Err(Failed::Path(PathError::Failed(error)));
                }
                Err(error) => {
                    // What ended the caller's time says nothing of the rail.
                    deadline.check().map_err(|error| Failed::Path(self.waited(error, deadline)))?;
                    rail.leave_out(&self.peer, &error.to_string());
                    failed = Some(error.to_string());
                }
            }
        }
        if taken.is_empty() {
            return Err(Failed::Rail(failed.unwrap_or_default()));
        }
        let share = plan.bytes / taken.len() as u64;
        let _under_way: Vec<_> = taken.iter().map(|(rail, _)| rail.count(share)).collect();
        let result = carry_on(context, &mut taken, plan, deadline);
        if let Err(LaneError::Carry(error)) = &result {
            for &nth in &error.unsettled {
                let (rail, lane) = &mut taken[nth];
                let slot = if self.is_ours { None } else { lane.slot.take() };
                rail.unsettled.lock().push(Unsettled { id: lane.id.clone(), slot });
            }
        }
        match result {
            Ok(()) => {
                taken.iter().for_each(|(rail, _)| rail.worked());
                Ok(())
            }
            Err(error) => {
                let nth = if let LaneError::Carry(error) = &error { error.lane } else { 0 };
                let (rail, lane) = &taken[nth];
                Err(self.after(error, rail, lane.is_fresh, deadline))
            }
        }
    }

    /// What a call that failed comes to.
    fn after(&self, error: LaneError, rail: &Rail, is_fresh: bool, deadline: &Deadline<'_>) -> Failed {
        let failed = |error| Failed::Path(PathError::Failed(error));
        match error {
            LaneError::Connect(error) | LaneError::Local(error) => failed(error),
            LaneError::NoRing(reason) => Failed::Path(PathError::Unsuitable(reason.into())),
            LaneError::Carry(error) if !error.stuck.is_empty() => {
                let CarryError { reason, stuck, .. } = error;
                let nic = rail.nic.name();
                tracing::error!(nic, %reason, "a card does not stop; a call's memory stays registered, and may change");
                Failed::Stuck(stuck)
            }
            LaneError::Carry(error) => match error.reason {
                Reason::Interrupted => failed(EngineError::Interrupted),
                Reason::Expired => Failed::Path(self.waited(WaitError::Expired(deadline.waited()), deadline)),
                Reason::Failed(Status::REMOTE_ACCESS) => Failed::Key,
                reason => {
                    if is_fresh {
                        rail.leave_out(&self.peer, &reason.to_string());
                    } else {
                        // The peer may have been restarted since: a new lane tells.
                        rail.lanes.close_all_idle();
                    }
                    Failed::Rail(reason.to_string())
                }
            },
        }
    }

    fn waited(&self, error: WaitError, deadline: &Deadline<'_>) -> PathError {
        let (peer, waited) = (self.peer.clone(), deadline.waited());
        PathError::Failed(match error {
            WaitError::Interrupted => EngineError::Interrupted,
            WaitError::Expired(_) => EngineError::Timeout { peer, what: "a transfer by RDMA", waited },
        })
    }

    fn connector<'a>(&'a self, context: &'a Context, rail: &'a Rail) -> LaneConnector<'a> {
        LaneConnector { context, peer: &self.peer, rail, is_ours: self.is_ours }
    }

    /// Why all rails are left out.
    fn reason_of_pauses(&self) -> String {
        let down = |rail: &Rail| rail.nic.is_down().then(|| format!("{} is down", rail.nic.name()));
        let reason = |rail: &Rail| rail.paused().or_else(|| down(rail));
        self.rails.iter().find_map(reason).unwrap_or_else(|| "no rail works".to_owned())
    }
}

/// Carries a plan out on lanes, one of each rail.
fn carry_on(
    context: &Context,
    taken: &mut [(&Rail, Taken<'_, PooledLane>)],
    plan: &Plan,
    deadline: &Deadline<'_>,
) -> Result<(), LaneError> {
    let stall = context.options.stall_timeout;
    if plan.len() > 0 {
        let rails: Vec<&Rail> = taken.iter().map(|(rail, _)| *rail).collect();
        let mut lanes: Vec<&mut Lane> = taken.iter_mut().map(|(_, pooled)| &mut pooled.lane).collect();
        let mut parts = 0..plan.len();
        carry(&mut lanes, &mut |lane| Some(plan.work(parts.next()?, rails[lane])), deadline, stall)?;
    }
    let (rail, pooled) = &mut taken[0];
    let staged = plan.staged(rail);
    if staged.is_empty() {
        return Ok(());
    }
    let PooledLane { lane, ring, .. } = &mut **pooled;
    let ring = match ring {
        Some(ring) => ring,
        none => none.insert(Ring::new(lane)?),
    };
    ring.carry(context, lane, &staged, deadline, stall)
}

impl Path for RdmaPath {
    fn transfer(&self, context: &Context, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), PathError> {
        if self.rails.iter().all(|rail| rail.paused().is_some()) {
            return Err(PathError::Unsuitable(self.reason_of_pauses().into()));
        }
        self.retire_abandoned(context, deadline)?;
        let mut plan = self.plan(requests);
        if let Err(NoKey) = plan {
            let keys = self.keys.read().clone();
            let is_known = requests.iter().any(|request| keys.is_tcp_only(request.remote));
            if is_known || self.fetch_keys(context, deadline).is_err() {
                return Err(NoKey.into());
            }
            plan = self.plan(requests);
        }
        let mut result = self.carry(context, plan?, deadline);
        if let Err(Failed::Key) = result {
            // The peer may have registered its memory anew.
            self.retire_abandoned(context, deadline)?;
            self.fetch_keys(context, deadline)?;
            result = self.carry(context, self.plan(requests)?, deadline);
        }
        match result {
            Ok(()) => Ok(()),
            Err(Failed::Rail(reason)) => Err(PathError::Unsuitable(reason.into())),
            Err(Failed::Path(error)) => Err(error),
            Err(Failed::Stuck(_)) => {
                let (addr, waited) = (requests[0].local.addr(), deadline.waited());
                Err(PathError::Failed(EngineError::BufferBusy { addr, waited }))
            }
            Err(Failed::Key) => {
                self.retire_abandoned(context, deadline)?;
                let Request { local, remote: addr, .. } = requests[0];
                let (owner, len) = (self.peer.clone(), local.len() as u64);
                Err(PathError::Failed(EngineError::NotRegistered { owner, addr, len }))
            }
        }
    }

    fn retire_abandoned(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        // One that is locked is not empty: another call is about it.
        let is_empty = |rail: &Rail| rail.unsettled.try_lock().is_some_and(|unsettled| unsettled.is_empty());
        if self.rails.iter().all(is_empty) || mutant!(FailedWritesAreNotRetired) {
            return Ok(());
        }
        let deadline = deadline.within(CARD_TIME);
        self.rails.iter().try_for_each(|rail| match self.is_ours {
            true => self.retire_by_word(context, rail, &deadline),
            false => self.retire_by_new_lanes(context, rail, &deadline),
        })
    }

    fn close(&self) {
        self.rails.iter().for_each(|rail| rail.lanes.close_all_idle());
    }

    fn close_idle(&self, now: Instant) {
        self.stuck.lock().retain(|(_, gone)| !gone.iter().all(Gone::is_gone));
        self.rails.iter().for_each(|rail| rail.lanes.close_idle(now));
    }

    fn status(&self) -> PathStatus {
        let working = self.rails.iter().filter(|rail| rail.paused().is_none());
        let working: Vec<String> = working.map(|rail| format!("{} to {}", rail.nic.name(), rail.peer_nic)).collect();
        match working.is_empty() {
            true => PathStatus::Down(format!("RDMA is left out: {}", self.reason_of_pauses())),
            false => PathStatus::Up(working.join(", ")),
        }
    }
}

impl RdmaPath {
    /// An engine of ours is asked to destroy its ends on a card, and says which are gone.
    fn retire_by_word(&self, context: &Context, rail: &Rail, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        loop {
            let unsettled = rail.unsettled.lock();
            let retire: Vec<String> = unsettled.iter().take(RETIRED_MAX).map(|lane| lane.id.clone()).collect();
            drop(unsettled);
            if retire.is_empty() {
                return Ok(());
            }
            let directory = context.directory()?;
            let asked = ConnectionBody {
                local_nic_path: format!("{}@{}", directory.own_name(), rail.nic.name()),
                peer_nic_path: format!("{}@{}", self.peer, rail.peer_nic),
                mooncake_rs: Some(OurConnection { retire: retire.clone(), ..OurConnection::default() }),
                ..ConnectionBody::default()
            };
            let reply = directory.ask_to_connect(&self.peer, asked.encode(), deadline)?;
            let reply: ConnectionBody = serde_json::from_slice(&reply).map_err(|error| {
                EngineError::malformed(&self.peer, format!("its answer to the end of a lane: {error}"))
            })?;
            let retired = reply.mooncake_rs.map_or_else(Vec::new, |ours| ours.retire);
            rail.unsettled.lock().retain(|lane| !retired.contains(&lane.id));
            if !retire.iter().all(|id| retired.contains(id)) {
                let why = "its ends of lanes with writes that failed are not gone; they may still land there";
                return Err(EngineError::malformed(&self.peer, why));
            }
        }
    }

    /// An engine of another make destroys what it has under a number when other queue pairs come under it, before it
    /// answers.
    fn retire_by_new_lanes(&self, context: &Context, rail: &Rail, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        // They stay listed until it has: of several callers none may write before.
        let Some(mut unsettled) = rail.unsettled.try_lock_until(deadline.until) else {
            let (peer, what, waited) =
                (self.peer.clone(), "the end of lanes with writes that failed", deadline.waited());
            return Err(EngineError::Timeout { peer, what, waited });
        };
        while let Some(Unsettled { slot: Some(slot), .. }) = unsettled.last() {
            let opened = self.connector(context, rail).open_in(slot, deadline);
            opened.map_err(|error| match error {
                LaneError::Connect(error) | LaneError::Local(error) => error,
                error => EngineError::Memory(error.to_string()),
            })?;
            unsettled.pop();
        }
        Ok(())
    }
}
