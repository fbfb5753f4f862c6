//! The product's own session of a store and the product's own master, in a world in which connections break, processes
//! freeze and die, and logs lose their ends: whatever happened, once all is calm every store has a session, and nobody holds
//! or waits for anything that is not there.
//!
//! Each run follows from its seed, which every failure prints. `MOONCAKE_SEEDS=1000` runs more of them, `MOONCAKE_SEED=7`
//! that one.

use std::time::Duration;

use mooncake_core::Config;
use mooncake_sim::{Folder, Host, HostId, Master, Network, Store, World};

/// Faults come for so long.
const TROUBLE: Duration = Duration::from_secs(12);

/// What is left then comes to rest: longer than a reservation, the retention and an anchor's silence last.
const CALM: Duration = Duration::from_secs(60);

/// One life of the pool.
struct Pool {
    world: World,
    host: Host,
    folder: Folder,
    network: Network,
    stores: Vec<(Host, Store)>,
    /// What has ended.
    past: Tally,
    loses_tails: bool,
}

#[derive(Debug, Default)]
struct Tally {
    puts: u64,
    gets: u64,
    unread: u64,
    suspects: u64,
    views: u64,
    sessions: u64,
    resumes: u64,
    unknown_views: u64,
    restarts: u64,
}

impl Tally {
    fn add(&mut self, store: &Store) {
        let (sessions, resumes, unknown_views) = store.history();
        self.views += store.tally().views;
        self.puts += store.tally().puts;
        self.gets += store.tally().gets;
        self.unread += store.tally().unread;
        self.suspects += store.tally().suspects;
        self.sessions += u64::from(sessions);
        self.resumes += u64::from(resumes);
        self.unknown_views += unknown_views;
    }
}

impl Pool {
    fn new(seed: u64, loses_tails: bool) -> Pool {
        let world = World::new(seed);
        let host = Host::new(&world, HostId(1));
        let other = Host::new(&world, HostId(2));
        let mut pool = Pool {
            folder: Folder::default(),
            network: Network::new(seed),
            stores: Vec::new(),
            past: Tally::default(),
            loses_tails,
            host,
            world,
        };
        pool.world.lose(5);
        pool.start_master();
        for nth in 0..4 {
            let host = if nth < 3 { pool.host.clone() } else { other.clone() };
            let store = pool.start_store(&host);
            pool.stores.push((host, store));
        }
        pool
    }

    fn start_master(&mut self) {
        let config =
            Config { reservation_ms: 3_000, retention_ms: 15_000, seed: self.world.seed(), ..Config::default() };
        let master = Master::start(&self.world, &self.host, &self.folder, &self.network.ledger, config, 300);
        self.network.masters.set(0, master);
    }

    fn start_store(&self, host: &Host) -> Store {
        let process = self.world.start_process(host.id);
        let store = Store::start(&self.world, host, process, &self.network);
        let stops = Duration::from_secs(1) + TROUBLE;
        self.world.spawn(process, store.clone().lend());
        self.world.spawn(process, store.clone().put(stops));
        self.world.spawn(process, store.clone().put(stops));
        self.world.spawn(process, store.clone().get(stops));
        self.world.spawn(process, store.clone().get(stops));
        self.world.spawn(process, store.clone().view(stops));
        self.world.spawn(process, store.clone().view(stops));
        self.world.spawn(process, store.clone().remove(stops));
        store
    }

    fn fault(&mut self) {
        let world = self.world.clone();
        let nth = world.below(self.stores.len() as u64) as usize;
        match world.below(100) {
            0..8 => self.stores[nth].1.cut_anchor(),
            8..11 => world.freeze(self.stores[nth].1.process(), [50_000, 700_000, 4_000_000][world.below(3) as usize]),
            11..13 => {
                let (host, store) = self.stores[nth].clone();
                self.past.add(&store);
                world.kill(store.process());
                self.stores[nth].1 = self.start_store(&host);
            }
            13..15 => {
                let master = self.network.masters.get(0).expect("one is set");
                world.freeze(master.process, [30_000, 800_000, 2_500_000][world.below(3) as usize]);
            }
            15..17 => self.restart_master(),
            _ => {}
        }
    }

    fn restart_master(&mut self) {
        let world = self.world.clone();
        world.kill(self.network.masters.get(0).expect("one is set").process);
        self.past.restarts += 1;
        if self.loses_tails && world.percent(60) {
            self.folder.lose_tail(world.below(self.folder.frames() / 20 + 1));
        }
        if world.percent(10) {
            self.host.forget_witness(&self.folder);
        }
        world.run(Duration::from_millis([2, 200, 900][world.below(3) as usize]));
        self.start_master();
    }

    fn run(mut self) -> Tally {
        let end = self.world.now() + TROUBLE;
        while self.world.now() < end {
            self.fault();
            self.world.run(Duration::from_millis(20));
        }
        self.world.lose(0);
        self.world.run(CALM);
        self.is_at_rest();
        for (_, store) in &self.stores {
            self.past.add(store);
        }
        self.past
    }

    fn is_at_rest(&self) {
        let seed = self.world.seed();
        let master = self.network.masters.get(0).expect("one is set");
        let stats = master.look(|core| core.stats());
        assert_eq!(stats.sessions, self.stores.len() as u64, "seed {seed}: sessions, {stats:?}");
        assert_eq!(stats.sessions_away, 0, "seed {seed}: a store has not come back");
        assert_eq!(stats.pins, 0, "seed {seed}: a pin without a view");
        assert_eq!(stats.unfinished_puts, 0, "seed {seed}: a put is stuck");
        assert_eq!(stats.quarantined_extents, 0, "seed {seed}: an extent is stuck in quarantine");
        assert_eq!(stats.segments_closed, 0, "seed {seed}: a segment is closed");
        assert_eq!(stats.tickets, 0, "seed {seed}: a parked request is stuck");
        assert_eq!(stats.segments_live, self.stores.len() as u64, "seed {seed}: every store lends memory");
        for (_, store) in &self.stores {
            assert!(store.all_listed(), "seed {seed}: a store thinks that its master does not know its views");
            assert_eq!(store.held().len(), 1, "seed {seed}: what is lent is held");
        }
    }
}

fn runs(name: &str, seeds: u64, loses_tails: bool) -> Tally {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match setting("MOONCAKE_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=setting("MOONCAKE_SEEDS").unwrap_or(seeds),
    };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        let tally = Pool::new(seed, loses_tails).run();
        sum.views += tally.views;
        sum.puts += tally.puts;
        sum.gets += tally.gets;
        sum.unread += tally.unread;
        sum.suspects += tally.suspects;
        sum.sessions += tally.sessions;
        sum.resumes += tally.resumes;
        sum.unknown_views += tally.unknown_views;
        sum.restarts += tally.restarts;
    }
    println!("{name}, seeds {seeds:?}: {sum:?}");
    sum
}

#[test]
fn after_any_trouble_every_store_has_a_session_and_nobody_holds_what_is_not_there() {
    let tally = runs("trouble", 40, false);
    assert!(tally.resumes > 400 && tally.views > 1_500 && tally.restarts > 100, "{tally:?}");
}

#[test]
fn after_a_lost_end_of_the_log_too() {
    let tally = runs("lost ends", 40, true);
    assert!(tally.resumes > 400 && tally.unknown_views > 10, "{tally:?}");
}
