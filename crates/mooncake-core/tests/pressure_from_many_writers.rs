//! Many threads that put one batch after the other, as fast as they can, into a pool in which things are looked up.

use mooncake_core::{EndOutcome, Ended, PutConfig, PutStarted, Replica, StartOutcome, Ticket};
use mooncake_ids::SessionId;

use crate::pool::{KIB, Pool, plain};

/// Most rounds that a call takes for a batch.
const ROUNDS: u32 = 20;

/// One thread of a client, by the client's protocol: what is placed is written and ended, then the rest is asked for.
struct Writer {
    session: SessionId,
    name: String,
    calls: u64,
    rest: Vec<String>,
    config: PutConfig,
    rounds: u32,
    ticket: Option<Ticket>,
    writing: Vec<Vec<Replica>>,
    stored: u64,
    refused: u64,
}

impl Writer {
    fn new(session: SessionId, name: String) -> Writer {
        let (rest, writing) = (Vec::new(), Vec::new());
        let (calls, rounds, stored, refused) = (0, 0, 0, 0);
        Writer { session, name, calls, rest, config: plain(), rounds, ticket: None, writing, stored, refused }
    }

    fn step(&mut self, pool: &mut Pool, batch: usize) {
        if let Some(ticket) = self.ticket {
            if let Some(slots) = pool.woken.remove(&ticket) {
                self.ticket = None;
                self.take(slots);
            }
            return;
        }
        if !self.writing.is_empty() {
            let origin = pool.origin(self.session);
            let one = |replicas: Vec<Replica>| {
                let replicas = replicas.iter().map(|replica| (replica.rid, true)).collect();
                Ended { replicas, crc32c: 7, stays: false }
            };
            let ended: Vec<Ended> = self.writing.drain(..).map(one).collect();
            let outcomes = pool.core.put_end(pool.now, origin, &ended, &mut pool.fx).unwrap();
            pool.collect();
            self.stored += outcomes.iter().filter(|outcome| **outcome == EndOutcome::Committed).count() as u64;
        }
        if self.rest.is_empty() {
            self.calls += 1;
            self.rest = (0..batch).map(|n| format!("{}-{}-{n}", self.name, self.calls)).collect();
            (self.config, self.rounds) = (plain(), 0);
        }
        self.rounds += 1;
        let entries: Vec<(&str, u64)> = self.rest.iter().map(|key| (key.as_str(), KIB)).collect();
        match pool.start(self.session, &entries, &self.config, self.rounds > 1) {
            PutStarted::Now(slots) => self.take(slots),
            PutStarted::Parked(ticket) => self.ticket = Some(ticket),
        }
    }

    fn take(&mut self, slots: Vec<StartOutcome>) {
        for (key, slot) in std::mem::take(&mut self.rest).into_iter().zip(slots) {
            match slot {
                StartOutcome::Placed(replicas) => {
                    self.config.first_rid = self.config.first_rid.or(Some(replicas[0].rid));
                    self.writing.push(replicas.to_vec());
                }
                StartOutcome::Full(_) if self.rounds < ROUNDS => self.rest.push(key),
                _ => self.refused += 1,
            }
        }
    }
}

/// 1,000 objects of 1 KiB in a pool of that size, and writers; each step of all of them takes 20 ms.
struct Crowd {
    pool: Pool,
    writers: Vec<Writer>,
    batch: usize,
}

impl Crowd {
    fn new(writers: usize, batch: usize) -> Crowd {
        let mut pool = Pool::new();
        let (owner, other) = (pool.session(1), pool.session(2));
        pool.mount(owner, 1, 1000 * KIB);
        for n in 0..1000 {
            pool.put(owner, &format!("old{n}"), KIB);
        }
        let writers = (0..writers).map(|n| Writer::new(other, format!("w{n}"))).collect();
        Crowd { pool, writers, batch }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            for writer in &mut self.writers {
                writer.step(&mut self.pool, self.batch);
            }
            self.pool.pass(20);
        }
    }

    fn stored(&self) -> u64 {
        self.writers.iter().map(|writer| writer.stored).sum()
    }
}

/// Writers and keys of a batch: a bit less and a bit more than the whole pool under way.
const CROWDS: [(usize, usize); 3] = [(16, 64), (8, 100), (4, 200)];

#[test]
fn what_was_looked_up_is_there_a_second_later_however_much_others_put() {
    for (writers, batch) in CROWDS {
        let mut crowd = Crowd::new(writers, batch);
        for n in 0..1000 {
            assert!(crowd.pool.exists(&format!("old{n}")));
        }
        for round in 0..6 {
            crowd.run(500);
            let quarter: Vec<String> = crowd.pool.keys().into_iter().step_by(4).collect();
            assert!(quarter.iter().all(|key| crowd.pool.exists(key)));
            crowd.run(1000);
            let missed = quarter.iter().filter(|key| crowd.pool.get(key).is_none()).count();
            assert_eq!(missed, 0, "of {} in round {round}, with {writers} writers of {batch}", quarter.len());
        }
        assert!(crowd.stored() > 10_000, "{} stored", crowd.stored());
    }
}

#[test]
fn a_burst_of_look_ups_holds_puts_up_no_longer_than_it_protects() {
    for (writers, batch) in CROWDS {
        let mut crowd = Crowd::new(writers, batch);
        for n in 0..1000 {
            assert!(crowd.pool.exists(&format!("old{n}")));
        }
        crowd.run(3000);
        let before = crowd.stored();
        crowd.run(2000);
        let rate = (crowd.stored() - before) / 2;
        assert!(rate > 10_000, "{rate} keys/s with {writers} writers of {batch}, long after the last look-up");
    }
}
