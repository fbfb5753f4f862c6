//! What a disk failed to write of a tier that is in use is read back: the master hears which records are bad, and of no
//! other one, before anybody wants them.

use std::collections::BTreeSet;

use mooncake_ids::Rid;
use mooncake_memory::crc32c;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_tier::address::{Address, BLOCK, FileNumber, Geometry};
use mooncake_tier::contents::contents;
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::reader::{Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::Tier;

use crate::support;
use crate::support::owned::{FILE_BLOCKS, Owned, SECOND};
use crate::support::{TIER, new_tier, owner};

fn geometry() -> Geometry {
    Geometry::of_file_blocks(FILE_BLOCKS).unwrap()
}

fn owned(seed: u64, faults: Faults) -> Owned {
    let (disk, capacity) = (FaultyDisk::new(seed, faults), 64 * geometry().file_bytes());
    let tier = Tier::create(disk.clone(), new_tier(capacity, geometry()), owner(1), &Slots::new(2)).unwrap();
    Owned::of(disk, tier, capacity)
}

/// Whether a record of that size is there as it was written.
fn is_whole(owned: &Owned, nth: u64, size: u64) -> bool {
    let Some(Some(address)) = owned.answers.get(&nth).copied() else { return false };
    let mut reader = Reader::new(owned.disk.clone(), geometry(), Slots::new(4)).unwrap();
    let place = RecordPlace { tier: TIER, address, rid: Rid(2 * nth), size, key_bytes: nth.to_string().len() };
    let mut sink = |_: u64, bytes: &[u8]| crc32c(bytes);
    let want = Want { place, from: 0, len: size, crc: None, sink: &mut sink };
    reader.read(&mut [want], || SECOND).remove(0).is_ok()
}

/// Numbers of what the master was told to be bad.
fn named(owned: &Owned) -> BTreeSet<u64> {
    let numbers = owned.bad.iter().map(|(key, rid)| {
        let nth: u64 = str::from_utf8(key).unwrap().parse().unwrap();
        assert_eq!(*rid, Rid(2 * nth));
        nth
    });
    let named: BTreeSet<u64> = numbers.collect();
    assert_eq!(named.len(), owned.bad.len(), "each of them once: {:?}", owned.bad);
    named
}

#[test]
fn what_a_failed_sync_has_lost_is_named_though_nobody_reads_it_and_nothing_else_is() {
    let check = || {
        let mut headers_lost = 0;
        for seed in 1..12 {
            let mut owned = owned(seed, Faults::default());
            let sizes: Vec<u64> = (0..40).map(|nth| (nth % 7 + 1) * (5 << 10)).collect();
            let ordered: Vec<(u64, u64)> = sizes.into_iter().map(|size| (owned.order(size), size)).collect();
            owned.pass(SECOND / 10);
            assert!(ordered.iter().all(|(nth, _)| owned.is_written(*nth)), "they are, as far as the master knows");
            owned.disk.lose_at_sync(&FileNumber(0).name(), 40);
            owned.pass(8 * SECOND);
            let bad = ordered.iter().filter(|(nth, size)| !is_whole(&owned, *nth, *size));
            let bad: BTreeSet<u64> = bad.map(|(nth, _)| *nth).collect();
            let file = (FileNumber(0), FILE_BLOCKS * BLOCK);
            let uncounted = support::uncounted();
            let found = contents(&owned.disk, (TIER, geometry()), file, &Slots::new(2), &uncounted).unwrap();
            headers_lost += ordered.len() - found.entries.len();
            assert!(bad.len() < ordered.len());
            assert_eq!(
                named(&owned),
                bad,
                "of {} records, {} of which have headers",
                ordered.len(),
                found.entries.len()
            );
            // And the tier goes on.
            let next = owned.order(BLOCK);
            owned.pass(20 * SECOND);
            assert!(owned.is_written(next) && owned.window > Some(0));
            assert_eq!(named(&owned), bad);
        }
        assert!(headers_lost > 0, "no disk could say what lay there");
    };
    check();
    assert!(is_noticed_by(Mutant::FailedFilesAreTrusted, check));
}

#[test]
fn a_large_record_whose_file_was_sealed_is_looked_at_too_a_few_megabytes_at_a_time() {
    let mut owned = owned(3, Faults::default());
    let size = 13 << 20;
    let large = owned.order(size);
    while !owned.is_written(large) {
        owned.pass(SECOND / 100);
    }
    owned.disk.lose_at_sync(&FileNumber(0).name(), 300);
    // Its file is sealed as soon as another record comes.
    let small = owned.order(BLOCK);
    owned.pass(10 * SECOND);
    assert!(is_whole(&owned, small, BLOCK) && !is_whole(&owned, large, size));
    assert_eq!(named(&owned), BTreeSet::from([large]));
}

#[test]
fn what_came_to_nothing_is_not_named_nor_what_the_master_hears_of_as_the_tier_is_mounted() {
    let mut owned = owned(5, Faults::default());
    let ordered: Vec<u64> = (0..20).map(|_| owned.order(BLOCK)).collect();
    owned.pass(SECOND / 10);
    owned.disk.set_faults(Faults { failing: 1_000, ..Faults::default() });
    let lost = owned.order(BLOCK);
    owned.pass(SECOND / 10);
    owned.disk.set_faults(Faults::default());
    assert_eq!(owned.answers.get(&lost), Some(&None));
    owned.pass(20 * SECOND);
    assert!(ordered.iter().all(|nth| is_whole(&owned, *nth, BLOCK)), "another write has failed");
    assert!(owned.bad.is_empty(), "{:?}", owned.bad);
    // The next one fails as well, and its session goes on before that is looked at.
    let mut more = vec![owned.order(BLOCK)];
    owned.pass(SECOND / 10);
    more.extend((0..20).map(|_| owned.order(BLOCK)));
    owned.pass(SECOND / 10);
    assert!(more.iter().all(|nth| owned.is_written(*nth)), "{:?}", owned.answers);
    owned.disk.lose_at_sync(&FileNumber(1).name(), 3);
    owned.pass(2 * SECOND);
    owned.tier.anchor_lost();
    owned.pass(10 * SECOND);
    let proof = owned.tier.proof(|| SECOND).unwrap();
    let whole = more.iter().filter(|nth| is_whole(&owned, **nth, BLOCK)).count();
    assert!(whole < more.len());
    assert_eq!(proof.proven.len(), ordered.len() + whole);
    owned.tier.mounted(0);
    owned.pass(20 * SECOND);
    assert!(owned.bad.is_empty(), "{:?}", owned.bad);
}

#[test]
fn what_a_disk_does_not_read_for_a_while_is_not_named_and_what_it_does_not_read_for_a_minute_is() {
    for is_broken in [false, true] {
        let mut owned = owned(7, Faults::default());
        let ordered: Vec<u64> = (0..20).map(|_| owned.order(BLOCK)).collect();
        owned.pass(SECOND / 10);
        let Some(Some(Address(block))) = owned.answers.get(&ordered[3]).copied() else { panic!("it is written") };
        if is_broken {
            owned.disk.break_sector(&FileNumber(0).name(), block + 1);
        }
        owned.disk.set_faults(Faults { failing: 1_000, ..Faults::default() });
        owned.order(BLOCK);
        owned.pass(20 * SECOND);
        owned.disk.set_faults(Faults::default());
        owned.pass(20 * SECOND);
        assert!(owned.bad.is_empty(), "{:?}", owned.bad);
        owned.pass(60 * SECOND);
        assert_eq!(named(&owned), ordered[3..=3].iter().copied().filter(|_| is_broken).collect());
    }
}
