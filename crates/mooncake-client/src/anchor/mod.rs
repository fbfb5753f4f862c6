//! The thread that keeps the anchor, the connection that is the session: it connects, polls, reads and writes, and
//! carries out what [`crate::machine::session`] decides.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid, TierUuid};
use mooncake_os::{Deadline, ProcessIdentity, forked};
use mooncake_segment::Epoch;
use mooncake_wire::message::{AnchorDown, AnchorUp, LogPosition, OpenSession, Replica, hello, refusal};
use mooncake_wire::{FRAME_BYTES_MAX, Feature};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection_error::ConnectionError;
use crate::error::{Cause, StoreError};
use crate::kept::Reclaim;
use crate::machine::orphans::abort;
use crate::machine::put_session::{Aborted, PutSessions, Reserved};
use crate::machine::session::{Anchor, Identity, Output, Outputs, Taking};
use crate::segments::directory::{Directory, MetSegments, segment_of};
use crate::segments::links::LinkSet;
use crate::segments::owner::SegmentOwner;
use crate::session::Session;
use crate::session::absence::Absence;
use crate::session::connection::Connection;
use crate::session::control::Control;
use crate::session::opening::{Opened, Unreached, open_at};
use crate::session::reservation_origin::ReservationOrigin;
use crate::tier::{PromoteOrder, RemoteSegments, StoreTiers, Word};

#[cfg(test)]
mod tests;

/// How long the master may take in none of what the anchor sends.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);

/// What the calls of a store and the thread of its anchor share.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub control: Arc<Control>,
    pub links: LinkSet,
    pub directory: Arc<Directory>,
    pub owner: OnceLock<Arc<SegmentOwner>>,
    pub tiers: StoreTiers,
    pub put_sessions: Mutex<PutSessions<ReservationOrigin, MetSegments>>,
    pub name: String,
    pub process: ProcessIdentity,
}

impl RemoteSegments for StoreContext {
    fn directory(&self) -> &Directory {
        &self.directory
    }

    fn links(&self) -> &LinkSet {
        &self.links
    }
}

/// Starts the thread.
pub(crate) fn start(
    shared: Arc<StoreContext>,
    identity: Identity,
    opened: Opened,
) -> Result<std::thread::JoinHandle<()>, StoreError> {
    let thread = std::thread::Builder::new().name("mooncake-anchor".into());
    let spawned = mooncake_os::thread::start(thread, move || {
        Driver::new(shared, identity, opened).run();
    });
    spawned.map_err(|error| Cause::Setup { what: "starting a thread", reason: error.to_string() }.into())
}

struct Driver {
    shared: Arc<StoreContext>,
    machine: Anchor,
    connection: Option<Connection>,
    /// Made last, and not the session's yet.
    fresh: Option<Opened>,
    /// What a round has to send is to be gone by then.
    send_by: Instant,
    absence: Absence,
    /// What the session that is about to begin has claimed: the segments of it that are Gone.
    claimed: Option<Vec<SegmentUuid>>,
}

impl Driver {
    fn new(shared: Arc<StoreContext>, identity: Identity, opened: Opened) -> Self {
        let control = &shared.control;
        let machine = Anchor::new(control.now(), identity, control.masters.len(), &opened.reply);
        let (connection, absence) = (Some(opened.connection), Absence::default());
        let (fresh, claimed) = (None, None);
        Driver { machine, connection, fresh, send_by: Instant::now(), absence, claimed, shared }
    }

    fn run(&mut self) {
        let shared = self.shared.clone();
        let control = &shared.control;
        while !control.is_stopped() && !forked() {
            let mut out = Outputs::new();
            control.decide(|context| self.machine.step(control.now(), context, &mut out));
            if let Some(until) = self.carry_out(out)
                && let Err(error) = self.poll_once(until)
            {
                self.lose(&error, Vec::new());
            }
        }
    }

    /// One round: waits for something to do, hears the master, tells it.
    fn poll_once(&mut self, until: Duration) -> Result<(), ConnectionError> {
        let shared = self.shared.clone();
        let control = &shared.control;
        let timeout = timespec(until.saturating_sub(control.now()));
        let Some(connection) = &self.connection else {
            let _ = poll(&mut [PollFd::from_borrowed_fd(control.waker.fd(), PollFlags::IN)], Some(&timeout));
            control.waker.clear();
            return Ok(());
        };
        let mut fds = [
            PollFd::from_borrowed_fd(connection.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.waker.fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            control.waker.clear();
        }
        // Before the master is told: a pong that is here counts before its silence is judged.
        if !fds[0].revents().is_empty() {
            self.hear()?;
        }
        self.tell();
        Ok(())
    }

    fn hear(&mut self) -> Result<(), ConnectionError> {
        let shared = self.shared.clone();
        let control = &shared.control;
        match self.connection().fill(true) {
            Ok(()) | Err(ConnectionError::Deadline) => {}
            Err(error) => return Err(error),
        }
        while let Some(message) = self.connection().next::<AnchorDown>(FRAME_BYTES_MAX)? {
            if message.body.is_none() {
                tracing::debug!("the master said something newer than this client");
            }
            let mut out = Outputs::new();
            control.decide(|context| self.machine.hear(control.now(), message, context, &mut out));
            self.carry_out(out);
        }
        Ok(())
    }

    fn tell(&mut self) {
        let shared = self.shared.clone();
        let control = &shared.control;
        self.send_by = Instant::now() + SEND_TIMEOUT;
        let owner = shared.owner.get();
        let reports = owner.is_some_and(|owner| owner.wants_to_report());
        let mut out = Outputs::new();
        control.close_idle();
        let due = control.decide(|context| self.machine.tell(control.now(), reports, context, &mut out));
        self.carry_out(out);
        // What is queued goes first: the beat says that it has come.
        if due && self.machine.is_connected() {
            let populated = owner.map(|owner| owner.newly_populated()).unwrap_or_default();
            let mut out = Outputs::new();
            control.decide(|context| self.machine.beat(control.now(), populated, context, &mut out));
            self.carry_out(out);
        }
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the machine speaks and hears only with a connection")
    }

    fn lose(&mut self, error: &ConnectionError, unsent: Vec<AnchorUp>) {
        self.connection = None;
        let control = &self.shared.control;
        if !control.wants.is_closing() {
            tracing::info!(master = %control.masters, %error, "connection to the master lost; reconnecting");
        }
        control.decide(|context| self.machine.lost(unsent, context));
    }

    /// Carries out what the machine has decided, and what it decides meanwhile. Gives the time until which it waits.
    fn carry_out(&mut self, out: Outputs) -> Option<Duration> {
        let shared = self.shared.clone();
        let control = &shared.control;
        let owner = shared.owner.get();
        let mut until = None;
        let mut broken = None;
        let mut unsent = Vec::new();
        let mut todo = VecDeque::from(out);
        while let Some(output) = todo.pop_front() {
            match output {
                Output::WaitUntil(time) => until = Some(time),
                // What comes behind a message that failed keeps its place behind it, for the next connection.
                Output::Send(message) if broken.is_some() => unsent.push(message),
                Output::Send(message) => {
                    let sent = self.send(&message, self.send_by);
                    if let Err(error) = sent {
                        broken = Some(error);
                        unsent.push(message);
                    }
                }
                Output::Goodbye(message) => {
                    // It does not come of `tell`, whose time may be over.
                    self.send_by = Instant::now() + SEND_TIMEOUT;
                    todo.push_front(Output::Send(message));
                }
                Output::HangUp { silent } => self.hang_up(silent),
                Output::Reconnect => todo.extend(self.reconnect()),
                Output::Connect { master, role, highest, by } => todo.extend(self.connect(master, role, highest, by)),
                Output::Resumed { gone, unknown_views } => self.resumed(&gone, unknown_views),
                Output::StartOver => shared.directory.start_over(),
                Output::Began => self.began(),
                Output::Unreachable { reason } => self.unreachable(&reason),
                // This store's own master has shown it: owners hear of no other (docs/safety.md, rule 18).
                Output::Obey(epoch) => shared.links.obey(epoch),
                Output::Fence(fence) => {
                    if let Some(owner) = owner {
                        owner.fence(fence);
                    }
                }
                Output::Recheck(recheck) => {
                    if let Some(owner) = owner {
                        owner.recheck(recheck);
                    }
                }
                Output::TierOrder(order) => self.tell_tier(&Word::Order(order)),
                Output::TierPromote(promote) => {
                    // The placement is of the session whose anchor this is, and so are the numbers of segments.
                    let (session, numbering) = (control.session().id, control.numbering());
                    self.tell_tier(&Word::Promote(PromoteOrder { promote, session, numbering }));
                }
                Output::TierRetire(retire) => self.tell_tier(&Word::Retire(retire)),
                Output::TierRecheck(recheck) => self.tell_tier(&Word::Recheck(recheck)),
                Output::TierAllOrdered(all) => self.tell_tier(&Word::AllOrdered(all)),
                Output::TierShared(shared) => self.tell_tier(&Word::Shared(shared)),
                Output::TakeEpoch(epoch) => self.take_epoch(epoch),
                Output::SegmentGone { uuid, number, pinned } => self.segment_gone(uuid, number, &pinned),
                Output::Ended { reason } => {
                    tracing::warn!(master = %control.masters, reason, "the master ended this session");
                }
                Output::Stop => control.stop(),
            }
        }
        if let Some(error) = broken {
            self.lose(&error, unsent);
        }
        until
    }

    // ------------------------------------------------- what the master says

    fn take_epoch(&mut self, epoch: Epoch) {
        let control = &self.shared.control;
        // An owner takes an epoch number with one id only (docs/safety.md, rule 18).
        let taking = match self.shared.owner.get() {
            Some(owner) if owner.take_epoch(epoch) => Taking::Begun,
            Some(_) => Taking::TwoEpochs,
            None => Taking::NoOwner,
        };
        control.decide(|context| self.machine.epoch_asked(epoch, taking, context));
    }

    /// Gone is final (docs/safety.md, rule 14), for a tier as well (rule T9).
    fn segment_gone(&self, uuid: SegmentUuid, number: u32, pinned: &[(u64, u64)]) {
        self.shared.directory.forget(number);
        let log_id = self.shared.control.position().log_id;
        self.tell_tier(&Word::Gone { tier: TierUuid(uuid.0), log_id });
        self.leave_put_sessions(uuid);
        if let Some(owner) = self.shared.owner.get() {
            owner.segment_gone(uuid, pinned);
        }
        // Also of this store's own memory: a link to it keeps it mapped.
        self.shared.links.forget(uuid, pinned);
    }

    fn tell_tier(&self, word: &Word) {
        self.shared.tiers.hear(word);
    }

    fn send(&mut self, message: &AnchorUp, until: Instant) -> Result<(), ConnectionError> {
        let shared = self.shared.clone();
        let stopped = || shared.control.is_stopped();
        self.connection().send(message, &Deadline { interrupted: &stopped, ..Deadline::at(until) })
    }

    // ------------------------------------------------------------ way back

    fn hang_up(&mut self, silent: bool) {
        let control = &self.shared.control;
        if silent && !control.wants.is_closing() {
            let error = "no word from the master";
            tracing::info!(master = %control.masters, error, "connection to the master lost; reconnecting");
        }
        self.connection = None;
    }

    fn reconnect(&mut self) -> Outputs {
        let shared = self.shared.clone();
        let control = &shared.control;
        // Anew for each try: the owner gives no memory back that it has told a master of since it asked what is pinned
        // (docs/safety.md, rule 23).
        let held = shared.owner.get().map(|owner| owner.list()).unwrap_or_default();
        let mut out = Outputs::new();
        control.decide(|context| self.machine.reconnect(control.now(), &held, context, &mut out));
        out
    }

    fn connect(&mut self, master: usize, role: hello::Role, highest: LogPosition, by: Duration) -> Outputs {
        let shared = self.shared.clone();
        let control = &shared.control;
        let stopped = || control.is_stopped();
        let deadline = Deadline { interrupted: &stopped, ..Deadline::at(control.instant(by)) };
        let mut out = Outputs::new();
        match self.open(master, role, highest, &deadline) {
            Ok(opened) => {
                control.decide(|context| self.machine.answered(control.now(), &opened.reply, context, &mut out));
                self.fresh = Some(opened);
            }
            Err(unreached) => {
                control.decide(|context| self.machine.failed(unreached.to_string(), context, &mut out));
            }
        }
        out
    }

    /// A session that begins claims the memory that this process holds and that outlives it. Where the master keeps
    /// nothing of that, it begins without.
    fn open(
        &mut self,
        master: usize,
        role: hello::Role,
        highest: LogPosition,
        deadline: &Deadline<'_>,
    ) -> Result<Opened, Unreached> {
        let shared = self.shared.clone();
        let masters = &shared.control.masters;
        self.claimed = None;
        let owner = shared.owner.get().filter(|_| matches!(role, hello::Role::Open(_)));
        let (Some(kept), Some(reclaim)) = (shared.control.kept.get(), owner.and_then(|owner| owner.claim())) else {
            return open_at(masters, master, role, highest, deadline);
        };
        let opened = open_at(masters, master, with_claim(&role, &reclaim), highest, deadline)?;
        match &opened.reply.refusal {
            Some(refusal) if refusal.kind() == refusal::Kind::NotKept => {
                kept.renounced();
                open_at(masters, master, role, highest, deadline)
            }
            Some(_) => Ok(opened),
            None => {
                if Feature::Kept.is_in(opened.reply.features) {
                    kept.claimed(&reclaim);
                    let gone = opened.reply.gone_segments.iter().filter_map(|uuid| uuid[..].try_into().ok());
                    self.claimed = Some(gone.collect());
                }
                Ok(opened)
            }
        }
    }

    fn unreachable(&mut self, reason: &str) {
        self.fresh = None;
        let control = &self.shared.control;
        let away = self.absence.goes_on(Instant::now(), control.explain(Some(reason)));
        if let Some(away) = away.filter(|_| !control.wants.is_closing()) {
            let seconds = away.as_secs();
            tracing::warn!(master = %control.masters, reason, seconds, "not reconnected yet; still trying");
        }
    }

    /// The session goes on.
    fn resumed(&mut self, gone: &[SegmentUuid], unknown_views: Option<usize>) {
        let shared = self.shared.clone();
        let control = &shared.control;
        if let Some(named) = unknown_views {
            tracing::warn!(
                master = %control.masters, named,
                "the master's log has lost views of this store; segments that they are over take nothing until they end"
            );
        }
        let former = control.session();
        let again = self.adopt();
        // Its id and secret stay: calls under way and placements are bound to the session by them.
        control.set_session(Session { id: former.id, secret: former.secret, ..again });
        tracing::info!(master = %control.masters, session = former.id, "session resumed");
        if let Some(owner) = shared.owner.get() {
            // The master may be another process, which has not heard the figures. What it does not know is replaced
            // (docs/safety.md, rule 14).
            owner.report_again();
            owner.list_answered(|uuid| gone.contains(uuid));
        }
        self.tell_tier(&Word::Mount);
    }

    /// Another session has begun.
    fn began(&mut self) {
        let shared = self.shared.clone();
        let control = &shared.control;
        let former = control.session();
        let next = self.adopt();
        let claimed = self.claimed.take();
        let memory = if claimed.is_some() { "the memory that is kept" } else { "fresh memory" };
        tracing::warn!(
            master = %control.masters, old = former.id, new = next.id,
            "the master does not know the session any more; a new one has begun, with {memory}"
        );
        // Before anything can be mounted in the new session, which the master knows.
        if let Some(owner) = shared.owner.get() {
            owner.list_answered(|uuid| claimed.as_ref().is_none_or(|gone| gone.contains(uuid)));
        }
        control.set_session(next);
        if let Some(owner) = shared.owner.get().filter(|_| claimed.is_some()) {
            owner.noted_as_kept();
            owner.report_again();
        }
        let session = control.session();
        // Words about placements of the last session must not go in this one: numbers begin anew with another log
        // (docs/safety.md, rule 6).
        shared.put_sessions.lock().session_over(|origin| origin.session.is(&session));
        shared.links.start_over();
        self.tell_tier(&Word::Mount);
    }

    /// A segment is Gone. A put session without another good replica is over; what it reserved elsewhere is aborted.
    fn leave_put_sessions(&self, uuid: SegmentUuid) {
        let is_on_it = |reserved: &Reserved<ReservationOrigin, MetSegments>, replica: &Replica| {
            segment_of(&reserved.met, Rid(replica.rid)).is_some_and(|address| address.uuid == uuid)
        };
        let aborted = self.shared.put_sessions.lock().segment_gone(is_on_it);
        // In the session that reserved them, and by another thread: this one waits for no call.
        for Aborted { reserved, settled } in aborted {
            let rids = reserved.replicas.iter().map(|replica| Rid(replica.rid)).collect();
            abort(&self.shared.control, &reserved.origin.session, rids, settled);
        }
    }

    /// The connection that was made last is the session's.
    fn adopt(&mut self) -> Session {
        let opened = self.fresh.take().expect("a session goes on only over a connection that was just made");
        let session = opened.session(&self.shared.process);
        self.connection = Some(opened.connection);
        self.shared.control.explain(None);
        self.absence.ends();
        session
    }
}

fn with_claim(role: &hello::Role, reclaim: &Reclaim) -> hello::Role {
    match role.clone() {
        hello::Role::Open(open) => hello::Role::Open(OpenSession { claim: Some(reclaim.claim.clone()), ..open }),
        other => other,
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos() as _ }
}
