//! A small world in virtual time: one master with a log, clients that own memory, write, read and hold views, and a
//! network between them that loses, repeats, reorders and delays. Processes freeze and crash. Everything follows from a
//! seed, so that a failure can be run again.
//!
//! Values are stamps and words, one each per granule of a segment, written and read step by step as real copies would be.

mod client;
mod faults;
mod master;
mod memory;
mod verdict;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use mooncake_core::{Push, Replica, Rid, SegmentNo, SessionId, Time};

pub use client::{Client, Reply, Request};
pub use faults::Faults;
pub use master::Master;
pub use memory::Memory;

/// A client's place in the world, and which of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub client: usize,
    pub life: u32,
}

/// Names one transmission of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId {
    pub process: Process,
    pub call: u64,
    pub attempt: u32,
}

/// What a request says of those before it.
#[derive(Debug, Clone)]
pub struct Answered {
    pub below: u64,
    pub settled_below: u64,
    pub unsettled: Vec<u64>,
}

#[derive(Debug, Clone)]
pub enum Event {
    /// The master's clock.
    Tick {
        master_life: u32,
    },
    /// A request reaches the master.
    Arrive {
        id: CallId,
        request: Request,
        sequence: u64,
        answered: Answered,
        session: SessionId,
    },
    /// A reply reaches a client.
    Answer {
        id: CallId,
        reply: Reply,
    },
    /// A call without an answer yet is sent again.
    Again {
        id: CallId,
    },
    /// A client's anchor connects, or says that it is there.
    Beat {
        process: Process,
    },
    BeatArrives {
        process: Process,
        anchor: u64,
        moved: Vec<Rid>,
    },
    /// A message to an owner or reader.
    Pushed {
        process: Process,
        anchor: u64,
        push: Push,
    },
    /// An owner's answers.
    FenceDone {
        process: Process,
        anchor: u64,
        rid: Rid,
    },
    EpochTaken {
        process: Process,
        anchor: u64,
        epoch: u16,
    },
    /// The master notices that an anchor closed.
    AnchorLost {
        session: SessionId,
        anchor: u64,
    },
    /// The master's pidfd of a process fired.
    ProcessGone {
        session: SessionId,
    },
    /// A task of a client goes on.
    Step {
        process: Process,
        task: usize,
    },
    /// Bytes sent to an owner arrive there: some granules of a replica, or its end.
    Lane {
        to: Process,
        from: Process,
        task: usize,
        put: u64,
        replica: Replica,
        granule: u64,
        end: bool,
    },
    LaneDone {
        process: Process,
        task: usize,
        put: u64,
        good: bool,
    },
    Fault,
    MasterUp,
    ClientUp {
        client: usize,
    },
}

struct Queued {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// xorshift64*.
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What came of it, to see that a run did something.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    pub puts: u64,
    pub existed: u64,
    pub refused: u64,
    pub superseded: u64,
    pub reads: u64,
    pub misses: u64,
    pub stale: u64,
    pub views: u64,
    /// Views that a master did not know when their reader came back.
    pub unknown_views: u64,
    pub refused_lanes: u64,
    pub master_restarts: u64,
    pub crashes: u64,
    pub freezes: u64,
    pub released: u64,
    pub longest_wait_ms: u64,
}

pub struct World {
    pub seed: u64,
    pub now: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    order: u64,
    pub dice: Dice,
    pub faults: Faults,
    pub master: Master,
    pub clients: Vec<Client>,
    pub memories: Vec<Memory>,
    /// Memory behind a segment's number, as everybody who asks the master learns it.
    pub numbers: BTreeMap<SegmentNo, usize>,
    pub sessions: BTreeMap<SessionId, Process>,
    /// What each placement's writer writes: the word of granule i is `word(value, i)`.
    pub values: BTreeMap<Rid, u64>,
    pub segments_of_rids: BTreeMap<Rid, SegmentNo>,
    /// Acknowledged to a writer, and where.
    pub acknowledged: BTreeMap<Rid, SegmentNo>,
    /// Granules that views hold: (memory, granule) -> views.
    pub viewed: BTreeMap<(usize, u64), u32>,
    pub tally: Tally,
    /// A log lost its end, and what it acknowledged last with it.
    pub tail_was_cut: bool,
    anchors: u64,
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> World {
        let mut world = World {
            seed,
            now: 1_000_000,
            queue: BinaryHeap::new(),
            order: 0,
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            faults,
            master: Master::new(),
            clients: Vec::new(),
            memories: Vec::new(),
            numbers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            values: BTreeMap::new(),
            segments_of_rids: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            viewed: BTreeMap::new(),
            tally: Tally::default(),
            tail_was_cut: false,
            anchors: 0,
        };
        world.master_up();
        for client in 0..world.faults.clients {
            world.clients.push(Client::new(client));
            world.client_up(client);
        }
        world.after(1_000, Event::Fault);
        world
    }

    /// Schedules an event; events of one moment keep their order.
    pub fn after(&mut self, micros: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Queued { at: self.now + micros, order: self.order, event }));
    }

    /// Sends over a network that loses, repeats, reorders and delays.
    pub fn send(&mut self, event: Event) {
        if self.dice.percent(self.faults.loss) {
            return;
        }
        if self.dice.percent(self.faults.repeat) {
            let late = 100 + self.dice.below(self.faults.delay_us * 4);
            self.after(late, event.clone());
        }
        let delay = 50 + self.dice.below(self.faults.delay_us);
        self.after(delay, event);
    }

    /// Sends over one connection: in order, and whole or not at all.
    pub fn send_in_order(&mut self, event: Event) {
        self.after(300, event);
    }

    pub fn new_anchor(&mut self) -> u64 {
        self.anchors += 1;
        self.anchors
    }

    pub fn time(&self) -> Time {
        Time(self.now)
    }

    pub fn is_alive(&self, process: Process) -> bool {
        let client = &self.clients[process.client];
        client.alive && client.process.life == process.life
    }

    /// Runs for some virtual time.
    pub fn run_ms(&mut self, ms: u64) {
        let end = self.now + ms * 1000;
        while let Some(Reverse(next)) = self.queue.peek() {
            if next.at > end {
                break;
            }
            let Reverse(Queued { at, event, .. }) = self.queue.pop().expect("peeked");
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    /// The process that an event happens in, if it is a client's.
    fn place(event: &Event) -> Option<Process> {
        match event {
            Event::Answer { id, .. } | Event::Again { id } => Some(id.process),
            Event::Beat { process }
            | Event::Pushed { process, .. }
            | Event::Step { process, .. }
            | Event::LaneDone { process, .. } => Some(*process),
            Event::Lane { to, .. } => Some(*to),
            _ => None,
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(process) = Self::place(&event) {
            if !self.is_alive(process) {
                return;
            }
            let frozen = self.clients[process.client].frozen_until;
            if frozen > self.now {
                // It happens when the process wakes up, in the order in which it came.
                self.after(frozen - self.now, event);
                return;
            }
        }
        match event {
            Event::Tick { master_life } => self.master_tick(master_life),
            Event::Arrive { id, request, sequence, answered, session } => {
                self.arrive(id, request, sequence, &answered, session);
            }
            Event::Answer { id, reply } => self.answer(id, reply),
            Event::Again { id } => self.transmit_again(id),
            Event::Beat { process } => self.beat(process),
            Event::BeatArrives { process, anchor, moved } => self.beat_arrives(process, anchor, &moved),
            Event::Pushed { process, anchor, push } => self.pushed(process, anchor, push),
            Event::FenceDone { process, anchor, rid } => self.fence_done(process, anchor, rid),
            Event::EpochTaken { process, anchor, epoch } => self.epoch_taken(process, anchor, epoch),
            Event::AnchorLost { session, anchor } => self.anchor_lost(session, anchor),
            Event::ProcessGone { session } => self.process_gone(session),
            Event::Step { process, task } => self.step(process, task),
            Event::Lane { to, from, task, put, replica, granule, end } => {
                self.lane(to, from, task, put, replica, granule, end);
            }
            Event::LaneDone { process, task, put, good } => self.lane_done(process, task, put, good),
            Event::Fault => self.fault(),
            Event::MasterUp => self.master_up(),
            Event::ClientUp { client } => self.client_up(client),
        }
    }
}
