//! A store in a process: the product's own session with the master, and what its threads share.

pub(crate) mod callers;
pub(crate) mod calls;
pub(crate) mod closing;
pub(crate) mod directory;
pub(crate) mod forks;
pub(crate) mod gets;
pub(crate) mod gets_in_sessions;
pub(crate) mod lending;
pub(crate) mod links;
pub(crate) mod puts;
pub(crate) mod puts_in_sessions;
pub(crate) mod replica_reports;
pub(crate) mod views;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use mooncake_client::SegmentId;
use mooncake_client::machine::anchor_context::AnchorContext;
use mooncake_client::machine::deaths::Deaths;
use mooncake_client::machine::directory::Directory;
use mooncake_client::machine::lending::list_answered;
use mooncake_client::machine::orphans::OrphanedPuts;
use mooncake_client::machine::owner::{self, Owner};
use mooncake_client::machine::pins::Pins;
use mooncake_client::machine::position::epoch_of;
use mooncake_client::machine::progress::Progress;
use mooncake_client::machine::questions::Questions;
use mooncake_client::machine::reachability::Reachability;
use mooncake_client::machine::replica_reports::ReplicaReports;
use mooncake_client::machine::sequences::Sequences;
use mooncake_client::machine::session::{Anchor, Identity, Output, Outputs, Recheck, Taking};
use mooncake_client::machine::wants::Wants;
use mooncake_ids::{Rid, SegmentUuid};
use mooncake_wire::message::{
    AnchorUp, EpochTaken, FenceDone, Hello, HelloReply, LogPosition, Rechecked, anchor_up, hello,
};
use mooncake_wire::{FEATURES, VERSION};

use crate::disk::Host;
use crate::master::{FromMaster, ToMaster, identity_of};
use crate::memory::Memory;
use crate::memory::ledger::Ledger;
use crate::network::Network;
use crate::pipe::{Closed, Receiver, Sender};
use crate::server::{Event, Server};
use crate::store::links::{Address, EpochQuestion, Links, no_questions};
use crate::world::{ProcessId, Slot, World};

/// How long it takes to find out that a master cannot be reached.
const UNREACHABLE: Duration = Duration::from_millis(100);

/// A store. Clones are the same one.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub world: World,
    pub host: Host,
    pub process: ProcessId,
    pub network: Network,
    pub pins: RefCell<Pins>,
    pub sequences: RefCell<Sequences>,
    pub progress: RefCell<Progress>,
    pub orphans: RefCell<OrphanedPuts<Session>>,
    pub get_sessions: RefCell<gets_in_sessions::Sessions>,
    pub put_sessions: RefCell<puts_in_sessions::Sessions>,
    deaths: RefCell<Deaths>,
    pub replica_reports: RefCell<ReplicaReports>,
    pub position: RefCell<LogPosition>,
    up: RefCell<Vec<AnchorUp>>,
    pub reachability: Reachability,
    pub wants: Wants,
    wake: Slot<()>,
    /// Its process is a forked child of the store's.
    pub is_forked: bool,
    pub closed: Cell<bool>,
    pub stopped: Cell<bool>,
    session: RefCell<Option<Session>>,
    /// Number by which owners and the master know this process for its session's.
    pub mark: Cell<u64>,
    pub owner: RefCell<Owner<Memory>>,
    /// What is served of it; there is one once the store is set up.
    server: RefCell<Option<Server>>,
    pub links: Links,
    pub questions: RefCell<Questions<EpochQuestion>>,
    pub directory: RefCell<Directory<Address>>,
    /// What its callers call its segments: one that took the place of another has that one's name.
    pub names: RefCell<BTreeMap<SegmentUuid, SegmentId>>,
    /// What the owner's thread is to do.
    pub work: RefCell<VecDeque<owner::Output<Memory>>>,
    /// Behind which nothing comes.
    pub work_ends: Cell<bool>,
    /// The anchor's way to the master, to be cut.
    cutter: RefCell<Option<Box<dyn Fn()>>>,
    sessions: Cell<u32>,
    resumes: Cell<u32>,
    unknown_views: Cell<u64>,
    pub tally: RefCell<Tally>,
    is_torn: Cell<bool>,
    /// From each master.
    apart_until: RefCell<[Duration; 2]>,
    /// Replicas that are being written.
    pub writes: Cell<u32>,
    /// Views that are asked for and whose memory is not known to be mapped yet.
    pub unmapped_views: Cell<u32>,
}

/// What a store's callers have been told.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Puts that stored something.
    pub puts: u64,
    /// Puts that failed.
    pub failed_puts: u64,
    /// Gets that gave an object's bytes.
    pub gets: u64,
    /// Gets that did not find it.
    pub misses: u64,
    /// Of those: it was there and could not be read.
    pub unread: u64,
    /// Views taken.
    pub views: u64,
    /// Replicas that were to be reported as bad.
    pub replica_reports: u64,
    /// Objects that put sessions made.
    pub ended_sessions: u64,
    /// Ends of put sessions that were refused.
    pub refused_ends: u64,
    /// Parts of objects that get sessions gave.
    pub read_parts: u64,
    /// Get sessions that were over before their callers ended them.
    pub lost_sessions: u64,
}

impl Tally {
    /// Adds another store's.
    pub fn add(&mut self, other: &Tally) {
        self.puts += other.puts;
        self.failed_puts += other.failed_puts;
        self.gets += other.gets;
        self.misses += other.misses;
        self.unread += other.unread;
        self.views += other.views;
        self.replica_reports += other.replica_reports;
        self.ended_sessions += other.ended_sessions;
        self.refused_ends += other.refused_ends;
        self.read_parts += other.read_parts;
        self.lost_sessions += other.lost_sessions;
    }
}

/// What call connections attach to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub id: u64,
    pub secret: u64,
    pub instance: Vec<u8>,
    pub master: usize,
}

type Connection = (Sender<ToMaster>, Receiver<FromMaster>);

impl Store {
    /// Sets a store up in a process.
    pub fn start(world: &World, host: &Host, process: ProcessId, network: &Network) -> Store {
        let store = Store { inner: Rc::new(Inner::new(world, host, process, network)) };
        let weak = Rc::downgrade(&store.inner);
        let server = Server::new(world, process, move |event| {
            if let Some(inner) = weak.upgrade() {
                Store { inner }.report(event);
            }
        });
        network.servers.add(&server);
        *store.inner.server.borrow_mut() = Some(server);
        let anchor = store.clone();
        world.spawn(process, async move { anchor.keep_session().await });
        store
    }

    /// What a forked child has of it.
    pub(crate) fn forked(&self, child: ProcessId) -> Store {
        let Inner { world, host, network, .. } = &*self.inner;
        let copy = Inner { is_forked: true, ..Inner::new(world, host, child, network) };
        *copy.session.borrow_mut() = self.session();
        Store { inner: Rc::new(copy) }
    }
    /// Its process.
    pub fn process(&self) -> ProcessId {
        self.inner.process
    }

    /// The session's number, once there is one.
    pub fn session_id(&self) -> Option<u64> {
        self.inner.session.borrow().as_ref().map(|session| session.id)
    }

    /// How many sessions it has begun, how often it has come back to one, and how many views masters did not know then.
    pub fn history(&self) -> (u32, u32, u64) {
        (self.inner.sessions.get(), self.inner.resumes.get(), self.inner.unknown_views.get())
    }

    /// The network between the anchor and its master is gone.
    pub fn cut_anchor(&self) {
        if let Some(cut) = self.inner.cutter.borrow().as_ref() {
            cut();
        }
    }

    /// The network between the store and a master is gone for so long; that to others and to owners is not.
    pub fn set_apart(&self, master: usize, micros: u64) {
        if self.session().is_some_and(|session| session.master == master) {
            self.cut_anchor();
        }
        let (until, apart) = (self.inner.world.now() + Duration::from_micros(micros), &self.inner.apart_until);
        let mut apart = apart.borrow_mut();
        apart[master] = apart[master].max(until);
    }

    /// The connections to the owners of what it has mapped break. They wait for its process's end from now on.
    pub fn cut_attachments(&self) {
        if self.inner.links.cut_attachments() {
            self.inner.is_torn.set(true);
        }
    }

    /// Whether owners may wait for the end of its process.
    pub fn is_torn(&self) -> bool {
        self.inner.is_torn.get()
    }

    /// Whether the master knows every view of this store, as far as that is known here.
    pub fn all_listed(&self) -> bool {
        self.inner.pins.borrow().all_listed()
    }

    /// Whether it writes to a segment now.
    pub fn is_writing(&self) -> bool {
        self.inner.writes.get() > 0
    }

    /// Whether there are views of it.
    pub(crate) fn has_views(&self) -> bool {
        !self.inner.pins.borrow().is_empty()
    }

    /// Whether it waits for a view now.
    pub fn is_viewing(&self) -> bool {
        self.inner.unmapped_views.get() > 0
    }

    /// The segments that it has mapped in its session: their owners see its process end, and what session that had.
    pub(crate) fn mapped(&self) -> Vec<SegmentUuid> {
        self.inner.links.mapped()
    }

    /// The segments that it has mapped though no owner lends them any more.
    pub(crate) fn remains(&self) -> Vec<SegmentUuid> {
        self.inner.links.remains()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.inner.network.ledger
    }

    pub(crate) fn session(&self) -> Option<Session> {
        self.inner.session.borrow().clone()
    }

    pub(crate) fn position(&self) -> LogPosition {
        *self.inner.position.borrow()
    }

    pub(crate) fn note_position(&self, position: &LogPosition) {
        if mooncake_client::machine::position::raise(&mut self.inner.position.borrow_mut(), position) {
            self.resume();
        }
    }

    pub(crate) fn resume(&self) {
        self.inner.wants.resume();
        self.inner.wake.set(());
    }

    pub(crate) fn ping(&self) {
        self.inner.wants.ping();
        self.inner.wake.set(());
    }

    pub(crate) fn ring(&self) {
        self.inner.wake.set(());
    }

    pub(crate) fn server(&self) -> Server {
        self.inner.server.borrow().clone().expect("there is one since the start")
    }

    pub(crate) fn hand_over(&self, out: Vec<owner::Output<Memory>>) {
        if self.inner.work_ends.get() {
            return;
        }
        self.inner.work.borrow_mut().extend(out);
    }

    /// What its callers have been told so far.
    pub fn tally(&self) -> Tally {
        self.inner.tally.borrow().clone()
    }

    /// The segments that it holds, each with the highest epoch that it has taken.
    pub fn held(&self) -> Vec<(SegmentUuid, u16)> {
        let server = self.server();
        self.inner.owner.borrow().held(|uuid| server.taken(&uuid))
    }

    /// What its server has proven.
    fn report(&self, event: Event) {
        match event {
            Event::Fenced(uuid, rid) => self.tell_fenced(uuid, rid),
            Event::EpochTaken(epoch, uuid) => self.tell_epoch_taken(epoch, &[uuid]),
            Event::ProcessGone(gone) => {
                self.inner.deaths.borrow_mut().note(gone);
                self.ring();
            }
        }
    }

    fn tell_fenced(&self, uuid: SegmentUuid, rid: Rid) {
        // In memory that is served no more there is nothing left to guard.
        if self.server().find(&uuid).is_some() {
            self.inner.network.ledger.note_over(uuid, rid, "a fence");
        }
        self.tell(anchor_up::Body::FenceDone(FenceDone { uuid: uuid.0.to_vec().into(), rids: vec![rid.0] }));
    }

    fn tell_epoch_taken(&self, epoch: u16, segments: &[SegmentUuid]) {
        for served in segments.iter().filter_map(|uuid| self.server().find(uuid)) {
            served.memory.has_taken(epoch);
        }
        let segments = segments.iter().map(|uuid| uuid.0.to_vec().into()).collect();
        self.tell(anchor_up::Body::EpochTaken(EpochTaken { epoch: u32::from(epoch), segments }));
    }

    /// Whether an extent of its memory still carries a placement whose bytes have this checksum.
    fn recheck(&self, Recheck { uuid, rid, offset, length, crc }: Recheck) {
        let found = self.server().find(&uuid);
        let good = found.is_some_and(|served| {
            served.memory.is_stamped(rid, offset, length) && served.memory.sum(offset, length) == crc
        });
        self.tell(anchor_up::Body::Rechecked(Rechecked { uuid: uuid.0.to_vec().into(), rid: rid.0, good }));
    }

    fn decide<R>(&self, decide: impl FnOnce(&mut AnchorContext<'_>) -> R) -> R {
        let inner = &self.inner;
        decide(&mut AnchorContext {
            pins: &mut inner.pins.borrow_mut(),
            sequences: &mut inner.sequences.borrow_mut(),
            progress: &mut inner.progress.borrow_mut(),
            deaths: &mut inner.deaths.borrow_mut(),
            position: &mut inner.position.borrow_mut(),
            up: &mut inner.up.borrow_mut(),
            reachability: &inner.reachability,
            wants: &inner.wants,
        })
    }

    // ---------------------------------------------------------------- anchor

    async fn keep_session(self) {
        let world = self.inner.world.clone();
        let number = world.number();
        let identity = Identity {
            name: format!("host-{}:{}", self.inner.host.id.0, self.inner.process.0),
            process: identity_of(&world, self.inner.process, self.inner.host.boot_id()),
            mark: number | 1,
        };
        let (connection, reply) = loop {
            let master = world.below(self.inner.network.masters.len().max(1) as u64) as usize;
            let by = world.now() + Duration::from_secs(3);
            match self.open(master, identity.open(), LogPosition::default(), by).await {
                Some((connection, reply)) if reply.refusal.is_none() => {
                    self.publish(&reply, master);
                    break (connection, reply);
                }
                _ => world.sleep(Duration::from_millis(100)).await,
            }
        };
        self.note_position(&reply.position.unwrap_or_default());
        self.inner.mark.set(identity.mark);
        let epoch = epoch_of(&self.position());
        *self.inner.questions.borrow_mut() = Questions::new(epoch);
        self.inner.links.begin(reply.session, epoch.number);
        self.inner.sessions.set(1);
        let machine = Anchor::new(world.now(), identity, self.inner.network.masters.len(), &reply);
        let mut driver = Driver { store: self, machine, connection: None, fresh: None };
        driver.adopt(connection);
        driver.run().await;
    }

    pub(crate) async fn open(
        &self,
        master: usize,
        role: hello::Role,
        highest: LogPosition,
        by: Duration,
    ) -> Option<(Connection, HelloReply)> {
        if self.inner.world.now() < self.inner.apart_until.borrow()[master] {
            let refused = by.min(self.inner.world.now() + UNREACHABLE);
            self.inner.world.sleep(refused.saturating_sub(self.inner.world.now())).await;
            return None;
        }
        let (up, mut down) = self.inner.network.masters.get(master)?.connect()?;
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: FEATURES,
            highest: Some(highest),
            role: Some(role),
            ..Hello::default()
        };
        up.send(ToMaster::Hello(hello)).ok()?;
        match self.inner.world.until(by, down.next()).await? {
            Ok(FromMaster::Hello(reply)) => Some(((up, down), *reply)),
            _ => None,
        }
    }

    fn publish(&self, reply: &HelloReply, master: usize) {
        let (id, secret, instance) = (reply.session, reply.secret, reply.instance.to_vec());
        *self.inner.session.borrow_mut() = Some(Session { id, secret, instance, master });
        self.inner.reachability.pong(self.inner.world.now());
    }
}

impl Inner {
    fn new(world: &World, host: &Host, process: ProcessId, network: &Network) -> Inner {
        Inner {
            world: world.clone(),
            host: host.clone(),
            process,
            network: network.clone(),
            pins: RefCell::default(),
            sequences: RefCell::default(),
            progress: RefCell::default(),
            orphans: RefCell::default(),
            get_sessions: RefCell::default(),
            put_sessions: RefCell::default(),
            deaths: RefCell::default(),
            replica_reports: RefCell::default(),
            position: RefCell::default(),
            up: RefCell::default(),
            reachability: Reachability::default(),
            wants: Wants::default(),
            wake: Slot::new(world),
            is_forked: false,
            closed: Cell::new(false),
            stopped: Cell::new(false),
            session: RefCell::default(),
            mark: Cell::new(0),
            owner: RefCell::default(),
            server: RefCell::default(),
            links: Links::default(),
            questions: no_questions(),
            directory: RefCell::default(),
            names: RefCell::default(),
            work: RefCell::default(),
            work_ends: Cell::new(false),
            cutter: RefCell::default(),
            sessions: Cell::new(0),
            resumes: Cell::new(0),
            unknown_views: Cell::new(0),
            tally: RefCell::default(),
            is_torn: Cell::new(false),
            apart_until: RefCell::default(),
            writes: Cell::new(0),
            unmapped_views: Cell::new(0),
        }
    }
}

struct Driver {
    store: Store,
    machine: Anchor,
    connection: Option<Connection>,
    /// The connection that was made last, its reply, and whose that is.
    fresh: Option<(Connection, HelloReply, usize)>,
}

impl Driver {
    async fn run(&mut self) {
        let world = self.store.inner.world.clone();
        while !self.store.inner.stopped.get() {
            let mut out = Outputs::new();
            self.store.decide(|context| self.machine.step(world.now(), context, &mut out));
            if let Some(until) = self.carry_out(out).await {
                self.poll_once(until).await;
            }
        }
    }

    /// One round: waits for something to do, hears the master, tells it.
    async fn poll_once(&mut self, until: Duration) {
        let world = self.store.inner.world.clone();
        let wake = self.store.inner.wake.clone();
        let Some((_, down)) = &mut self.connection else {
            world.until(until, wake.get()).await;
            return;
        };
        let (heard, rung) = (RefCell::new(None), wake.get());
        world.until(until, world.race(async { *heard.borrow_mut() = Some(down.next().await) }, rung)).await;
        let mut next = heard.into_inner();
        while let Some(message) = next {
            let Ok(FromMaster::Anchor(message)) = message else { return self.lose(Vec::new()) };
            let mut out = Outputs::new();
            self.store.decide(|context| self.machine.hear(world.now(), message, context, &mut out));
            self.carry_out(out).await;
            next = self.connection.as_mut().and_then(|(_, down)| down.try_next()).map(Ok);
        }
        let mut out = Outputs::new();
        let due = self.store.decide(|context| self.machine.tell(world.now(), false, context, &mut out));
        self.carry_out(out).await;
        if due && self.machine.is_connected() {
            let mut out = Outputs::new();
            self.store.decide(|context| self.machine.beat(world.now(), Vec::new(), context, &mut out));
            self.carry_out(out).await;
        }
    }

    fn lose(&mut self, unsent: Vec<AnchorUp>) {
        self.connection = None;
        self.store.decide(|context| self.machine.lost(unsent, context));
    }

    async fn carry_out(&mut self, out: Outputs) -> Option<Duration> {
        let store = self.store.clone();
        let (mut until, mut unsent, mut is_broken) = (None, Vec::new(), false);
        let mut todo = VecDeque::from(out);
        while let Some(output) = todo.pop_front() {
            match output {
                Output::WaitUntil(time) => until = Some(time),
                Output::Send(message) => {
                    if is_broken || self.send(message.clone()).is_err() {
                        is_broken = true;
                        unsent.push(message);
                    }
                }
                Output::Goodbye(message) => todo.push_front(Output::Send(message)),
                Output::HangUp { .. } => self.connection = None,
                Output::Reconnect => {
                    let server = store.server();
                    let held = store.inner.owner.borrow_mut().list(|uuid| server.taken(&uuid));
                    let mut more = Outputs::new();
                    store.decide(|context| self.machine.reconnect(store.inner.world.now(), &held, context, &mut more));
                    todo.extend(more);
                }
                Output::Connect { master, role, highest, by } => {
                    let mut more = Outputs::new();
                    let now = || store.inner.world.now();
                    match store.open(master, role, highest, by).await {
                        Some((connection, reply)) => {
                            store.decide(|context| self.machine.answered(now(), &reply, context, &mut more));
                            self.fresh = Some((connection, reply, master));
                        }
                        None => store.decide(|context| self.machine.failed("no reply".into(), context, &mut more)),
                    }
                    todo.extend(more);
                }
                Output::Resumed { gone, unknown_views } => {
                    store.inner.resumes.set(store.inner.resumes.get() + 1);
                    let unknown = unknown_views.unwrap_or(0) as u64;
                    store.inner.unknown_views.set(store.inner.unknown_views.get() + unknown);
                    self.publish_fresh();
                    list_answered(&store, |uuid| gone.contains(uuid));
                }
                Output::Began => {
                    store.inner.sessions.set(store.inner.sessions.get() + 1);
                    list_answered(&store, |_| true);
                    self.publish_fresh();
                    store.leave_former_put_sessions();
                    store.start_links_over(store.session_id().unwrap_or_default());
                }
                Output::Unreachable { .. } => self.fresh = None,
                Output::Fence(fence) => {
                    if store.server().fence(fence) {
                        store.tell_fenced(fence.uuid, fence.rid);
                    }
                }
                Output::TakeEpoch(epoch) => {
                    let taken = store.server().take_epoch(epoch);
                    let taking = taken.as_ref().map_or(Taking::TwoEpochs, |_| Taking::Begun);
                    if let Some(taken) = taken {
                        store.tell_epoch_taken(epoch.number, &taken);
                    }
                    store.decide(|context| self.machine.epoch_asked(epoch, taking, context));
                }
                Output::SegmentGone { uuid, number, pinned } => {
                    store.inner.directory.borrow_mut().forget(number);
                    store.leave_put_sessions(uuid);
                    let mut out = Vec::new();
                    store.inner.owner.borrow_mut().segment_gone(uuid, &pinned, &mut out);
                    store.hand_over(out);
                    store.forget_links(uuid, &pinned);
                }
                Output::Recheck(recheck) => store.recheck(recheck),
                Output::TierOrder(_)
                | Output::TierPromote(_)
                | Output::TierRetire(_)
                | Output::TierRecheck(_)
                | Output::TierAllOrdered(_)
                | Output::TierShared(_) => {
                    unreachable!("no store of a schedule has a tier")
                }
                Output::Obey(epoch) => store.obey(epoch),
                Output::StartOver => store.inner.directory.borrow_mut().start_over(),
                Output::Ended { .. } => {}
                Output::Stop => store.stop(),
            }
        }
        if is_broken {
            self.lose(unsent);
        }
        until
    }

    fn send(&self, message: AnchorUp) -> Result<(), Closed> {
        self.connection.as_ref().ok_or(Closed)?.0.send(ToMaster::Anchor(message))
    }

    fn publish_fresh(&mut self) {
        let (connection, reply, master) = self.fresh.take().expect("a session goes on over a connection just made");
        self.store.publish(&reply, master);
        self.adopt(connection);
    }

    fn adopt(&mut self, connection: Connection) {
        *self.store.inner.cutter.borrow_mut() = Some(Box::new(connection.0.cutter()));
        self.connection = Some(connection);
    }
}

impl Store {
    pub(crate) fn tell(&self, body: anchor_up::Body) {
        self.inner.up.borrow_mut().push(AnchorUp { body: Some(body) });
        self.inner.wake.set(());
    }
}
