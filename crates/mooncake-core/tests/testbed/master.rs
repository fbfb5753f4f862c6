//! The shell of the core: a log, anchors, and the requests that are parked.

use std::collections::{BTreeMap, BTreeSet};

use mooncake_core::{
    Config, Core, Effects, Origin, PutStarted, Record, Refused, Replica, Rid, SegmentNo, SessionId, Ticket,
};

use super::client::{Reply, Request, host, plain};
use super::{Answered, CallId, Event, Process, World};

pub struct Master {
    pub core: Option<Core>,
    pub life: u32,
    pub log: Vec<Record>,
    /// Highest epoch that anybody has seen.
    pub epoch: u16,
    pub anchors: BTreeMap<SessionId, (Process, u64)>,
    parked: BTreeMap<Ticket, CallId>,
    /// Objects as the log tells of them: key -> replicas.
    pub objects: BTreeMap<Vec<u8>, Vec<Replica>>,
    reserved: BTreeMap<Rid, (Vec<u8>, Vec<Replica>)>,
    /// Rids of objects that left by eviction, removal, replacement, or with their segment.
    pub left: BTreeSet<Rid>,
}

fn config(seed: u64) -> Config {
    // Everything that takes long takes a tenth of it here.
    Config { reservation_ms: 3_000, retention_ms: 15_000, seed, ..Config::default() }
}

impl Master {
    pub fn new() -> Master {
        Master {
            core: None,
            life: 0,
            log: Vec::new(),
            epoch: 0,
            anchors: BTreeMap::new(),
            parked: BTreeMap::new(),
            objects: BTreeMap::new(),
            reserved: BTreeMap::new(),
            left: BTreeSet::new(),
        }
    }

    /// The first rid of the reservation that a rid belongs to.
    fn reservation_of(&self, rid: Rid) -> Option<Rid> {
        let mut before = self.reserved.range(..=rid).rev().take(8);
        before.find(|(_, (_, replicas))| replicas.iter().any(|replica| replica.rid == rid)).map(|(first, _)| *first)
    }

    fn note(&mut self, record: &Record) {
        match record {
            Record::Reserved { key, replicas, .. } | Record::ReservedWith { key, replicas, .. } => {
                self.reserved.insert(replicas[0].rid, (key.to_vec(), replicas.to_vec()));
            }
            Record::Committed { reservation, good, .. } => {
                let first = self.reservation_of(*reservation).expect("reserved before");
                let (key, mut replicas) = self.reserved.remove(&first).expect("reserved before");
                replicas.retain(|replica| good.contains(&replica.rid));
                if let Some(old) = self.objects.insert(key, replicas) {
                    self.left.extend(old.iter().map(|replica| replica.rid));
                }
            }
            Record::Removed { key, .. } => {
                let old = self.objects.remove(&key[..]).expect("removed once");
                self.left.extend(old.iter().map(|replica| replica.rid));
            }
            Record::ReplicaDropped { rid, .. } => {
                self.left.insert(*rid);
                self.lose(|replica| replica.rid == *rid);
            }
            Record::SegmentGone(number) => self.lose(|replica| replica.extent.segment == *number),
            _ => {}
        }
    }

    fn lose(&mut self, which: impl Fn(&Replica) -> bool) {
        for replicas in self.objects.values_mut() {
            self.left.extend(replicas.iter().filter(|replica| which(replica)).map(|replica| replica.rid));
            replicas.retain(|replica| !which(replica));
        }
        self.objects.retain(|_, replicas| !replicas.is_empty());
    }

    fn replay_notes(&mut self) {
        self.objects.clear();
        self.reserved.clear();
        let log = std::mem::take(&mut self.log);
        for record in &log {
            self.note(record);
        }
        self.log = log;
    }
}

impl World {
    pub fn master_up(&mut self) {
        let mut core = Core::new(config(self.seed));
        let first = self.master.life == 0;
        let cut = !first && self.faults.cut_tail;
        if cut {
            let keep = self.master.log.len() - self.dice.below(self.master.log.len() as u64 / 20 + 1) as usize;
            self.master.log.truncate(keep);
            self.master.replay_notes();
            self.tail_was_cut = true;
        }
        for record in &self.master.log {
            core.replay(record.clone()).unwrap_or_else(|error| panic!("seed {}: {error}: {record:?}", self.seed));
        }
        self.master.life += 1;
        let raised = (cut || first).then_some(self.master.epoch + 1);
        let mut fx = Effects::default();
        core.begin(self.time(), raised, &mut fx);
        self.master.epoch = core.epoch();
        self.assert_invariants(&core);
        self.master.core = Some(core);
        self.effects(fx);
        // It looks for the processes that its log names; that the one before knew of an end is lost with the log's.
        let here = self.sessions.iter().filter(|(_, process)| host(process.client) == 1);
        let ended: Vec<SessionId> =
            here.filter(|(_, process)| !self.is_alive(**process)).map(|(session, _)| *session).collect();
        for session in ended {
            self.after(1_000, Event::ProcessGone { session });
        }
        self.after(20_000, Event::Tick { master_life: self.master.life });
        self.tally.master_restarts += u64::from(!first);
    }

    pub fn master_crash(&mut self) {
        if self.master.core.take().is_none() {
            return;
        }
        self.master.parked.clear();
        for (_, (process, anchor)) in std::mem::take(&mut self.master.anchors) {
            let client = &mut self.clients[process.client];
            if client.process == process && client.anchor == Some(anchor) {
                client.anchor = None;
            }
        }
        let down = [2_000, 20_000, 200_000, 900_000][self.dice.below(4) as usize];
        self.after(down, Event::MasterUp);
    }

    /// Does one operation, and logs, sends and answers what comes of it.
    pub fn with_core<R>(
        &mut self,
        operation: impl FnOnce(&mut Core, mooncake_core::Time, &mut Effects) -> R,
    ) -> Option<R> {
        let now = self.time();
        let core = self.master.core.as_mut()?;
        let mut fx = Effects::default();
        let result = operation(core, now, &mut fx);
        self.assert_invariants(self.master.core.as_ref()?);
        self.effects(fx);
        Some(result)
    }

    fn assert_invariants(&self, core: &Core) {
        core.check_invariants().unwrap_or_else(|wrong| panic!("seed {} at {} us: {wrong}", self.seed, self.now));
    }

    fn effects(&mut self, fx: Effects) {
        for record in fx.records {
            if let Record::Released(_) = record {
                self.tally.released += 1;
            }
            self.master.note(&record);
            self.master.log.push(record);
        }
        for (session, push) in fx.pushes {
            if let Some((process, anchor)) = self.master.anchors.get(&session).copied() {
                self.send_in_order(Event::Pushed { process, anchor, push });
            }
        }
        for (ticket, slots) in fx.woken {
            if let Some(id) = self.master.parked.remove(&ticket) {
                self.send(Event::Answer { id, reply: Reply::PutStart(slots) });
            }
        }
    }

    pub fn master_tick(&mut self, life: u32) {
        if life != self.master.life || self.master.core.is_none() {
            return;
        }
        self.with_core(|core, now, fx| {
            core.tick(now, fx);
            core.background(now, 64, fx);
        });
        self.after(20_000, Event::Tick { master_life: life });
    }

    pub fn arrive(&mut self, id: CallId, request: Request, sequence: u64, answered: &Answered, session: SessionId) {
        let origin = Origin { session, sequence, answered_below: answered.below };
        self.with_core(|core, _, _| core.settle_replies(session, answered.settled_below, &answered.unsettled));
        let Some(result) = self.with_core(|core, now, fx| -> Result<Result<Reply, Ticket>, Refused> {
            Ok(Ok(match &request {
                Request::Mount { spec } => Reply::Mounted(core.mount(now, origin, spec.clone(), spec.bytes, fx)?),
                Request::PutStart { entries, replicas, replace } => {
                    let config = mooncake_core::PutConfig { replica_num: *replicas, replace: *replace, ..plain() };
                    let entries: Vec<(&[u8], u64)> = entries.iter().map(|(key, size)| (&key[..], *size)).collect();
                    match core.put_start(now, origin, &entries, &config, true, fx)? {
                        PutStarted::Now(slots) => Reply::PutStart(slots),
                        PutStarted::Parked(ticket) => return Ok(Err(ticket)),
                    }
                }
                Request::PutEnd(ended) => Reply::PutEnd(core.put_end(now, origin, ended, fx)?),
                Request::Abort { rids, done } => {
                    core.abort(now, origin, rids, *done, fx)?;
                    Reply::Done
                }
                Request::Pin(key) => Reply::Found(core.pin(now, origin, &[key], fx)?.remove(0)),
                Request::Unpin(rid) => {
                    core.unpin(now, origin, &[*rid], fx)?;
                    Reply::Done
                }
                Request::Remove(key) => {
                    core.remove(now, origin, &[key], true, fx)?;
                    Reply::Done
                }
                Request::Exists(key) => {
                    core.exists(now, [&key[..]].into_iter(), |_| {});
                    Reply::Done
                }
                Request::Lookup(key) => {
                    core.check_session(session, 1)?;
                    let mut all = None;
                    core.lookup(now, session, [&key[..]].into_iter(), |found| {
                        all = found.map(|found| found.to_found())
                    });
                    Reply::Found(all)
                }
            }))
        }) else {
            return;
        };
        if let (Request::Mount { spec }, Ok(Ok(Reply::Mounted(number)))) = (&request, &result) {
            self.learn_number(*number, spec.uuid);
        }
        let reply = match result {
            Ok(Ok(reply)) => reply,
            Ok(Err(ticket)) => {
                self.master.parked.insert(ticket, id);
                return;
            }
            Err(refused) => Reply::Refused(refused),
        };
        self.send(Event::Answer { id, reply });
    }

    fn learn_number(&mut self, number: SegmentNo, uuid: mooncake_core::SegmentUuid) {
        let memory = self.memories.iter().position(|memory| memory.uuid == uuid).expect("mounted memory is there");
        let old = self.numbers.insert(number, memory);
        assert!(old.is_none_or(|old| old == memory), "seed {}: {number:?} used twice", self.seed);
    }

    /// True when the message comes over the anchor that counts.
    fn is_current(&self, process: Process, anchor: u64) -> Option<SessionId> {
        let mut anchors = self.master.anchors.iter();
        anchors.find(|(_, current)| **current == (process, anchor)).map(|(session, _)| *session)
    }

    pub fn beat_arrives(&mut self, process: Process, anchor: u64, moved: &[Rid]) {
        if let Some(session) = self.is_current(process, anchor) {
            self.with_core(|core, now, fx| core.beat(now, session, moved, &[], fx));
        }
    }

    pub fn fence_done(&mut self, process: Process, anchor: u64, rid: Rid) {
        if let Some(session) = self.is_current(process, anchor) {
            self.with_core(|core, now, fx| core.fence_done(now, session, &[rid], fx));
        }
    }

    pub fn epoch_taken(&mut self, process: Process, anchor: u64, epoch: u16) {
        let Some(memory) = self.clients[process.client].memory else { return };
        let uuid = self.memories[memory].uuid;
        if let Some(session) = self.is_current(process, anchor) {
            self.with_core(|core, now, fx| core.epoch_taken(now, session, epoch, &[uuid], fx));
        }
    }

    pub fn anchor_lost(&mut self, session: SessionId, anchor: u64) {
        if self.master.anchors.get(&session).is_some_and(|current| current.1 == anchor) {
            self.master.anchors.remove(&session);
            self.with_core(|core, now, fx| core.anchor_lost(now, session, fx));
        }
    }

    pub fn process_gone(&mut self, session: SessionId) {
        if self.with_core(|core, now, fx| core.process_gone(now, session, fx)).is_none() {
            // The next master gets a pidfd of its own when it is up.
            self.after(500_000, Event::ProcessGone { session });
        }
    }
}
