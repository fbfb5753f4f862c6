//! What a store serves of its memory: the product's book of the owner, behind connections of this world.

pub(crate) mod lane;
pub(crate) mod servers;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::CopyError;
use mooncake_segment::Epoch;
use mooncake_segment::machine::{
    Denied, Fence, Frame, Gate, Insiders, Newcomer, Output, Owner, ProcessGone, Segment, Writes,
};

use crate::memory::Memory;
use crate::pipe::{Receiver, Sender, pipe};
use crate::server::lane::{Cut, serve_lane};
use crate::world::{ProcessId, Slot, World};

/// How long a segment that is given back waits for writers that do not end.
const DRAIN: Duration = Duration::from_secs(2);

/// Longest time that the end of a process takes to become known to an owner that watches it.
const END_IS_KNOWN_MICROS: u64 = 30_000;

/// What a process that maps a segment sends.
#[derive(Debug)]
pub(crate) enum ToOwner {
    /// First of all.
    Hello(Newcomer, ProcessId),
    /// Then.
    Frame(Frame),
}

/// What it hears.
#[derive(Debug)]
pub(crate) enum FromOwner {
    /// First of all: the descriptors.
    Given(Memory, Epoch),
    /// Or nothing of the kind.
    Refused,
    /// Then.
    Frame(Frame),
}

/// What the owner's store is told later.
#[derive(Debug)]
pub(crate) enum Event {
    Fenced(SegmentUuid, Rid),
    EpochTaken(u16, SegmentUuid),
    ProcessGone(ProcessGone),
}

/// The server of a store. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Server {
    inner: Rc<Inner>,
}

struct Inner {
    world: World,
    process: ProcessId,
    state: RefCell<State>,
    wake: Slot<()>,
    stopped: Cell<bool>,
    events: Box<dyn Fn(Event)>,
}

#[derive(Default)]
struct State {
    owner: Owner<InBook>,
    /// The connections of the owner's attachments, by the same numbers.
    attached: BTreeMap<u64, Rc<Sender<FromOwner>>>,
}

/// One segment in its owner's process.
pub(crate) struct Served {
    pub memory: Memory,
    pub gate: RefCell<Gate<Option<Cut>>>,
    removed: Cell<bool>,
    insiders: RefCell<Insiders>,
    inside: RefCell<BTreeMap<u64, Weak<Inside>>>,
    wake: Slot<()>,
}

/// What a store of the owner's process has there, until it is dropped.
pub(crate) struct Inside {
    served: Rc<Served>,
    number: u64,
    ask: Box<dyn Fn(Weak<Inside>, Epoch)>,
}

/// A write that passed the gate. Dropped when nothing of it can land any more.
pub(crate) struct Admitted {
    served: Rc<Served>,
    id: u64,
}

impl Server {
    /// Serves nothing yet.
    pub fn new(world: &World, process: ProcessId, events: impl Fn(Event) + 'static) -> Server {
        let inner = Inner {
            world: world.clone(),
            process,
            state: RefCell::default(),
            wake: Slot::new(world),
            stopped: Cell::new(false),
            events: Box::new(events),
        };
        let server = Server { inner: Rc::new(inner) };
        let inside = server.clone();
        world.spawn(process, async move { inside.keep_promises().await });
        server
    }

    /// Its process.
    pub fn process(&self) -> ProcessId {
        self.inner.process
    }

    // --------------------------------------------------------------- segments

    pub fn add(&self, memory: Memory) {
        let mut state = self.inner.state.borrow_mut();
        let epoch = Epoch::numbered(state.owner.epoch().number);
        let served = Served {
            gate: RefCell::new(Gate::new(epoch.number)),
            removed: Cell::new(false),
            insiders: RefCell::new(Insiders::new(epoch)),
            inside: RefCell::default(),
            wake: self.inner.wake.clone(),
            memory: memory.clone(),
        };
        memory.has_taken(epoch.number);
        state.owner.add(memory.uuid(), InBook(Rc::new(served)));
    }

    pub fn mounted(&self, uuid: SegmentUuid, epoch: Epoch) {
        if let Some(InBook(served)) = self.inner.state.borrow().owner.segment(&uuid) {
            served.insiders.borrow_mut().mounted(epoch);
        }
    }

    pub fn taken(&self, uuid: &SegmentUuid) -> u16 {
        self.inner.state.borrow().owner.taken(uuid)
    }

    pub fn find(&self, uuid: &SegmentUuid) -> Option<Rc<Served>> {
        self.inner.state.borrow().owner.segment(uuid).map(|InBook(served)| served.clone())
    }

    /// Whether there is anything that it serves.
    pub fn serves(&self) -> bool {
        self.inner.state.borrow().owner.uuids().next().is_some()
    }

    pub async fn remove(&self, uuid: SegmentUuid) {
        let world = &self.inner.world;
        let (served, over) = {
            let mut state = self.inner.state.borrow_mut();
            let mut out = Vec::new();
            let Some((InBook(served), over)) = state.owner.remove(&uuid, &mut out) else { return };
            served.removed.set(true);
            self.carry_out(state, out);
            (served, over)
        };
        let mut writing = served.gate.borrow_mut().close();
        served.cut(&writing);
        let by = world.now() + DRAIN;
        while !writing.is_empty() && world.now() < by {
            world.sleep_micros(5_000).await;
            served.gate.borrow().retain_active(&mut writing);
        }
        self.inner.wake.set(());
        for rid in over {
            (self.inner.events)(Event::Fenced(uuid, rid));
        }
    }

    /// Serves nothing more, and lets no process in.
    pub async fn shut_down(&self) {
        self.inner.stopped.set(true);
        self.inner.wake.set(());
        let uuids: Vec<SegmentUuid> = self.inner.state.borrow().owner.uuids().collect();
        for uuid in uuids {
            self.remove(uuid).await;
        }
    }

    // --------------------------------------------------------------- promises

    pub fn fence(&self, fence: Fence) -> bool {
        let mut state = self.inner.state.borrow_mut();
        let mut out = Vec::new();
        let done = state.owner.fence(self.inner.world.now(), fence, &mut out);
        self.carry_out(state, out);
        if !done {
            self.inner.wake.set(());
        }
        done
    }

    /// `None`: it obeys another epoch of that number.
    pub fn take_epoch(&self, asked: Epoch) -> Option<Vec<SegmentUuid>> {
        let mut state = self.inner.state.borrow_mut();
        let mut out = Vec::new();
        let taken = state.owner.take_epoch(self.inner.world.now(), asked, &mut out);
        self.carry_out(state, out);
        self.inner.wake.set(());
        taken.ok()
    }

    async fn keep_promises(self) {
        let world = self.inner.world.clone();
        while !self.inner.stopped.get() {
            let next = self.inner.state.borrow().owner.next_cut();
            world.until(next.unwrap_or(world.now() + Duration::from_secs(5)), self.inner.wake.get()).await;
            let mut state = self.inner.state.borrow_mut();
            let mut out = Vec::new();
            state.owner.check_promises(world.now(), &mut out);
            self.carry_out(state, out);
        }
    }

    /// Does what the book says, and tells without it what is to be told.
    fn carry_out(&self, mut state: std::cell::RefMut<'_, State>, mut out: Vec<Output>) {
        let (mut events, mut asked) = (Vec::new(), Vec::new());
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    Output::Send { to, frame } => {
                        if let Some(pipe) = state.attached.get(&to) {
                            // One that takes nothing any more still gives what the process said before.
                            let _ = pipe.send(FromOwner::Frame(frame));
                        }
                    }
                    Output::HangUp { attachment } => lost(&mut state, attachment),
                    Output::Forget { attachment } => drop(state.attached.remove(&attachment)),
                    Output::Cut { uuid, writes } => {
                        if let Some(InBook(served)) = state.owner.segment(&uuid) {
                            served.cut(&writes);
                        }
                    }
                    Output::AskInsiders { uuid, epoch } => {
                        let below = state.owner.segment(&uuid).map(|InBook(served)| served.below(epoch));
                        asked.extend(below.into_iter().flatten().map(|inside| (inside, epoch)));
                    }
                    Output::Fenced { uuid, rid } => events.push(Event::Fenced(uuid, rid)),
                    Output::EpochTaken { epoch, uuid } => events.push(Event::EpochTaken(epoch, uuid)),
                    Output::ProcessGone(gone) => events.push(Event::ProcessGone(gone)),
                    Output::Outside(fence) => panic!("a fence outside of its segment: {fence:?}"),
                    Output::Marred { .. } => {}
                }
            }
        }
        drop(state);
        for (inside, epoch) in asked {
            (inside.ask)(Rc::downgrade(&inside), epoch);
        }
        for event in events {
            (self.inner.events)(event);
        }
    }

    // ------------------------------------------------------------ connections

    /// Another process asks for a segment. `None`: nothing listens.
    pub fn connect(&self, delay_micros: u64) -> Option<(Sender<ToOwner>, Receiver<FromOwner>)> {
        let world = &self.inner.world;
        if !world.is_alive(self.inner.process) || self.inner.stopped.get() {
            return None;
        }
        let delay = world.delay(delay_micros);
        let (up, from) = pipe(world, delay);
        let (to, down) = pipe(world, delay);
        let server = self.clone();
        world.spawn(self.inner.process, async move { server.let_in(from, Rc::new(to)).await });
        Some((up, down))
    }

    /// Another host's process opens a lane.
    pub fn open_lane(&self, uuid: SegmentUuid, delay_micros: u64) -> Option<crate::server::lane::Lane> {
        let world = &self.inner.world;
        let served = world.is_alive(self.inner.process).then(|| self.find(&uuid))??;
        let delay = world.delay(delay_micros);
        let (up, from) = pipe(world, delay);
        let (to, down) = pipe(world, delay);
        let inside = world.clone();
        world.spawn(self.inner.process, async move { serve_lane(&inside, &served, from, to).await });
        Some((up, down))
    }

    async fn let_in(self, mut from: Receiver<ToOwner>, to: Rc<Sender<FromOwner>>) {
        let world = self.inner.world.clone();
        let Ok(ToOwner::Hello(newcomer, process)) = from.next().await else { return };
        let id = {
            let mut state = self.inner.state.borrow_mut();
            let Some(InBook(served)) = state.owner.segment(&newcomer.uuid).cloned() else {
                let _ = to.send(FromOwner::Refused);
                return;
            };
            // A newcomer has nothing older to swear off.
            let epoch = served.insiders.borrow().epoch();
            if to.send(FromOwner::Given(served.memory.clone(), epoch)).is_err() {
                return;
            }
            let id = state.owner.attach(newcomer);
            state.attached.insert(id, to);
            id
        };
        let (inside, late) = (self.clone(), world.below(END_IS_KNOWN_MICROS));
        world.watch(process, move || {
            let world = inside.inner.world.clone();
            world.clone().spawn(inside.inner.process, async move {
                world.sleep_micros(late).await;
                inside.with_owner(|owner, out| owner.process_ended(id, out));
            });
        });
        while let Ok(said) = from.next().await {
            let ToOwner::Frame(frame) = said else { unreachable!("a hello comes first") };
            self.with_owner(|owner, out| owner.heard(id, &frame, out));
        }
        lost(&mut self.inner.state.borrow_mut(), id);
        self.inner.wake.set(());
    }

    fn with_owner(&self, ask: impl FnOnce(&mut Owner<InBook>, &mut Vec<Output>)) {
        let mut state = self.inner.state.borrow_mut();
        let mut out = Vec::new();
        ask(&mut state.owner, &mut out);
        self.carry_out(state, out);
        self.inner.wake.set(());
    }
}

/// No answer comes over that connection any more.
fn lost(state: &mut State, attachment: u64) {
    state.attached.remove(&attachment);
    state.owner.connection_lost(attachment);
}

impl Served {
    pub fn is_removed(&self) -> bool {
        self.removed.get()
    }

    /// Lets a write begin.
    pub fn admit(self: &Rc<Self>, rid: Rid, offset: u64, len: u64, lane: Option<Cut>) -> Result<Admitted, Denied> {
        let id = self.gate.borrow_mut().admit(&self.memory, rid, offset, len, lane)?;
        Ok(Admitted { served: self.clone(), id })
    }

    /// A store of this process comes to use it. `ask` puts an owner's question to that store.
    pub fn enter(self: &Rc<Self>, ask: impl Fn(Weak<Inside>, Epoch) + 'static) -> Rc<Inside> {
        let number = self.insiders.borrow_mut().enter();
        let inside = Rc::new(Inside { served: self.clone(), number, ask: Box::new(ask) });
        self.inside.borrow_mut().insert(number, Rc::downgrade(&inside));
        inside
    }

    fn below(&self, epoch: Epoch) -> Vec<Rc<Inside>> {
        let (insiders, inside) = (self.insiders.borrow(), self.inside.borrow());
        insiders.below(epoch).filter_map(|number| inside.get(&number)?.upgrade()).collect()
    }

    fn cut(&self, writes: &[u64]) {
        self.gate.borrow().writers(writes).flatten().for_each(Cut::cut);
    }
}

impl Inside {
    pub fn is_waited_for_in(&self, epoch: Epoch) -> bool {
        self.served.insiders.borrow().is_waited_for_in(self.number, epoch)
    }

    pub fn confirm(&self, epoch: Epoch) {
        self.served.insiders.borrow_mut().confirm(self.number, epoch);
        self.served.wake.set(());
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.served.insiders.borrow_mut().leave(self.number);
        self.served.inside.borrow_mut().remove(&self.number);
        self.served.wake.set(());
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let tell = self.served.gate.borrow_mut().ended(self.id);
        if tell {
            self.served.wake.set(());
        }
    }
}

/// A segment as the owner's book has it.
#[derive(Clone)]
struct InBook(Rc<Served>);

impl Writes for InBook {
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        self.0.gate.borrow_mut().fence(&self.0.memory, rid, offset, len)
    }

    fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.0.gate.borrow_mut().raise_epoch(epoch)
    }

    fn retain_active(&self, ids: &mut Vec<u64>) {
        self.0.gate.borrow().retain_active(ids);
    }
}

impl Segment for InBook {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        mooncake_segment::machine::Stamps::max_stamp(&self.0.memory, offset, len)
    }

    fn raise_insiders(&self, asked: Epoch) -> bool {
        self.0.insiders.borrow_mut().raise(asked)
    }

    fn insiders_obey(&self, epoch: u16) -> bool {
        self.0.insiders.borrow().obey(epoch)
    }
}
