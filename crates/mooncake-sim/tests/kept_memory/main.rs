//! Memory that outlives its owners: an owner that is killed, the processes that come after it, writers and readers that
//! mapped the memory and stand still meanwhile, versions that know of no locks, and a master that is started again, or
//! loses the end of its log.
//!
//! What decides is the product's: the core, the books of owners and peers, the way to memory that was left behind. The
//! rest is here: memory as words, locks as the kernel has them, and messages that come late. Always: a granule is
//! written by the placement that owns it alone; a read gives what was committed last or is a miss; a view stays as it
//! is; nothing is given back or placed while another writer may still write there; and once all is calm there is an
//! heir, and all that was committed is there.

mod bytes;
mod master;
mod memory;
mod owner;
mod peer;

use std::collections::BTreeMap;
use std::rc::Rc;

use mooncake_client::machine::inheritance::State;
use mooncake_core::{SegmentState, Time};
use mooncake_ids::SessionId;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_segment::Epoch;
use mooncake_sim::Dice;

use master::{BOOT, Master, SECRET};
use memory::{Memory, granules};
use owner::OwnerProcess;
use peer::PeerProcess;

const KEYS: u64 = 5;
const STEPS: u64 = 1_500;

/// What schedules have met.
#[derive(Debug, Default)]
struct Seen {
    heirs: u64,
    owners_ended: u64,
    taken: u64,
    direct_writes: u64,
    views: u64,
    reads: u64,
    lost_ends: u64,
}

impl Seen {
    fn all(&self) -> [u64; 7] {
        let Seen { heirs, owners_ended, taken, direct_writes, views, reads, lost_ends } = *self;
        [heirs, owners_ended, taken, direct_writes, views, reads, lost_ends]
    }

    fn add(&mut self, other: &Seen) {
        let [heirs, owners_ended, taken, direct_writes, views, reads, lost_ends] = other.all();
        self.heirs += heirs;
        self.owners_ended += owners_ended;
        self.taken += taken;
        self.direct_writes += direct_writes;
        self.views += views;
        self.reads += reads;
        self.lost_ends += lost_ends;
    }
}

struct World {
    dice: Dice,
    master: Master,
    memory: Rc<Memory>,
    owners: BTreeMap<u32, OwnerProcess>,
    peers: Vec<PeerProcess>,
    pids: u32,
    numbers: u64,
    /// When the first owner ended since the memory came to its last one.
    died_at: Option<Time>,
    /// The master's machine fails often, and objects are removed: what a reader still looks at may be forgotten.
    forgets: bool,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> World {
        let state = State { boot_id: BOOT, secret: SECRET, tenure: 0, taken: Epoch::default() };
        let mut world = World {
            dice: Dice::new(seed),
            master: Master::new(),
            memory: Rc::new(Memory::new(state)),
            owners: BTreeMap::new(),
            peers: Vec::new(),
            pids: 0,
            numbers: 0,
            died_at: None,
            forgets: seed % 2 == 1,
            seen: Seen::default(),
        };
        world.collect();
        world.first_owner();
        for knows_locks in [true, true, true, false] {
            let peer = world.start_peer(knows_locks);
            world.peers.push(peer);
        }
        world.master.synced = world.master.log.len();
        world
    }

    fn any_key(&mut self) -> Vec<u8> {
        vec![b'k', self.dice.below(KEYS) as u8]
    }

    fn step(&mut self) {
        if self.forgets && self.dice.percent(3) {
            return match self.dice.below(8) {
                0 => self.restart_master(true),
                1..6 => self.remove(),
                _ => {
                    let nth = self.dice.below(self.peers.len() as u64) as usize;
                    self.view(nth);
                    self.peers[nth].is_frozen = true;
                }
            };
        }
        match self.dice.below(1_000) {
            0..560 => {
                let nth = self.dice.below(self.peers.len() as u64) as usize;
                self.peer_step(nth);
            }
            560..760 => (0..3).for_each(|_| self.any_owner_step()),
            760..860 => (0..2).for_each(|_| self.hear_fact()),
            860..920 => self.get(),
            920..950 => {
                let ms = 20 + self.dice.below(1_000);
                self.pass(ms);
            }
            950..952 => self.pass(31_000),
            952..957 => self.remove(),
            957..961 => {
                let nth = self.dice.below(self.peers.len() as u64) as usize;
                self.peers[nth].is_frozen = true;
            }
            961..971 => {
                let nth = self.dice.below(self.peers.len() as u64) as usize;
                self.peers[nth].is_frozen = false;
            }
            971..973 => {
                let nth = self.dice.below(self.peers.len() as u64) as usize;
                self.kill_peer(nth);
            }
            973..982 if self.owners.len() < 3 => _ = self.start_owner(),
            982..986 => {
                let pids: Vec<u32> = self.owners.keys().copied().collect();
                if !pids.is_empty() {
                    let pid = pids[self.dice.below(pids.len() as u64) as usize];
                    self.end_owner(pid);
                }
            }
            986..988 => self.break_anchor(),
            988..990 => {
                let loses_end = self.dice.percent(50);
                self.restart_master(loses_end);
            }
            _ => {}
        }
    }

    fn any_owner_step(&mut self) {
        let pids: Vec<u32> = self.owners.keys().copied().collect();
        if !pids.is_empty() {
            let pid = pids[self.dice.below(pids.len() as u64) as usize];
            self.owner_step(pid);
        }
    }

    fn get(&mut self) {
        let key = self.any_key();
        self.read(&key);
    }

    /// Whether it was read.
    fn read(&mut self, key: &[u8]) -> bool {
        let mut found = None;
        self.master.core.lookup(self.master.now, SessionId(0), [key].into_iter(), |object| {
            found = object.ok().map(|object| object.to_found());
        });
        let Some(found) = found else { return false };
        let replica = found.replicas[0];
        assert_eq!(Some(replica.rid), self.master.truth(key), "{key:?} has another value than was committed last");
        let range = granules(replica.extent.offset, replica.extent.length);
        let read = self.memory.read(replica.rid, range.clone());
        if let Some(words) = &read {
            assert_eq!(*words, vec![replica.rid.0; range.len()], "{key:?} is read with other bytes");
            self.seen.reads += 1;
        }
        read.is_some()
    }

    fn remove(&mut self) {
        let (key, session) = (self.any_key(), self.peers[0].session);
        let origin = self.master.origin(session);
        let _ = self.master.core.remove(self.master.now, origin, &[&key], true, &mut self.master.fx);
        self.collect();
    }

    /// What holds after each step.
    fn check(&self) {
        self.master.core.check_invariants().unwrap_or_else(|wrong| panic!("{wrong}"));
        for owner in self.owners.values() {
            let is_bereft = owner.session.is_some_and(|(session, _)| self.master.core.is_bereft(session));
            assert!(!is_bereft, "process {} lives, and is taken for ended", owner.pid);
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            self.check();
            if self.master.is_gone {
                return;
            }
        }
        self.come_to_rest();
    }

    /// All go on, and nothing goes wrong any more.
    fn come_to_rest(&mut self) {
        if self.owners.is_empty() {
            self.start_owner();
        }
        self.peers.iter_mut().for_each(|peer| peer.is_frozen = false);
        for round in 0.. {
            for nth in 0..self.peers.len() {
                self.end_view(nth);
                for _ in 0..8 {
                    self.go_on(nth);
                }
            }
            (0..8).for_each(|_| self.any_owner_step());
            (0..4).for_each(|_| self.hear_fact());
            self.pass(100);
            self.check();
            if self.master.is_gone {
                return;
            }
            let is_calm = (0..self.peers.len()).all(|nth| self.is_at_rest(nth));
            let segment = self.master.core.segments().next().expect("it is there");
            if is_calm && self.master.facts.is_empty() && segment.open && segment.quarantined == 0 {
                break;
            }
            let owners: Vec<_> = self.owners.values().map(|it| (it.pid, it.session, it.owned.is_some())).collect();
            let at_rest: Vec<bool> = (0..self.peers.len()).map(|nth| self.is_at_rest(nth)).collect();
            assert!(round < 500, "it does not come to rest: {segment:?} {owners:?} {at_rest:?}");
        }
        let segment = self.master.core.segments().next().expect("it is there");
        assert_eq!(segment.state, SegmentState::Live);
        for key in (0..KEYS as u8).map(|key| vec![b'k', key]) {
            let is_there = self.master.truth(&key).is_some();
            // Where the log lost the end of an object, its bytes may be another one's by now.
            let is_read = self.read(&key);
            assert!(
                is_read == is_there || self.seen.lost_ends > 0,
                "{key:?} was committed: {is_there}, and is not read"
            );
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many schedules: `MOONCAKE_KEPT_SEEDS` says so for long runs; `MOONCAKE_KEPT_SEED` is the first.
#[test]
fn memory_that_outlives_its_owners_is_written_by_its_placements_and_read_as_it_was_committed() {
    let (first, seeds) = (number("MOONCAKE_KEPT_SEED").unwrap_or(0), number("MOONCAKE_KEPT_SEEDS").unwrap_or(400));
    let mut seen = Seen::default();
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.run();
        seen.add(&world.seen);
    }
    println!("{seeds} schedules from {first} on: {seen:?}");
    assert!(seeds < 100 || seen.all().iter().all(|count| *count > seeds / 4), "too little happens: {seen:?}");
}

#[test]
fn their_mutants_are_caught() {
    use Mutant::*;
    let mutants = [
        EldersAreNotAwaited,
        EldersViewsAreNotAwaited,
        FenceForgetsElders,
        HeirsSegmentsStayOpen,
        KeptSessionsEnd,
        OldClaimsAreTaken,
        PeerGoneNamesNoProcess,
        StateIsNotLocked,
        TenureIsNotWritten,
        UnlockedPeersWrite,
        ViewsNeedNoLock,
        WritersUnlockEarly,
    ];
    std::panic::set_hook(Box::new(|_| {}));
    let most = number("MOONCAKE_KEPT_SEEDS").unwrap_or(3_000);
    let caught =
        mutants.map(|mutant| (mutant, (0..most).find(|seed| is_noticed_by(mutant, || World::new(*seed).run()))));
    _ = std::panic::take_hook();
    println!("{caught:?}");
    let alive: Vec<Mutant> = caught.iter().filter(|(_, seed)| seed.is_none()).map(|(mutant, _)| *mutant).collect();
    assert!(alive.is_empty(), "not noticed in {most} schedules: {alive:?}");
}
