//! A store in a process: the product's own session with the master, and what its threads share.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use mooncake_client::machine::deaths::Deaths;
use mooncake_client::machine::orphans::Orphans;
use mooncake_client::machine::owner::{self, Owner};
use mooncake_client::machine::parts::Parts;
use mooncake_client::machine::pins::Pins;
use mooncake_client::machine::progress::Progress;
use mooncake_client::machine::reachability::Reachability;
use mooncake_client::machine::sequences::Sequences;
use mooncake_client::machine::session::{Anchor, Identity, Output, Outputs, Taking};
use mooncake_client::machine::wants::Wants;
use mooncake_transfer::Uuid;
use mooncake_wire::message::{AnchorUp, EpochTaken, FenceDone, Hello, HelloReply, LogPosition, anchor_up, hello};
use mooncake_wire::{FEATURES, VERSION};

use crate::disk::Host;
use crate::master::{FromMaster, Master, ToMaster, identity_of};
use crate::pipe::{Closed, Receiver, Sender};
use crate::world::{ProcessId, Slot, World};

/// The masters that may be reached, by their numbers in every store's list. Clones are the same list.
#[derive(Clone, Default)]
pub struct Masters {
    all: Rc<RefCell<Vec<Option<Master>>>>,
}

impl Masters {
    /// A master is reached by this number from now on, or none is.
    pub fn set(&self, number: usize, master: Option<Master>) {
        let mut all = self.all.borrow_mut();
        let len = all.len().max(number + 1);
        all.resize_with(len, || None);
        all[number] = master;
    }

    /// The master of a number.
    pub fn get(&self, number: usize) -> Option<Master> {
        self.all.borrow().get(number).cloned().flatten()
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.all.borrow().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A store. Clones are the same one.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub world: World,
    pub host: Host,
    pub process: ProcessId,
    pub masters: Masters,
    pub pins: RefCell<Pins>,
    pub sequences: RefCell<Sequences>,
    progress: RefCell<Progress>,
    pub orphans: RefCell<Orphans<Session>>,
    deaths: RefCell<Deaths>,
    pub position: RefCell<LogPosition>,
    up: RefCell<Vec<AnchorUp>>,
    pub reach: Reachability,
    wants: Wants,
    bell: Slot<()>,
    session: RefCell<Option<Session>>,
    pub owner: RefCell<Owner<Uuid>>,
    /// Highest epoch that each segment has taken.
    taken: RefCell<BTreeMap<Uuid, u16>>,
    /// What the owner's thread is to do.
    pub work: RefCell<VecDeque<owner::Output<Uuid>>>,
    /// The anchor's way to the master, to be cut.
    cutter: RefCell<Option<Box<dyn Fn()>>>,
    sessions: Cell<u32>,
    resumes: Cell<u32>,
    unknown_views: Cell<u64>,
    pub views: Cell<u64>,
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
    pub fn start(world: &World, host: &Host, process: ProcessId, masters: &Masters) -> Store {
        let inner = Inner {
            world: world.clone(),
            host: host.clone(),
            process,
            masters: masters.clone(),
            pins: RefCell::default(),
            sequences: RefCell::default(),
            progress: RefCell::default(),
            orphans: RefCell::default(),
            deaths: RefCell::default(),
            position: RefCell::default(),
            up: RefCell::default(),
            reach: Reachability::default(),
            wants: Wants::default(),
            bell: Slot::new(world),
            session: RefCell::default(),
            owner: RefCell::default(),
            taken: RefCell::default(),
            work: RefCell::default(),
            cutter: RefCell::default(),
            sessions: Cell::new(0),
            resumes: Cell::new(0),
            unknown_views: Cell::new(0),
            views: Cell::new(0),
        };
        let store = Store { inner: Rc::new(inner) };
        let anchor = store.clone();
        world.spawn(process, async move { anchor.keep_session().await });
        store
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

    /// Whether the master knows every view of this store, as far as that is known here.
    pub fn all_listed(&self) -> bool {
        self.inner.pins.borrow().all_listed()
    }

    pub(crate) fn session(&self) -> Option<Session> {
        self.inner.session.borrow().clone()
    }

    pub(crate) fn position(&self) -> LogPosition {
        *self.inner.position.borrow()
    }

    pub(crate) fn note_position(&self, position: &LogPosition) {
        if mooncake_client::machine::position::raise(&mut self.inner.position.borrow_mut(), position) {
            self.resume_anew();
        }
    }

    pub(crate) fn resume_anew(&self) {
        self.inner.wants.resume();
        self.inner.bell.set(());
    }

    pub(crate) fn ping(&self) {
        self.inner.wants.ping();
        self.inner.bell.set(());
    }

    pub(crate) fn ring(&self) {
        self.inner.bell.set(());
    }

    /// Fresh memory: nothing older than this epoch can be there.
    pub(crate) fn serve(&self, uuid: Uuid) {
        self.inner.taken.borrow_mut().insert(uuid, self.position().epoch as u16);
    }

    /// It is served no more.
    pub(crate) fn serve_no_more(&self, uuid: &Uuid) {
        self.inner.taken.borrow_mut().remove(uuid);
    }

    fn hand_over(&self, out: Vec<owner::Output<Uuid>>) {
        self.inner.work.borrow_mut().extend(out);
    }

    /// Views that it has taken so far.
    pub fn views(&self) -> u64 {
        self.inner.views.get()
    }

    /// The segments that it holds, each with the highest epoch that it has taken.
    pub fn held(&self) -> Vec<(Uuid, u16)> {
        let taken = self.inner.taken.borrow();
        self.inner.owner.borrow().held(|uuid| taken.get(&uuid).copied().unwrap_or(0))
    }

    fn decide<R>(&self, decide: impl FnOnce(&mut Parts<'_>) -> R) -> R {
        let inner = &self.inner;
        decide(&mut Parts {
            pins: &mut inner.pins.borrow_mut(),
            sequences: &mut inner.sequences.borrow_mut(),
            progress: &mut inner.progress.borrow_mut(),
            deaths: &mut inner.deaths.borrow_mut(),
            position: &mut inner.position.borrow_mut(),
            up: &mut inner.up.borrow_mut(),
            reach: &inner.reach,
            wants: &inner.wants,
        })
    }

    // ---------------------------------------------------------------- anchor

    async fn keep_session(self) {
        let world = self.inner.world.clone();
        let number = world.number();
        let identity = Identity {
            name: format!("host-{}:{}", self.inner.host.id.0, self.inner.process.0),
            process: identity_of(self.inner.process, self.inner.host.boot_id()),
            mark: number | 1,
        };
        let (connection, reply) = loop {
            let master = world.below(self.inner.masters.len().max(1) as u64) as usize;
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
        self.inner.sessions.set(1);
        let machine = Anchor::new(world.now(), identity, self.inner.masters.len(), &reply);
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
        let (up, mut down) = self.inner.masters.get(master)?.connect()?;
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
            Ok(FromMaster::Hello(reply)) => Some(((up, down), reply)),
            _ => None,
        }
    }

    fn publish(&self, reply: &HelloReply, master: usize) {
        let (id, secret, instance) = (reply.session, reply.secret, reply.instance.to_vec());
        *self.inner.session.borrow_mut() = Some(Session { id, secret, instance, master });
        self.inner.reach.pong(self.inner.world.now());
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
        loop {
            let mut out = Outputs::new();
            self.store.decide(|parts| self.machine.step(world.now(), parts, &mut out));
            if let Some(until) = self.carry_out(out).await {
                self.turn(until).await;
            }
        }
    }

    /// One round: waits for something to do, hears the master, tells it.
    async fn turn(&mut self, until: Duration) {
        let world = self.store.inner.world.clone();
        let bell = self.store.inner.bell.clone();
        let Some((_, down)) = &mut self.connection else {
            world.until(until, bell.get()).await;
            return;
        };
        let (heard, rung) = (RefCell::new(None), bell.get());
        world.until(until, world.race(async { *heard.borrow_mut() = Some(down.next().await) }, rung)).await;
        let mut next = heard.into_inner();
        while let Some(message) = next {
            let Ok(FromMaster::Anchor(message)) = message else { return self.lose(Vec::new()) };
            let mut out = Outputs::new();
            self.store.decide(|parts| self.machine.hear(world.now(), message, parts, &mut out));
            self.carry_out(out).await;
            next = self.connection.as_mut().and_then(|(_, down)| down.try_next()).map(Ok);
        }
        let mut out = Outputs::new();
        let due = self.store.decide(|parts| self.machine.tell(world.now(), false, parts, &mut out));
        self.carry_out(out).await;
        if due && self.machine.is_connected() {
            let mut out = Outputs::new();
            self.store.decide(|parts| self.machine.beat(world.now(), Vec::new(), parts, &mut out));
            self.carry_out(out).await;
        }
    }

    fn lose(&mut self, unsent: Vec<AnchorUp>) {
        self.connection = None;
        self.store.decide(|parts| self.machine.lost(unsent, parts));
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
                Output::Goodbye(message) => _ = self.send(message),
                Output::HangUp { .. } => self.connection = None,
                Output::Reconnect => {
                    let (mut more, held) = (Outputs::new(), store.held());
                    store.decide(|parts| self.machine.reconnect(store.inner.world.now(), &held, parts, &mut more));
                    todo.extend(more);
                }
                Output::Connect { master, role, highest, by } => {
                    let mut more = Outputs::new();
                    let now = || store.inner.world.now();
                    match store.open(master, role, highest, by).await {
                        Some((connection, reply)) => {
                            store.decide(|parts| self.machine.answered(now(), &reply, parts, &mut more));
                            self.fresh = Some((connection, reply, master));
                        }
                        None => store.decide(|parts| self.machine.failed("no reply".into(), parts, &mut more)),
                    }
                    todo.extend(more);
                }
                Output::Resumed { gone, unknown_views } => {
                    store.inner.resumes.set(store.inner.resumes.get() + 1);
                    let unknown = unknown_views.unwrap_or(0) as u64;
                    store.inner.unknown_views.set(store.inner.unknown_views.get() + unknown);
                    self.publish_fresh();
                    let mut out = Vec::new();
                    store.inner.owner.borrow_mut().replace(|uuid| gone.contains(uuid), &mut out);
                    store.hand_over(out);
                }
                Output::Began => {
                    store.inner.sessions.set(store.inner.sessions.get() + 1);
                    self.publish_fresh();
                    let mut out = Vec::new();
                    store.inner.owner.borrow_mut().replace(|_| true, &mut out);
                    store.hand_over(out);
                }
                Output::Unreachable { .. } => self.fresh = None,
                Output::Fence(fence) => {
                    // Nothing is written in this store's memory.
                    let done = FenceDone { uuid: fence.uuid.to_vec().into(), rids: vec![fence.rid] };
                    store.tell(anchor_up::Body::FenceDone(done));
                }
                Output::TakeEpoch(reign) => {
                    let held = {
                        let mut held = store.inner.taken.borrow_mut();
                        held.values_mut().for_each(|taken| *taken = (*taken).max(reign.epoch));
                        held.keys().map(|uuid| uuid.to_vec().into()).collect()
                    };
                    store.decide(|parts| self.machine.epoch_asked(reign, Taking::Begun, parts));
                    let taken = EpochTaken { epoch: u32::from(reign.epoch), segments: held };
                    store.tell(anchor_up::Body::EpochTaken(taken));
                }
                Output::SegmentGone { uuid, pinned, .. } => {
                    let mut out = Vec::new();
                    store.inner.owner.borrow_mut().segment_gone(uuid, &pinned, &mut out);
                    store.hand_over(out);
                }
                Output::StartOver | Output::Recheck(_) | Output::Obey(_) | Output::Ended { .. } | Output::Stop => {}
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
    fn tell(&self, body: anchor_up::Body) {
        self.inner.up.borrow_mut().push(AnchorUp { body: Some(body) });
        self.inner.bell.set(());
    }
}
