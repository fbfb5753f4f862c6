//! An owner on a disk in virtual time, the memory that it writes from, and a master that judges what it gives up.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mooncake_ids::{Rid, TierUuid};
use mooncake_tier::address::{Address, Geometry};
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::owner::{Source, TierOwner, ToMaster};
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::Tier;

use super::{TIER, new_tier, owner};

pub const FILE_BLOCKS: u64 = 512;

/// Of all that is in memory here.
pub const PLACEMENT: Rid = Rid(77);

pub const SECOND: Duration = Duration::from_secs(1);

/// Memory whose placement ends when so many bytes were copied of it.
pub struct Leaving {
    pub size: u64,
    after: u64,
    copied: AtomicU64,
    pub is_reachable: AtomicBool,
}

impl Leaving {
    pub fn new(size: u64, after: u64) -> Arc<Leaving> {
        Arc::new(Leaving { size, after, copied: AtomicU64::new(0), is_reachable: AtomicBool::new(true) })
    }
}

impl Source for Leaving {
    fn size(&self) -> u64 {
        self.size
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        let mut bytes = vec![0; len as usize];
        self.copy(at, &mut bytes).then(|| mooncake_memory::crc32c(&bytes))
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        for (nth, byte) in into.iter_mut().enumerate() {
            let at = at + nth as u64;
            // Another placement's bytes from there on.
            *byte = if at < self.after { at as u8 } else { 0xee };
        }
        self.copied.fetch_max(at + into.len() as u64, Ordering::Relaxed);
        self.is_reachable.load(Ordering::Relaxed)
    }

    fn is_same(&self) -> bool {
        self.copied.load(Ordering::Relaxed) <= self.after
    }

    fn placement(&self) -> Rid {
        PLACEMENT
    }
}

/// Of what is copied, so that the sum alone tells nothing.
pub fn sum_of(source: &Leaving) -> u32 {
    let mut bytes = vec![0; source.size as usize];
    source.copy(0, &mut bytes);
    source.copied.store(0, Ordering::Relaxed);
    mooncake_memory::crc32c(&bytes)
}

/// An owner of a tier on that disk, for the tests of what a disk does.
pub struct Owned {
    pub disk: FaultyDisk,
    pub tier: TierOwner<FaultyDisk>,
    pub next: u64,
    pub answers: BTreeMap<u64, Option<Address>>,
    /// What it granted last.
    pub window: Option<u64>,
    /// What it found to be damaged in memory.
    pub damaged: Vec<(Vec<u8>, Rid)>,
    /// Keys and rids of what it found to be bad on the disk.
    pub bad: Vec<(Vec<u8>, Rid)>,
    /// Files that it wanted to give up.
    pub given_up: Vec<u64>,
    /// And of which tiers.
    pub given_up_of: Vec<TierUuid>,
    /// Whether a master keeps an object of such a file: by its number, and that of the newest one.
    pub keeps: fn(u64, u64) -> bool,
    /// Those that it has kept, by the number of the order to write them once more.
    pub kept: BTreeMap<u64, u64>,
}

impl Owned {
    pub fn new(faults: Faults, files: u64) -> Owned {
        let disk = FaultyDisk::new(1, faults);
        let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
        let capacity = files * geometry.file_bytes();
        let tier = Tier::create(disk.clone(), new_tier(capacity, geometry), owner(1), &Slots::new(2)).unwrap();
        Owned::of(disk, tier, capacity)
    }

    pub fn of(disk: FaultyDisk, tier: Tier<FaultyDisk>, capacity: u64) -> Owned {
        let mut tier = TierOwner::new(tier, true, capacity).unwrap();
        tier.mounted(0);
        Owned {
            disk,
            tier,
            next: 0,
            answers: BTreeMap::new(),
            window: None,
            damaged: Vec::new(),
            bad: Vec::new(),
            given_up: Vec::new(),
            given_up_of: Vec::new(),
            keeps: |_, _| false,
            kept: BTreeMap::new(),
        }
    }

    pub fn order(&mut self, size: u64) -> u64 {
        self.next += 1;
        let (rid, source) = (Rid(2 * self.next), Leaving::new(size, size));
        self.tier.order(rid, rid, self.next.to_string().into_bytes(), sum_of(&source), source);
        self.next
    }

    pub fn pass(&mut self, time: Duration) {
        let until = self.disk.now() + time;
        while self.disk.now() < until {
            self.disk.pass(Duration::from_millis(10));
            for said in self.tier.poll(self.disk.now(), Duration::ZERO) {
                match said {
                    ToMaster::Written { written, window, .. } => {
                        self.answers.extend(written.into_iter().map(|(rid, address)| (rid.0 / 2, address)));
                        self.window = Some(window);
                    }
                    ToMaster::Reclaim { tier, file, records } => {
                        self.given_up_of.push(tier);
                        self.given_up.push(file.0);
                        let rids: Vec<Rid> = records.iter().map(|(key, _)| self.judge(key)).collect();
                        self.tier.judged(&rids);
                    }
                    ToMaster::Damaged { key, rid } => self.damaged.push((key, rid)),
                    ToMaster::Bad { records } => self.bad.extend(records),
                    ToMaster::Reclaimed { tier, file } if tier == TIER => self.tier.retire(0, &[file.0]),
                    ToMaster::Reclaimed { tier, file } => self.tier.retire_adopted(tier, 0, &[file.0]),
                }
            }
        }
    }

    fn judge(&mut self, key: &[u8]) -> Rid {
        let nth: u64 = str::from_utf8(key).unwrap().parse().unwrap();
        if !(self.keeps)(nth, self.next) {
            return Rid(0);
        }
        self.next += 1;
        self.kept.insert(self.next, nth);
        Rid(2 * self.next)
    }

    pub fn is_written(&self, nth: u64) -> bool {
        self.answers.get(&nth).is_some_and(Option::is_some)
    }
}
