//! An owner and the processes that map its segment, with messages under way between them: whatever is done in whatever
//! order, nothing is stored for a placement whose fence is done, and nothing of an epoch that is over.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use proptest::prelude::*;
use proptest::sample::Index;

use super::fixture::{KIB, Memory, rid};
use super::*;
use crate::epoch::Epoch;

const UUID: SegmentUuid = SegmentUuid([1; 16]);

#[derive(Debug, Clone)]
enum Step {
    /// A process maps the segment for its session. It does so anew only over a new connection.
    Attach(u64),
    /// A process wishes to write.
    Upgrade(Index),
    ToOwner(Index),
    ToPeer(Index),
    Answer(Index),
    /// Its master is in the epoch that the owner asked for, and knows its pins.
    Confirm(Index),
    /// Its connection breaks. The process goes on.
    Break(Index),
    End(Index),
    Unmap(Index),
    /// A session gets an extent that is free.
    Place(u64, Index),
    Begin(Index, Index),
    Store(Index, Index),
    Finish(Index, Index),
    Fence(Index),
    TakeEpoch,
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<Index>;
    let session = || 1..3u64;
    prop_oneof![
        2 => session().prop_map(Step::Attach),
        3 => which().prop_map(Step::Upgrade),
        12 => which().prop_map(Step::ToOwner),
        12 => which().prop_map(Step::ToPeer),
        8 => which().prop_map(Step::Answer),
        6 => which().prop_map(Step::Confirm),
        1 => which().prop_map(Step::Break),
        1 => which().prop_map(Step::End),
        1 => which().prop_map(Step::Unmap),
        4 => (session(), which()).prop_map(|(session, extent)| Step::Place(session, extent)),
        12 => (which(), which()).prop_map(|(who, what)| Step::Begin(who, what)),
        8 => (which(), which()).prop_map(|(who, what)| Step::Store(who, what)),
        4 => (which(), which()).prop_map(|(who, what)| Step::Finish(who, what)),
        4 => which().prop_map(Step::Fence),
        3 => Just(Step::TakeEpoch),
    ]
}

#[derive(Debug)]
struct Process {
    session: u64,
    peer: Peer,
    /// The owner's stamps, and a gate of its own.
    memory: Rc<Memory>,
    to_owner: VecDeque<Frame>,
    to_peer: VecDeque<Frame>,
    connected: bool,
    mapped: bool,
    asked: Vec<Epoch>,
    /// Numbers in its gate, and placements.
    writes: Vec<(u64, usize)>,
}

#[derive(Debug)]
struct Placement {
    rid: Rid,
    extent: usize,
    session: u64,
    is_fenced: bool,
}

struct World {
    owner: Owner<Rc<Memory>>,
    memory: Rc<Memory>,
    processes: BTreeMap<u64, Process>,
    placements: Vec<Placement>,
    /// Whether each is free.
    extents: [bool; 4],
    taken: u16,
}

fn fence_of(Placement { rid, extent, session, .. }: &Placement) -> Fence {
    let offset = *extent as u64 * KIB;
    Fence { uuid: UUID, rid: *rid, offset, len: KIB, writer: *session, writer_done: false }
}

impl World {
    fn new() -> World {
        let (mut owner, memory) = (Owner::default(), Memory::new(4, 1));
        assert!(owner.take_epoch(Duration::ZERO, Epoch::numbered(1), &mut Vec::new()).is_ok());
        owner.add(UUID, memory.clone());
        World { owner, memory, processes: BTreeMap::new(), placements: Vec::new(), extents: [true; 4], taken: 1 }
    }

    fn pick(&mut self, which: &Index) -> Option<(u64, &mut Process)> {
        let count = self.processes.len();
        if count == 0 { None } else { self.processes.iter_mut().nth(which.index(count)).map(|(id, p)| (*id, p)) }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    fn take(&mut self, step: &Step) -> Option<()> {
        let mut out = Vec::new();
        match step {
            Step::Attach(session) => {
                let is_live = |process: &Process| process.connected && process.mapped && process.session == *session;
                if self.processes.values().any(is_live) {
                    return None;
                }
                let epoch = self.memory.insiders.borrow().epoch();
                let id = self.owner.attach(Newcomer { session: *session, uuid: UUID, knows_pins: true });
                let process = Process {
                    session: *session,
                    peer: Peer::new(epoch),
                    memory: Memory::beside(&self.memory, epoch.number),
                    to_owner: VecDeque::new(),
                    to_peer: VecDeque::new(),
                    connected: true,
                    mapped: true,
                    asked: Vec::new(),
                    writes: Vec::new(),
                };
                self.processes.insert(id, process);
            }
            Step::Upgrade(who) => {
                let (_, process) = self.pick(who)?;
                if let WritePermission::Ask(frame) = process.peer.write_permission() {
                    process.to_owner.push_back(frame);
                    process.peer.has_asked();
                }
            }
            Step::ToOwner(who) => {
                let (id, process) = self.pick(who)?;
                let frame = process.to_owner.pop_front().filter(|_| process.connected)?;
                self.owner.heard(id, &frame, &mut out);
            }
            Step::ToPeer(who) => {
                let (_, process) = self.pick(who)?;
                let frame = process.to_peer.pop_front().filter(|_| process.connected && process.mapped)?;
                if let Heard::AskMaster(epoch) = process.peer.heard(&frame, &process.memory) {
                    process.asked.push(epoch);
                }
            }
            Step::Answer(who) => {
                let (_, Process { peer, memory, to_owner, .. }) =
                    self.pick(who).filter(|(_, process)| process.mapped)?;
                let mut answers = Vec::new();
                peer.answer(&*memory, 3, &mut answers);
                to_owner.extend(answers);
            }
            Step::Confirm(who) => {
                let (_, process) = self.pick(who)?;
                process.asked.drain(..).for_each(|epoch| process.peer.confirm(epoch));
            }
            Step::Break(who) => {
                let (id, process) = self.pick(who)?;
                process.connected = false;
                self.owner.connection_lost(id);
            }
            Step::End(who) => {
                let (id, _) = self.pick(who)?;
                self.processes.remove(&id);
                self.owner.process_ended(id, &mut out);
            }
            Step::Unmap(who) => {
                // Each write keeps the memory mapped until it has ended.
                let (_, process) = self.pick(who).filter(|(_, process)| process.mapped && process.writes.is_empty())?;
                process.mapped = false;
                process.to_owner.push_back(DETACHED);
            }
            Step::Place(session, extent) => {
                let extent = extent.index(self.extents.len());
                if std::mem::replace(&mut self.extents[extent], false) {
                    let rid = rid(self.owner.epoch().number, self.placements.len() as u64 + 1);
                    self.placements.push(Placement { rid, extent, session: *session, is_fenced: false });
                }
            }
            Step::Begin(who, what) => {
                let placement = (!self.placements.is_empty()).then(|| what.index(self.placements.len()))?;
                let Placement { rid, extent, session, .. } = self.placements[placement];
                let (_, process) = self.pick(who)?;
                let may =
                    process.peer.write_permission() == WritePermission::Granted && process.connected && process.mapped;
                if may && process.session == session {
                    let Memory { gate, stamps, .. } = &*process.memory;
                    let write = gate.borrow_mut().admit(&**stamps, rid, extent as u64 * KIB, KIB, ()).ok()?;
                    process.writes.push((write, placement));
                }
            }
            Step::Store(who, what) => {
                let (_, process) = self.pick(who).filter(|(_, process)| !process.writes.is_empty())?;
                let (_, placement) = process.writes[what.index(process.writes.len())];
                let placement = &self.placements[placement];
                assert!(!placement.is_fenced, "{placement:?} is fenced, and is written");
                assert!(placement.rid.epoch() >= self.taken, "{placement:?} is of an epoch that is over");
                self.memory.stamps.stamp(placement.rid, placement.extent as u64 * KIB, KIB);
            }
            Step::Finish(who, what) => {
                let (_, process) = self.pick(who).filter(|(_, process)| !process.writes.is_empty())?;
                let (write, _) = process.writes.remove(what.index(process.writes.len()));
                process.memory.ended(write);
            }
            Step::Fence(what) => {
                let placement = (!self.placements.is_empty()).then(|| what.index(self.placements.len()))?;
                if !self.placements[placement].is_fenced
                    && self.owner.fence(Duration::ZERO, fence_of(&self.placements[placement]), &mut out)
                {
                    self.is_fenced(self.placements[placement].rid);
                }
            }
            Step::TakeEpoch => {
                let number = self.owner.epoch().number + 1;
                let taken = self.owner.take_epoch(Duration::ZERO, Epoch::numbered(number), &mut out).unwrap();
                self.taken = if taken.is_empty() { self.taken } else { number };
            }
        }
        self.owner.check_promises(Duration::ZERO, &mut out);
        out.into_iter().for_each(|output| self.carry_out(output));
        Some(())
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { to, frame } => self.processes.get_mut(&to).unwrap().to_peer.push_back(frame),
            Output::Forget { attachment } => drop(self.processes.remove(&attachment)),
            Output::Fenced { rid, .. } => self.is_fenced(rid),
            Output::EpochTaken { epoch, .. } => self.taken = self.taken.max(epoch),
            other => panic!("{other:?}"),
        }
    }

    /// Its extent is free from now on.
    fn is_fenced(&mut self, rid: Rid) {
        let placement = self.placements.iter_mut().find(|placement| placement.rid == rid).unwrap();
        (placement.is_fenced, self.extents[placement.extent]) = (true, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_lands_behind_a_fence_that_is_done_nor_of_an_epoch_that_is_over(
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
    }
}
