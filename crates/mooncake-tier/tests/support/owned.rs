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

/// Memory whose placement ends, or which changes otherwise, while it is written.
pub struct Leaving {
    pub size: u64,
    /// Bytes that are summed, and that are copied, while it is the placement's.
    summed_before: u64,
    copied_before: u64,
    summed: AtomicU64,
    copied: AtomicU64,
    between: Between,
    pub is_reachable: AtomicBool,
}

/// What happens behind the sums and before the copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Between {
    Nothing,
    /// The memory cannot be reached any more.
    Leaves,
    /// Its first byte is another one, and its placement goes on.
    Flips,
}

impl Leaving {
    /// Its placement ends when so many bytes were copied.
    pub fn new(size: u64, after: u64) -> Arc<Leaving> {
        Arc::new(Leaving { copied_before: after, ..Leaving::staying(size) })
    }

    /// Its placement ends when so many bytes were summed.
    pub fn while_summed(size: u64, after: u64) -> Arc<Leaving> {
        Arc::new(Leaving { summed_before: after, ..Leaving::staying(size) })
    }

    pub fn between(size: u64, between: Between) -> Arc<Leaving> {
        Arc::new(Leaving { between, ..Leaving::staying(size) })
    }

    fn staying(size: u64) -> Leaving {
        Leaving {
            size,
            summed_before: u64::MAX,
            copied_before: u64::MAX,
            summed: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            between: Between::Nothing,
            is_reachable: AtomicBool::new(true),
        }
    }

    /// Those from `at` on; another placement's from `before` on.
    fn fill(at: u64, into: &mut [u8], before: u64) {
        for (at, byte) in (at..).zip(into) {
            *byte = if at < before { at as u8 } else { 0xee };
        }
    }

    fn sum_of_part(&self, at: u64, len: u64) -> u32 {
        let mut bytes = vec![0; len as usize];
        Leaving::fill(at, &mut bytes, self.summed_before);
        mooncake_memory::crc32c(&bytes)
    }
}

impl Source for Leaving {
    fn size(&self) -> u64 {
        self.size
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        self.summed.fetch_max(at + len, Ordering::Relaxed);
        self.is_reachable.load(Ordering::Relaxed).then(|| self.sum_of_part(at, len))
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        Leaving::fill(at, into, self.copied_before);
        if self.between == Between::Flips && at == 0 {
            into[0] ^= 1;
        }
        self.copied.fetch_max(at + into.len() as u64, Ordering::Relaxed);
        self.is_reachable.load(Ordering::Relaxed) && self.between != Between::Leaves
    }

    fn is_same(&self) -> bool {
        let is_before = |done: &AtomicU64, end| done.load(Ordering::Relaxed) <= end;
        is_before(&self.summed, self.summed_before) && is_before(&self.copied, self.copied_before)
    }

    fn placement(&self) -> Rid {
        PLACEMENT
    }
}

/// Of what is summed, so that the sum alone tells nothing.
pub fn sum_of(source: &Leaving) -> u32 {
    source.sum_of_part(0, source.size)
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
