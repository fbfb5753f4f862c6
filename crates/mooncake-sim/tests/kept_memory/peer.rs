//! Processes that map the memory: they write it, have views of it, stand still and go on.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use mooncake_core::Replica;
use mooncake_ids::{Rid, SessionId};
use mooncake_mutant::mutant;
use mooncake_segment::Epoch;
use mooncake_segment::machine::{Frame, Heard, Newcomer, Peer, WritePermission};

use crate::World;
use crate::master::{Fact, UUID};
use crate::memory::{Lock, Mapped, Of, granules};

pub struct PeerProcess {
    pub pid: u32,
    pub session: SessionId,
    /// Its version knows of locks.
    knows_locks: bool,
    pub is_frozen: bool,
    /// The master that there is has its session.
    pub is_back: bool,
    pub attached: Vec<Attached>,
    pub puts: Vec<Put>,
    pub views: Vec<View>,
}

pub struct Attached {
    pub id: u64,
    /// The process that let it in, and the number that it goes by there.
    pub owner: u32,
    pub number: u64,
    pub session: SessionId,
    tenure: u32,
    pub peer: Peer,
    pub mapped: Rc<Mapped>,
    to_owner: VecDeque<Frame>,
    pub to_peer: VecDeque<Frame>,
    pub is_hung_up: bool,
    /// This process has seen that its owner has ended, or hung up.
    pub is_over: bool,
    asked: Vec<Epoch>,
    locks_views: bool,
    locks_writes: bool,
    pub is_writable: bool,
}

pub struct Put {
    pub replica: Replica,
    pub stage: Stage,
}

pub enum Stage {
    Placed,
    /// Over an attachment, or a lane to a process, by the number in a gate; so many steps are done.
    Writing {
        over: Way,
        gate: u64,
        number: u64,
        done: usize,
    },
    /// Its lane broke.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Mapped(u64),
    Lane(u32),
}

pub struct View {
    pub number: u64,
    pub rid: Rid,
    pub granules: Range<usize>,
    pub words: Vec<u64>,
    pub attached: u64,
    /// The master that there is knows it.
    pub is_known: bool,
}

impl Put {
    pub fn granules(&self) -> Range<usize> {
        granules(self.replica.extent.offset, self.replica.extent.length)
    }
}

impl World {
    pub fn start_peer(&mut self, knows_locks: bool) -> PeerProcess {
        self.pids += 1;
        let session = self.master.open(self.pids);
        self.collect();
        PeerProcess {
            pid: self.pids,
            session,
            knows_locks,
            is_frozen: false,
            is_back: true,
            attached: Vec::new(),
            puts: Vec::new(),
            views: Vec::new(),
        }
    }

    /// As [`Self::peer_step`], of a process that begins nothing new.
    pub fn go_on(&mut self, nth: usize) {
        if !self.peers[nth].is_back {
            return self.resume_peer(nth);
        }
        match self.dice.below(6) {
            0 => self.begin(nth),
            1 | 2 => self.write_on(nth),
            _ => (0..8).for_each(|_| self.attend(nth)),
        }
    }

    pub fn peer_step(&mut self, nth: usize) {
        if self.peers[nth].is_frozen {
            return;
        }
        if !self.peers[nth].is_back {
            return self.resume_peer(nth);
        }
        match self.dice.below(16) {
            0 => self.attach(nth),
            1 | 2 => self.place(nth),
            3 | 4 => self.begin(nth),
            5..8 => self.write_on(nth),
            8 => self.view(nth),
            9 if self.dice.percent(10) => self.end_view(nth),
            _ => (0..8).for_each(|_| self.attend(nth)),
        }
    }

    fn resume_peer(&mut self, nth: usize) {
        let PeerProcess { pid, session, views, .. } = &self.peers[nth];
        let (pid, session) = (*pid, *session);
        let rids = views.iter().filter(|view| view.is_known).map(|view| view.rid).collect();
        let known = self.resume(session, u64::from(pid), &[], rids);
        let mut unknown = known.clone();
        let next = if known.is_none() { self.master.open(pid) } else { session };
        self.collect();
        let peer = &mut self.peers[nth];
        for view in &mut peer.views {
            let lost = unknown.as_mut().and_then(|rids| rids.iter().position(|rid| *rid == view.rid));
            match (&mut unknown, lost) {
                (Some(rids), Some(at)) => {
                    rids.swap_remove(at);
                    view.is_known = false;
                }
                (None, _) => view.is_known = false,
                _ => {}
            }
        }
        (peer.session, peer.is_back) = (next, true);
    }

    fn attach(&mut self, nth: usize) {
        let PeerProcess { session, knows_locks, attached, .. } = &self.peers[nth];
        let (session, knows_locks) = (*session, *knows_locks);
        let is_linked = attached.iter().any(|it| !it.is_over && it.session == session);
        // One that knows of no locks is given nothing.
        if is_linked || !knows_locks && !mutant!(UnlockedPeersWrite) {
            return;
        }
        let memory = self.memory.clone();
        let Some(owner) = self.serving() else { return };
        let (pid, owned) = (owner.pid, owner.owned.as_mut().expect("it serves"));
        let number = owned.book.attach(Newcomer { session: session.0, uuid: UUID, knows_pins: true });
        let (tenure, obeyed) = (owned.book.tenure(&UUID), owned.mapped.epoch());
        self.numbers += 1;
        let attached = Attached {
            id: self.numbers,
            owner: pid,
            number,
            session,
            tenure,
            peer: Peer::of_tenure(obeyed, if knows_locks { tenure } else { 0 }),
            mapped: Mapped::new(&memory, obeyed),
            to_owner: VecDeque::new(),
            to_peer: VecDeque::new(),
            is_hung_up: false,
            is_over: false,
            asked: Vec::new(),
            locks_views: false,
            locks_writes: false,
            is_writable: false,
        };
        self.peers[nth].attached.push(attached);
    }

    /// One step of what a process does about one of its attachments.
    fn attend(&mut self, nth: usize) {
        let count = self.peers[nth].attached.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.dice.below(count) as usize;
        let what = self.dice.below(8);
        let (knows_locks, epoch) = (self.peers[nth].knows_locks, self.master.epoch());
        // Some only write.
        let has_views = self.peers[nth].pid.is_multiple_of(2);
        let all_known = self.peers[nth].views.iter().all(|view| view.is_known);
        let owner_lives = self.owners.contains_key(&self.peers[nth].attached[at].owner);
        let memory = self.memory.clone();
        let it = &mut self.peers[nth].attached[at];
        let own = Of(it.mapped.clone());
        match what {
            0 if !it.is_over && has_views => match it.peer.view_question() {
                Some(_) if knows_locks && !it.locks_views => {
                    memory.lock(Lock::Views, it.tenure, it.id);
                    it.locks_views = true;
                }
                Some(question) => it.to_owner.push_back(question),
                None => {}
            },
            1 if !it.is_over => match it.peer.write_permission() {
                WritePermission::Ask(_) if knows_locks && !it.locks_writes => {
                    memory.lock(Lock::Writes, it.tenure, it.id);
                    it.locks_writes = true;
                }
                WritePermission::Ask(question) => {
                    it.to_owner.push_back(question);
                    it.peer.has_asked();
                }
                WritePermission::Granted => it.is_writable = true,
                WritePermission::Awaited => {}
            },
            2 | 3 => {
                let Some(frame) = it.to_owner.pop_front().filter(|_| owner_lives && !it.is_hung_up) else { return };
                let (pid, number, mut out) = (it.owner, it.number, Vec::new());
                let now = self.time();
                let owner = self.owners.get_mut(&pid).and_then(|owner| owner.owned.as_mut()).expect("it lives");
                owner.book.heard(number, &frame, &mut out);
                owner.book.check_promises(now, &mut out);
                self.carry_out(pid, out);
            }
            4 | 5 => match it.to_peer.pop_front() {
                Some(frame) => {
                    if let Heard::AskMaster(epoch) = it.peer.heard(&frame, &own) {
                        it.asked.push(epoch);
                    }
                }
                None if !owner_lives || it.is_hung_up => {
                    it.is_over = true;
                    let writing = it.mapped.gate.borrow_mut().close();
                    it.peer.leave(writing);
                }
                None => {}
            },
            6 => {
                // Its master is in that epoch, and knows all of its views.
                if all_known && it.asked.contains(&epoch) {
                    it.asked.clear();
                    it.peer.confirm(epoch);
                }
                let mut answers = Vec::new();
                it.peer.answer(&own, usize::MAX, &mut answers);
                it.to_owner.extend(answers);
            }
            _ => self.let_go(nth, at),
        }
    }

    /// What is over is unmapped when nothing needs it any more, and then its locks end.
    fn let_go(&mut self, nth: usize, at: usize) {
        let memory = self.memory.clone();
        let PeerProcess { attached, views, .. } = &mut self.peers[nth];
        let it = &mut attached[at];
        let own = Of(it.mapped.clone());
        if it.is_over && it.peer.has_left(&own) {
            it.is_writable = false;
            memory.unlock(Lock::Writes, it.id);
            if !views.iter().any(|view| view.attached == it.id) && it.mapped.gate.borrow().active() == 0 {
                memory.unlock(Lock::Views, it.id);
                attached.swap_remove(at);
            }
        }
    }

    /// A process ends, and another one comes in its place.
    pub fn kill_peer(&mut self, nth: usize) {
        let knows_locks = self.peers[nth].knows_locks;
        let next = self.start_peer(knows_locks);
        let former = std::mem::replace(&mut self.peers[nth], next);
        let memory = self.memory.clone();
        former.views.iter().for_each(|view| _ = memory.views.borrow_mut().remove(&view.number));
        for put in former.puts {
            let Stage::Writing { over, gate, number, .. } = put.stage else { continue };
            memory.active.borrow_mut().remove(&number);
            // Its last bytes have come.
            if let Way::Lane(pid) = over
                && let Some(owned) = self.owners.get(&pid).and_then(|owner| owner.owned.as_ref())
            {
                owned.mapped.gate.borrow_mut().ended(gate);
            }
        }
        let now = self.time();
        for it in former.attached {
            memory.unlock(Lock::Writes, it.id);
            memory.unlock(Lock::Views, it.id);
            if let Some(owned) = self.owners.get_mut(&it.owner).and_then(|owner| owner.owned.as_mut()) {
                let mut out = Vec::new();
                owned.book.process_ended(it.number, &mut out);
                owned.book.check_promises(now, &mut out);
                self.carry_out(it.owner, out);
            }
        }
        self.master.facts.push_back(Fact::ProcessGone(former.session));
    }

    /// Nothing of it is under way any more.
    pub fn is_at_rest(&self, nth: usize) -> bool {
        let PeerProcess { puts, views, attached, is_back, .. } = &self.peers[nth];
        puts.is_empty() && views.is_empty() && *is_back && !attached.iter().any(|it| it.is_over)
    }
}
