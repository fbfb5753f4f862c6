//! A master's core and log, an owner with its memory and its tier, on a disk that fails as disks do; each of them is
//! killed, cut off or loses power. Owners take folders over, or make new ones and adopt those that are left; an
//! operator forgets tiers. Always: a read gives the value that was committed last under its key, or is a miss;
//! what was removed is not there; where no disk failed, what the log has on a tier is read from it.

mod memory;
mod owners;
mod trouble;
mod users;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mooncake_core::{Config, Core, Effects, Offload, Origin, Promoted, Push, Record, Replica, Time, To};
use mooncake_ids::{Rid, SegmentUuid, SessionId, TierUuid};
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_sim::Dice;
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::owner::{TierOwner, ToMaster};
use parking_lot::Mutex;

use memory::{Extent, Memory, Value};

const SECRET: [u8; 16] = [4; 16];
const KEYS: u64 = 48;
/// Bytes of the owner's memory, of a file and of the tier.
const MEMORY: u64 = 96 << 10;
const FILE: u64 = 64 << 10;
const CAPACITY: u64 = 8 * FILE;
const LARGEST: u64 = 20 << 10;
const STEPS: u64 = 600;
/// Names of segments.
const OWNER: &str = "owner:1";
const NEIGHBOUR: &str = "neighbour:1";
/// Records that a tier has at most in every fourth schedule.
const RECORDS_MAX: u64 = 16;

/// How many schedules: `MOONCAKE_TIER_SEEDS` says so for long runs.
fn seeds() -> u64 {
    std::env::var("MOONCAKE_TIER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(150)
}

/// A process that lends memory and has the tier.
struct Process {
    session: SessionId,
    sequence: u64,
    uuid: SegmentUuid,
    /// Of the same host, lends memory and has no tier: its session and segment. Both end together.
    neighbour: Option<(SessionId, SegmentUuid)>,
    memory: Arc<Mutex<Memory>>,
    own: TierFolder,
    tier: TierOwner<FaultyDisk>,
    adopted: Vec<TierUuid>,
    /// On its way to the master.
    said: Vec<ToMaster>,
    /// Records of its tier of which it has said that they are bad.
    found_bad: BTreeSet<Rid>,
    /// Copies that it was asked for, and those that it has made or could not.
    to_promote: VecDeque<ToPromote>,
    promoted: Vec<Promoted>,
}

impl Process {
    /// Its sessions, and that of its neighbour, with what each lends.
    fn lenders(&self) -> impl Iterator<Item = (SessionId, SegmentUuid)> + use<> {
        [(self.session, self.uuid)].into_iter().chain(self.neighbour)
    }
}

/// Folders that there are at a time.
const FOLDERS_MAX: usize = 3;

/// A folder, on a disk of its own.
#[derive(Clone)]
struct TierFolder {
    uuid: TierUuid,
    disk: FaultyDisk,
}

/// A copy that an owner was asked for.
struct ToPromote {
    tier: TierUuid,
    key: Box<[u8]>,
    crc32c: u32,
    from: Replica,
    to: Replica,
}

struct World {
    random: Dice,
    /// All that there are.
    folders: Vec<TierFolder>,
    folders_made: u8,
    calm: Faults,
    faults: Faults,
    core: Core,
    now: Time,
    fx: Effects,
    log: Vec<Record>,
    /// So many records outlive a loss of the master's power.
    synced: usize,
    /// What was committed and removed, each with the length of the log then.
    history: Vec<(usize, u64, Option<Value>)>,
    process: Option<Process>,
    boots: u8,
    processes: u8,
    next_value: u64,
    /// Records that tiers have at most, where that is less than fits.
    records_max: Option<u64>,
    /// Processes have a neighbour, and disks are good: some objects have two copies, of which one is dropped at times.
    has_neighbours: bool,
    /// A disk has failed, or unsynced writes were lost: a record may not be readable.
    is_damaged: bool,
    seen: Seen,
}

/// What schedules have met.
#[derive(Debug, Default)]
struct Seen {
    records_read: u64,
    files_given_up: u64,
    records_kept: u64,
    records_dropped: u64,
    clean_evictions: u64,
    unwritten_evictions: u64,
    promotions: u64,
    promotions_cancelled: u64,
    adoptions: u64,
    kept_elsewhere: u64,
    folders_emptied: u64,
    told_full: u64,
    found_bad: u64,
    cleared: u64,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.records_read += other.records_read;
        self.files_given_up += other.files_given_up;
        self.records_kept += other.records_kept;
        self.records_dropped += other.records_dropped;
        self.clean_evictions += other.clean_evictions;
        self.unwritten_evictions += other.unwritten_evictions;
        self.promotions += other.promotions;
        self.promotions_cancelled += other.promotions_cancelled;
        self.adoptions += other.adoptions;
        self.kept_elsewhere += other.kept_elsewhere;
        self.folders_emptied += other.folders_emptied;
        self.told_full += other.told_full;
        self.found_bad += other.found_bad;
        self.cleared += other.cleared;
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Dice::new(seed);
        let mut chance = |most: u64| if random.below(2) == 0 { 0 } else { random.below(most) as u32 };
        let (failing, misdirected, flipped) = (chance(8), chance(4), chance(8));
        let slowest = Duration::from_micros(1 + random.below(20_000));
        // As on a file system that hosts share: what is written counts once it is synced.
        let buffered = random.below(4) == 0;
        let calm = Faults { slowest, capacity: 2 * CAPACITY, buffered, ..Faults::default() };
        let has_neighbours = seed % 5 == 3;
        let faults = if has_neighbours { calm } else { Faults { failing, misdirected, flipped, ..calm } };
        let offload = Offload { on_evict: random.below(3) == 0, force_evict: random.below(3) == 0 };
        let mut world = World {
            folders: Vec::new(),
            folders_made: 0,
            calm,
            faults,
            core: Core::new(World::config(offload)),
            random,
            now: Time(1_000_000),
            fx: Effects::default(),
            log: Vec::new(),
            synced: 0,
            history: Vec::new(),
            process: None,
            boots: 1,
            processes: 0,
            next_value: 0,
            records_max: seed.is_multiple_of(4).then_some(RECORDS_MAX),
            has_neighbours,
            is_damaged: false,
            seen: Seen::default(),
        };
        world.core.begin(world.now, None, &mut world.fx);
        world.collect();
        world.synced = world.log.len();
        world
    }

    fn config(offload: Offload) -> Config {
        Config { offload, high_watermark: 0.95, ..Config::default() }
    }

    fn is_calm(&self) -> bool {
        !self.is_damaged && (self.faults.failing, self.faults.misdirected, self.faults.flipped) == (0, 0, 0)
    }

    fn origin(&mut self) -> Origin {
        let process = self.process.as_mut().expect("a process that asks");
        process.sequence += 1;
        Origin { session: process.session, sequence: process.sequence, answered_below: process.sequence }
    }

    /// Logs, and carries messages out that came down the anchor.
    fn collect(&mut self) {
        let mut told_full = 0;
        loop {
            self.log.append(&mut self.fx.records);
            let pushes = std::mem::take(&mut self.fx.pushes);
            if pushes.is_empty() {
                break;
            }
            for (to, push) in pushes {
                let Some(process) = &mut self.process else { continue };
                let Some((session, uuid)) = process.lenders().find(|(session, _)| to == To::Session(*session)) else {
                    continue;
                };
                match push {
                    Push::TierOrder { rid, key, object_id, crc32c, source, .. } => {
                        let extent = Arc::new(Extent { memory: process.memory.clone(), replica: source });
                        process.tier.order(rid, object_id, key.into_vec(), crc32c, extent);
                    }
                    Push::TierPromote { tier, key, crc32c, from, to } => {
                        process.to_promote.push_back(ToPromote { tier, key, crc32c, from, to });
                    }
                    Push::TierRetire { tier, epoch, files, is_full } if tier == process.own.uuid => {
                        process.tier.retire(epoch, &files);
                        if is_full {
                            process.tier.give_oldest_up();
                            told_full += 1;
                        }
                    }
                    Push::TierRetire { tier, epoch, files, .. } => process.tier.retire_adopted(tier, epoch, &files),
                    // Of what it has not found itself it is asked nothing here.
                    Push::TierRecheck { tier, replica, .. } if tier == process.own.uuid => {
                        let is_good = !process.found_bad.remove(&replica.rid);
                        self.core.rechecked(self.now, session, replica.rid, is_good, &mut self.fx);
                    }
                    Push::Fence { replica, .. } => {
                        process.memory.lock().stamp(&replica, Rid(replica.rid.tombstone()));
                        self.core.fence_done(self.now, session, &[replica.rid], &mut self.fx);
                    }
                    Push::TakeEpoch(epoch) => {
                        self.core.epoch_taken(self.now, session, epoch.number, &[uuid], &mut self.fx);
                    }
                    _ => {}
                }
            }
        }
        self.seen.told_full += told_full;
        self.fx.woken.clear();
    }

    fn note_evictions(&mut self) {
        let counters = self.core.stats().counters;
        self.seen.clean_evictions += counters.evicted_clean_objects;
        self.seen.unwritten_evictions += counters.evicted_unwritten_objects;
        self.seen.promotions += counters.promotions_done;
        self.seen.promotions_cancelled += counters.promotions_cancelled;
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            if self.process.is_none() {
                self.begin_process();
            }
            match self.random.below(90) {
                0..28 => self.put(),
                28..50 => self.get(),
                50..52 => self.remove(),
                52 => self.trouble(),
                53..58 => self.look_for_some(),
                58..64 => self.promote_one(),
                64..66 => self.hear_promoted(),
                66 => self.adopt(),
                67 if self.random.below(8) == 0 => self.forget(),
                68 if self.random.below(8) == 0 => self.lose_at_sync(),
                69 | 70 if self.has_neighbours => self.clear(),
                _ => self.go_on(),
            }
        }
        self.note_evictions();
    }
}

#[test]
fn a_read_gives_the_value_last_committed_or_is_a_miss_and_what_was_removed_stays_so() {
    let first = std::env::var("MOONCAKE_TIER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut seen = Seen::default();
    for seed in first..first + seeds() {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.run();
        seen.add(&world.seen);
    }
    println!("{} schedules from {first} on: {seen:?}", seeds());
    let Seen { records_read, files_given_up, records_kept, records_dropped, .. } = seen;
    let Seen { clean_evictions, unwritten_evictions, promotions, promotions_cancelled, .. } = seen;
    let Seen { adoptions, kept_elsewhere, folders_emptied, told_full, found_bad, cleared, .. } = seen;
    let of_adopted = [adoptions, kept_elsewhere, folders_emptied, told_full, found_bad];
    let of_tier = [records_read, files_given_up, records_kept, records_dropped];
    let of_memory = [clean_evictions, unwritten_evictions, promotions, promotions_cancelled, cleared];
    assert!(of_tier.iter().chain(&of_memory).chain(&of_adopted).all(|count| *count > 0), "{seen:?}");
}

/// Whether one of the first schedules goes wrong with that mutant.
fn is_noticed(mutant: Mutant) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let seed = (0..300).find(|seed| is_noticed_by(mutant, || World::new(*seed).run()));
    _ = std::panic::take_hook();
    // It is the mutant that goes wrong.
    seed.inspect(|seed| World::new(*seed).run()).is_some()
}

/// Addresses that are used again, and records that are not compared, are two guards of one door: each alone shows in
/// the tier's own tests, and here only both would.
#[test]
fn an_owner_that_trusts_what_a_power_loss_took_is_noticed() {
    assert!(is_noticed(Mutant::LostWritesAreTrusted));
}

#[test]
fn memory_that_goes_while_it_is_written_would_be_noticed_where_its_object_lives_on() {
    assert!(is_noticed(Mutant::StampsAreReadOnce));
}

#[test]
fn orders_that_outlive_the_session_of_their_owner_would_be_noticed() {
    assert!(is_noticed(Mutant::OrdersOutliveTheirAnchor));
}

#[test]
fn what_is_moved_out_of_a_tier_that_is_forgotten_meanwhile_would_be_noticed_to_come_back() {
    assert!(is_noticed(Mutant::MovesOutliveTheirTier));
}

#[test]
fn a_removal_that_went_by_the_rids_of_copies_would_be_noticed() {
    assert!(is_noticed(Mutant::RemovalsGoByRid));
}
