//! An owner answers an order with an address only if the record there is the placement's that was ordered.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_tier::address::{Address, BLOCK, FILES_MIN, Geometry};
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::owner::{Source, TierOwner, ToMaster};
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::Tier;
use support::{new_tier, owner};

const FILE_BLOCKS: u64 = 512;

/// Memory whose placement ends when so many bytes were copied of it.
struct Leaving {
    size: u64,
    after: u64,
    copied: AtomicU64,
    is_reachable: AtomicBool,
}

impl Leaving {
    fn new(size: u64, after: u64) -> Arc<Leaving> {
        Arc::new(Leaving { size, after, copied: AtomicU64::new(0), is_reachable: AtomicBool::new(true) })
    }
}

impl Source for Leaving {
    fn size(&self) -> u64 {
        self.size
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
}

/// Of what is copied, so that the sum alone tells nothing.
fn sum_of(source: &Leaving) -> u32 {
    let mut bytes = vec![0; source.size as usize];
    source.copy(0, &mut bytes);
    source.copied.store(0, Ordering::Relaxed);
    mooncake_memory::crc32c(&bytes)
}

/// Answers of one owner, to orders with these sources, by rid.
fn answers(sources: &[Arc<Leaving>]) -> BTreeMap<u64, Option<Address>> {
    let disk = FaultyDisk::new(1, Faults::default());
    let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
    let capacity = FILES_MIN * geometry.file_bytes();
    let slots = Slots::new(2);
    let tier = Tier::create(disk.clone(), new_tier(capacity, geometry), owner(1), &slots).unwrap();
    let mut tier = TierOwner::new(tier, true, capacity).unwrap();
    tier.mounted(0);
    for (nth, source) in (1..).zip(sources) {
        let key = format!("k{nth}").into_bytes();
        tier.order(Rid(2 * nth), Rid(2 * nth), key, sum_of(source), source.clone());
    }
    let mut answers = BTreeMap::new();
    while answers.len() < sources.len() {
        disk.pass(Duration::from_millis(10));
        assert!(disk.now() < Duration::from_secs(60), "{} of {} are answered", answers.len(), sources.len());
        for said in tier.poll(disk.now(), Duration::ZERO) {
            let ToMaster::Written { written, .. } = said else { continue };
            answers.extend(written.into_iter().map(|(rid, address)| (rid.0 / 2, address)));
        }
    }
    answers
}

#[test]
fn a_placement_that_ends_while_it_is_copied_leaves_no_record() {
    const SIZE: u64 = 300 << 10;
    let check = || {
        let sources = [SIZE, SIZE / 2, 0, SIZE - 1].map(|after| Leaving::new(SIZE, after));
        let answers = answers(&sources);
        assert!(answers[&1].is_some(), "one that stays is written");
        assert!((2..=4).all(|nth| answers[&nth].is_none()), "{answers:?}");
    };
    check();
    assert!(is_noticed_by(Mutant::StampsAreReadOnce, check));
}

#[test]
fn memory_that_cannot_be_reached_leaves_no_record_and_others_are_written() {
    let sources = [BLOCK, BLOCK, 3 * BLOCK].map(|size| Leaving::new(size, size));
    sources[1].is_reachable.store(false, Ordering::Relaxed);
    let answers = answers(&sources);
    assert!(answers[&1].is_some() && answers[&2].is_none() && answers[&3].is_some(), "{answers:?}");
}
