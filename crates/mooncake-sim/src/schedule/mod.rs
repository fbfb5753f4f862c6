//! A schedule: one life of a pool in which everything goes wrong, from a seed; then calm, and what must hold in the
//! end.

use std::time::Duration;

use mooncake_core::Config;

use crate::dice::Dice;
use crate::disk::{Folder, Host};
use crate::master::{Master, REACHED};
use crate::mix::Fault;
use crate::network::Network;
use crate::store::callers::key;
use crate::store::{Store, Tally};
use crate::verdict;
use crate::whims::{Whims, Whimsical};
use crate::world::{HostId, ProcessId, World};

mod whims;

use mooncake_ids::SegmentUuid;
use whims::Sequel;

/// How long what is left may take to come to rest: longer than a reservation, the retention, an anchor's silence, and
/// what is told again because it was not taken note of, last.
const CALM: Duration = Duration::from_secs(45);

/// Between two things that go wrong, or do not.
const BEAT: Duration = Duration::from_millis(20);

/// How long messages between a client and its master take, microseconds.
const TO_MASTER_MICROS: u64 = 300;

/// What a schedule is made of.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Everything else follows from it.
    pub seed: u64,
    /// Things go wrong for so long.
    pub trouble: Duration,
    /// A master that is killed may lose the end of its log, or all of it.
    pub loses_tails: bool,
    /// Another master may begin on a copy of the log while the first one lives.
    pub copies_logs: bool,
    /// Callers interrupt calls, close stores and fork; and masters hear of it when callers of parked puts have gone.
    pub whims: bool,
    /// Callers read and write by sessions besides.
    pub sessions: bool,
}

/// What has happened in a schedule.
#[derive(Debug, Default, Clone)]
pub struct Sum {
    /// What callers were told.
    pub calls: Tally,
    /// Sessions that stores have begun.
    pub sessions: u64,
    /// How often they have come back to one.
    pub resumes: u64,
    /// Views that masters did not know then.
    pub unknown_views: u64,
    /// Times that the master was killed.
    pub restarts: u64,
    /// Extents that owners have proven to be free.
    pub released: u64,
    /// Epochs that masters have begun.
    pub epochs: u64,
    /// Masters that began from a snapshot which one before them took in slices.
    pub from_snapshots: u64,
    /// Objects that left for room.
    pub evicted: u64,
    /// What callers did of their own accord.
    pub whims: Whimsical,
    /// Stands for all that has happened, and in which order.
    pub trace: u64,
}

impl Sum {
    /// Adds another schedule's.
    pub fn add(&mut self, other: &Sum) {
        self.calls.add(&other.calls);
        self.sessions += other.sessions;
        self.resumes += other.resumes;
        self.unknown_views += other.unknown_views;
        self.restarts += other.restarts;
        self.released += other.released;
        self.epochs += other.epochs;
        self.from_snapshots += other.from_snapshots;
        self.evicted += other.evicted;
        self.whims.add(&other.whims);
        self.trace = self.trace.rotate_left(1) ^ other.trace;
    }

    fn add_store(&mut self, store: &Store) {
        let (sessions, resumes, unknown_views) = store.history();
        self.calls.add(&store.tally());
        self.sessions += u64::from(sessions);
        self.resumes += u64::from(resumes);
        self.unknown_views += unknown_views;
    }
}

/// One process of stores.
struct Engine {
    host: Host,
    process: ProcessId,
    stores: Vec<Store>,
    /// Closed ones, of which something may be left.
    closed: Vec<Store>,
    /// So many stores it has while none is closed.
    count: usize,
    /// It has a pid namespace of its own: the master cannot see it end.
    is_apart: bool,
    /// It lends memory.
    lends: bool,
}

impl Engine {
    fn all(&self) -> impl Iterator<Item = &Store> {
        self.stores.iter().chain(&self.closed)
    }
}

struct Pool {
    world: World,
    hosts: [Host; 2],
    folder: Folder,
    /// Of some time ago.
    backup: Folder,
    network: Network,
    engines: Vec<Engine>,
    plan: Plan,
    config: Config,
    /// Sessions of processes that ended where the master does not see it, and what they had mapped. Where nothing of
    /// that is there, so that its owner could tell, what they pinned stays pinned.
    unseen: Vec<(u64, Vec<SegmentUuid>)>,
    /// At which step of a commit masters end, where they end in the midst of one.
    ends: Option<Dice>,
    /// Children of engines.
    children: Vec<ProcessId>,
    /// What follows when a store has been closed, and when.
    sequels: Vec<(Duration, Sequel)>,
    sum: Sum,
}

impl Plan {
    /// Runs it.
    ///
    /// # Panics
    ///
    /// With the seed, at the first thing that is wrong.
    pub fn run(self) -> Sum {
        let mut pool = Pool::new(self);
        let end = pool.world.now() + self.trouble;
        while pool.world.now() < end {
            pool.fault();
            if self.whims {
                pool.have_whims();
            }
            pool.world.run(BEAT);
        }
        pool.conclude()
    }
}

impl Pool {
    fn new(plan: Plan) -> Pool {
        let world = World::new(plan.seed);
        let hosts = [Host::new(&world, HostId(1)), Host::new(&world, HostId(2))];
        let config = Config {
            reservation_ms: [1_500, 8_000][world.below(2) as usize],
            retention_ms: [4_000, 12_000][world.below(2) as usize],
            lookup_protect_ms: 300,
            seed: plan.seed,
            ..Config::default()
        };
        let mut pool = Pool {
            folder: Folder::default(),
            backup: Folder::default(),
            network: Network::new(&world),
            engines: Vec::new(),
            unseen: Vec::new(),
            // In one schedule of eight, by dice of its own: the others go as they went.
            ends: Some(Dice::new(!plan.seed)).filter(|_| plan.seed / 4 % 8 == 1),
            children: Vec::new(),
            sequels: Vec::new(),
            sum: Sum::default(),
            hosts,
            world,
            plan,
            config,
        };
        if plan.whims {
            pool.network.whims = Whims::new(plan.seed);
        }
        pool.world.lose([0, 2, 8][pool.world.below(3) as usize]);
        pool.world.stall_often([1, 3, 12][pool.world.below(3) as usize]);
        pool.start_master();
        pool.network.masters.set(1, None);
        let engines = pool.network.mix.engines;
        for nth in 0..engines {
            let is_away = nth > 0 && nth + 1 == engines && pool.world.percent(60);
            let host = pool.hosts[usize::from(is_away)].clone();
            let is_apart = nth > 0 && !is_away && pool.world.percent(30);
            let lends = !is_apart && nth != 2 || pool.world.percent(40);
            let has_two = nth == 1 && pool.world.percent(60);
            let engine = pool.start_engine(host, is_apart, lends, 1 + usize::from(has_two));
            pool.engines.push(engine);
        }
        pool
    }

    fn start_master(&mut self) {
        let config = self.config.clone();
        let Network { masters, ledger, .. } = &self.network;
        let master = Master::start(&self.world, &self.hosts[0], &self.folder, ledger, config, TO_MASTER_MICROS);
        master.iter().filter(|_| self.plan.whims).for_each(Master::hear_ends);
        masters.set(0, master);
    }

    fn start_engine(&self, host: Host, is_apart: bool, lends: bool, stores: usize) -> Engine {
        let process = self.world.start_process(host.id);
        if is_apart {
            self.world.put_apart(process);
        }
        let count = stores;
        let stores = (0..count).map(|_| self.start_store(&host, process, lends)).collect();
        Engine { host, process, stores, closed: Vec::new(), count, is_apart, lends }
    }

    fn start_store(&self, host: &Host, process: ProcessId, lends: bool) -> Store {
        let stops = Duration::from_secs(1) + self.plan.trouble;
        let store = Store::start(&self.world, host, process, &self.network);
        if lends {
            self.world.spawn(process, store.clone().lend(stops));
        }
        let [puts, gets, views] = self.network.mix.callers(&self.world);
        (0..puts).for_each(|_| self.world.spawn(process, store.clone().put(stops)));
        (0..gets).for_each(|_| self.world.spawn(process, store.clone().get(stops)));
        (0..views).for_each(|_| self.world.spawn(process, store.clone().view(stops)));
        if views > 1 {
            self.world.spawn(process, store.clone().view_again(stops));
            self.world.spawn(process, store.clone().view_twice(stops));
        }
        if puts > 0 {
            self.world.spawn(process, store.clone().remove(stops));
        }
        if self.plan.sessions {
            self.world.spawn(process, store.clone().put_in_sessions(stops));
            self.world.spawn(process, store.clone().get_in_sessions(stops));
        }
        store
    }

    // ----------------------------------------------------------------- faults

    fn fault(&mut self) {
        let world = self.world.clone();
        if self.network.masters.get(1).is_some() && world.below(100) == 0 {
            // It has been nowhere, and goes to either of them.
            return self.restart_engine(self.pick().0);
        }
        let Some(fault) = self.network.mix.fault(&world) else { return };
        let (engine, store) = self.pick();
        let master = self.network.masters.get(0).expect("one is set").process;
        match fault {
            Fault::CutAnchor => store.cut_anchor(),
            Fault::SetApart => {
                store.set_apart(world.below(2) as usize, [200_000, 1_000_000, 3_000_000][world.below(3) as usize])
            }
            Fault::Freeze => {
                let micros = [30_000, 300_000, 1_200_000, 3_500_000, 6_000_000][world.below(5) as usize];
                world.freeze(store.process(), micros);
            }
            Fault::RestartEngine => self.restart_engine(engine),
            Fault::FreezeMaster => world.freeze(master, [30_000, 800_000, 2_500_000][world.below(3) as usize]),
            Fault::RestartMaster => self.restart_master(0),
            Fault::CutAttachments => {
                if world.percent(50) {
                    world.freeze(store.process(), 4_500_000);
                }
                // While it stands still its owners ask it, and learn only then that they hear nothing from it.
                let store = store.clone();
                world.after([0, 500_000, 2_800_000][world.below(3) as usize], move || store.cut_attachments());
            }
            Fault::Reboot => self.reboot(world.below(2) as usize),
            Fault::Raise => {
                if world.percent(30) {
                    // It maps what it needs for the first time while all this goes on.
                    self.restart_engine(engine);
                    world.run(Duration::from_millis(30 + world.below(300)));
                }
                // All at once: what they had from the last epoch they have still when they go on in the next one.
                for store in self.engines.iter().flat_map(|engine| &engine.stores) {
                    let micros = [40_000, 400_000, 1_500_000, 4_000_000][world.below(4) as usize];
                    match world.below(100) {
                        0..35 => world.freeze(store.process(), micros),
                        35..70 => store.set_apart(0, micros),
                        70..75 => store.cut_attachments(),
                        _ => {}
                    }
                }
                self.hosts[0].forget_witness(&self.folder);
                self.restart_master(1 + world.below(6));
            }
            Fault::CopyLog => self.copy_log(),
        }
    }

    /// A store, and which engine's it is: any, or one that is in the middle of something.
    fn pick(&self) -> (usize, Store) {
        let (world, engines) = (&self.world, self.engines.iter().enumerate());
        let all = engines.flat_map(|(nth, engine)| engine.all().map(move |store| (nth, store)));
        let (any, writes): (Vec<_>, bool) = (all.collect(), world.percent(50));
        let is_busy = |(_, store): &&(usize, &Store)| if writes { store.is_writing() } else { store.is_viewing() };
        let busy: Vec<_> = any.iter().filter(is_busy).copied().collect();
        let from = if busy.is_empty() || world.percent(50) { any } else { busy };
        let (nth, store) = from[world.below(from.len() as u64) as usize];
        (nth, store.clone())
    }

    fn restart_engine(&mut self, nth: usize) {
        self.kill_engine(nth);
        self.replace_engine(nth);
    }

    fn replace_engine(&mut self, nth: usize) {
        let next = self.start_again(nth);
        let ended = std::mem::replace(&mut self.engines[nth], next);
        self.world.as_process(ended.process, || drop(ended));
    }

    fn start_again(&self, nth: usize) -> Engine {
        let Engine { host, count, is_apart, lends, .. } = &self.engines[nth];
        self.start_engine(host.clone(), *is_apart, *lends, *count)
    }

    fn kill_engine(&mut self, nth: usize) {
        let engine = &self.engines[nth];
        engine.all().for_each(|store| self.sum.add_store(store));
        if engine.is_apart || engine.host.id != self.hosts[0].id {
            self.unseen.extend(engine.all().filter_map(|store| Some((store.session_id()?, store.mapped()))));
        }
        self.world.kill(engine.process);
    }

    /// Of the log's end as much is lost at least.
    fn restart_master(&mut self, frames: u64) {
        if let (Some(ends), Some(master)) = (&mut self.ends, self.network.masters.get(0)) {
            master.end_in_commit(REACHED[ends.below(3) as usize]);
            self.world.run(BEAT);
        }
        self.kill_master(frames);
        self.world.run(Duration::from_millis([2, 50, 400][self.world.below(3) as usize]));
        self.start_master();
    }

    /// A master begins on a copy of the log that another one has, or ends again.
    fn copy_log(&mut self) {
        if !self.plan.copies_logs {
            return;
        }
        let Network { masters, ledger, .. } = &self.network;
        match masters.get(1) {
            Some(second) => {
                self.world.kill(second.process);
                masters.set(1, None);
                self.backup = self.folder.copy();
            }
            None if self.backup.frames() == 0 => self.backup = self.folder.copy(),
            None => {
                ledger.split();
                let host = &self.hosts[self.world.below(2) as usize];
                let config = self.config.clone();
                let second = Master::start(&self.world, host, &self.backup, ledger, config, TO_MASTER_MICROS);
                second.iter().filter(|_| self.plan.whims).for_each(Master::hear_ends);
                masters.set(1, second);
                // Some go over to it.
                for store in self.engines.iter().flat_map(|engine| &engine.stores) {
                    if self.world.percent(40) {
                        store.set_apart(0, [500_000, 5_000_000][self.world.below(2) as usize]);
                    }
                }
            }
        }
    }

    fn kill_master(&mut self, frames: u64) {
        let world = self.world.clone();
        world.kill(self.network.masters.get(0).expect("one is set").process);
        self.sum.restarts += 1;
        if self.plan.loses_tails && world.percent(5) {
            self.folder.wipe();
            self.network.ledger.begins_anew();
        }
        if self.plan.loses_tails && (frames > 0 || world.percent(60)) {
            let most = [6, self.folder.frames() / 20][world.below(2) as usize];
            self.folder.lose_tail(frames.max(world.below(most + 1)));
        }
        if world.percent(10) {
            self.hosts[0].forget_witness(&self.folder);
        }
    }

    /// A whole machine ends, and what ran there is started again.
    fn reboot(&mut self, host: usize) {
        let id = self.hosts[host].id;
        let there: Vec<usize> = (0..self.engines.len()).filter(|nth| self.engines[*nth].host.id == id).collect();
        there.iter().for_each(|nth| self.kill_engine(*nth));
        let has_master = host == 0;
        if has_master {
            self.kill_master(0);
        }
        if let Some(second) = self.network.masters.get(1)
            && self.world.host_of(second.process) == Some(id)
        {
            self.world.kill(second.process);
            self.network.masters.set(1, None);
        }
        self.children
            .iter()
            .filter(|child| self.world.host_of(**child) == Some(id))
            .for_each(|it| self.world.kill(*it));
        self.hosts[host].boot(&self.world);
        self.world.run(Duration::from_millis(300));
        if has_master {
            self.start_master();
        }
        there.into_iter().for_each(|nth| self.replace_engine(nth));
    }

    // ------------------------------------------------------------------ verdict

    fn conclude(mut self) -> Sum {
        self.world.calm();
        if let Some(second) = self.network.masters.get(1) {
            self.world.kill(second.process);
            self.network.masters.set(1, None);
        }
        self.settle_whims();
        // Nothing that happens later heals what these leave behind but their owners.
        for nth in 0..self.engines.len() {
            if self.engines[nth].is_apart && self.world.percent(80) {
                self.restart_engine(nth);
            }
        }
        // What is to break later has broken by then.
        self.world.run(Duration::from_secs(3));
        for nth in 0..self.engines.len() {
            if self.engines[nth].all().any(Store::is_torn) {
                self.restart_engine(nth);
            }
        }
        self.world.run(CALM);
        self.network.ledger.join();
        self.folder.tell(&self.network.ledger);
        let stores: Vec<&Store> = self.engines.iter().flat_map(|engine| &engine.stores).collect();
        let master = self.network.masters.get(0).expect("one is set");
        let lenders: usize = self.engines.iter().filter(|engine| engine.lends).map(|engine| engine.stores.len()).sum();
        let held: Vec<SegmentUuid> = stores.iter().flat_map(|store| store.held()).map(|(uuid, _)| uuid).collect();
        let is_unseen = |mapped: &[SegmentUuid]| !mapped.iter().any(|uuid| held.contains(uuid));
        let unseen = self.unseen.iter().filter_map(|(session, mapped)| is_unseen(mapped).then_some(*session));
        let closed: Vec<&Store> = self.engines.iter().flat_map(|engine| &engine.closed).collect();
        verdict::closed_stores_are_over(self.plan.seed, &closed);
        verdict::is_at_rest(self.plan.seed, &master, &stores, lenders as u64, &unseen.collect::<Vec<_>>());
        verdict::acknowledged_objects_are_there(self.plan.seed, &master, &self.network.ledger);
        verdict::every_copy_is_whole(self.plan.seed, &master, &stores);
        let keys: Vec<_> = (0..self.network.mix.keys).map(key).collect();
        verdict::every_object_can_be_read(&self.world, &stores, &self.network.ledger, &keys);
        if verdict::has_room_for_any_key(&master.look(|core| core.stats())) {
            verdict::every_key_can_be_put(&self.world, stores[0], keys);
        }
        for store in stores.into_iter().chain(closed) {
            self.sum.add_store(store);
        }
        self.sum.whims = self.network.whims.sum();
        self.sum.trace = self.world.trace();
        self.sum.evicted += master.look(|core| core.stats()).counters.evicted_objects;
        (self.sum.released, self.sum.epochs, self.sum.from_snapshots) = self.folder.history();
        self.world.end();
        self.sum
    }
}
