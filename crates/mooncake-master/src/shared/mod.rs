//! What every task of the master shares: the core behind its mutex, the log,
//! the routes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_core::{AsideFull, Core, Effects, SnapshotSlice, Time};
use mooncake_net::PeerLog;
use mooncake_wire::message::LogPosition;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::births::Births;
use crate::call_loops::Loops;
use crate::clients::Clients;
use crate::committer::{Commit, Commits, Committer};
use crate::connections::Connections;
use crate::events::Events;
use crate::history::History;
use crate::log::{Living, Log, LogClosed};
use crate::machine::anchors;
use crate::machine::commit::End;
use crate::machine::convert::SoftPinTtl;
use crate::machine::core_driver::CoreDriver;
use crate::machine::delivery::{self, Delivery};
use crate::machine::epoch_claim::EpochClaims;
use crate::machine::hello;
use crate::metrics::Metrics;
use crate::metrics::summary::Previous;
use crate::peer::Peer;
use crate::process_watch::ProcessWatch;
use crate::pulse::Pulse;
use crate::routes::Routes;

/// Appends take microseconds. Only threads that have nothing else to do wait for one that takes longer
/// (`docs/safety.md`, rule 17).
const APPEND_SLOW: Duration = Duration::from_millis(2);

/// Shared by all connections and background work.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    /// The log.
    pub log: Arc<Log>,
    /// Anchors and parked requests.
    pub routes: Routes,
    /// Counters of the shell.
    pub metrics: Metrics,
    /// What clients said of themselves, and ask for.
    pub clients: Clients,
    /// When objects came.
    pub births: Mutex<Births>,
    /// What was asked of the pool in the last minutes.
    pub history: Mutex<History>,
    /// What the last periodic summary line was told from.
    pub summarized: Mutex<Previous>,
    /// Lines about misbehaving peers.
    pub peers: PeerLog<Peer>,
    /// What this master is and grants.
    pub identity: Identity,
    /// Every connection.
    pub connections: Arc<Connections>,
    /// Commits that another thread does.
    pub committer: Committer,
    /// Where connections are served once it is known what they are.
    pub threads: Threads,
    /// Watches of client processes.
    pub processes: ProcessWatch,
    /// How far clients are believed that say that the log lost its end.
    pub epoch_claims: Mutex<EpochClaims>,
    /// Rung when the master cannot go on.
    pub failed: Notify,
    started: Instant,
}

/// Threads behind the hello.
#[derive(Debug)]
pub struct Threads {
    /// Where calls are answered.
    pub calls: Loops,
    /// Where anchors are served.
    pub anchors: Loops,
    /// Of the thread that serves anchors.
    pub pulse: Arc<Pulse>,
}

impl Threads {
    /// Starts them.
    pub fn start() -> std::io::Result<Threads> {
        let (calls, anchors) = (Loops::for_calls()?, Loops::for_anchors()?);
        let pulse = Arc::<Pulse>::default();
        anchors.spawn(pulse.clone().beat());
        Ok(Threads { calls, anchors, pulse })
    }
}

/// What this master tells of itself, and what it grants.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What each hello is told.
    pub told: hello::Identity,
    /// Lifetimes of soft pins.
    pub soft_pin: SoftPinTtl,
    /// Called after many objects were freed.
    pub after_bulk_free: Option<fn()>,
    /// Where the control server listens.
    pub rpc_address: String,
    /// The last lines of this master's log.
    pub events: Arc<Events>,
}

struct State {
    core: Core,
    effects: Effects,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl Shared {
    /// Shares a core that has replayed its log but not begun.
    pub fn new(
        core: Core,
        log: Arc<Log>,
        identity: Identity,
        connections: Connections,
        threads: Threads,
        processes: ProcessWatch,
    ) -> Shared {
        let metrics = Metrics::default();
        // Epochs without a log end with this master, and their budget comes back faster.
        let claims = if log.stats().enabled { EpochClaims::new } else { EpochClaims::without_log };
        Shared {
            clients: Clients::default(),
            births: Mutex::default(),
            history: Mutex::default(),
            summarized: Mutex::new(Previous::start(&metrics)),
            state: Mutex::new(State { core, effects: Effects::default() }),
            log,
            routes: Routes::default(),
            metrics,
            peers: PeerLog::default(),
            identity,
            connections: Arc::new(connections),
            committer: Committer::default(),
            threads,
            processes,
            epoch_claims: Mutex::new(claims(Duration::ZERO)),
            failed: Notify::new(),
            started: Instant::now(),
        }
    }

    fn deliver(&self, delivery: Delivery) {
        if let Delivery::Push(session, push) = &delivery
            && anchors::is_last(push)
        {
            // The session is over: the end of its process would prove nothing more.
            self.processes.end(*session);
        }
        delivery::deliver(&mut &self.routes, delivery);
    }

    /// Asks the core something that changes nothing durable.
    pub fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
        let mut state = self.state.lock();
        let now = self.now();
        ask(&mut state.core, now)
    }

    /// Runs one operation, and returns when what it did is logged and delivered (`docs/safety.md`, rule 17).
    pub fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, LogClosed> {
        let (result, number) = self.run(operation);
        if let Some(number) = number {
            self.commit(number)?;
        }
        Ok(result)
    }

    /// [`Shared::apply`] for tasks: where a commit waits for the disk, it does so on another thread, and so does one
    /// that finds another thread waiting for it. What was done before, and is only said once more, is in the log as
    /// well when this returns.
    pub async fn apply_async<R>(
        self: &Arc<Self>,
        operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R,
    ) -> Result<R, LogClosed> {
        let (result, number) = self.run(operation);
        // An operation that left nothing may tell what an earlier one did, a repeated mutation's first reply for one
        // (`docs/safety.md`, rule 6). That has to be in the log too before it is told.
        let number = number.unwrap_or_else(|| self.log.end_of_queue().number);
        // With fsync each commit waits for the disk, so that this thread does none (`docs/safety.md`, rule 17).
        let is_done = match self.log.is_fsync() {
            true => self.log.is_done(number),
            false => self.commit_soon(number)?,
        };
        if !is_done {
            self.commit_aside(number)?.done().await?;
        }
        Ok(result)
    }

    /// Runs one operation, and leaves it to the next one of the same caller to see that it is in the log and delivered.
    pub fn apply_with_next<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> R {
        self.run(operation).0
    }

    /// [`Shared::apply`] for tasks whose thread has others to serve, however slow the disk is. Another thread brings
    /// into the log what has to be there before the operation is answered, whether the caller waits for that or not.
    pub fn apply_aside<R>(
        self: &Arc<Self>,
        operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R,
    ) -> Result<(R, Option<Commit>), LogClosed> {
        let (result, number) = self.run(operation);
        let commit = number.map(|number| self.commit_aside(number)).transpose()?;
        Ok((result, commit))
    }

    /// Has another thread bring all that was done so far into the log, if it is not there.
    pub fn commit_all_aside(self: &Arc<Self>) -> Result<Option<Commit>, LogClosed> {
        let number = self.log.end_of_queue().number;
        match self.log.is_done(number) {
            true => Ok(None),
            false => self.commit_aside(number).map(Some),
        }
    }

    /// Where there is no disk to wait for, or no other thread, it is done when this returns.
    fn commit_aside(self: &Arc<Self>, number: u64) -> Result<Commit, LogClosed> {
        if !self.log.is_enabled() || tokio::runtime::Handle::try_current().is_err() {
            return self.commit(number).map(|()| Commit::in_place());
        }
        Ok(Commit::ask(self, number))
    }

    /// Where the log stands now: behind everything that a reply may tell.
    pub fn position(&self) -> LogPosition {
        let epoch = self.log.epoch();
        LogPosition { log_id: self.log.log_id(), epoch: epoch.number.into(), lsn: self.log.lsn(), epoch_id: epoch.id }
    }

    fn run<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> (R, Option<u64>) {
        let mut state = self.state.lock();
        let now = self.now();
        // Taken out: what a panic leaves of an operation is dropped with it, before another operation may log it
        // (`docs/safety.md`, rule 17).
        let mut effects = std::mem::take(&mut state.effects);
        let whole = Whole(self);
        let result = operation(&mut state.core, now, &mut effects);
        std::mem::forget(whole);
        // Still under the core's lock: LSNs follow the order of the operations. The commit comes without it, so that no
        // other operation waits for an append.
        let number = self.log.enqueue(&mut effects);
        state.effects = effects;
        let keeps_waiting = state.core.keeps_waiting();
        drop(state);
        if keeps_waiting {
            self.processes.wake();
        }
        (result, number)
    }

    /// `None` behind an operation that broke off in the middle.
    fn whole_state(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock();
        (!self.log.is_closed()).then_some(state)
    }

    fn commit_soon(&self, number: u64) -> Result<bool, LogClosed> {
        let committed = self.log.commit_soon(number, APPEND_SLOW, |delivery| self.deliver(delivery));
        committed.inspect_err(|_| self.failed.notify_one())
    }

    /// Returns when everything up to `number` is logged and delivered.
    pub fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.log.commit(number, |delivery| self.deliver(delivery)).inspect_err(|_| self.failed.notify_one())
    }

    /// Read under the core's lock, so that time never runs backwards for it.
    fn now(&self) -> Time {
        Time(self.uptime().as_micros() as u64)
    }

    /// Since the start of this master.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Commits for Shared {
    fn committer(&self) -> &Committer {
        &self.committer
    }

    fn threads(&self) -> &Loops {
        &self.threads.anchors
    }

    fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.commit(number)
    }

    fn broke_off(&self) {
        self.failed.notify_one();
    }
}

impl CoreDriver for Shared {
    type Closed = LogClosed;

    fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
        self.read(ask)
    }

    fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, LogClosed> {
        self.apply(operation)
    }
}

impl Living for Shared {
    fn begin_snapshot(&self) -> Option<End> {
        let mut state = self.whole_state()?;
        state.core.begin_snapshot();
        Some(self.log.end_of_queue())
    }

    fn snapshot_slice(&self, most: usize) -> Option<Result<Option<SnapshotSlice>, AsideFull>> {
        let mut state = self.whole_state()?;
        let slice = state.core.snapshot_slice(most);
        // A thread that waits for the core has it next, before the next slice.
        MutexGuard::unlock_fair(state);
        Some(slice)
    }

    fn end_snapshot(&self) {
        // What the walk still has takes long to free: it is dropped without the core's lock.
        let walk = self.state.lock().core.end_snapshot();
        drop(walk);
    }

    fn commit(&self, number: u64) -> Result<(), LogClosed> {
        self.commit(number)
    }
}

/// Forgotten when an operation is through; dropped by its panic. The books in memory are half changed then, the books
/// in the log are whole: nothing is logged or answered any more, and a new process reads the log (`docs/safety.md`,
/// rule 17).
struct Whole<'a>(&'a Shared);

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        tracing::error!("an operation broke off in the middle: the master stops. Its log is whole; start it again");
        self.0.log.close();
        self.0.failed.notify_one();
    }
}

#[cfg(test)]
mod tests;
