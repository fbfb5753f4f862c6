//! Where nothing goes wrong nothing fails: with processes that put, look up, get and view what all of them share, in
//! memory that is far too small, no put is overtaken or waits for longer than it may, what is there is found, and what
//! a look-up has protected is there a second later, but where a put had waited for long enough and found nothing else
//! to take.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mooncake_client::{ErrorKind, PutOutcome};
use mooncake_core::{Config, Stats};
use mooncake_sim::{Folder, Host, HostId, Item, Master, Network, Options, Store, World};
use mooncake_wire::message::{Exists, reply, request};
use mooncake_wire::pack_keys;

/// Each has another order of things, and other sizes of segments.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=6;

const TIME: Duration = Duration::from_secs(20);

/// Objects that there are at most.
const KEYS: u64 = 40;

/// Longest that a put waits for room, then its bytes and messages.
const LONGEST_PUT: Duration = Duration::from_millis(1_100);

/// How long a look-up promises that what it found is there.
const PROMISED: Duration = Duration::from_secs(1);

/// What messages between a client and its master take, microseconds.
const TO_MASTER_MICROS: u64 = 300;

/// What callers were told.
#[derive(Debug, Default)]
struct Told {
    stored: u64,
    /// Puts for which there was no room, or whose key was another's.
    turned_away: u64,
    longest_put: Duration,
    read: u64,
    loaded: u64,
    viewed: u64,
}

/// A thread of an engine.
#[derive(Clone)]
struct Caller {
    world: World,
    network: Network,
    store: Store,
    told: Rc<RefCell<Told>>,
}

impl Caller {
    async fn puts(self) {
        loop {
            self.pause(60).await;
            let (world, replace) = (&self.world, self.world.percent(30));
            let item = |_| Item { key: self.key(), value: world.number() >> 16, granules: 1 + world.below(4) };
            let items: Vec<Item> = (0..1 + world.below(4) / 3).map(item).collect();
            let options = Options { replicas: 1 + u32::from(world.percent(25)), replace, pace: 500 };
            let began = world.now();
            for outcome in self.store.put_batch(&items, &options).await {
                let mut told = self.told.borrow_mut();
                match outcome.map_err(|error| (error.kind(), error)) {
                    Ok(PutOutcome::Stored { .. }) => told.stored += 1,
                    Ok(PutOutcome::Existed) => {}
                    Err((ErrorKind::NoSpace | ErrorKind::Busy, _)) => told.turned_away += 1,
                    Err((_, error)) => panic!("seed {}: {error}", world.seed()),
                }
                if items.len() == 1 {
                    told.longest_put = told.longest_put.max(world.now() - began);
                }
            }
        }
    }

    async fn gets(self) {
        loop {
            self.pause(60).await;
            let key = self.key();
            let replicas = || self.network.ledger.objects().get(&key).cloned();
            let before = replicas();
            let is_read = self.get(&key).await;
            // The same placements before and after: it was there all the time.
            assert!(is_read || before.is_none() || before != replicas(), "seed {}: a miss", self.world.seed());
            self.told.borrow_mut().read += u64::from(is_read);
        }
    }

    /// Looks up, and loads what it has found as late as it may.
    async fn loads(self) {
        loop {
            self.pause(300).await;
            let (key, seed) = (self.key(), self.world.seed());
            let ask = request::Body::Exists(Exists { keys: Some(pack_keys(&[&key])), sizes: false });
            let answer = self.store.query(ask, PROMISED).await.expect("the master answers");
            let reply::Body::Exists(found) = answer.body else { panic!("seed {seed}: it was asked what exists") };
            if found.found[0] != 0 {
                let before = self.broken();
                self.world.sleep(PROMISED - Duration::from_millis(10)).await;
                let is_loaded = self.get(&key).await;
                assert!(is_loaded || self.broken() > before, "seed {seed}: looked up, and gone");
                self.told.borrow_mut().loaded += u64::from(is_loaded);
            }
        }
    }

    async fn views(self) {
        loop {
            self.pause(100).await;
            if let Some(view) = self.store.borrow(&self.key()).await {
                self.told.borrow_mut().viewed += 1;
                self.pause(1_000).await;
                drop(view);
            }
        }
    }

    /// How often a put that had waited for long enough took what a look-up protects.
    fn broken(&self) -> u64 {
        self.network.masters.get(0).expect("there is one").look(|core| core.stats()).counters.protection_broken
    }

    async fn get(&self, key: &[u8]) -> bool {
        let outcome = self.store.get_batch(&[key]).await.remove(0);
        outcome.unwrap_or_else(|error| panic!("seed {}: {error}", self.world.seed())).is_some()
    }

    fn key(&self) -> Vec<u8> {
        format!("key-{}", self.world.below(KEYS)).into_bytes()
    }

    async fn pause(&self, ms: u64) {
        self.world.sleep_micros(1_000 + self.world.below(ms * 1_000)).await;
    }
}

/// Three processes on the master's host and two on another one, which all lend memory.
fn run(seed: u64) -> (Told, Stats) {
    let world = World::new(seed);
    world.calm();
    let hosts = [Host::new(&world, HostId(1)), Host::new(&world, HostId(2))];
    let network = Network::new(&world);
    let (folder, config) = (Folder::default(), Config::default());
    let master =
        Master::start(&world, &hosts[0], &folder, &network.ledger, config, TO_MASTER_MICROS).expect("a new log");
    network.masters.set(0, Some(master.clone()));
    let told = Rc::<RefCell<Told>>::default();
    for nth in 0..5 {
        let host = &hosts[nth / 3];
        let process = world.start_process(host.id);
        let store = Store::start(&world, host, process, &network);
        // Before it stops it also takes memory back, which ends puts.
        world.spawn(process, store.clone().lend(Duration::ZERO));
        let caller = Caller { world: world.clone(), network: network.clone(), store, told: told.clone() };
        let start = caller.clone();
        world.spawn(process, async move {
            while start.store.session_id().is_none() {
                start.pause(10).await;
            }
            let world = &start.world;
            for _ in 0..2 {
                world.spawn(process, start.clone().puts());
                world.spawn(process, start.clone().gets());
            }
            if nth % 3 == 1 {
                world.spawn(process, start.clone().loads());
            }
            world.spawn(process, start.clone().views());
        });
    }
    world.run(TIME);
    (std::mem::take(&mut told.borrow_mut()), master.look(|core| core.stats()))
}

#[test]
fn where_nothing_goes_wrong_no_put_is_overtaken_or_waits_too_long_and_what_is_there_is_found() {
    for seed in SEEDS {
        let (told, stats) = run(seed);
        println!("seed {seed}: {told:?}");
        assert!(told.stored > 100 && told.read > 100 && told.loaded > 10 && told.viewed > 10, "seed {seed}: {told:?}");
        let unwanted = [
            ("superseded", stats.counters.puts_superseded),
            ("aborted", stats.counters.puts_aborted),
            ("expired", stats.counters.puts_expired),
            ("fenced", stats.counters.fences_asked),
            ("bad", stats.counters.replicas_reported),
            ("repeated", stats.counters.replies_repeated),
            ("stale", stats.counters.stale_messages),
            ("away", stats.counters.sessions_lost),
        ];
        assert_eq!(unwanted.map(|(what, _)| (what, 0)), unwanted, "seed {seed}");
        assert!(told.longest_put <= LONGEST_PUT, "seed {seed}: {told:?}");
    }
}
