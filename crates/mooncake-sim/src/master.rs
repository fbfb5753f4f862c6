//! A master's process: the pool's core behind the product's own hello, anchors and requests, and a log.
//!
//! What comes between is this file's: connections, the order of append and reply, deadlines of connections, the clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use mooncake_core::{
    Config, Core, Effects, Epoch, Origin, Push, PutStarted, Record, Replica, StartOutcome, Ticket, Time,
};
use mooncake_ids::SessionId;
use mooncake_master::machine::SLICE;
use mooncake_master::machine::anchor_frames::{Pongs, Said};
use mooncake_master::machine::anchors::{self, Anchor, Anchors, Replaced};
use mooncake_master::machine::commit::{self, Batch, CommitDriver, End};
use mooncake_master::machine::convert::{self, SoftPinTtl};
use mooncake_master::machine::core_driver::CoreDriver;
use mooncake_master::machine::delivery::{self, Delivery, DeliveryDriver};
use mooncake_master::machine::epoch_claim::EpochClaims;
use mooncake_master::machine::hello::{self, Admission, Identity, Kind, ReadHello, Standing};
use mooncake_master::machine::processes::{self, Known, LeftOpen, ProcessDriver};
use mooncake_master::machine::removals::{self, Removal};
use mooncake_master::machine::requests::{self, Command, CountedReply, Outcome, ReadRequest};
use mooncake_master::machine::start::{self, NextEpoch, Seen};
use mooncake_master::machine::ticker::{News, TickDriver, Ticker};
use mooncake_wire::message::{
    AnchorDown, AnchorUp, Hello, HelloReply, LogPosition, ProcessIdentity, Reply, Request, refusal, reply,
};

use crate::disk::{Folder, Host};
use crate::memory::ledger::Ledger;
use crate::pipe::{Closed, Receiver, Sender, pipe};
use crate::snapshots::Snapshots;
use crate::world::{ProcessId, Slot, World};

/// An anchor that says nothing for so long is given up.
const SILENT: Duration = Duration::from_secs(15);

/// The pid namespace of most processes, masters among them.
const NAMESPACE: u64 = u64::MAX;

const SOFT_PIN: SoftPinTtl = SoftPinTtl { default_ms: 1_000, max_ms: 10_000 };

/// What clients send.
#[derive(Debug)]
pub enum ToMaster {
    /// First of all.
    Hello(Hello),
    /// On an anchor.
    Anchor(AnchorUp),
    /// On a call connection.
    Call(Request),
}

/// What they hear.
#[derive(Debug)]
pub enum FromMaster {
    /// First of all.
    Hello(Box<HelloReply>),
    /// On an anchor.
    Anchor(AnchorDown),
    /// On a call connection.
    Reply(Reply),
}

/// A running master. Clones are the same one.
#[derive(Clone)]
pub struct Master {
    world: World,
    host: Host,
    /// Its process.
    pub process: ProcessId,
    folder: Folder,
    ledger: Ledger,
    delay_micros: u64,
    state: Rc<RefCell<State>>,
    /// Rung when a process has ended that is watched.
    ended: Slot<()>,
}

struct State {
    core: Core,
    anchors: Anchors<u32>,
    claims: EpochClaims,
    identity: Identity,
    /// What operations left behind, until it is in the log.
    waiting: commit::Queue<Vec<Vec<Record>>>,
    log_id: u64,
    /// The one that replies tell.
    lsn: u64,
    epoch: Epoch,
    queues: BTreeMap<u32, Queue>,
    next_queue: u32,
    parked: BTreeMap<Ticket, Slot<Vec<StartOutcome>>>,
    /// Sessions whose processes have ended, as the clock has not found out yet.
    ended: Vec<SessionId>,
    /// How far its last commit gets, once it is to be the last.
    last_commit: Option<Reached>,
    snapshots: Snapshots,
    /// Of parked puts it hears that their callers' connections have ended.
    hears_ends: bool,
}

/// Where a master's process ends in the middle of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// Nothing of it is in the log.
    Nothing,
    /// It is in the log, and the witness does not say so.
    Log,
    /// It is in the log, and no client is told.
    Witness,
}

/// Each of them.
pub(crate) const REACHED: [Reached; 3] = [Reached::Nothing, Reached::Log, Reached::Witness];

/// The master's process has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended;

/// Down an anchor.
struct Queue {
    sender: Rc<Sender<FromMaster>>,
    /// What waits for the reply to the hello, which is the first that comes over an anchor.
    waiting: Option<Vec<FromMaster>>,
    /// Another anchor has taken its place, or the session is over: it is to be closed.
    over: Slot<()>,
}

impl Queue {
    fn push(&mut self, message: FromMaster) {
        match &mut self.waiting {
            Some(waiting) => waiting.push(message),
            None => _ = self.sender.send(message),
        }
    }
}

/// As the process identity of a client in this world.
pub fn identity_of(world: &World, process: ProcessId, boot_id: [u8; 16]) -> ProcessIdentity {
    let pid_namespace = if world.is_apart(process) { process.0.into() } else { NAMESPACE };
    ProcessIdentity { boot_id: boot_id.to_vec().into(), pid: process.0, start_time: 1, pid_namespace, mark: 0 }
}

/// A commit. Nothing else happens meanwhile, but for the end of the process.
struct Committing<'a> {
    master: &'a Master,
    state: &'a mut State,
    /// What it is about may be answered.
    is_done: bool,
}

impl CommitDriver for Committing<'_> {
    type Frames = Vec<Vec<Record>>;
    type Closed = Ended;

    fn append(&mut self, frames: &mut Vec<Vec<Record>>, end: End) -> Result<(), Ended> {
        if frames.is_empty() {
            return Ok(());
        }
        let last = self.state.last_commit.take();
        let goes_beyond = |reached| if last == Some(reached) { Err(Ended) } else { Ok(()) };
        goes_beyond(Reached::Nothing)?;
        for records in frames.drain(..) {
            records.iter().for_each(|record| self.note(record));
            self.master.folder.append(records);
        }
        goes_beyond(Reached::Log)?;
        let seen = Seen { lsn: end.lsn, epoch: self.state.epoch };
        self.master.host.store_witness(self.state.log_id, self.master.process, seen);
        goes_beyond(Reached::Witness)
    }

    fn show(&mut self, lsn: u64) {
        self.state.lsn = lsn;
    }

    fn deliver(&mut self, delivery: Delivery) {
        delivery::deliver(self.state, delivery);
    }

    fn done(&mut self, _: u64) {
        self.is_done = true;
    }
}

impl Committing<'_> {
    fn note(&self, record: &Record) {
        let ledger = &self.master.ledger;
        ledger.logged(record);
        if let Record::Reserved { session, replicas, .. } | Record::ReservedWith { session, replicas, .. } = record {
            for Replica { rid, extent } in replicas.iter() {
                ledger.note_reserved(session.0, *rid);
                if let Some(segment) = self.state.core.segment(extent.segment) {
                    ledger.note_place_given(segment.uuid, *rid, extent.offset, extent.length);
                }
            }
        }
    }
}

impl DeliveryDriver for State {
    type Queue = u32;

    fn anchor(&mut self, session: SessionId) -> Option<u32> {
        self.anchors.get(session).copied()
    }

    fn anchors(&mut self) -> Vec<u32> {
        self.anchors.iter().copied().collect()
    }

    fn send(&mut self, anchor: &u32, push: Push) {
        if let Some(queue) = self.queues.get_mut(anchor) {
            queue.push(FromMaster::Anchor(convert::push(push)));
        }
    }

    fn finish(&mut self, anchor: &u32) {
        if let Some(queue) = self.queues.get(anchor) {
            queue.over.set(());
        }
    }

    fn wake(&mut self, ticket: Ticket, outcomes: Vec<StartOutcome>) {
        if let Some(slot) = self.parked.remove(&ticket) {
            slot.set(outcomes);
        }
    }
}

impl CoreDriver for Master {
    type Closed = Ended;

    fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
        ask(&mut self.state.borrow_mut().core, Time(self.world.micros()))
    }

    fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Ended> {
        self.apply(operation)
    }
}

impl TickDriver for Master {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn deaf(&self) -> Duration {
        // The clock and the anchors are one thread's here.
        Duration::ZERO
    }

    fn tell(&self, _: News) {}

    fn purged(&self) {}

    fn sweep(&self) {}
}

impl ProcessDriver for Master {
    type Process = ProcessId;

    fn find(&self, identity: &ProcessIdentity) -> Known<ProcessId> {
        let process = ProcessId(identity.pid);
        match identity.boot_id[..] == self.host.boot_id()[..] && identity.pid_namespace == NAMESPACE {
            true if self.world.is_alive(process) => Known::Runs(process),
            true => Known::Gone,
            false => Known::Unknown,
        }
    }

    fn watch(&self, session: SessionId, process: ProcessId) {
        let (master, late) = (self.clone(), 1_000 + self.world.below(30_000));
        self.world.watch(process, move || {
            let world = master.world.clone();
            world.after(late, move || {
                master.state.borrow_mut().ended.push(session);
                master.ended.set(());
            });
        });
    }

    fn tell_gone(&self, _: SessionId) {}
}

impl Master {
    /// Starts a master on a folder; none where no epoch is left.
    pub fn start(
        world: &World,
        host: &Host,
        folder: &Folder,
        ledger: &Ledger,
        config: Config,
        delay_micros: u64,
    ) -> Option<Master> {
        let process = world.start_process(host.id);
        let log = folder.read();
        folder.tell(ledger);
        let log_id = log.as_ref().map_or_else(|| world.number() | 1, |log| log.id);
        let found = log.as_ref().map(crate::disk::Log::found);
        let begin = start::decide(found, &host.boot_id(), host.witness(world, log_id)).ok()?;
        let mut core = Core::new(Config { epoch_seed: world.number(), ..config });
        let (lsn, mut open) = (log.as_ref().map_or(0, |log| log.frames.len() as u64), LeftOpen::default());
        for record in log.iter().flat_map(|log| log.records()) {
            open.note(record);
            core.replay(record.clone()).unwrap_or_else(|error| panic!("seed {}: {error}: {record:?}", world.seed()));
        }
        folder.check_snapshot();
        let epoch = found.map(|found| found.epoch).unwrap_or_default();
        // What it said must not vouch for a file of this boot before the raised epoch is in the log.
        let before = if begin.next_epoch == NextEpoch::Kept { lsn } else { u64::MAX };
        host.keep_witness(log_id, process, Seen { lsn: before, epoch: begin.highest });
        folder.begin(log_id, host.boot_id());
        let mut instance = [0; 16];
        instance[..8].copy_from_slice(&world.number().to_le_bytes());
        let state = State {
            core,
            anchors: Anchors::default(),
            claims: EpochClaims::new(world.now()),
            identity: Identity {
                instance,
                boot_id: host.boot_id(),
                unix_socket: String::new(),
                lookup_protect_ms: 2_000,
                cluster_id: String::new(),
                storage: None,
                tiers_allowed: true,
                pages: String::new(),
            },
            waiting: commit::Queue::new(lsn),
            log_id,
            lsn,
            epoch,
            queues: BTreeMap::new(),
            next_queue: 0,
            parked: BTreeMap::new(),
            ended: Vec::new(),
            last_commit: None,
            snapshots: Snapshots::new(world.seed() ^ u64::from(process.0) << 32),
            hears_ends: false,
        };
        let master = Master {
            world: world.clone(),
            host: host.clone(),
            process,
            folder: folder.clone(),
            ledger: ledger.clone(),
            delay_micros,
            state: Rc::new(RefCell::new(state)),
            ended: Slot::new(world),
        };
        let raised = begin.next_epoch.raised();
        master.apply(|core, now, effects| core.begin(now, raised, effects)).ok()?;
        processes::judge(&master, open);
        let ticking = master.clone();
        world.spawn(process, async move { ticking.tick().await });
        Some(master)
    }

    /// From here on a put that is parked is given up when its caller's connection has ended. Before that it waits for
    /// its answer, which no caller hears.
    pub(crate) fn hear_ends(&self) {
        self.state.borrow_mut().hears_ends = true;
    }

    /// It is not to end in the midst of a commit any more; whether it has not.
    pub(crate) fn spare(&self) -> bool {
        self.state.borrow_mut().last_commit = None;
        self.is_alive()
    }

    /// Whether it runs, or stands still.
    pub fn is_alive(&self) -> bool {
        self.world.is_alive(self.process)
    }

    /// It ends in the midst of the next commit.
    pub(crate) fn end_in_commit(&self, reached: Reached) {
        self.state.borrow_mut().last_commit = Some(reached);
    }

    /// A process connects: what it sends over, and hears from. None where nothing listens.
    pub fn connect(&self) -> Option<(Sender<ToMaster>, Receiver<FromMaster>)> {
        if !self.is_alive() {
            return None;
        }
        // What is said over one connection may come long after what is said over the next one.
        let delay = self.world.delay(self.delay_micros);
        let (up, from) = pipe(&self.world, delay);
        let (to, down) = pipe(&self.world, delay);
        let master = self.clone();
        self.world.spawn(self.process, async move { master.serve(from, Rc::new(to)).await });
        Some((up, down))
    }

    /// Asks the core, from outside of the world.
    pub fn look<R>(&self, ask: impl FnOnce(&Core) -> R) -> R {
        ask(&self.state.borrow().core)
    }

    // ---------------------------------------------------------------- operations

    /// Carries one operation out: it is in the log before anything of it is told. Where that is done it may be
    /// answered.
    fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Ended> {
        self.apply_with(|state, now, effects| operation(&mut state.core, now, effects))
    }

    fn apply_with<R>(&self, operation: impl FnOnce(&mut State, Time, &mut Effects) -> R) -> Result<R, Ended> {
        if !self.is_alive() {
            return Err(Ended);
        }
        let now = Time(self.world.micros());
        let mut state = self.state.borrow_mut();
        let mut effects = Effects::default();
        let result = operation(&mut state, now, &mut effects);
        if !effects.records.is_empty() {
            state.core.check_invariants().unwrap_or_else(|wrong| panic!("seed {}: {wrong}", self.world.seed()));
        }
        if !effects.is_empty() {
            let State { waiting, epoch, .. } = &mut *state;
            waiting.push(&mut effects, |frames, records, _, raised| {
                frames.push(records.to_vec());
                *epoch = raised.unwrap_or(*epoch);
            });
            let mut batch = Batch::default();
            let end = waiting.take(&mut batch);
            let mut committing = Committing { master: self, state: &mut state, is_done: false };
            let committed = commit::commit(&mut committing, &mut batch, end);
            let is_done = committing.is_done;
            drop(state);
            if committed.is_err() {
                self.world.kill(self.process);
            }
            if !is_done {
                return Err(Ended);
            }
            state = self.state.borrow_mut();
        }
        let State { core, waiting, snapshots, .. } = &mut *state;
        if let Some(snapshot) = snapshots.operated(core, waiting.lsn()) {
            self.folder.keep(snapshot);
        }
        Ok(result)
    }

    fn position(state: &State) -> LogPosition {
        LogPosition { log_id: state.log_id, epoch: state.epoch.number.into(), lsn: state.lsn, epoch_id: state.epoch.id }
    }

    async fn tick(self) {
        let mut ticker = Ticker::new(self.world.now());
        loop {
            let now = self.world.now();
            let _ = self.world.until(now + ticker.pause(now), self.ended.get()).await;
            let ended = std::mem::take(&mut self.state.borrow_mut().ended);
            if ticker.step(&self, &ended).is_err() {
                return;
            }
        }
    }

    /// Whether the master learns by itself when a client's process ends: it sees those of its own host.
    fn watch_client(&self, session: SessionId, identity: &ProcessIdentity) -> bool {
        let is_here = identity.boot_id[..] == self.host.boot_id()[..] && identity.pid_namespace == NAMESPACE;
        if is_here {
            self.watch(session, ProcessId(identity.pid));
        }
        is_here
    }

    // --------------------------------------------------------------- connections

    async fn serve(self, mut from: Receiver<ToMaster>, to: Rc<Sender<FromMaster>>) {
        let Ok(ToMaster::Hello(hello)) = from.next().await else { return };
        let admitted = self.admit(hello, &to);
        match admitted {
            Some((session, Some(queue))) => {
                let over = self.state.borrow().queues[&queue].over.clone();
                // What it reads before it is told may be of an anchor that was replaced.
                let told = async {
                    over.get().await;
                    self.world
                        .sleep_micros(self.world.below([2_000, 20_000, 400_000][self.world.below(3) as usize]))
                        .await;
                };
                let listen = self.listen(session, queue, &mut from);
                self.world.race(told, listen).await;
                self.anchor_ended(session, queue);
            }
            Some((session, None)) => _ = self.answer_calls(session, &mut from, &to).await,
            None => {}
        }
    }

    /// Answers a hello: whose connection it is, and by which number its anchor goes if it is one.
    fn admit(&self, hello: Hello, to: &Rc<Sender<FromMaster>>) -> Option<(SessionId, Option<u32>)> {
        let secret = self.world.number() | 1;
        let mut hello = ReadHello::read(hello, secret, self.state.borrow().anchors.count());
        if let Ok(hello) = &mut hello {
            while hello.look_for_views(self) {
                self.apply(|core, now, effects| hello.note_views(core, now, effects)).ok()?;
            }
        }
        let admitted = self.apply_with(|state, now, effects| {
            state.next_queue += 1;
            let queue = state.next_queue;
            let hello = hello?;
            let log = Standing { position: Self::position(state), first_id: state.log_id };
            let admission = Admission { anchors: &mut state.anchors, claims: &mut state.claims, log };
            let admitted = hello.admit(&mut state.core, admission, now, &queue, effects)?;
            if let Some(replaced) = admitted.replaced.and_then(|queue| state.queues.get(&queue)) {
                replaced.over.set(());
            }
            let is_anchor = !matches!(admitted.kind, Kind::Attached);
            if is_anchor {
                let over = Slot::new(&self.world);
                state.queues.insert(queue, Queue { sender: to.clone(), waiting: Some(Vec::new()), over });
            }
            Ok((admitted, is_anchor.then_some(queue)))
        });
        let admitted = admitted.ok()?;
        let watched = |kind: &Kind, session| match kind {
            Kind::Opened { process, .. } | Kind::Resumed { process, .. } => self.watch_client(session, process),
            Kind::Attached => false,
        };
        let (reply, admitted) = match admitted {
            Ok((admitted, queue)) => {
                let (session, watched) = (admitted.session, watched(&admitted.kind, admitted.session));
                let state = self.state.borrow();
                (admitted.reply(watched, &state.identity, Self::position(&state)), Some((session, queue)))
            }
            Err(refusal) => {
                let state = self.state.borrow();
                (hello::refused(refusal, &state.identity, Self::position(&state)), None)
            }
        };
        let _ = to.send(FromMaster::Hello(Box::new(reply)));
        if let Some((_, Some(queue))) = &admitted
            && let Some(queue) = self.state.borrow_mut().queues.get_mut(queue)
        {
            let waiting = queue.waiting.take().unwrap_or_default();
            waiting.into_iter().for_each(|message| queue.push(message));
        }
        admitted
    }

    async fn listen(&self, session: SessionId, queue: u32, from: &mut Receiver<ToMaster>) {
        let mut pongs = Pongs::default();
        loop {
            let Some(Ok(ToMaster::Anchor(said))) = self.world.until(self.world.now() + SILENT, from.next()).await
            else {
                return;
            };
            let Ok(Some(said)) = Said::read(said) else { continue };
            let heard = self.apply_with(|state, now, effects| {
                let State { core, anchors, .. } = state;
                said.obey(core, anchors, now, Anchor { session, queue: &queue }, effects)
            });
            let heard = match heard {
                Ok(Ok(heard)) => heard,
                Ok(Err(Replaced)) | Err(Ended) => return,
            };
            let state = self.state.borrow();
            if let Some(reply) = pongs.reply(&heard, true, Self::position(&state)) {
                let _ = state.queues[&queue].sender.send(FromMaster::Anchor(reply));
            }
        }
    }

    fn anchor_ended(&self, session: SessionId, queue: u32) {
        let _ = self.apply_with(|state, now, effects| {
            state.queues.remove(&queue);
            let State { core, anchors, .. } = state;
            anchors::ended(core, anchors, now, Anchor { session, queue: &queue }, effects)
        });
    }

    async fn answer_calls(
        &self,
        session: SessionId,
        from: &mut Receiver<ToMaster>,
        to: &Sender<FromMaster>,
    ) -> Result<(), Closed> {
        loop {
            let ToMaster::Call(mut request) = from.next().await? else { return Ok(()) };
            let id = request.id;
            let Some(reply) = self.reply(session, &mut request, from).await else { return Ok(()) };
            let over = matches!(&reply.body, reply::Body::Refusal(r) if r.kind() == refusal::Kind::UnknownSession);
            let position = Some(Self::position(&self.state.borrow()));
            to.send(FromMaster::Reply(Reply { id, position, body: Some(reply.body) }))?;
            if over {
                return Ok(());
            }
        }
    }

    /// None: no caller hears what it would be.
    async fn reply(
        &self,
        session: SessionId,
        request: &mut Request,
        from: &Receiver<ToMaster>,
    ) -> Option<CountedReply> {
        let origin = Origin { session, sequence: request.sequence, answered_below: request.answered_below };
        if requests::says_settled(request) {
            requests::note_settled(&mut self.state.borrow_mut().core, session, request);
        }
        let put = match requests::read(request, SOFT_PIN) {
            Err(reason) => return Some(CountedReply::bad(reason)),
            Ok(ReadRequest::Query(query)) => return Some(query.run(self, session)),
            Ok(ReadRequest::Command(command)) => {
                let outcome = self.apply(|core, now, effects| command.run(core, now, origin, effects));
                let mut outcome = outcome.ok()?;
                while let Outcome::Closes = outcome {
                    let goes_on = Command::CloseSession;
                    outcome = self.apply(|core, now, effects| goes_on.run(core, now, origin, effects)).ok()?;
                }
                if let Outcome::Closed = outcome {
                    let mut state = self.state.borrow_mut();
                    let anchor = state.anchors.get(session).copied();
                    anchor.into_iter().for_each(|anchor| state.finish(&anchor));
                }
                return Some(outcome.reply());
            }
            Ok(ReadRequest::RemoveAll { force }) => return self.remove_all(origin, force).ok(),
            Ok(ReadRequest::RemoveMatching { .. }) => unreachable!("no caller of this world has patterns"),
            Ok(ReadRequest::PutStart(put)) => put,
        };
        let started = self.apply_with(|state, now, effects| {
            let started = put.run(&mut state.core, now, origin, effects);
            if let Ok(PutStarted::Parked(ticket)) = started {
                state.parked.insert(ticket, Slot::new(&self.world));
            }
            started
        });
        match started.ok()? {
            Ok(PutStarted::Now(outcomes)) => Some(CountedReply::put_start(&outcomes)),
            Ok(PutStarted::Parked(ticket)) => Some(CountedReply::put_start(&self.wait_parked(ticket, from).await?)),
            Err(refused) => Some(CountedReply::refused(&refused, put.sizes.len())),
        }
    }

    /// Waits for what a put is told that is parked, as long as its caller does.
    async fn wait_parked(&self, ticket: Ticket, from: &Receiver<ToMaster>) -> Option<Vec<StartOutcome>> {
        let (slot, hears_ends) = {
            let state = self.state.borrow();
            (state.parked[&ticket].clone(), state.hears_ends)
        };
        if !hears_ends {
            return Some(slot.get().await);
        }
        let woken = RefCell::new(None);
        self.world.race(async { *woken.borrow_mut() = Some(slot.get().await) }, from.closed()).await;
        let woken = woken.into_inner();
        if woken.is_none() {
            self.state.borrow_mut().parked.remove(&ticket);
            self.apply(|core, now, effects| core.cancel_ticket(now, ticket, effects)).ok()?;
        }
        woken
    }

    fn remove_all(&self, origin: Origin, force: bool) -> Result<CountedReply, Ended> {
        if let Some(reply) = Removal::answered_before(&mut self.state.borrow_mut().core, origin) {
            return Ok(reply);
        }
        let mut removal = Removal::begin(&mut self.state.borrow_mut().core, force, Some(origin));
        while !self.apply(|core, now, effects| removal.take_all(core, now, SLICE, effects))? {}
        self.apply(|core, _, effects| removals::remember(core, origin, removal.removed(), effects))?;
        Ok(removals::reply(removal.removed()))
    }
}
