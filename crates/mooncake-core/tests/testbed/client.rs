//! A process that contributes memory, puts, reads and holds views, one small step at a time.

use std::collections::{BTreeMap, BTreeSet};

use mooncake_core::{
    Core, Effects, EndOutcome, Ended, Extent, Found, GRANULE, Push, PutConfig, PutSlot, Refused, Replica, Rid,
    SegmentNo, SegmentSpec, SessionId, SessionSpec,
};

use super::memory::{granules, word};
use super::{Answered, CallId, Event, Process, World};

#[derive(Debug, Clone)]
pub enum Request {
    Mount { spec: SegmentSpec },
    PutStart { entries: Vec<(Vec<u8>, u64)>, replicas: u32, replace: bool },
    PutEnd(Vec<Ended>),
    Abort { rids: Vec<Rid>, done: bool },
    Pin(Vec<u8>),
    Unpin(Rid),
    Remove(Vec<u8>),
    Exists(Vec<u8>),
    Lookup(Vec<u8>),
}

#[derive(Debug, Clone)]
pub enum Reply {
    Mounted(SegmentNo),
    PutStart(Vec<PutSlot>),
    PutEnd(Vec<EndOutcome>),
    Found(Option<Found>),
    Done,
    Refused(Refused),
}

pub fn plain() -> PutConfig {
    PutConfig::default()
}

struct Call {
    task: usize,
    request: Request,
    /// 0 for what changes nothing.
    sequence: u64,
    attempt: u32,
    since: u64,
    /// The client's at that time.
    generation: u64,
}

/// A value on its way into its replicas.
pub struct Put {
    id: u64,
    value: u64,
    replicas: Vec<Replica>,
    outcomes: Vec<(Rid, bool)>,
    /// Granules of the current replica that are written, or `None` before its stamps.
    written: Option<u64>,
    on_lane: bool,
}

pub enum Task {
    Idle,
    /// For the answer to a call.
    Calling,
    Putting(Put),
    Reading {
        found: Found,
        words: Vec<u64>,
        again: bool,
        key: Vec<u8>,
    },
    Viewing {
        replica: Replica,
        words: Vec<u64>,
        /// The master said that it does not know where this is.
        unknown: bool,
    },
}

pub struct Client {
    pub process: Process,
    pub alive: bool,
    pub frozen_until: u64,
    pub session: Option<SessionId>,
    pub anchor: Option<u64>,
    pub memory: Option<usize>,
    pub tasks: Vec<Task>,
    /// Values placed and not begun.
    todo: BTreeMap<usize, Vec<Vec<Replica>>>,
    epoch_taken: u16,
    epoch_asked: u16,
    fences: Vec<(Replica, SessionId, bool)>,
    sequence: u64,
    calls: BTreeMap<u64, Call>,
    call: u64,
    put: u64,
    /// Memory that it may write, and the epoch that it obeys there.
    pub mapped: BTreeMap<usize, u16>,
    /// Memory that it maps at all, and the epoch that the owner had been asked for when it came.
    pub attached: BTreeMap<usize, u16>,
    /// Counts the lists of views that the master was given.
    generation: u64,
    /// Epoch of the master that was given the last one.
    listed: u16,
}

const PUTTERS: std::ops::Range<usize> = 0..2;
const READERS: std::ops::Range<usize> = 2..4;
const VIEWER: usize = 4;
const MOUNTER: usize = 5;
const OWNERS: [usize; 3] = [0, 1, 3];
const SEGMENT_GRANULES: u64 = 24;
pub const KEYS: u64 = 14;

pub fn host(client: usize) -> u8 {
    if client < 3 { 1 } else { 2 }
}

pub fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

impl Client {
    pub fn new(client: usize) -> Client {
        Client {
            process: Process { client, life: 0 },
            alive: false,
            frozen_until: 0,
            session: None,
            anchor: None,
            memory: None,
            tasks: Vec::new(),
            todo: BTreeMap::new(),
            epoch_taken: 0,
            epoch_asked: 0,
            fences: Vec::new(),
            sequence: 0,
            calls: BTreeMap::new(),
            call: 0,
            put: 0,
            mapped: BTreeMap::new(),
            attached: BTreeMap::new(),
            generation: 0,
            listed: 0,
        }
    }

    fn views(&self) -> Vec<Rid> {
        let views = self.tasks.iter().filter_map(|task| match task {
            Task::Viewing { replica, .. } => Some(replica.rid),
            _ => None,
        });
        views.collect()
    }

    fn putting(&self) -> impl Iterator<Item = &Put> {
        self.tasks.iter().filter_map(|task| match task {
            Task::Putting(put) => Some(put),
            _ => None,
        })
    }

    /// The master knows every view.
    fn all_listed(&self) -> bool {
        !self.tasks.iter().any(|task| matches!(task, Task::Viewing { unknown: true, .. }))
    }

    /// Below which mutation all have their answers, and which have not.
    fn settled(&self) -> (u64, Vec<u64>) {
        let sequences = self.calls.values().map(|call| call.sequence);
        (self.sequence + 1, sequences.filter(|sequence| *sequence > 0).collect())
    }

    /// True while a thread of it may write something older than an epoch into a mapped memory.
    fn writes_older(&self, world_memory: impl Fn(&Extent) -> usize, memory: usize, epoch: u16) -> bool {
        self.putting().any(|put| {
            put.replicas
                .iter()
                .any(|replica| !put.on_lane && replica.rid.epoch() < epoch && world_memory(&replica.extent) == memory)
        })
    }
}

impl World {
    pub fn client_up(&mut self, client: usize) {
        let old = self.clients[client].process;
        let process = Process { life: old.life + 1, ..old };
        self.clients[client] = Client { process, alive: true, ..Client::new(client) };
        self.clients[client].tasks = (0..6).map(|_| Task::Idle).collect();
        if OWNERS.contains(&client) {
            let memory = self.new_memory(process, SEGMENT_GRANULES);
            self.clients[client].memory = Some(memory);
        }
        self.after(10, Event::Beat { process });
        for task in 0..=VIEWER {
            let wait = 1000 + self.dice.below(5000);
            self.after(wait, Event::Step { process, task });
        }
    }

    /// The process dies between two of its instructions. What it has sent still arrives.
    pub fn client_crash(&mut self, client: usize) {
        let Client { process, alive, session, anchor, .. } = self.clients[client];
        if !alive {
            return;
        }
        self.tally.crashes += 1;
        self.clients[client].alive = false;
        for task in std::mem::take(&mut self.clients[client].tasks) {
            if let Task::Viewing { replica, .. } = task {
                self.view_ends(&replica);
            }
        }
        if let Some(session) = session {
            if let Some(anchor) = anchor {
                self.after(500, Event::AnchorLost { session, anchor });
            }
            if host(client) == 1 {
                let notice = 1_000 + self.dice.below(200_000);
                self.after(notice, Event::ProcessGone { session });
            }
        }
        let down = 100_000 + self.dice.below(2_000_000);
        let _ = process;
        self.after(down, Event::ClientUp { client });
    }

    pub fn break_anchor(&mut self, client: usize) {
        let Client { session, ref mut anchor, .. } = self.clients[client];
        if let (Some(session), Some(anchor)) = (session, anchor.take()) {
            let notice = self.dice.below(300_000);
            self.after(notice, Event::AnchorLost { session, anchor });
        }
    }

    // ----------------------------------------------------------------- anchor

    pub fn beat(&mut self, process: Process) {
        let client = &self.clients[process.client];
        match (client.anchor, client.session) {
            (Some(anchor), _) => {
                let moved = client.putting().flat_map(|put| put.replicas.iter().map(|replica| replica.rid)).collect();
                self.send_in_order(Event::BeatArrives { process, anchor, moved });
            }
            (None, None) => self.open(process),
            (None, Some(session)) => self.resume(process, session),
        }
        if !self.is_alive(process) {
            return;
        }
        self.answer_owner_duties(process);
        let connected = self.clients[process.client].anchor.is_some();
        self.after(if connected { 500_000 } else { 100_000 }, Event::Beat { process });
    }

    fn connected(&mut self, process: Process, session: SessionId) {
        let anchor = self.new_anchor();
        self.clients[process.client].anchor = Some(anchor);
        self.clients[process.client].session = Some(session);
        self.clients[process.client].listed = self.master.epoch;
        self.master.anchors.insert(session, (process, anchor));
        self.sessions.insert(session, process);
    }

    fn open(&mut self, process: Process) {
        let spec = SessionSpec {
            secret: 1,
            name: format!("client-{}", process.client),
            boot_id: vec![host(process.client)],
            process: Vec::new(),
        };
        let Some(session) = self.with_core(|core, now, fx| core.open_session(now, spec, fx).expect("few sessions"))
        else {
            return;
        };
        self.connected(process, session);
        self.mount(process);
    }

    fn mount(&mut self, process: Process) {
        let Some(memory) = self.clients[process.client].memory else { return };
        let spec = SegmentSpec {
            uuid: self.memories[memory].uuid,
            name: format!("client-{}", process.client),
            bytes: SEGMENT_GRANULES * GRANULE,
            endpoint: Vec::new(),
        };
        self.call(process, MOUNTER, Request::Mount { spec });
    }

    /// Its segment is Gone, for ever; it contributes another one.
    fn remount(&mut self, process: Process) {
        let memory = self.new_memory(process, SEGMENT_GRANULES);
        self.clients[process.client].memory = Some(memory);
        self.clients[process.client].fences.clear();
        self.mount(process);
    }

    fn resume(&mut self, process: Process, session: SessionId) {
        let client = &self.clients[process.client];
        let mounting = client.calls.values().any(|call| call.task == MOUNTER);
        let epoch = client.epoch_taken;
        let held: Vec<_> = client.memory.iter().map(|memory| (self.memories[*memory].uuid, epoch)).collect();
        let (views, (below, unsettled)) = (client.views(), client.settled());
        if self.master.core.is_none() {
            return;
        }
        self.clients[process.client].generation += 1;
        // Pushes of the resume already go over the new anchor.
        let anchor = self.new_anchor();
        let before = self.master.anchors.insert(session, (process, anchor));
        let resume = |core: &mut Core, now, fx: &mut Effects| {
            core.settle_replies(session, below, &unsettled);
            core.resume_session(now, session, 1, &held, &views, fx)
        };
        match self.with_core(resume).expect("up") {
            Ok(resumed) => {
                let client = &mut self.clients[process.client];
                client.anchor = Some(anchor);
                client.listed = self.master.epoch;
                for task in &mut client.tasks {
                    if let Task::Viewing { replica, unknown, .. } = task {
                        *unknown = resumed.unknown_pins.contains(&replica.rid);
                    }
                }
                self.tally.unknown_views += resumed.unknown_pins.len() as u64;
                self.sessions.insert(session, process);
                if !resumed.gone.is_empty() && !mounting {
                    self.remount(process);
                }
            }
            Err(_) => {
                match before {
                    Some(before) => self.master.anchors.insert(session, before),
                    None => self.master.anchors.remove(&session),
                };
                // It is over. The engine above starts anew.
                self.client_crash(process.client);
            }
        }
    }

    pub fn pushed(&mut self, process: Process, anchor: u64, push: Push) {
        if self.clients[process.client].anchor != Some(anchor) {
            return;
        }
        match push {
            Push::Fence { uuid, replica, writer, writer_done } => {
                let Some(memory) = self.clients[process.client].memory else { return };
                if self.memories[memory].uuid == uuid {
                    self.tombstone(memory, &replica.extent, replica.rid);
                    self.clients[process.client].fences.push((replica, writer, writer_done));
                    self.answer_owner_duties(process);
                }
            }
            Push::TakeEpoch(reign) => {
                self.clients[process.client].epoch_asked = reign.epoch;
                self.answer_owner_duties(process);
            }
            Push::SegmentGone { uuid, pinned, .. } => {
                let memory =
                    self.memories.iter().position(|memory| memory.uuid == uuid).expect("a memory that was there");
                let owner = self.memories[memory].owner;
                if self.clients[process.client].memory == Some(memory) {
                    // It was away for too long, and lingered for its views.
                    self.remount(process);
                } else if !self.is_alive(owner) && host(process.client) == host(owner.client) {
                    self.punch(memory, &pinned);
                }
            }
            Push::Recheck { replica, .. } => {
                let memory = self.memory_of(&replica.extent);
                let stamps = &self.memories[memory].stamps;
                let good = granules(&replica.extent).all(|granule| stamps[granule as usize] == replica.rid.0);
                let Some(session) = self.clients[process.client].session else { return };
                self.with_core(|core, now, fx| core.rechecked(now, session, replica.rid, good, fx));
            }
            Push::SessionOver(_) => self.client_crash(process.client),
        }
    }

    /// What an owner owes the master, as soon as it has proof.
    fn answer_owner_duties(&mut self, process: Process) {
        let Client { anchor, memory, .. } = self.clients[process.client];
        let (Some(anchor), Some(memory)) = (anchor, memory) else { return };
        let fences = std::mem::take(&mut self.clients[process.client].fences);
        for (replica, writer, writer_done) in fences {
            let proven = writer_done
                || self.sessions.get(&writer).is_none_or(|writer| {
                    !self.is_alive(*writer) || !self.clients[writer.client].mapped.contains_key(&memory)
                });
            if proven {
                self.send_in_order(Event::FenceDone { process, anchor, rid: replica.rid });
            } else {
                self.clients[process.client].fences.push((replica, writer, writer_done));
            }
        }
        let asked = self.clients[process.client].epoch_asked;
        if asked > self.clients[process.client].epoch_taken {
            let now = self.now;
            let numbers = &self.numbers;
            let silent =
                self.clients.iter().filter(|client| client.alive && client.attached.contains_key(&memory)).any(
                    |client| {
                        client.frozen_until > now
                            || client.writes_older(|extent| numbers[&extent.segment], memory, asked)
                            || client.listed < asked
                            || !client.all_listed()
                    },
                );
            if !silent {
                for client in &mut self.clients {
                    client.mapped.entry(memory).and_modify(|epoch| *epoch = asked);
                }
                self.clients[process.client].epoch_taken = asked;
                self.send_in_order(Event::EpochTaken { process, anchor, epoch: asked });
            }
        }
    }

    // ------------------------------------------------------------------ calls

    fn call(&mut self, process: Process, task: usize, request: Request) {
        let client = &mut self.clients[process.client];
        client.call += 1;
        let sequence = match request {
            Request::Exists(_) | Request::Lookup(_) => 0,
            _ => {
                client.sequence += 1;
                client.sequence
            }
        };
        let (call, generation) = (client.call, client.generation);
        client.calls.insert(call, Call { task, request, sequence, attempt: 0, since: self.now, generation });
        self.transmit(CallId { process, call, attempt: 0 });
    }

    fn transmit(&mut self, id: CallId) {
        let client = &self.clients[id.process.client];
        let call = &client.calls[&id.call];
        let (settled_below, unsettled) = client.settled();
        let below = unsettled.iter().copied().min().unwrap_or(settled_below);
        let answered = Answered { below, settled_below, unsettled };
        let patience = if matches!(call.request, Request::PutStart { .. }) { 1_400_000 } else { 250_000 };
        let (request, sequence) = (call.request.clone(), call.sequence);
        if let Some(session) = client.session {
            self.send(Event::Arrive { id, request, sequence, answered, session });
        }
        self.after(patience, Event::Again { id });
    }

    pub fn transmit_again(&mut self, id: CallId) {
        let Some(call) = self.clients[id.process.client].calls.get_mut(&id.call) else { return };
        if call.attempt == id.attempt {
            call.attempt += 1;
            let attempt = call.attempt;
            self.transmit(CallId { attempt, ..id });
        }
    }

    pub fn answer(&mut self, id: CallId, reply: Reply) {
        let client = &mut self.clients[id.process.client];
        if client.calls.get(&id.call).is_none_or(|call| call.attempt != id.attempt) {
            return;
        }
        let call = client.calls.remove(&id.call).expect("looked up");
        let process = id.process;
        if let Reply::Refused(refused) = &reply {
            match refused {
                Refused::UnknownSession(_) => return self.client_crash(process.client),
                Refused::SegmentGone(_) => return self.remount(process),
                other => panic!("seed {}: {:?} refused: {other}", self.seed, call.request),
            }
        }
        match (call.request, reply) {
            (Request::PutStart { entries, .. }, Reply::PutStart(slots)) => {
                self.tally.longest_wait_ms = self.tally.longest_wait_ms.max((self.now - call.since) / 1000);
                assert_eq!(entries.len(), slots.len());
                let mut todo = Vec::new();
                for slot in slots {
                    match slot {
                        PutSlot::Placed(replicas) => todo.push(replicas.to_vec()),
                        PutSlot::Exists => self.tally.existed += 1,
                        _ => self.tally.refused += 1,
                    }
                }
                self.clients[process.client].todo.insert(call.task, todo);
                self.next_put(process, call.task);
            }
            (Request::PutEnd(ended), Reply::PutEnd(outcomes)) => {
                let rids: Vec<Rid> = ended[0].replicas.iter().map(|(rid, _)| *rid).collect();
                let failed = ended[0].replicas.iter().any(|(_, good)| !good);
                match outcomes[0] {
                    EndOutcome::Committed => {
                        self.tally.puts += 1;
                        let good = ended[0].replicas.iter().filter(|(_, good)| *good);
                        self.acknowledged.extend(good.map(|(rid, _)| (*rid, self.segments_of_rids[rid])));
                    }
                    EndOutcome::Superseded | EndOutcome::Revoked => self.tally.superseded += 1,
                }
                if outcomes[0] != EndOutcome::Committed || failed {
                    // No thread of it touches those extents any more.
                    self.call(process, call.task, Request::Abort { rids, done: true });
                } else {
                    self.next_put(process, call.task);
                }
            }
            (Request::Abort { .. }, Reply::Done) => self.next_put(process, call.task),
            (Request::Lookup(key), Reply::Found(found)) => match found {
                Some(found) => {
                    let again = matches!(self.clients[process.client].tasks[call.task], Task::Reading { .. });
                    let task = Task::Reading { found, words: Vec::new(), again, key };
                    self.clients[process.client].tasks[call.task] = task;
                    self.step_soon(process, call.task);
                }
                None => {
                    self.tally.misses += 1;
                    self.rest(process, call.task);
                }
            },
            // The master was given a list without it meanwhile, perhaps another master: it gets a fresh one.
            (Request::Pin(_), Reply::Found(_)) if call.generation != self.clients[process.client].generation => {
                self.break_anchor(process.client);
                self.rest(process, call.task);
            }
            (Request::Pin(_), Reply::Found(found)) => match found {
                Some(found) if !found.replicas.is_empty() => {
                    self.view_begins(process, call.task, found.replicas[0]);
                }
                _ => self.rest(process, call.task),
            },
            (Request::Exists(key), Reply::Done) => self.call(process, call.task, Request::Lookup(key)),
            (Request::Unpin(_) | Request::Remove(_), Reply::Done) => self.rest(process, call.task),
            (Request::Mount { .. }, Reply::Mounted(_)) => {}
            (request, reply) => panic!("seed {}: {request:?} answered by {reply:?}", self.seed),
        }
    }

    // ------------------------------------------------------------------ tasks

    fn rest(&mut self, process: Process, task: usize) {
        self.clients[process.client].tasks[task] = Task::Idle;
        let wait = 1000 + self.dice.below(60_000);
        self.after(wait, Event::Step { process, task });
    }

    fn step_soon(&mut self, process: Process, task: usize) {
        let wait = 20 + self.dice.below(500);
        self.after(wait, Event::Step { process, task });
    }

    pub fn step(&mut self, process: Process, task: usize) {
        match std::mem::replace(&mut self.clients[process.client].tasks[task], Task::Calling) {
            Task::Idle => self.begin(process, task),
            Task::Calling => {}
            Task::Putting(put) => self.write_on(process, task, put),
            Task::Reading { found, words, again, key } => self.read_on(process, task, found, words, again, key),
            Task::Viewing { replica, words, .. } => {
                assert_eq!(self.words(&replica), words, "seed {}: a view of {:?} changed", self.seed, replica.rid);
                self.view_ends(&replica);
                self.call(process, task, Request::Unpin(replica.rid));
            }
        }
    }

    fn begin(&mut self, process: Process, task: usize) {
        if self.faults.quiet || self.clients[process.client].session.is_none() {
            return self.rest(process, task);
        }
        let name = key(self.dice.below(KEYS));
        let request = match task {
            task if PUTTERS.contains(&task) => {
                let size = GRANULE * self.dice.below(6) + 1 + self.dice.below(GRANULE);
                let mut entries = vec![(name, size)];
                if self.dice.percent(30) {
                    entries.push((key(self.dice.below(KEYS)), size));
                }
                let (replicas, replace) = (1 + u32::from(self.dice.percent(25)), self.dice.percent(30));
                Request::PutStart { entries, replicas, replace }
            }
            task if READERS.contains(&task) => match self.dice.below(20) {
                0 => Request::Remove(name),
                1..=6 => Request::Exists(name),
                _ => Request::Lookup(name),
            },
            _ if host(process.client) == 1 => Request::Pin(name),
            _ => Request::Lookup(name),
        };
        self.call(process, task, request);
    }

    fn next_put(&mut self, process: Process, task: usize) {
        let client = &mut self.clients[process.client];
        let Some(replicas) = client.todo.get_mut(&task).and_then(Vec::pop) else {
            return self.rest(process, task);
        };
        client.put += 1;
        let id = client.put;
        let value = replicas[0].rid.0;
        self.values.extend(replicas.iter().map(|replica| (replica.rid, value)));
        self.segments_of_rids.extend(replicas.iter().map(|replica| (replica.rid, replica.extent.segment)));
        let put = Put { id, value, replicas, outcomes: Vec::new(), written: None, on_lane: false };
        self.clients[process.client].tasks[task] = Task::Putting(put);
        self.step_soon(process, task);
    }

    fn write_on(&mut self, process: Process, task: usize, mut put: Put) {
        let Some(replica) = put.replicas.get(put.outcomes.len()).copied() else {
            let replicas = put.outcomes.iter().copied().collect();
            self.clients[process.client].tasks[task] = Task::Calling;
            return self.call(process, task, Request::PutEnd(vec![Ended { replicas, crc32c: 0 }]));
        };
        let memory = self.memory_of(&replica.extent);
        let owner = self.memories[memory].owner;
        let (id, value, rid) = (put.id, put.value, replica.rid);
        if put.written.is_none() && host(owner.client) != host(process.client) {
            let all = granules(&replica.extent);
            put.on_lane = true;
            for (index, granule) in all.clone().enumerate() {
                let wait = 300 * (index as u64 + 1);
                let lane = Event::Lane { to: owner, from: process, task, put: id, replica, granule, end: false };
                self.after(wait, lane);
            }
            let end = Event::Lane { to: owner, from: process, task, put: id, replica, granule: all.end, end: true };
            self.after(300 * (all.count() as u64 + 1), end);
            self.clients[process.client].tasks[task] = Task::Putting(put);
            self.after(1_500_000, Event::LaneDone { process, task, put: id, good: false });
            return;
        } else if put.written.is_none() {
            // The first write maps the memory; the owner says which epoch it obeys.
            let epoch = self.clients[owner.client].epoch_taken;
            let reachable = self.is_alive(owner);
            let obeys = *self.clients[process.client].mapped.entry(memory).or_insert(epoch);
            let asked = self.clients[owner.client].epoch_asked;
            self.clients[process.client].attached.entry(memory).or_insert(asked);
            // Whoever maps late finds the marks of a fence that did not wait for him.
            let fenced =
                granules(&replica.extent).any(|granule| self.memories[memory].stamps[granule as usize] > rid.0);
            if !reachable || rid.epoch() < obeys || fenced {
                put.outcomes.push((rid, false));
            } else {
                self.stamp(memory, &replica.extent, rid);
                put.written = Some(0);
            }
        } else if let Some(written) = &mut put.written {
            let all = granules(&replica.extent);
            let granule = all.start + *written;
            self.write(memory, granule, rid, word(value, *written));
            *written += 1;
            if granule + 1 == all.end {
                put.written = None;
                put.outcomes.push((rid, true));
            }
        }
        self.clients[process.client].tasks[task] = Task::Putting(put);
        let wait = 20 + self.dice.below(self.faults.write_us);
        self.after(wait, Event::Step { process, task });
    }

    /// Bytes arrive at their owner, whatever became of their sender.
    #[allow(clippy::too_many_arguments)]
    pub fn lane(
        &mut self,
        to: Process,
        from: Process,
        task: usize,
        put: u64,
        replica: Replica,
        granule: u64,
        end: bool,
    ) {
        let Some(memory) = self.clients[to.client].memory.filter(|memory| *memory == self.memory_of(&replica.extent))
        else {
            return;
        };
        let all = granules(&replica.extent);
        let rid = replica.rid;
        let stamps: BTreeSet<u64> = all.clone().map(|granule| self.memories[memory].stamps[granule as usize]).collect();
        let refused = stamps.iter().any(|stamp| *stamp > rid.0) || rid.epoch() < self.clients[to.client].epoch_taken;
        if refused {
            self.tally.refused_lanes += 1;
        } else if !end {
            if granule == all.start {
                self.stamp(memory, &replica.extent, rid);
            }
            let value = self.values[&rid];
            self.write(memory, granule, rid, word(value, granule - all.start));
        }
        if end {
            self.after(300, Event::LaneDone { process: from, task, put, good: !refused });
        }
    }

    pub fn lane_done(&mut self, process: Process, task: usize, id: u64, good: bool) {
        if let Task::Putting(put) = &mut self.clients[process.client].tasks[task]
            && put.id == id
            && put.on_lane
        {
            let rid = put.replicas[put.outcomes.len()].rid;
            put.outcomes.push((rid, good));
            put.on_lane = false;
            put.id += 1 << 32;
            self.step_soon(process, task);
        }
    }

    fn read_on(&mut self, process: Process, task: usize, found: Found, mut words: Vec<u64>, again: bool, key: Vec<u8>) {
        let replica = found.replicas[0];
        let memory = self.memory_of(&replica.extent);
        let all = granules(&replica.extent);
        let granule = all.start + words.len() as u64;
        if granule < all.end {
            words.push(self.memories[memory].words[granule as usize]);
            self.clients[process.client].tasks[task] = Task::Reading { found, words, again, key };
            return self.step_soon(process, task);
        }
        let whole = all.clone().all(|granule| self.memories[memory].stamps[granule as usize] == replica.rid.0);
        if whole {
            self.assert_right(&replica, &words);
            self.tally.reads += 1;
            self.rest(process, task);
        } else if again {
            self.tally.stale += 1;
            let session = self.clients[process.client].session.expect("it had a lookup answered");
            self.with_core(|core, now, fx| core.bad_replica(now, session, &key, replica.rid, fx));
            self.rest(process, task);
        } else {
            self.clients[process.client].tasks[task] =
                Task::Reading { found, words: Vec::new(), again: true, key: key.clone() };
            self.call(process, task, Request::Lookup(key));
        }
    }

    pub fn words(&self, replica: &Replica) -> Vec<u64> {
        let memory = &self.memories[self.memory_of(&replica.extent)];
        granules(&replica.extent).map(|granule| memory.words[granule as usize]).collect()
    }

    pub fn assert_right(&self, replica: &Replica, words: &[u64]) {
        let value = self.values[&replica.rid];
        let right: Vec<u64> = (0..words.len() as u64).map(|index| word(value, index)).collect();
        assert_eq!(
            words, right,
            "seed {}: wrong bytes of {:?} passed the check of their stamps",
            self.seed, replica.rid
        );
    }

    fn view_begins(&mut self, process: Process, task: usize, replica: Replica) {
        let memory = self.memory_of(&replica.extent);
        let local = host(self.memories[memory].owner.client) == host(process.client);
        let all = granules(&replica.extent);
        let whole = all.clone().all(|granule| self.memories[memory].stamps[granule as usize] == replica.rid.0);
        // Whoever comes when the owner has been asked for an epoch already is not waited for: it may be that the master
        // which was given the last list is not the one that asked.
        let owner = self.memories[memory].owner;
        let answers = self.is_alive(owner) && self.clients[owner.client].frozen_until <= self.now;
        let asked = answers.then_some(self.clients[owner.client].epoch_asked);
        let client = &mut self.clients[process.client];
        let came = match (client.attached.get(&memory).copied(), asked) {
            (None, Some(asked)) if local => Some(*client.attached.entry(memory).or_insert(asked)),
            (came, _) => came,
        };
        let vouched = came.is_some_and(|came| came <= client.listed);
        if !local || !whole || !vouched {
            return self.call(process, task, Request::Unpin(replica.rid));
        }
        let words = self.words(&replica);
        self.assert_right(&replica, &words);
        for granule in all {
            *self.viewed.entry((memory, granule)).or_default() += 1;
        }
        self.tally.views += 1;
        self.clients[process.client].tasks[task] = Task::Viewing { replica, words, unknown: false };
        let hold = 10_000 + self.dice.below(4_000_000);
        self.after(hold, Event::Step { process, task });
    }

    fn view_ends(&mut self, replica: &Replica) {
        let memory = self.memory_of(&replica.extent);
        for granule in granules(&replica.extent) {
            let views = self.viewed.get_mut(&(memory, granule)).expect("viewed");
            *views -= 1;
            if *views == 0 {
                self.viewed.remove(&(memory, granule));
            }
        }
    }
}
