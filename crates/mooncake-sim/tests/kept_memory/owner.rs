//! Processes that own the memory, one after the other, or would.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use mooncake_client::machine::inheritance::{Inheritance, Next};
use mooncake_core::{Keep, Push, SegmentSpec};
use mooncake_ids::SessionId;
use mooncake_master::machine::anchor_frames::Said;
use mooncake_segment::Epoch;
use mooncake_segment::machine::{Fence, Output, Owner, Tenure};

use crate::World;
use crate::master::{BOOT, Fact, KEPT_MS, SECRET, UUID};
use crate::memory::{BYTES, Mapped, Of};

pub struct OwnerProcess {
    pub pid: u32,
    inheritance: Inheritance,
    pub owned: Option<Owned>,
    /// Its session, and its anchor; 0 where that is broken.
    pub session: Option<(SessionId, u32)>,
    pub is_claiming: bool,
    pub inbox: VecDeque<Push>,
}

pub struct Owned {
    pub book: Owner<Of>,
    pub mapped: Rc<Mapped>,
}

impl World {
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.master.now.0)
    }

    /// The process that owns the memory, if one does.
    pub fn serving(&mut self) -> Option<&mut OwnerProcess> {
        self.owners.values_mut().find(|owner| owner.owned.is_some())
    }

    pub fn start_owner(&mut self) -> u32 {
        self.pids += 1;
        let pid = self.pids;
        let inheritance = Inheritance::new(self.time(), BOOT);
        let (owned, session, inbox) = (None, None, VecDeque::new());
        self.owners.insert(pid, OwnerProcess { pid, inheritance, owned, session, is_claiming: false, inbox });
        pid
    }

    /// The first one makes the memory, mounts it and has it kept.
    pub fn first_owner(&mut self) {
        let pid = self.start_owner();
        for _ in 0..3 {
            self.owner_step(pid);
        }
        let session = self.master.open(pid);
        self.master.owners.insert(session, pid);
        self.master.queues += 1;
        self.master.anchors.set(session, self.master.queues);
        let spec = SegmentSpec { uuid: UUID, name: "kept".into(), bytes: BYTES, endpoint: Vec::new() };
        let origin = self.master.origin(session);
        self.master.core.mount(self.master.now, origin, spec, BYTES, &mut self.master.fx).unwrap();
        let (origin, keep) = (self.master.origin(session), Keep { ms: KEPT_MS, secret: SECRET, turn: 0 });
        self.master.core.keep(self.master.now, origin, keep, &mut self.master.fx).unwrap();
        self.collect();
        let queue = self.master.queues;
        self.owners.get_mut(&pid).expect("it began").session = Some((session, queue));
    }

    pub fn owner_step(&mut self, pid: u32) {
        let (now, dice) = (self.time(), self.dice.below(8));
        let Some(owner) = self.owners.get_mut(&pid) else { return };
        match owner.inheritance.next(now) {
            Next::Wait(_) => {}
            Next::Lock => {
                let has_lock = self.memory.locked.get().is_none_or(|other| other == pid);
                if has_lock {
                    self.memory.locked.set(Some(pid));
                }
                owner.inheritance.lock_tried(now, has_lock, self.memory.state.get());
            }
            Next::Write(state) => {
                self.memory.state.set(state);
                owner.inheritance.written();
            }
            Next::Own(tenure) if owner.owned.is_none() => self.own(pid, tenure),
            Next::Own(_) if owner.session.is_none() => {
                if !std::mem::replace(&mut owner.is_claiming, true) || dice == 0 {
                    let turn = owner.inheritance.turn();
                    self.master.facts.push_back(Fact::Claims(pid, turn));
                }
            }
            Next::Own(_) => match dice {
                0..4 => self.hear_push(pid),
                4..6 => self.look_at_elders(pid),
                6 => self.resume_owner(pid),
                _ => {}
            },
            Next::Renounce(_) => self.end_owner(pid),
        }
    }

    fn own(&mut self, pid: u32, tenure: Tenure) {
        assert!(self.serving().is_none(), "two processes own the memory");
        assert!(!self.memory.given_back.get(), "its memory was given back");
        let taken = if tenure.number == 1 { self.master.epoch() } else { tenure.taken };
        let tenure = Tenure { taken, ..tenure };
        let (mut book, mapped) = (Owner::default(), Mapped::new(&self.memory, taken));
        book.inherit(UUID, Of(mapped.clone()), tenure);
        if tenure.number == 1 {
            self.write_taken(taken);
        }
        self.owners.get_mut(&pid).expect("it owns it").owned = Some(Owned { book, mapped });
    }

    fn write_taken(&self, taken: Epoch) {
        let mut state = self.memory.state.get();
        state.taken = taken;
        self.memory.state.set(state);
    }

    fn hear_push(&mut self, pid: u32) {
        let now = self.time();
        let Some(owner) = self.owners.get_mut(&pid) else { return };
        let (Some(push), Some(Owned { book, .. })) = (owner.inbox.pop_front(), owner.owned.as_mut()) else { return };
        let mut out = Vec::new();
        match push {
            Push::Fence { uuid, replica, writer, writer_done } => {
                let (offset, len) = (replica.extent.offset, replica.extent.length);
                let fence = Fence { uuid, rid: replica.rid, offset, len, writer: writer.0, writer_done };
                if book.fence(now, fence, &mut out) {
                    out.push(Output::Fenced { uuid, rid: replica.rid });
                }
            }
            Push::TakeEpoch(epoch) => {
                let asked = Epoch { number: epoch.number, id: epoch.id };
                let taken = book.take_epoch(now, asked, &mut out).unwrap_or_default();
                out.extend(taken.into_iter().map(|uuid| Output::EpochTaken { epoch: asked.number, uuid }));
            }
            _ => {}
        }
        book.check_promises(now, &mut out);
        self.carry_out(pid, out);
    }

    /// Looks at the locks of earlier tenures, and at all that is waited for.
    pub fn look_at_elders(&mut self, pid: u32) {
        let now = self.time();
        let Some(Owned { book, .. }) = self.owners.get_mut(&pid).and_then(|owner| owner.owned.as_mut()) else { return };
        if book.awaits_elders(&UUID) {
            book.elders_seen(&UUID, self.memory.elders(book.tenure(&UUID)));
        }
        let mut out = Vec::new();
        book.check_promises(now, &mut out);
        self.carry_out(pid, out);
    }

    pub fn carry_out(&mut self, pid: u32, out: Vec<Output>) {
        for output in out {
            let say = match output {
                Output::Send { to, frame } => {
                    let attached = self.peers.iter_mut().flat_map(|peer| &mut peer.attached);
                    let its = attached.into_iter().find(|it| it.owner == pid && it.number == to);
                    its.into_iter().for_each(|it| it.to_peer.push_back(frame));
                    continue;
                }
                Output::HangUp { attachment } => {
                    let attached = self.peers.iter_mut().flat_map(|peer| &mut peer.attached);
                    let its = attached.into_iter().find(|it| it.owner == pid && it.number == attachment);
                    its.into_iter().for_each(|it| it.is_hung_up = true);
                    continue;
                }
                Output::Fenced { rid, .. } => Said::FenceDone(vec![rid]),
                Output::EpochTaken { epoch, uuid } => {
                    let book = &self.owners[&pid].owned.as_ref().expect("it has taken it").book;
                    // Before it says so: its heir lets no older write begin.
                    self.write_taken(book.epoch());
                    self.seen.taken += 1;
                    Said::EpochTaken { epoch, segments: vec![uuid] }
                }
                Output::Cut { writes, .. } => {
                    self.cut_lanes(pid, &writes);
                    continue;
                }
                // Asked for once more, the extent has another placement by now; or had one where the log lost its end,
                // and comes back with the epoch. One that stayed in quarantine would show when all is calm.
                Output::Marred { .. } => continue,
                Output::Outside(_) => panic!("{output:?}"),
                Output::Forget { .. } | Output::AskInsiders { .. } | Output::ProcessGone(_) => continue,
            };
            // Over a broken anchor nothing is said: the master asks again.
            if let Some((session, queue)) = self.owners[&pid].session.filter(|(_, queue)| *queue != 0) {
                self.master.facts.push_back(Fact::Said(session, queue, say));
            }
        }
    }

    fn resume_owner(&mut self, pid: u32) {
        let Some(owner) = self.owners.get_mut(&pid) else { return };
        let (Some((session, 0)), Some(owned)) = (owner.session, owner.owned.as_ref()) else { return };
        let taken = owned.book.taken(&UUID);
        // What is sent down the new anchor is for it.
        self.master.queues += 1;
        let queue = self.master.queues;
        owner.session = Some((session, queue));
        owner.inbox.clear();
        let known = self.resume(session, u64::from(pid), &[taken], Vec::new());
        if let Some(owner) = self.owners.get_mut(&pid) {
            match known {
                Some(_) => drop(self.master.anchors.set(session, queue)),
                None => owner.session = None,
            }
        }
    }

    pub fn break_anchor(&mut self) {
        let Some(owner) = self.serving() else { return };
        if let Some((session, queue)) = owner.session.filter(|(_, queue)| *queue != 0) {
            owner.session = Some((session, 0));
            owner.inbox.clear();
            self.master.facts.push_back(Fact::AnchorEnded(session, queue));
        }
    }

    /// A process ends: its locks, lanes and connections with it. Others hear of that when they do.
    pub fn end_owner(&mut self, pid: u32) {
        let Some(owner) = self.owners.remove(&pid) else { return };
        if self.memory.locked.get() == Some(pid) {
            self.memory.locked.set(None);
        }
        if owner.owned.is_some() {
            self.died_at.get_or_insert(self.master.now);
            self.seen.owners_ended += 1;
            self.lanes_end(pid);
            let saw = self.peers.iter().filter(|it| it.attached.iter().any(|attached| attached.owner == pid));
            let saw: Vec<SessionId> = saw.map(|peer| peer.session).collect();
            // Said again over the next connection.
            for session in saw.iter().chain(&saw) {
                self.master.facts.push_back(Fact::PeerGone(*session, pid));
            }
        }
        if let Some((session, queue)) = owner.session {
            self.master.facts.push_back(Fact::AnchorEnded(session, queue));
        }
        // Of a claim whose reply it did not hear, too.
        let sessions: Vec<SessionId> =
            self.master.owners.iter().filter(|(_, other)| **other == pid).map(|(session, _)| *session).collect();
        self.master.facts.extend(sessions.into_iter().map(Fact::ProcessGone));
    }
}
