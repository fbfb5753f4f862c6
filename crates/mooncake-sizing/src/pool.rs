//! A master's core in virtual time, and the clients that use it.

use std::collections::{BTreeMap, VecDeque};

use mooncake_core::{
    Config, Core, Effects, Origin, PutConfig, PutStarted, STEP_OBJECTS, SegmentSpec, SessionSpec, Sight, StartOutcome,
    Ticket, Time,
};
use mooncake_ids::{GRANULE, SegmentUuid, SessionId};

use crate::put::Put;
use crate::trace::Request;

/// How often a master looks at what has become due.
const TICK_MS: u64 = 20;

/// The name of the one client.
const CLIENT: &str = "simulated:1";

/// What a request finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Blocks from the beginning of its prompt up to the first that is missing: what an engine can use.
    pub leading: u64,
    /// All that are there.
    pub any: u64,
}

/// A pool of one segment.
pub(crate) struct Pool {
    core: Core,
    fx: Effects,
    session: SessionId,
    sequence: u64,
    now: Time,
    ticked: Time,
    /// Most blocks of one request to the master.
    round: usize,
    /// Calls whose requests the master holds.
    waiting: BTreeMap<Ticket, Put>,
    /// Answers to such requests.
    woken: VecDeque<(Ticket, Vec<StartOutcome>)>,
    /// Blocks that the master had no room for in time.
    pub given_up: u64,
}

/// The key of a block: its number says which.
fn key(block: u32) -> [u8; 4] {
    block.to_le_bytes()
}

impl Pool {
    /// An empty one, with room for so many blocks.
    pub fn new(room: u32, round: usize, lookup_protect_ms: u64) -> Pool {
        let (now, mut fx) = (Time(0), Effects::default());
        let mut core = Core::new(Config { lookup_protect_ms, ..Config::default() });
        core.begin(now, None, &mut fx);
        let spec = SessionSpec { secret: 1, name: CLIENT.to_owned(), boot_id: Vec::new(), process: Vec::new() };
        let session = core.open_session(now, spec, &mut fx).expect("it is the first");
        let mut pool = Pool {
            core,
            fx,
            session,
            sequence: 0,
            now,
            ticked: now,
            round,
            waiting: BTreeMap::new(),
            woken: VecDeque::new(),
            given_up: 0,
        };
        let bytes = u64::from(room) * GRANULE;
        let spec = SegmentSpec { uuid: SegmentUuid([1; 16]), name: CLIENT.to_owned(), bytes, endpoint: Vec::new() };
        let origin = pool.origin();
        pool.core.mount(now, origin, spec, bytes, &mut pool.fx).expect("it has room for a block");
        pool
    }

    /// A request comes: what is there of its prompt is read, and the rest is computed and put.
    pub fn request(&mut self, Request { at_ms, blocks }: Request<'_>) -> Found {
        self.advance(Time(0).plus_ms(at_ms));
        let keys: Vec<[u8; 4]> = blocks.iter().copied().map(key).collect();
        let mut there = Vec::with_capacity(keys.len());
        let as_keys = || keys.iter().map(|key| &key[..]);
        self.core.exists(self.now, Sight::Memory, as_keys(), |found| there.push(found.is_ok()));
        let leading = there.iter().take_while(|is_there| **is_there).count();
        let any = there.into_iter().filter(|is_there| *is_there).count();
        // Nothing leaves between the two: the existence query protects it, and no time passes.
        self.core.lookup(self.now, self.session, as_keys().take(leading), |_| ());
        self.go_on(Put::of(&blocks[leading..]));
        self.settle();
        Found { leading: leading as u64, any: any as u64 }
    }

    /// Time passes, with a master's ticks as far as anything depends on when they are.
    fn advance(&mut self, to: Time) {
        while !self.waiting.is_empty() && self.now < to {
            self.now = self.now.plus_ms(TICK_MS).min(to);
            self.tick();
        }
        self.now = self.now.max(to);
        if self.ticked.plus_ms(TICK_MS) <= self.now {
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.ticked = self.now;
        self.core.beat(self.now, self.session, &[], &[], &mut self.fx);
        self.core.tick(self.now, &mut self.fx);
        self.settle();
    }

    /// What the master does in the background, and what its clients do with its answers.
    fn settle(&mut self) {
        loop {
            let more = self.core.background(self.now, STEP_OBJECTS, &mut self.fx);
            self.take_effects();
            let answers = std::mem::take(&mut self.woken);
            if answers.is_empty() && !more {
                return;
            }
            for (ticket, outcomes) in answers {
                let put = self.waiting.remove(&ticket).expect("it waits");
                let put = self.answered(put, outcomes);
                self.go_on(put);
            }
        }
    }

    /// Round after round, until one has to wait or all are through.
    fn go_on(&mut self, mut put: Put) {
        while put.next_round(self.round) {
            let keys: Vec<[u8; 4]> = put.round.iter().copied().map(key).collect();
            let entries: Vec<(&[u8], u64)> = keys.iter().map(|key| (&key[..], GRANULE)).collect();
            let config = PutConfig { first_rid: put.first_rid, ..PutConfig::default() };
            let origin = self.origin();
            let started = self.core.put_start(self.now, origin, &entries, &config, put.waits, &mut self.fx);
            self.take_effects();
            match started.expect("its session is there") {
                PutStarted::Now(outcomes) => put = self.answered(put, outcomes),
                PutStarted::Parked(ticket) => {
                    self.waiting.insert(ticket, put);
                    return;
                }
            }
        }
    }

    fn answered(&mut self, mut put: Put, outcomes: Vec<StartOutcome>) -> Put {
        let (ended, given_up) = put.answered(outcomes);
        self.given_up += given_up;
        if !ended.is_empty() {
            let origin = self.origin();
            self.core.put_end(self.now, origin, &ended, &mut self.fx).expect("its session is there");
            self.take_effects();
        }
        put
    }

    /// The next mutation of the client, which has heard of all before.
    fn origin(&mut self) -> Origin {
        self.sequence += 1;
        Origin { session: self.session, sequence: self.sequence, answered_below: self.sequence }
    }

    /// There is no log, and nobody to push to.
    fn take_effects(&mut self) {
        self.fx.records.clear();
        self.fx.pushes.clear();
        self.woken.extend(self.fx.woken.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTECT_MS: u64 = 2_000;

    fn found(pool: &mut Pool, at_ms: u64, blocks: &[u32]) -> (u64, u64) {
        let Found { leading, any } = pool.request(Request { at_ms, blocks });
        (leading, any)
    }

    #[test]
    fn a_run_from_the_beginning_is_found_and_the_rest_is_stored() {
        let mut pool = Pool::new(10, 64, PROTECT_MS);
        assert_eq!(found(&mut pool, 0, &[1, 2, 3]), (0, 0));
        assert_eq!(found(&mut pool, 0, &[1, 2, 4, 3]), (2, 3));
        assert_eq!(found(&mut pool, 1, &[1, 2, 4, 3]), (4, 4));
    }

    #[test]
    fn what_was_used_least_recently_leaves() {
        let mut pool = Pool::new(2, 64, PROTECT_MS);
        found(&mut pool, 0, &[1]);
        found(&mut pool, 10_000, &[2]);
        assert_eq!(found(&mut pool, 20_000, &[1]), (1, 1));
        found(&mut pool, 30_000, &[3]);
        assert_eq!([1, 2].map(|block| found(&mut pool, 40_000, &[block]).0), [1, 0]);
    }

    #[test]
    fn what_was_looked_up_stays_for_its_time_and_puts_wait_for_that() {
        let mut pool = Pool::new(1, 64, PROTECT_MS);
        found(&mut pool, 0, &[1]);
        assert_eq!(found(&mut pool, 10_000, &[1]), (1, 1));
        // It is held until its deadline, takes what is protected then, and keeps nobody waiting meanwhile.
        found(&mut pool, 10_000, &[2]);
        assert_eq!(pool.waiting.len(), 1);
        assert_eq!(found(&mut pool, 10_500, &[1]), (1, 1));
        assert_eq!(found(&mut pool, 11_100, &[2]), (1, 1));
        assert_eq!((pool.waiting.len(), pool.given_up), (0, 0));
    }

    #[test]
    fn a_prompt_that_is_larger_than_the_pool_is_stored_in_part() {
        for round in [1, 2, 64] {
            let mut pool = Pool::new(4, round, PROTECT_MS);
            found(&mut pool, 0, &[1, 2, 3, 4, 5, 6, 7]);
            assert_eq!(pool.core.objects(), 4, "rounds of {round}");
            found(&mut pool, 60_000, &[8]);
            assert_eq!((pool.waiting.len(), pool.core.objects()), (0, 4), "rounds of {round}");
        }
    }
}
