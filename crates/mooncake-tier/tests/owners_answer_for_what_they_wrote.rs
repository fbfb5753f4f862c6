//! An owner answers an order with an address only if the record there is the placement's that was ordered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mooncake_ids::{Rid, TierUuid};
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_tier::address::{Address, BLOCK, FILES_MIN, FileNumber, Geometry};
use mooncake_tier::contents::contents;
use mooncake_tier::health::Fitness;
use mooncake_tier::medium::Medium;
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::owner::{TierOwner, ToMaster};
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::{NewTier, Tier};

use crate::support;
use crate::support::owned::{Between, FILE_BLOCKS, Leaving, Owned, PLACEMENT, SECOND, sum_of};
use crate::support::{TIER, new_tier, owner};

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
fn a_placement_that_ends_while_it_is_summed_or_copied_leaves_no_record() {
    const SIZE: u64 = 300 << 10;
    for leaving in [Leaving::new, Leaving::while_summed] {
        let check = || {
            let sources = [SIZE, SIZE / 2, 0, SIZE - 1].map(|after| leaving(SIZE, after));
            let answers = answers(&sources);
            assert!(answers[&1].is_some(), "one that stays is written");
            assert!((2..=4).all(|nth| answers[&nth].is_none()), "{answers:?}");
        };
        check();
        assert!(is_noticed_by(Mutant::StampsAreReadOnce, check));
    }
}

#[test]
fn memory_that_changes_between_its_sums_and_its_copy_is_nobodys_object() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let size = BLOCK * 3;
    let order = |owned: &mut Owned, nth: u64, source: Arc<Leaving>| {
        owned.tier.order(Rid(2 * nth), Rid(2 * nth), b"k".to_vec(), sum_of(&source), source);
    };
    for (nth, between) in (1..).zip([Between::Nothing, Between::Flips, Between::Leaves, Between::Nothing]) {
        order(&mut owned, nth, Leaving::between(size, between));
    }
    owned.pass(SECOND);
    assert!(owned.answers[&3].is_none(), "it went away in mid-record");
    let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
    let mut reader = Reader::new(owned.disk.clone(), geometry, Slots::new(4)).unwrap();
    for (nth, result) in [(1, Ok(())), (2, Err(Miss::Wrong)), (4, Ok(()))] {
        let place =
            RecordPlace { tier: TIER, address: owned.answers[&nth].unwrap(), rid: Rid(2 * nth), size, key_bytes: 1 };
        let mut sink = |_: u64, bytes: &[u8]| mooncake_memory::crc32c(bytes);
        let mut wants = [Want { place, from: 0, len: size, crc: None, sink: &mut sink }];
        assert_eq!(reader.read(&mut wants, || SECOND), [result], "{nth}");
    }
}

#[test]
fn memory_that_cannot_be_reached_leaves_no_record_and_others_are_written() {
    let sources = [BLOCK, BLOCK, 3 * BLOCK].map(|size| Leaving::new(size, size));
    sources[1].is_reachable.store(false, Ordering::Relaxed);
    let answers = answers(&sources);
    assert!(answers[&1].is_some() && answers[&2].is_none() && answers[&3].is_some(), "{answers:?}");
}

#[test]
fn a_disk_that_fails_is_asked_for_nothing_and_tried_again_a_minute_later() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let first = owned.order(BLOCK);
    owned.pass(SECOND);
    assert!(owned.is_written(first) && owned.window > Some(0));
    owned.disk.set_faults(Faults { failing: 1000, ..Faults::default() });
    for _ in 0..2 {
        let lost = owned.order(BLOCK);
        owned.pass(SECOND);
        assert_eq!(owned.answers.get(&lost), Some(&None), "it is answered, and not written");
    }
    assert_eq!((owned.window, owned.tier.fitness()), (Some(0), Fitness::ReadOnly));
    owned.disk.set_faults(Faults::default());
    owned.pass(62 * SECOND);
    assert!(owned.window > Some(0), "it is tried again");
    let last = owned.order(BLOCK);
    owned.pass(SECOND);
    assert!(owned.is_written(last));
}

#[test]
fn a_tier_whose_numbers_have_come_to_their_end_writes_nothing_and_breaks_nothing() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    owned.tier.mounted(u64::MAX / FILE_BLOCKS);
    let lost = owned.order(BLOCK);
    owned.pass(SECOND);
    assert_eq!(owned.answers.get(&lost), Some(&None), "it is answered, and not written");
}

#[test]
fn a_disk_that_stands_still_is_asked_for_nothing_until_it_answers() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    owned.order(BLOCK);
    owned.pass(SECOND);
    owned.disk.set_faults(Faults { slowest: Duration::from_secs(30), ..Faults::default() });
    let slow: Vec<u64> = (0..4).map(|_| owned.order(1 << 20)).collect();
    owned.pass(SECOND);
    let mut fitness = Vec::new();
    for _ in 0..40 {
        owned.pass(SECOND);
        fitness.push(owned.tier.fitness());
        if fitness.last() != Some(&Fitness::Good) {
            assert_eq!(owned.window, Some(0));
        }
    }
    assert!(fitness.contains(&Fitness::ReadOnly) && fitness.contains(&Fitness::Hung), "{fitness:?}");
    owned.disk.set_faults(Faults::default());
    owned.pass(120 * SECOND);
    assert!(slow.iter().all(|nth| owned.is_written(*nth)), "late is not lost: {:?}", owned.answers);
    assert_eq!(owned.tier.fitness(), Fitness::Good);
    assert!(owned.window > Some(0));
}

#[test]
fn a_disk_that_stands_still_while_nobody_writes_is_noticed_and_one_that_answers_again_too() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let nth = owned.order(BLOCK);
    owned.pass(60 * SECOND);
    assert!(owned.is_written(nth) && owned.tier.is_resting() && owned.tier.is_idle());
    assert_eq!(owned.tier.fitness(), Fitness::Good);
    owned.disk.set_faults(Faults { slowest: Duration::from_secs(10_000), ..Faults::default() });
    let mut fitness = Vec::new();
    for _ in 0..30 {
        owned.pass(SECOND);
        fitness.push(owned.tier.fitness());
        assert!(owned.tier.is_idle(), "nothing is to be written");
    }
    assert!(fitness.contains(&Fitness::ReadOnly) && fitness.last() == Some(&Fitness::Hung), "{fitness:?}");
    owned.disk.set_faults(Faults::default());
    owned.pass(10_000 * SECOND);
    assert_eq!(owned.tier.fitness(), Fitness::Good);
}

#[test]
fn a_file_system_that_others_have_filled_is_written_in_the_room_that_the_tier_has() {
    let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
    // It may have 64 files, and there is room for 12.
    let mut owned = Owned::new(Faults { capacity: 12 * geometry.file_bytes(), ..Faults::default() }, 64);
    let mut lost = 0;
    for _ in 0..100 {
        let nth = owned.order(geometry.file_bytes() / 2);
        owned.pass(SECOND / 4);
        lost += u64::from(!owned.is_written(nth));
    }
    assert!(owned.given_up.len() > 20, "{:?}", owned.given_up);
    assert!(owned.given_up.is_sorted(), "the oldest goes first");
    assert!(lost <= 4, "{lost} of 100 were not written");
    assert!(owned.window > Some(0));
}

#[test]
fn a_tier_that_lacks_room_says_so_before_it_gives_anything_up_and_goes_on_in_the_room_that_is_made() {
    let file = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    let room_for = |files: u64| Faults { capacity: files * file, ..Faults::default() };
    let mut owned = Owned::new(room_for(12), 64);
    let (mut ordered, step) = (Vec::new(), Duration::from_millis(10));
    while !owned.tier.lacks_room() {
        assert!(ordered.len() < 30, "there is room for 12 files");
        ordered.push(owned.order(file / 2));
        for _ in 0..50 {
            if !owned.tier.lacks_room() {
                owned.pass(step);
            }
        }
    }
    // A folder that nobody needs was deleted.
    assert_eq!(owned.given_up, []);
    owned.disk.set_faults(room_for(64));
    owned.tier.room_was_made();
    for _ in 0..40 {
        ordered.push(owned.order(file / 2));
        owned.pass(SECOND / 4);
    }
    assert!(ordered.iter().all(|nth| owned.is_written(*nth)), "{:?}", owned.answers);
    assert_eq!(owned.given_up, [], "nothing that lives had to go");
}

#[test]
fn an_object_that_is_large_for_what_room_there_is_costs_no_other_its_place() {
    let file = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    // An eighth of what it may have is 32 files.
    let mut owned = Owned::new(Faults { capacity: 12 * file, ..Faults::default() }, 256);
    let fill = |owned: &mut Owned, count: u64| {
        let ordered = (0..count).map(|_| {
            let nth = owned.order(file / 2);
            owned.pass(SECOND / 4);
            nth
        });
        ordered.collect::<Vec<_>>()
    };
    let before = fill(&mut owned, 6);
    for _ in 0..3 {
        let large = owned.order(20 * file);
        owned.pass(3 * SECOND);
        assert_eq!(owned.answers.get(&large), Some(&None));
    }
    assert!(before.iter().all(|nth| owned.is_written(*nth)) && owned.given_up.is_empty(), "{:?}", owned.given_up);
    // Nor while it is short: it gives up what the next files need.
    fill(&mut owned, 12);
    assert!(owned.tier.lacks_room());
    assert!(owned.tier.used() >= 8 * file, "{} bytes of files are left", owned.tier.used());
    let given_up = owned.given_up.len();
    owned.order(20 * file);
    owned.pass(3 * SECOND);
    assert!(owned.given_up.len() <= given_up + 2, "{:?}", owned.given_up);
}

#[test]
fn a_tier_for_which_there_is_no_room_at_all_is_asked_for_nothing_and_tried_again_a_minute_later() {
    let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
    // For its superblock there is.
    let mut owned = Owned::new(Faults { capacity: geometry.file_bytes() / 2, ..Faults::default() }, 64);
    let lost = owned.order(BLOCK);
    owned.pass(2 * SECOND);
    assert_eq!((owned.answers.get(&lost), owned.window), (Some(&None), Some(0)));
    owned.pass(30 * SECOND);
    assert_eq!(owned.window, Some(0));
    owned.disk.set_faults(Faults::default());
    owned.pass(32 * SECOND);
    assert!(owned.window > Some(0), "it is tried again");
    let first = owned.order(BLOCK);
    owned.pass(SECOND);
    assert!(owned.is_written(first));
}

#[test]
fn tiers_that_share_a_limit_keep_below_it_and_one_that_has_no_part_of_it_keeps_what_it_has() {
    let file = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    let shared = |others: u64| Faults { shared: Some((20 * file, others * file)), ..Faults::default() };
    // It may have 64 files by itself, and the others leave it 12.
    let mut owned = Owned::new(shared(8), 64);
    let left = |owned: &Owned| owned.disk.room().unwrap().left.unwrap();
    let fill = |owned: &mut Owned| {
        let ordered: Vec<u64> = (0..100)
            .map(|_| {
                let nth = owned.order(file / 2);
                owned.pass(SECOND / 4);
                assert!(left(owned) >= 0);
                nth
            })
            .collect();
        owned.pass(2 * SECOND);
        ordered.iter().filter(|nth| owned.is_written(**nth)).count()
    };
    assert_eq!(fill(&mut owned), 100, "no order is lost while room is made");
    let before = owned.given_up.len();
    assert!(before > 20 && owned.given_up.is_sorted(), "{:?}", owned.given_up);
    // The others take more while it is short, and it makes do with less.
    owned.disk.set_faults(shared(13));
    assert!(left(&owned) < 0);
    for _ in 0..20 {
        owned.order(file / 2);
        owned.pass(SECOND / 4);
    }
    assert!(left(&owned) >= 0);
    assert_eq!(fill(&mut owned), 100);
    // They have all of it: nothing that it has would make room.
    owned.disk.set_faults(shared(60));
    owned.order(file / 2);
    owned.pass(2 * SECOND);
    let before = owned.given_up.len();
    assert_eq!(owned.window, Some(0));
    for _ in 0..20 {
        owned.order(file / 2);
        owned.pass(10 * SECOND);
    }
    assert_eq!(owned.given_up.len(), before, "{:?}", owned.given_up);
    owned.disk.set_faults(shared(8));
    owned.pass(62 * SECOND);
    assert!(owned.window > Some(0));
    assert_eq!(fill(&mut owned), 100);
}

#[test]
fn a_full_tier_whose_disk_fails_keeps_what_it_has() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let half = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes() / 2;
    for _ in 0..20 {
        owned.order(half);
        owned.pass(SECOND / 4);
    }
    assert!(!owned.given_up.is_empty(), "it is full");
    owned.disk.set_faults(Faults { failing: 1000, ..Faults::default() });
    let before = owned.given_up.len();
    for _ in 0..10 {
        owned.order(half);
        owned.pass(10 * SECOND);
    }
    // What was begun before it was known to fail.
    assert!(owned.given_up.len() <= before + 2, "{:?}", owned.given_up);
}

#[test]
fn what_is_kept_of_a_full_tier_finds_room_however_much_is_ordered() {
    let mut owned = Owned::new(Faults { slowest: Duration::from_millis(50), ..Faults::default() }, FILES_MIN);
    let bytes = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    // Two of three, while they are young.
    owned.keeps = |nth, newest| nth % 3 > 0 && nth + 60 > newest;
    let mut ordered = Vec::new();
    for _ in 0..200 {
        ordered.extend((0..2).map(|_| owned.order(bytes / 5)));
        owned.pass(SECOND / 8);
    }
    owned.pass(3 * SECOND);
    let lost = ordered.iter().filter(|nth| !owned.is_written(**nth)).count();
    let kept_lost = owned.kept.iter().filter(|(order, _)| !owned.is_written(**order)).count();
    assert!(owned.kept.len() > 50 && owned.given_up.len() > 50, "{:?} {:?}", owned.kept, owned.given_up);
    assert_eq!(kept_lost, 0, "of {} that were kept; {lost} of {} orders lost", owned.kept.len(), ordered.len());
    assert!(lost < 20, "{lost} of {} orders were lost", ordered.len());
}

#[test]
fn an_object_of_several_files_finds_room_in_a_full_tier() {
    let mut owned = Owned::new(Faults::default(), 64);
    let bytes = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    for _ in 0..140 {
        owned.order(bytes / 5 * 2);
        owned.pass(SECOND / 20);
    }
    assert!(!owned.given_up.is_empty(), "it is full");
    let large: Vec<u64> = (0..10)
        .map(|_| {
            let nth = owned.order(bytes / 2 * 5);
            owned.order(bytes / 5 * 2);
            owned.pass(SECOND);
            nth
        })
        .collect();
    assert!(large.iter().all(|nth| owned.is_written(*nth)), "{large:?} {:?}", owned.answers);
}

#[test]
fn a_large_object_that_came_to_nothing_hides_no_file() {
    let mut owned = Owned::new(Faults::default(), 64);
    let bytes = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    owned.order(bytes / 5 * 2);
    owned.pass(SECOND);
    let (size, rid) = (bytes / 2 * 3, Rid(2_000_000));
    let gone = Leaving::new(size, size);
    gone.is_reachable.store(false, Ordering::Relaxed);
    owned.tier.order(rid, rid, b"gone".to_vec(), 0, gone);
    let larger = owned.order(bytes / 2 * 5);
    owned.pass(SECOND);
    assert!(owned.is_written(larger) && owned.answers[&1_000_000].is_none());
    for _ in 0..160 {
        owned.order(bytes / 5 * 2);
        owned.pass(SECOND / 20);
    }
    assert_eq!(owned.given_up.first(), Some(&0), "the first file is the first to go: {:?}", owned.given_up);
}

#[test]
fn files_of_which_all_is_kept_are_passed_over_and_a_tier_of_such_files_takes_no_orders() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let bytes = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes();
    let fill = |owned: &mut Owned| {
        let ordered: Vec<u64> = (0..30)
            .map(|_| {
                let nth = owned.order(bytes / 40 * 19);
                owned.pass(SECOND / 4);
                nth
            })
            .collect();
        ordered.iter().filter(|nth| !owned.is_written(**nth)).count()
    };
    owned.keeps = |nth, _| nth <= 4;
    assert_eq!(fill(&mut owned), 0);
    assert_eq!(owned.kept.values().filter(|nth| **nth > 4).count(), 0);
    assert!(owned.window > Some(0));
    let has_first = |owned: &Owned| owned.disk.open(&FileNumber(0).name(), false).is_ok();
    // What it has is needed no more, and that shows when it has another turn.
    owned.keeps = |_, _| false;
    assert_eq!((fill(&mut owned), has_first(&owned)), (0, true));
    owned.pass(600 * SECOND);
    assert_eq!((fill(&mut owned), has_first(&owned)), (0, false));
    owned.keeps = |_, _| true;
    assert!(fill(&mut owned) > 10);
    owned.pass(SECOND);
    assert_eq!(owned.window, Some(0), "nothing can be given up");
    owned.keeps = |_, _| false;
    owned.pass(62 * SECOND);
    assert!(owned.window > Some(0), "it is tried again");
    assert_eq!(fill(&mut owned), 0);
}

#[test]
fn a_file_that_an_operator_has_removed_is_gone_and_a_full_tier_goes_on() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let half = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes() / 2;
    let fill = |owned: &mut Owned, count: u64| {
        let wanted: Vec<u64> = (0..count)
            .map(|_| {
                let nth = owned.order(half);
                owned.pass(SECOND / 4);
                nth
            })
            .collect();
        wanted.into_iter().filter(|nth| !owned.is_written(*nth)).count()
    };
    fill(&mut owned, 6);
    owned.disk.remove(&FileNumber(0).name()).unwrap();
    assert!(fill(&mut owned, 60) <= 4, "{:?}", owned.given_up);
}

#[test]
fn a_tier_that_is_adopted_is_given_up_before_the_owners_own_and_what_is_kept_of_it_is_written_there() {
    const OTHER: TierUuid = TierUuid([9; 16]);
    let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
    let (capacity, half) = (FILES_MIN * geometry.file_bytes(), geometry.file_bytes() / 2);
    // Four files of another owner, which has ended.
    let left = FaultyDisk::new(2, Faults::default());
    let new = NewTier { tier: OTHER, ..new_tier(capacity, geometry) };
    let mut other =
        Owned::of(left.clone(), Tier::create(left.clone(), new, owner(2), &Slots::new(2)).unwrap(), capacity);
    let records: Vec<u64> = (0..8).map(|_| other.order(half - (64 << 10))).collect();
    other.pass(3 * SECOND);
    assert!(records.iter().all(|nth| other.is_written(*nth)));
    drop(other.tier.into_lock());
    left.kill_process();

    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    // One of the other's is kept.
    owned.keeps = |nth, _| nth == 3;
    owned.next = 100;
    let (tier, _) = Tier::open(left.clone(), owner(3), &Slots::new(2)).unwrap();
    owned.tier.adopt(tier).unwrap();
    let proof = owned.tier.adopted_proof(OTHER, || SECOND).unwrap();
    assert_eq!((proof.is_new, proof.files.len(), proof.appended.len()), (false, 4, 0));
    owned.pass(SECOND);
    for _ in 0..4 {
        owned.order(half);
        owned.pass(SECOND / 4);
    }
    assert!(owned.given_up.is_empty(), "no master has mounted it yet: {:?}", owned.given_up);
    owned.tier.adopted_is_mounted(OTHER, true);
    let mut ordered = Vec::new();
    for _ in 0..8 {
        ordered.push(owned.order(half));
        left.pass(SECOND / 4);
        owned.pass(SECOND / 2);
    }
    assert!(ordered.iter().all(|nth| owned.is_written(*nth)), "{:?}", owned.answers);
    assert_eq!(owned.given_up_of[..4], [OTHER; 4], "{:?}", owned.given_up_of);
    assert!(owned.given_up[..4].is_sorted());
    // Once more, when it is the oldest of the owner's own.
    let Some((&kept, &3)) = owned.kept.first_key_value() else { panic!("one is kept: {:?}", owned.kept) };
    assert!(owned.is_written(kept), "in the tier of the owner");
    assert!(left.list().unwrap().iter().all(|file| FileNumber::of_name(&file.name).is_none()));
    assert_eq!(owned.tier.empty_adopted(), Some(OTHER));
    assert!(owned.tier.let_go(OTHER).is_some() && owned.tier.empty_adopted().is_none());
    // From here on its own oldest goes.
    let before = owned.given_up.len();
    for _ in 0..8 {
        owned.order(half);
        owned.pass(SECOND / 2);
    }
    assert!(owned.given_up.len() > before);
    assert!(owned.given_up_of[before..].iter().all(|tier| *tier == TIER));
}

#[test]
fn what_is_kept_of_an_adopted_file_is_weighed_against_that_file_whatever_the_owners_own_are() {
    const OTHER: TierUuid = TierUuid([9; 16]);
    let adopts = |file_blocks: u64, sizes: &[u64], keeps: fn(u64, u64) -> bool| {
        let geometry = Geometry::of_file_blocks(file_blocks).unwrap();
        let (left, capacity) = (FaultyDisk::new(2, Faults::default()), FILES_MIN * geometry.file_bytes());
        let new = NewTier { tier: OTHER, ..new_tier(capacity, geometry) };
        let tier = Tier::create(left.clone(), new, owner(2), &Slots::new(2)).unwrap();
        let mut other = Owned::of(left.clone(), tier, capacity);
        let records: Vec<u64> = sizes.iter().map(|size| other.order(*size)).collect();
        other.pass(3 * SECOND);
        assert!(records.iter().all(|nth| other.is_written(*nth)));
        drop(other.tier.into_lock());
        left.kill_process();
        let mut owned = Owned::new(Faults::default(), FILES_MIN);
        (owned.keeps, owned.next) = (keeps, 100);
        owned.tier.adopt(Tier::open(left.clone(), owner(3), &Slots::new(2)).unwrap().0).unwrap();
        owned.tier.adopted_is_mounted(OTHER, true);
        for _ in 0..14 {
            owned.order(FILE_BLOCKS * BLOCK / 2);
            owned.pass(SECOND / 2);
        }
        assert!(owned.given_up_of.contains(&OTHER), "its turn comes: {:?}", owned.given_up_of);
        (left.open(&FileNumber(0).name(), false).is_ok(), owned)
    };
    // Of files that are a quarter as large nearly all is kept.
    let small = FILE_BLOCKS / 4 * BLOCK;
    let (is_there, owned) = adopts(FILE_BLOCKS / 4, &[small / 16 * 15; 2], |nth, _| nth <= 2);
    assert!(is_there, "nothing would be gained: {:?}", owned.kept);
    assert!(owned.given_up_of.contains(&TIER), "its own oldest goes in their place");
    // Of one that is four times as large a quarter is, which is as much as a file of the owner's.
    let (is_there, owned) = adopts(FILE_BLOCKS * 4, &[FILE_BLOCKS * BLOCK / 2; 7], |nth, _| nth <= 2);
    assert!(!is_there, "it goes: {:?}", owned.given_up);
    let of_it = owned.kept.iter().filter(|(_, nth)| **nth <= 2);
    assert!(of_it.clone().count() >= 2 && of_it.clone().all(|(order, _)| owned.is_written(*order)), "{:?}", owned.kept);
}

#[test]
fn records_that_are_read_together_are_proven_one_by_one() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let ordered: Vec<u64> = (0..300).map(|_| owned.order(BLOCK / 2)).collect();
    owned.pass(2 * SECOND);
    let bad = ordered[137];
    let block = owned.answers[&bad].unwrap().0 % FILE_BLOCKS;
    assert!(owned.disk.flip(&FileNumber(0).name(), (block * BLOCK + 1_000) * 8), "in its value");
    let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
    let mut reader = Reader::new(owned.disk.clone(), geometry, Slots::new(4)).unwrap();
    // In another order than on the disk, and one of them twice.
    let asked: Vec<u64> = ordered.iter().rev().chain([&ordered[7]]).copied().collect();
    let mut read: Vec<Vec<u8>> = vec![vec![0; BLOCK as usize / 2]; asked.len()];
    let mut sinks: Vec<_> = read
        .iter_mut()
        .map(|into| {
            |at: u64, bytes: &[u8]| {
                into[at as usize..][..bytes.len()].copy_from_slice(bytes);
                mooncake_memory::crc32c(bytes)
            }
        })
        .collect();
    let wants = asked.iter().zip(&mut sinks).map(|(nth, sink)| {
        let (address, rid, key_bytes) = (owned.answers[nth].unwrap(), Rid(2 * nth), nth.to_string().len());
        let place = RecordPlace { tier: TIER, address, rid, size: BLOCK / 2, key_bytes };
        Want { place, from: 0, len: BLOCK / 2, crc: None, sink }
    });
    let mut wants: Vec<Want<'_>> = wants.collect();
    let results = reader.read(&mut wants, || SECOND);
    drop(wants);
    drop(sinks);
    for ((nth, result), bytes) in asked.iter().zip(results).zip(read) {
        match *nth == bad {
            true => assert_eq!(result, Err(Miss::Wrong)),
            false => {
                assert_eq!(result, Ok(()), "{nth}");
                assert!((0..).zip(bytes).all(|(at, byte): (u64, u8)| byte == at as u8), "{nth}");
            }
        }
    }
}

#[test]
fn what_is_damaged_in_memory_is_reported_and_not_written_and_a_placement_that_ended_is_not() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let (whole, ended) = (Leaving::new(BLOCK, BLOCK), Leaving::while_summed(BLOCK, BLOCK / 2));
    let sums = [sum_of(&whole) ^ 1, sum_of(&ended) ^ 1];
    owned.tier.order(Rid(2), Rid(2), b"damaged".to_vec(), sums[0], whole);
    owned.tier.order(Rid(4), Rid(4), b"ended".to_vec(), sums[1], ended);
    owned.pass(SECOND);
    assert!(!owned.is_written(1) && !owned.is_written(2));
    assert_eq!(owned.damaged, [(b"damaged".to_vec(), PLACEMENT)]);
}

#[test]
fn a_sector_that_cannot_be_read_costs_a_file_no_more_than_what_lies_there() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    owned.keeps = |_, _| true;
    // More than fit one file: the first is sealed.
    let ordered: Vec<u64> = (0..300).map(|_| owned.order(BLOCK)).collect();
    owned.pass(2 * SECOND);
    assert!(ordered.iter().all(|nth| owned.is_written(*nth)));
    let name = FileNumber(0).name();
    for sector in [2, FILE_BLOCKS - 1] {
        owned.disk.break_sector(&name, sector);
    }
    let slots = Slots::new(4);
    let of = (TIER, Geometry::of_file_blocks(FILE_BLOCKS).unwrap());
    let found = contents(&owned.disk, of, (FileNumber(0), FILE_BLOCKS * BLOCK), &slots, &support::uncounted()).unwrap();
    assert!(!found.is_sealed, "its footer cannot be read");
    let in_it = ordered.iter().filter(|nth| owned.answers[nth].unwrap().0 < FILE_BLOCKS).count();
    assert_eq!(found.entries.len(), in_it - 1, "all but the record that begins there");
}

#[test]
fn a_slow_disk_proves_a_file_little_by_little() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let ordered: Vec<u64> = (0..300).map(|_| owned.order(BLOCK / 2)).collect();
    owned.pass(2 * SECOND);
    assert!(ordered.iter().all(|nth| owned.is_written(*nth)));
    owned.disk.set_faults(Faults { failing: 1000, ..Faults::default() });
    owned.order(BLOCK);
    owned.pass(SECOND);
    owned.disk.set_faults(Faults::default());
    owned.pass(SECOND);
    let mut tries = 0;
    let proof = loop {
        tries += 1;
        assert!(tries < 50, "each try goes on where the last one was left");
        let mut waits = 0;
        let time_left = || {
            waits += 1;
            if waits < 20 { SECOND } else { Duration::ZERO }
        };
        if let Some(proof) = owned.tier.proof(time_left) {
            break proof;
        }
    };
    assert!(tries > 2, "{tries}");
    let rids: Vec<u64> = ordered.iter().map(|nth| 2 * nth).collect();
    assert_eq!(proof.proven.iter().map(|rid| rid.0).collect::<Vec<_>>(), rids);
}

#[test]
fn what_counts_on_a_file_system_of_several_hosts_outlives_the_power_of_the_writers() {
    let check = || {
        for seed in 1..20 {
            let faults = Faults { buffered: true, slowest: Duration::from_millis(seed), ..Faults::default() };
            let mut owned = Owned::new(faults, 16);
            let mut ordered = Vec::new();
            for nth in 0..30 {
                ordered.push(owned.order((nth % 7 + 1) * (100 << 10)));
                owned.pass(Duration::from_millis(10 * (seed % 5 + 1)));
            }
            let counted: Vec<(u64, Address)> =
                owned.answers.iter().filter_map(|(nth, address)| Some((*nth, (*address)?))).collect();
            assert!(counted.len() > 10, "{} of {} count within the time that they have", counted.len(), ordered.len());
            owned.disk.lose_power();
            let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
            let mut reader = Reader::new(owned.disk.clone(), geometry, Slots::new(4)).unwrap();
            for (nth, address) in counted {
                let (size, key_bytes) = (((nth - 1) % 7 + 1) * (100 << 10), nth.to_string().len());
                let place = RecordPlace { tier: TIER, address, rid: Rid(2 * nth), size, key_bytes };
                let mut sink = |_: u64, bytes: &[u8]| mooncake_memory::crc32c(bytes);
                let want = Want { place, from: 0, len: size, crc: None, sink: &mut sink };
                let read = reader.read(&mut [want], || SECOND).remove(0);
                assert_eq!(read, Ok(()), "{nth} was said to be written");
            }
        }
    };
    check();
    assert!(is_noticed_by(Mutant::UnsyncedRecordsCount, check));
}

#[test]
fn a_tier_that_may_have_no_more_records_gives_up_its_oldest_file_be_it_the_one_that_it_appends() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    let first = owned.order(BLOCK);
    owned.pass(SECOND);
    assert_eq!(owned.answers[&first].map(|address| address.0 / FILE_BLOCKS), Some(0));
    for _ in 0..2 {
        owned.tier.give_oldest_up();
        owned.pass(2 * SECOND);
    }
    assert_eq!(owned.given_up, [0], "there is no other one");
    owned.pass(10 * SECOND);
    assert_eq!(owned.given_up, [0], "once each time");
    let next = owned.order(BLOCK);
    owned.pass(2 * SECOND);
    assert_eq!(owned.answers[&next].map(|address| address.0 / FILE_BLOCKS), Some(1));
    owned.tier.give_oldest_up();
    owned.tier.anchor_lost();
    owned.tier.mounted(0);
    owned.pass(2 * SECOND);
    assert_eq!(owned.given_up, [0], "a word of a session before is over");
}

#[test]
fn a_file_of_which_all_is_pinned_does_not_keep_the_next_one_from_being_given_up() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    owned.keeps = |nth, _| nth <= 3;
    let quarter = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes() / 4;
    // Three a file.
    let ordered: Vec<u64> = (0..7).map(|_| owned.order(quarter)).collect();
    owned.pass(2 * SECOND);
    assert!(ordered.iter().all(|nth| owned.is_written(*nth)));
    for _ in 0..2 {
        owned.tier.give_oldest_up();
        owned.pass(SECOND);
    }
    assert_eq!(owned.given_up, [0, 1]);
}

#[test]
fn a_tier_of_which_all_is_pinned_and_that_may_have_no_more_records_writes_them_once_more_each_minute_at_most() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    owned.keeps = |_, _| true;
    let ordered: Vec<u64> = (0..8).map(|_| owned.order(BLOCK)).collect();
    owned.pass(SECOND);
    assert!(ordered.iter().all(|nth| owned.is_written(*nth)));
    for _ in 0..50 {
        owned.tier.give_oldest_up();
        owned.pass(SECOND);
    }
    assert!(owned.given_up.len() <= 2, "{:?}", owned.given_up);
    assert!(owned.tier.used() <= 3 * Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes());
}

#[test]
fn a_full_tier_that_gives_nothing_up_is_ordered_nothing_until_files_are_needed_no_more() {
    let mut owned = Owned::new(Faults::default(), FILES_MIN);
    owned.tier = owned.tier.evicting(false);
    let half = Geometry::of_file_blocks(FILE_BLOCKS).unwrap().file_bytes() / 2;
    let ordered: Vec<u64> = (0..20)
        .map(|_| {
            let nth = owned.order(half);
            owned.pass(2 * SECOND);
            nth
        })
        .collect();
    assert_eq!((owned.window, owned.given_up.len()), (Some(0), 0));
    let written = ordered.iter().filter(|nth| owned.is_written(**nth)).count();
    assert!((4..20).contains(&written), "{written}");
    owned.pass(200 * SECOND);
    assert_eq!((owned.window, owned.given_up.len()), (Some(0), 0), "however long it is full");
    owned.tier.retire(0, &[0, 1, 2]);
    owned.pass(SECOND);
    assert!(owned.window > Some(0));
    let next = owned.order(half);
    owned.pass(2 * SECOND);
    assert!(owned.is_written(next));
}
