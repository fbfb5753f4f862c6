//! Whatever happens in whatever order: no promise is kept while a process that was asked for it neither answered nor
//! ended, and each is kept once all of them did.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use mooncake_ids::Rid;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::fixture::{KIB, Memory, rid};
use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// A process is given a segment's descriptors, for a session; it may be of an older version.
    Attach(u8, u64, bool),
    Upgrade(Index),
    /// A process answers one of the questions that have reached it.
    Answer(Index, Index),
    Detach(Index),
    /// Its connection breaks.
    Lose(Index),
    /// What was sent to it lies in its connection's memory, or does no longer.
    Room(Index, bool),
    End(Index),
    /// A placement of that session is fenced; the writer may say that it is done.
    Fence(u8, u64, bool),
    FenceAgain(Index, bool),
    TakeEpoch(u16),
    /// A write through the owner's process passes the gate of a segment; the first fence after it is its own.
    Write(u8),
    WriteEnds(Index),
    Enter(u8),
    Confirm(Index),
    Leave(Index),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<Index>;
    let segment = || 0..2u8;
    let session = || 1..3u64;
    prop_oneof![
        4 => (segment(), session(), any::<bool>()).prop_map(|(s, session, knows)| Step::Attach(s, session, knows)),
        3 => which().prop_map(Step::Upgrade),
        6 => (which(), which()).prop_map(|(who, what)| Step::Answer(who, what)),
        1 => which().prop_map(Step::Detach),
        1 => which().prop_map(Step::Lose),
        2 => (which(), any::<bool>()).prop_map(|(who, room)| Step::Room(who, room)),
        1 => which().prop_map(Step::End),
        6 => (segment(), session(), any::<bool>())
            .prop_map(|(s, session, done)| Step::Fence(s, session, done && s == 0)),
        1 => (which(), any::<bool>()).prop_map(|(which, done)| Step::FenceAgain(which, done)),
        2 => (2..6u16).prop_map(Step::TakeEpoch),
        3 => segment().prop_map(Step::Write),
        3 => which().prop_map(Step::WriteEnds),
        1 => segment().prop_map(Step::Enter),
        1 => which().prop_map(Step::Confirm),
        1 => which().prop_map(Step::Leave),
        1 => Just(Step::Wait),
    ]
}

/// A process as it is, whatever the owner knows of it.
#[derive(Debug)]
struct Process {
    segment: u8,
    session: u64,
    knows_pins: bool,
    connected: bool,
    writable: bool,
    /// Highest epoch that the owner has its word for, as far as that counts.
    obeyed: u16,
    asked: Vec<Frame>,
}

/// What a promise waits for.
#[derive(Debug, Default, Clone)]
struct Waits {
    processes: BTreeSet<u64>,
    writes: BTreeSet<u64>,
    insiders: BTreeSet<u64>,
}

impl Waits {
    fn is_over(&self) -> bool {
        self.processes.is_empty() && self.writes.is_empty() && self.insiders.is_empty()
    }
}

struct World {
    now: Duration,
    owner: Owner<Rc<Memory>>,
    memories: Vec<Rc<Memory>>,
    processes: BTreeMap<u64, Process>,
    /// (segment, number in its gate) and the placement.
    writes: BTreeMap<(u8, u64), Fence>,
    /// (segment, number).
    insiders: BTreeSet<(u8, u64)>,
    /// Latest epoch that each obeys.
    obeyed: BTreeMap<(u8, u64), u16>,
    placements: u64,
    epoch: u16,
    fences: BTreeMap<(u8, Rid), (Fence, Waits)>,
    epochs: BTreeMap<(u8, u16), Waits>,
}

fn uuid(segment: u8) -> SegmentUuid {
    SegmentUuid([segment + 1; 16])
}

impl World {
    fn new() -> World {
        let mut owner = Owner::default();
        assert!(owner.take_epoch(Duration::ZERO, Epoch::numbered(1), &mut Vec::new()).is_ok());
        let memories: Vec<_> = (0..2).map(|_| Memory::new(256, 1)).collect();
        for (segment, memory) in (0..).zip(&memories) {
            owner.add(uuid(segment), memory.clone());
        }
        World {
            now: Duration::ZERO,
            owner,
            memories,
            processes: BTreeMap::new(),
            writes: BTreeMap::new(),
            insiders: BTreeSet::new(),
            obeyed: BTreeMap::new(),
            placements: 0,
            epoch: 1,
            fences: BTreeMap::new(),
            epochs: BTreeMap::new(),
        }
    }

    fn process(&self, which: &Index) -> Option<u64> {
        pick(self.processes.keys(), which).copied()
    }

    /// The next placement of a session, in an extent of its own.
    fn placement(&mut self, segment: u8, writer: u64) -> Fence {
        self.placements += 1;
        let (rid, offset) = (rid(self.epoch, self.placements), self.placements * KIB);
        Fence { uuid: uuid(segment), rid, offset, len: KIB, writer, writer_done: false }
    }

    /// Takes a step, and looks whether the owner says of each promise that it is kept, and of no other.
    fn take(&mut self, step: &Step) {
        let mut out = Vec::new();
        match step {
            Step::Attach(segment, session, knows_pins) => self.attach(*segment, *session, *knows_pins),
            Step::Upgrade(who) => self.upgrade(who, &mut out),
            Step::Answer(who, what) => {
                if let Some(id) = self.process(who) {
                    self.answer(id, |asked| what.index(asked), &mut out);
                }
            }
            Step::Detach(who) => self.detach(who, &mut out),
            Step::Lose(who) => self.lose(who),
            Step::Room(who, room) => {
                if let Some(id) = self.process(who) {
                    self.owner.room(id, *room, &mut out);
                }
            }
            Step::End(who) => {
                if let Some(id) = self.process(who) {
                    self.end(id, &mut out);
                }
            }
            Step::Fence(segment, session, done) => self.fence_one(*segment, *session, *done, &mut out),
            Step::FenceAgain(which, done) => self.fence_again(which, *done, &mut out),
            Step::TakeEpoch(epoch) => self.take_epoch(*epoch, &mut out),
            Step::Write(segment) => self.write(*segment),
            Step::WriteEnds(which) => {
                if let Some(write) = pick(self.writes.keys(), which).copied() {
                    self.write_ends(write);
                }
            }
            Step::Enter(segment) => self.enter(*segment),
            Step::Confirm(which) => {
                if let Some(insider) = pick(self.insiders.iter(), which).copied() {
                    self.insider_obeys(insider);
                }
            }
            Step::Leave(which) => {
                if let Some(insider) = pick(self.insiders.iter(), which).copied() {
                    self.insider_leaves(insider);
                }
            }
            Step::Wait => self.now += Duration::from_secs(1),
        }
        self.hear(out);
        let mut out = Vec::new();
        self.owner.check_promises(self.now, &mut out);
        self.hear(out);
        let pending = self.fences.values().map(|(_, waits)| waits).chain(self.epochs.values());
        pending.for_each(|waits| assert!(!waits.is_over(), "nothing is waited for any more, and it is not said"));
    }

    // ------------------------------------------------ processes of other stores

    fn attach(&mut self, segment: u8, session: u64, knows_pins: bool) {
        let id = self.owner.attach(Newcomer { session, uuid: uuid(segment), knows_pins });
        let mut obeyed = self.epoch;
        for (_, waits) in self.epochs.iter_mut().filter(|((of, _), _)| *of == segment && !knows_pins) {
            waits.processes.insert(id);
            obeyed = 0;
        }
        let (connected, writable, asked) = (true, false, Vec::new());
        self.processes.insert(id, Process { segment, session, knows_pins, connected, writable, obeyed, asked });
    }

    fn upgrade(&mut self, who: &Index, out: &mut Vec<Output>) {
        if let Some(id) = self.process(who).filter(|id| self.processes[id].connected) {
            self.owner.heard(id, &Frame::plain(Op::Upgrade, 0), out);
            assert!(matches!(&out[0], Output::Send { to, frame } if *to == id && frame.op == Op::Upgraded));
            self.processes.get_mut(&id).unwrap().writable = true;
        }
    }

    fn detach(&mut self, who: &Index, out: &mut Vec<Output>) {
        if let Some(id) = self.process(who).filter(|id| self.processes[id].connected) {
            self.owner.heard(id, &Frame::plain(Op::Detached, 0), out);
            self.is_gone(id);
        }
    }

    fn lose(&mut self, who: &Index) {
        if let Some(id) = self.process(who) {
            self.owner.connection_lost(id);
            let process = self.processes.get_mut(&id).unwrap();
            (process.connected, process.asked) = (false, Vec::new());
        }
    }

    fn end(&mut self, id: u64, out: &mut Vec<Output>) {
        self.owner.process_ended(id, out);
        self.is_gone(id);
    }

    fn answer(&mut self, id: u64, which: impl FnOnce(usize) -> usize, out: &mut Vec<Output>) {
        let process = self.processes.get_mut(&id).unwrap();
        if process.asked.is_empty() {
            return;
        }
        let question = process.asked.remove(which(process.asked.len()));
        let segment = process.segment;
        let answer = match question.op {
            Op::Quiesce => {
                if let Some((_, waits)) = self.fences.get_mut(&(segment, Rid(question.rid))) {
                    waits.processes.remove(&id);
                }
                Frame { op: Op::Quiesced, ..question }
            }
            Op::TakeEpoch => {
                let knows_pins = process.knows_pins;
                let answered = self
                    .epochs
                    .iter_mut()
                    .filter(|((of, epoch), _)| *of == segment && *epoch <= question.epoch && knows_pins);
                for (_, waits) in answered {
                    waits.processes.remove(&id);
                }
                if knows_pins {
                    process.obeyed = process.obeyed.max(question.epoch);
                }
                Frame::plain(Op::EpochTaken, question.epoch)
            }
            other => panic!("{other:?}"),
        };
        self.owner.heard(id, &answer, out);
    }

    // -------------------------------------------------- the master's questions

    /// Fences a placement that a write through the owner's process is at, or else a new one.
    fn fence_one(&mut self, segment: u8, session: u64, done: bool, out: &mut Vec<Output>) {
        let own = self.writes.iter().find(|((of, _), write)| *of == segment && write.writer == session);
        let own = own.map(|(_, write)| *write).filter(|write| !self.fences.contains_key(&(segment, write.rid)));
        let placement = own.unwrap_or_else(|| self.placement(segment, session));
        self.fence(segment, Fence { writer_done: done, ..placement }, out);
    }

    fn fence_again(&mut self, which: &Index, done: bool, out: &mut Vec<Output>) {
        let again = pick(self.fences.iter(), which).map(|((segment, _), (fence, _))| (*segment, *fence));
        if let Some((segment, fence)) = again {
            self.fence(segment, Fence { writer_done: done, ..fence }, out);
        }
    }

    fn fence(&mut self, segment: u8, fence: Fence, out: &mut Vec<Output>) {
        let done = self.owner.fence(self.now, fence, out);
        if let Some((_, waits)) = self.fences.get_mut(&(segment, fence.rid)) {
            assert!(!done, "it is pending");
            if fence.writer_done {
                waits.processes.clear();
            }
            return;
        }
        let asked = self.processes.iter().filter(|(_, process)| {
            process.segment == segment && process.writable && process.session == fence.writer && !fence.writer_done
        });
        let writing = self.writes.iter().filter(|((of, _), write)| *of == segment && write.rid == fence.rid);
        let waits = Waits {
            processes: asked.map(|(id, _)| *id).collect(),
            writes: writing.map(|((_, write), _)| *write).collect(),
            insiders: BTreeSet::new(),
        };
        assert_eq!(done, waits.is_over());
        if !done {
            self.fences.insert((segment, fence.rid), (fence, waits));
        }
    }

    fn take_epoch(&mut self, epoch: u16, out: &mut Vec<Output>) {
        let done = self.owner.take_epoch(self.now, Epoch::numbered(epoch), out).unwrap();
        self.epoch = self.epoch.max(epoch);
        for segment in 0..2 {
            // Asked anew: those who have not sworn it off yet.
            self.epochs.retain(|(of, pending), _| *of != segment || *pending > epoch);
            let writing = self.writes.iter().filter(|((of, _), write)| *of == segment && write.rid.epoch() < epoch);
            let inside = self.insiders.iter().filter(|insider| insider.0 == segment && self.obeyed[insider] < epoch);
            let silent =
                self.processes.iter().filter(|(_, process)| process.segment == segment && process.obeyed < epoch);
            let waits = Waits {
                processes: silent.map(|(id, _)| *id).collect(),
                writes: writing.map(|((_, write), _)| *write).collect(),
                insiders: inside.map(|(_, number)| *number).collect(),
            };
            assert_eq!(done.contains(&uuid(segment)), waits.is_over());
            if !waits.is_over() {
                self.epochs.insert((segment, epoch), waits);
            }
        }
    }

    // --------------------------------------- writes and stores of the owner's process

    fn write(&mut self, segment: u8) {
        let placement = self.placement(segment, 1);
        let memory = &self.memories[usize::from(segment)];
        let write = memory.admit(placement.rid, placement.offset, placement.len);
        self.writes.insert((segment, write), placement);
    }

    fn write_ends(&mut self, (segment, write): (u8, u64)) {
        self.memories[usize::from(segment)].ended(write);
        self.writes.remove(&(segment, write));
        let fences = self.fences.iter_mut().filter(|((of, _), _)| *of == segment).map(|(_, (_, waits))| waits);
        let epochs = self.epochs.iter_mut().filter(|((of, _), _)| *of == segment).map(|(_, waits)| waits);
        for waits in fences.chain(epochs) {
            waits.writes.remove(&write);
        }
    }

    fn enter(&mut self, segment: u8) {
        let number = self.memories[usize::from(segment)].insiders.borrow_mut().enter();
        self.insiders.insert((segment, number));
        self.obeyed.insert((segment, number), self.epoch);
    }

    fn insider_leaves(&mut self, insider: (u8, u64)) {
        self.memories[usize::from(insider.0)].insiders.borrow_mut().leave(insider.1);
        self.insiders.remove(&insider);
        self.wait_no_more_for(insider, u16::MAX);
    }

    fn insider_obeys(&mut self, insider: (u8, u64)) {
        self.memories[usize::from(insider.0)].insiders.borrow_mut().confirm(insider.1, Epoch::numbered(self.epoch));
        self.obeyed.insert(insider, self.epoch);
        self.wait_no_more_for(insider, self.epoch);
    }

    /// An insider is waited for no more by what asks for an epoch up to this one.
    fn wait_no_more_for(&mut self, (segment, number): (u8, u64), epoch: u16) {
        let pending = self.epochs.iter_mut().filter(|((of, pending), _)| *of == segment && *pending <= epoch);
        for (_, waits) in pending {
            waits.insiders.remove(&number);
        }
    }

    fn is_gone(&mut self, id: u64) {
        self.processes.remove(&id);
        let fences = self.fences.values_mut().map(|(_, waits)| waits);
        for waits in fences.chain(self.epochs.values_mut()) {
            waits.processes.remove(&id);
        }
    }

    /// Takes what the owner says as the world would.
    fn hear(&mut self, out: Vec<Output>) {
        let segment = |uuid: SegmentUuid| uuid.0[0] - 1;
        for output in out {
            match output {
                Output::Send { frame: Frame { op: Op::Upgraded, .. }, .. } => {}
                Output::Send { to, frame } => {
                    let process = self.processes.get_mut(&to).expect("nothing is sent to one that is gone");
                    assert!(process.connected, "nothing is sent over a connection that is lost");
                    process.asked.push(frame);
                }
                Output::Fenced { uuid, rid } => {
                    let (_, waits) = self.fences.remove(&(segment(uuid), rid)).expect("it is pending");
                    assert!(waits.is_over(), "{:#x} is fenced, and waits for {waits:?}", rid.0);
                }
                Output::EpochTaken { epoch, uuid } => {
                    let waits = self.epochs.remove(&(segment(uuid), epoch)).expect("it is pending");
                    assert!(waits.is_over(), "epoch {epoch} is taken, and waits for {waits:?}");
                    assert!(self.owner.taken(&uuid) >= epoch);
                }
                Output::Cut { uuid, writes } => {
                    writes.iter().for_each(|write| assert!(self.writes.contains_key(&(segment(uuid), *write))));
                }
                Output::Forget { attachment } => assert!(!self.processes.contains_key(&attachment)),
                Output::AskInsiders { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Those who are left answer all that they are asked, or end; each write ends, and each store obeys.
    fn come_to_rest(&mut self) {
        let writes: Vec<_> = self.writes.keys().copied().collect();
        writes.into_iter().for_each(|write| self.write_ends(write));
        let insiders: Vec<_> = self.insiders.iter().copied().collect();
        insiders.into_iter().for_each(|insider| self.insider_obeys(insider));
        let processes: Vec<u64> = self.processes.keys().copied().collect();
        for id in processes {
            let mut out = Vec::new();
            self.owner.room(id, true, &mut out);
            self.hear(out);
            while !self.processes[&id].asked.is_empty() {
                let mut out = Vec::new();
                self.answer(id, |_| 0, &mut out);
                self.hear(out);
            }
            if !self.processes[&id].connected || !self.processes[&id].knows_pins {
                let mut out = Vec::new();
                self.end(id, &mut out);
                self.hear(out);
            }
        }
        self.take(&Step::Wait);
    }
}

fn pick<T>(from: impl Iterator<Item = T>, which: &Index) -> Option<T> {
    let all: Vec<T> = from.collect();
    if all.is_empty() {
        None
    } else {
        {
            let at = which.index(all.len());
            all.into_iter().nth(at)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_promise_is_kept_when_all_that_it_waits_for_is_over_and_not_before(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.take(step));
        world.come_to_rest();
        prop_assert!(world.fences.is_empty() && world.epochs.is_empty());
        for segment in 0..2 {
            prop_assert_eq!(world.owner.taken(&uuid(segment)), world.epoch);
        }
    }
}
