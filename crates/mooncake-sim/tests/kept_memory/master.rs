//! The master: the product's core with a log, and what is on its way to it.

use std::collections::{BTreeMap, VecDeque};

use mooncake_core::{
    Claim, Core, Effects, Inherited, ListedViews, Origin, Push, PutConfig, PutStarted, Record, Refused, Replica,
    STEP_OBJECTS, SessionSpec, StartOutcome, Time, To,
};
use mooncake_ids::{Rid, SegmentUuid, SessionId};
use mooncake_master::machine::anchor_frames::Said;
use mooncake_master::machine::anchors::{self, Anchor, Anchors};
use mooncake_segment::Epoch;
use mooncake_wire::message::ProcessIdentity;
use prost::Message;

use crate::World;
use crate::memory::granules;

pub const UUID: SegmentUuid = SegmentUuid([1; 16]);
pub const BOOT: [u8; 16] = [7; 16];
pub const SECRET: [u8; 16] = [9; 16];
/// How long memory is kept without an owner, and a little less.
pub const KEPT_MS: u64 = 60_000;

/// What the master hears of some time later.
pub enum Fact {
    /// On an anchor, which may be closed or replaced by then.
    Said(SessionId, u32, Said),
    AnchorEnded(SessionId, u32),
    ProcessGone(SessionId),
    /// A peer has seen the end of a process that owned the memory.
    PeerGone(SessionId, u32),
    /// The hello of a process that claims the memory.
    Claims(u32, u64),
}

pub struct Master {
    pub core: Core,
    pub anchors: Anchors<u32>,
    pub now: Time,
    pub fx: Effects,
    pub log: Vec<Record>,
    /// Where each frame ends: of an operation the log has all records or none.
    frames: Vec<usize>,
    /// So many records outlive a loss of power.
    pub synced: usize,
    pub facts: VecDeque<Fact>,
    pub queues: u32,
    pub sequences: BTreeMap<SessionId, u64>,
    /// Process of each session of an owner.
    pub owners: BTreeMap<SessionId, u32>,
    /// What was committed and removed, each with the length of the log then.
    pub history: Vec<(usize, Vec<u8>, Option<Rid>)>,
    keys: BTreeMap<Rid, Vec<u8>>,
    /// The heir has yet to take the epoch.
    is_inherited: bool,
    /// The segment is Gone.
    pub is_gone: bool,
}

pub fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity { boot_id: BOOT.to_vec().into(), pid, ..ProcessIdentity::default() }
}

pub fn spec_of(pid: u32) -> SessionSpec {
    let process = identity(pid).encode_to_vec();
    SessionSpec { secret: u64::from(pid), name: format!("process-{pid}"), boot_id: BOOT.to_vec(), process }
}

impl Master {
    pub fn new() -> Master {
        let mut master = Master {
            core: Core::new(Default::default()),
            anchors: Anchors::default(),
            now: Time(1_000_000),
            fx: Effects::default(),
            log: Vec::new(),
            frames: Vec::new(),
            synced: 0,
            facts: VecDeque::new(),
            queues: 0,
            sequences: BTreeMap::new(),
            owners: BTreeMap::new(),
            history: Vec::new(),
            keys: BTreeMap::new(),
            is_inherited: false,
            is_gone: false,
        };
        master.core.begin(master.now, None, &mut master.fx);
        master
    }

    pub fn epoch(&self) -> Epoch {
        let epoch = self.core.epoch();
        Epoch { number: epoch.number, id: epoch.id }
    }

    pub fn origin(&mut self, session: SessionId) -> Origin {
        let sequence = self.sequences.entry(session).or_default();
        *sequence += 1;
        Origin { session, sequence: *sequence, answered_below: *sequence }
    }

    pub fn truth(&self, key: &[u8]) -> Option<Rid> {
        self.history.iter().rev().find(|(_, other, _)| other == key).and_then(|(.., rid)| *rid)
    }

    pub fn open(&mut self, pid: u32) -> SessionId {
        self.core.open_session(self.now, spec_of(pid), &mut self.fx).unwrap()
    }
}

impl World {
    /// Logs what an operation left, looks whether it may be, and sends what it says.
    pub fn collect(&mut self) {
        loop {
            let records = std::mem::take(&mut self.master.fx.records);
            let pushes = std::mem::take(&mut self.master.fx.pushes);
            if records.is_empty() && pushes.is_empty() {
                return;
            }
            for record in records {
                self.observe(&record);
                self.master.log.push(record);
            }
            self.master.frames.push(self.master.log.len());
            for (to, push) in pushes {
                self.push(to, push);
            }
        }
    }

    fn push(&mut self, to: To, push: Push) {
        let is_over = matches!(push, Push::SessionOver(_));
        for owner in self.owners.values_mut() {
            let is_its = owner.session.is_some_and(|(session, _)| to == To::Session(session));
            if is_its && is_over {
                // Another claim came behind its own: it claims its memory once more.
                owner.session = None;
                owner.inbox.clear();
            } else if is_its || to == To::Everybody {
                owner.inbox.push_back(push.clone());
            }
        }
    }

    fn observe(&mut self, record: &Record) {
        let (memory, at) = (self.memory.clone(), self.master.log.len() + 1);
        let overlaps = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| a.start < b.end && b.start < a.end;
        match record {
            Record::Reserved { key, replicas, .. } | Record::ReservedWith { key, replicas, .. } => {
                let Replica { rid, extent } = replicas[0];
                assert!(!self.master.is_inherited, "{rid:?} is placed before the heir has taken the epoch");
                let range = granules(extent.offset, extent.length);
                let written = memory.active.borrow().values().find(|it| overlaps(&it.granules, &range)).cloned();
                assert!(written.is_none(), "{rid:?} is placed where {written:?} is under way");
                let viewed = memory.views.borrow().values().any(|view| overlaps(view, &range));
                assert!(!viewed, "{rid:?} is placed under a view");
                memory.owners.borrow_mut()[range].fill(Some(rid));
                self.master.keys.insert(rid, key.to_vec());
            }
            Record::Released(rid) => {
                let writes = memory.active.borrow().values().any(|it| it.rid == *rid);
                assert!(!writes, "{rid:?} is given back while its writer may still write");
            }
            Record::Committed { reservation, .. } => {
                let key = self.master.keys[reservation].clone();
                self.master.history.push((at, key, Some(*reservation)));
            }
            Record::Removed { key, .. } | Record::ReplicaDropped { key, .. } => {
                self.master.history.push((at, key.to_vec(), None));
            }
            Record::SegmentGone(_) => {
                let due = self.died_at.map(|at| at.plus_ms(KEPT_MS));
                assert!(due.is_some_and(|due| due <= self.master.now), "kept memory is Gone before its time is over");
                self.master.is_gone = true;
            }
            Record::SegmentMoved { .. } => {
                self.died_at = None;
                self.master.is_inherited = true;
                self.seen.heirs += 1;
            }
            Record::SegmentTookEpoch { .. } => self.master.is_inherited = false,
            _ => {}
        }
    }

    /// Something that was on its way to the master comes there.
    pub fn hear_fact(&mut self) {
        if self.master.facts.is_empty() {
            return;
        }
        // What different processes say comes in any order, what one connection carries in its own.
        let at = self.dice.below(self.master.facts.len() as u64) as usize;
        let at = match &self.master.facts[at] {
            Fact::Said(session, ..) | Fact::AnchorEnded(session, _) => {
                let of = *session;
                let is_first =
                    |fact: &Fact| matches!(fact, Fact::Said(other, ..) | Fact::AnchorEnded(other, _) if *other == of);
                self.master.facts.iter().position(is_first).unwrap_or(at)
            }
            _ => at,
        };
        let fact = self.master.facts.remove(at).expect("it is there");
        let Master { core, anchors, now, fx, .. } = &mut self.master;
        match fact {
            Fact::Said(session, queue, said) => {
                let _ = said.obey(core, anchors, *now, Anchor { session, queue: &queue }, fx);
            }
            Fact::AnchorEnded(session, queue) => {
                anchors::ended(core, anchors, *now, Anchor { session, queue: &queue }, fx);
            }
            Fact::ProcessGone(session) => core.process_gone(*now, session, fx),
            Fact::PeerGone(session, pid) => {
                let said = Said::PeerGone { uuid: UUID, process: Some(identity(pid)) };
                let _ = said.obey(core, anchors, *now, Anchor { session, queue: &0 }, fx);
            }
            Fact::Claims(pid, turn) => self.hear_claim(pid, turn),
        }
        self.collect();
    }

    fn hear_claim(&mut self, pid: u32, turn: u64) {
        let claim =
            Claim { secret: SECRET, turn, segments: vec![(UUID, pid.to_le_bytes().to_vec())], lost: Vec::new() };
        let claimed = self.master.core.open_heir(self.master.now, spec_of(pid), &claim, &mut self.master.fx);
        let is_heard = self.dice.percent(80);
        match claimed {
            Ok(Inherited { session, gone }) => {
                assert_eq!(gone, []);
                let is_held = self.owners.values().any(|owner| owner.session.is_some());
                let is_late = is_held && !self.owners.contains_key(&pid);
                assert!(!is_late, "a process that has ended takes the memory of one that lives");
                self.master.queues += 1;
                let queue = self.master.queues;
                self.master.anchors.set(session, queue);
                self.master.owners.insert(session, pid);
                // The former session hears that it is over before this one is known to be its process's.
                let records = std::mem::take(&mut self.master.fx.records);
                let (over, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.master.fx.pushes)
                    .into_iter()
                    .partition(|(_, push)| matches!(push, Push::SessionOver(_)));
                over.into_iter().for_each(|(to, push)| self.push(to, push));
                self.master.fx.records = records;
                self.master.fx.pushes = rest;
                match self.owners.get_mut(&pid) {
                    Some(owner) if is_heard => owner.session = Some((session, queue)),
                    Some(_) => self.master.facts.push_back(Fact::AnchorEnded(session, queue)),
                    None => {
                        self.master.facts.push_back(Fact::AnchorEnded(session, queue));
                        self.master.facts.push_back(Fact::ProcessGone(session));
                    }
                }
            }
            Err(Refused::NotKept) => {
                assert!(self.master.is_gone, "an heir is refused");
                self.owners.remove(&pid);
            }
            Err(_) => {}
        }
        self.collect();
        match self.owners.get_mut(&pid) {
            Some(owner) => owner.is_claiming = false,
            None => _ = self.died_at.get_or_insert(self.master.now),
        }
    }

    pub fn pass(&mut self, ms: u64) {
        let until = self.master.now.plus_ms(ms);
        while self.master.now < until {
            self.master.now = Time((self.master.now.0 + 200_000).min(until.0));
            let owners = self.owners.values().filter_map(|owner| owner.session.filter(|(_, queue)| *queue != 0));
            let peers = self.peers.iter().filter(|peer| !peer.is_frozen && peer.is_back);
            let beating: Vec<SessionId> =
                owners.map(|(session, _)| session).chain(peers.map(|it| it.session)).collect();
            let Master { core, now, fx, .. } = &mut self.master;
            for session in beating {
                core.beat(*now, session, &[], &[], fx);
            }
            core.tick(*now, fx);
            while core.background(*now, STEP_OBJECTS, fx) {}
            fx.woken.clear();
            self.collect();
        }
    }

    /// The master dies. Its successor goes on with the log, or with what is left of it.
    pub fn restart_master(&mut self, loses_end: bool) {
        let Master { log, frames, synced, is_inherited, .. } = &mut self.master;
        if loses_end {
            let lost = self.dice.below(30);
            for _ in 0..lost {
                frames.pop_if(|end| *end > *synced);
            }
            log.truncate((*frames.last().expect("it began")).max(*synced));
        }
        let mut core = Core::new(Default::default());
        log.iter().for_each(|record| core.replay(record.clone()).unwrap());
        let is_of_owner =
            |record: &&Record| matches!(record, Record::SegmentMoved { .. } | Record::SegmentTookEpoch { .. });
        let last = log.iter().rev().find(is_of_owner);
        *is_inherited = matches!(last, Some(Record::SegmentMoved { .. }));
        let (length, epoch) = (log.len(), self.master.core.epoch().number);
        self.master.core = core;
        self.master.history.retain(|(at, ..)| *at <= length);
        self.master.anchors = Anchors::default();
        // Connections ended with it, and what was in them.
        self.master.facts.retain(|fact| matches!(fact, Fact::PeerGone(..)));
        for owner in self.owners.values_mut() {
            owner.inbox.clear();
            owner.is_claiming = false;
            owner.session = owner.session.map(|(session, _)| (session, 0));
        }
        self.peers.iter_mut().for_each(|peer| peer.is_back = false);
        self.master.core.begin(self.master.now, loses_end.then_some(epoch + 1), &mut self.master.fx);
        self.collect();
        if loses_end {
            self.master.synced = self.master.log.len();
            self.seen.lost_ends += 1;
            // The owner that the master knows may be an earlier one.
            self.died_at = Some(Time(0));
        }
        // It judges the processes of the sessions that it finds.
        let owners = self.master.owners.iter().filter(|(_, pid)| !self.owners.contains_key(pid));
        let ended: Vec<SessionId> = owners.map(|(session, _)| *session).collect();
        self.master.facts.extend(ended.into_iter().map(Fact::ProcessGone));
    }

    /// The anchor of a session is back. The views that the master does not know; none where the session is over.
    pub fn resume(&mut self, session: SessionId, secret: u64, taken: &[u16], views: Vec<Rid>) -> Option<Vec<Rid>> {
        let segments: Vec<(SegmentUuid, u16)> = taken.iter().map(|taken| (UUID, *taken)).collect();
        let mut views = ListedViews::new(views);
        let Master { core, now, fx, .. } = &mut self.master;
        if core.check_session(session, secret).is_err() {
            return None;
        }
        loop {
            while !core.look_for_views(session, &mut views, 64) {}
            if !views.has_found() {
                break;
            }
            core.note_found_views(*now, session, &mut views, 64, fx);
        }
        let resumed = core.resume_session(*now, session, secret, &segments, views, fx);
        self.collect();
        resumed.ok().map(|resumed| resumed.unknown_pins)
    }

    pub fn put_start(&mut self, session: SessionId, key: &[u8], size: u64, replace: bool) -> Option<Replica> {
        let origin = self.master.origin(session);
        let config = PutConfig { replace, ..PutConfig::default() };
        let Master { core, now, fx, .. } = &mut self.master;
        let started = core.put_start(*now, origin, &[(key, size)], &config, false, fx).ok()?;
        let slots = match started {
            PutStarted::Now(slots) => slots,
            PutStarted::Parked(ticket) => loop {
                if let Some(at) = self.master.fx.woken.iter().position(|(other, _)| *other == ticket) {
                    break self.master.fx.woken.remove(at).1;
                }
                self.master.core.background(self.master.now, STEP_OBJECTS, &mut self.master.fx);
                self.collect();
            },
        };
        self.collect();
        match &slots[0] {
            StartOutcome::Placed(replicas) => Some(replicas[0]),
            _ => None,
        }
    }
}
