//! What objects that tiers have cost the master's memory and its restart, beside those that memory alone has. Keys are
//! short, as what they take is the same everywhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use clap::ValueEnum;
use mooncake_core::{
    Effects, Ended, OrdersAnswered, Push, PutConfig, PutStarted, StartOutcome, TierMount, TierProof, TierSpec, Written,
};
use mooncake_ids::{Rid, SessionId, TierUuid};

use crate::memory::{Memory, Phase, read_back, snapshot};
use crate::pool::{Pool, REQUEST, Size, log_in};

/// Where the objects of a pool lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Places {
    /// In memory alone.
    Memory,
    /// In memory and on a tier.
    Both,
    /// On a tier alone, but for one in twenty.
    Tier,
}

/// Of a pool whose objects are on tiers alone, one in so many has room in memory.
const IN_MEMORY: u64 = 20;

/// Keys of a put that has to evict as many: one operation evicts few, and these wait for no other.
const EVICTED_AT_ONCE: u64 = 64;

/// Segments, and tiers where there are any, each of a session of its own.
const OWNERS: u64 = 16;

/// Blocks of a file.
const FILE_BLOCKS: u64 = 4096;

/// Blocks of a record.
const RECORD_BLOCKS: u64 = 2;

/// Bytes of a tier that never fills.
const TIER_BYTES: u64 = 1 << 50;

/// What an owner grants.
const WINDOW: u64 = 256 << 20;

const KEY: usize = 16;

fn key(number: u64) -> [u8; KEY] {
    *format!("{number:016x}").as_bytes().first_chunk().expect("sixteen digits")
}

fn tier_of(session: u64) -> TierUuid {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&session.to_le_bytes());
    TierUuid(uuid)
}

/// Fills a pool with so many objects, and reads the log back in another process: as a snapshot, and as it is.
pub fn measure(objects: u64, places: Places, folder: &Path) -> Result<Vec<Phase>, Box<dyn std::error::Error>> {
    let before = Memory::now()?;
    let began = Instant::now();
    let in_memory = if places == Places::Tier { objects / IN_MEMORY } else { objects };
    let size = Size { objects: in_memory, segments: OWNERS, replicas: 1 };
    let mut pool = Pool::new(size, log_in(Some(folder))?);
    let mut owners = Owners::default();
    if places != Places::Memory {
        (1..=OWNERS).for_each(|session| owners.mount(&mut pool, session));
    }
    let request = if places == Places::Tier { EVICTED_AT_ONCE } else { REQUEST as u64 };
    let mut next = 0;
    while next < objects {
        let end = (next + request).min(objects);
        let keys: Vec<[u8; KEY]> = (next..end).map(key).collect();
        owners.put(&mut pool, 1 + next % OWNERS, &keys)?;
        next = end;
    }
    let stats = pool.core.stats();
    let on_tiers = if places == Places::Memory { 0 } else { objects };
    if (pool.core.objects() as u64, stats.tier_objects) != (objects, on_tiers) {
        let found = format!("{} objects, {} on tiers", pool.core.objects(), stats.tier_objects);
        return Err(format!("{objects} were put: {found}").into());
    }
    let seconds = began.elapsed();
    let rate = objects as f64 / seconds.as_secs_f64() / 1e3;
    let mut phases = vec![Memory::now()?.phase("filling", &before, objects, rate, seconds)];
    pool.log = Arc::new(log_in(None)?);
    phases.push(read_back(folder)?);
    phases.push(snapshot(&mut pool, folder)?);
    Ok(phases)
}

/// Owners of tiers whose disks take no time.
#[derive(Default)]
struct Owners {
    /// The next block of each.
    next: BTreeMap<TierUuid, (SessionId, u64)>,
}

impl Owners {
    fn mount(&mut self, pool: &mut Pool, session: u64) {
        let spec = TierSpec {
            uuid: tier_of(session),
            secret: [1; 16],
            name: format!("host-{session}:12345"),
            bytes: TIER_BYTES,
            file_blocks: FILE_BLOCKS,
            endpoint: vec![9; 60],
        };
        let proof = TierProof::default();
        let mount =
            TierMount { spec, is_new: true, head: 0, records_max: None, proof, file_system: None, is_adopted: false };
        pool.quietly(|core, now, fx| core.mount_tier(now, SessionId(session), mount, fx)).expect("a new tier");
        self.next.insert(tier_of(session), (SessionId(session), 0));
    }

    /// Puts objects of one granule, and writes what is ordered until nothing more is.
    fn put(&mut self, pool: &mut Pool, session: u64, keys: &[[u8; KEY]]) -> Result<(), String> {
        let entries: Vec<(&[u8], u64)> = keys.iter().map(|key| (&key[..], mooncake_ids::GRANULE)).collect();
        let origin = pool.origin(session);
        let started =
            pool.quietly(|core, now, fx| core.put_start(now, origin, &entries, &PutConfig::default(), false, fx));
        let PutStarted::Now(slots) = started.map_err(|error| error.to_string())? else {
            return Err("a put that waits for nothing was parked".to_owned());
        };
        let ended: Option<Vec<Ended>> = slots.into_iter().map(ended).collect();
        let ended = ended.ok_or("a put found no room")?;
        let origin = pool.origin(session);
        let mut orders = Vec::new();
        pool.quietly(|core, now, fx| {
            let ended = core.put_end(now, origin, &ended, fx).map(drop);
            core.tick(now, fx);
            take_orders(fx, &mut orders);
            ended
        })
        .map_err(|error| error.to_string())?;
        loop {
            for (tier, rids) in std::mem::take(&mut orders) {
                let answered = self.write(tier, rids);
                let (owner, _) = self.next[&tier];
                pool.quietly(|core, now, fx| {
                    core.orders_answered(now, owner, tier, &answered, fx);
                    take_orders(fx, &mut orders);
                });
            }
            if orders.is_empty() {
                if pool.core.stats().tier_unwritten_bytes == 0 {
                    return Ok(());
                }
                // What was passed over is looked for as time passes.
                pool.quietly(|core, now, fx| {
                    core.tick(now, fx);
                    take_orders(fx, &mut orders);
                });
            }
        }
    }

    fn write(&mut self, tier: TierUuid, rids: Vec<Rid>) -> OrdersAnswered {
        let (_, next) = self.next.get_mut(&tier).expect("it is mounted");
        let written = rids.into_iter().map(|rid| {
            *next += RECORD_BLOCKS;
            Written { rid, address: Some(*next - RECORD_BLOCKS) }
        });
        OrdersAnswered { written: written.collect(), window: WINDOW, sealed: Vec::new() }
    }
}

fn ended(slot: StartOutcome) -> Option<Ended> {
    let StartOutcome::Placed(replicas) = slot else { return None };
    let replicas = replicas.into_iter().map(|replica| (replica.rid, true)).collect();
    Some(Ended { replicas, crc32c: 1, stays: false })
}

/// Orders of one tier together, in their order.
fn take_orders(fx: &mut Effects, orders: &mut Vec<(TierUuid, Vec<Rid>)>) {
    for (_, push) in std::mem::take(&mut fx.pushes) {
        let Push::TierOrder { tier, rid, .. } = push else { continue };
        match orders.iter_mut().find(|(of, _)| *of == tier) {
            Some((_, rids)) => rids.push(rid),
            None => orders.push((tier, vec![rid])),
        }
    }
}
