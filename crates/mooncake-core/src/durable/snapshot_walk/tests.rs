use smallvec::smallvec;

use super::*;
use crate::config::Config;
use crate::effect::Effects;
use crate::ids::{Extent, Replica, Time};
use crate::request::{PinKind, SegmentSpec, SessionSpec};
use mooncake_ids::{GRANULE, SegmentUuid};

fn spec(number: u64) -> SessionSpec {
    SessionSpec { secret: number, name: "c".into(), boot_id: vec![1; 16], process: vec![2] }
}

fn key(number: u64) -> Box<[u8]> {
    format!("a-key-that-does-not-fit-inside-an-object-{number:06}").into_bytes().into()
}

/// One session, one segment, and objects of one granule each.
fn core(objects: u64) -> (Core, Effects) {
    let (mut core, mut fx) = (Core::new(Config::default()), Effects::default());
    core.begin(Time(1), None, &mut fx);
    let session = core.open_session(Time(1), spec(1), &mut fx).unwrap();
    let uuid = SegmentUuid([1; 16]);
    let bytes = 4 * objects * GRANULE;
    let segment = SegmentSpec { uuid, name: "s".into(), bytes, endpoint: Vec::new() };
    core.log(Time(1), Record::SegmentMounted { number: SegmentNo(1), session, spec: segment, epoch: 1 }, &mut fx);
    core.log(Time(1), Record::SegmentPopulated { number: SegmentNo(1), bytes }, &mut fx);
    for number in 1..=objects {
        insert(&mut core, number, &mut fx);
    }
    fx.records.clear();
    (core, fx)
}

fn insert(core: &mut Core, number: u64, fx: &mut Effects) {
    let rid = core.next_rid();
    let extent = Extent { segment: SegmentNo(1), offset: number * GRANULE, length: GRANULE };
    let replicas = smallvec![Replica { rid, extent }];
    let object = Record::Object { key: key(number), size: GRANULE, crc32c: 0, pin: PinKind::None, replicas };
    core.log(Time(1), object, fx);
}

fn remove(core: &mut Core, number: u64, fx: &mut Effects) {
    let key = key(number);
    let slot = core.objects.find(core.objects.hash(&key), &key).unwrap();
    core.remove_object(Time(1), slot, fx);
}

fn keys(slices: &[Record]) -> Vec<Box<[u8]>> {
    let keys = slices.iter().filter_map(|record| match record {
        Record::Object { key, .. } => Some(key.clone()),
        _ => None,
    });
    keys.collect()
}

/// Takes what is left; `between` is called behind each slice.
fn take(core: &mut Core, most: usize, mut between: impl FnMut(&mut Core, usize)) -> Vec<Record> {
    let mut taken = Vec::new();
    for count in 0.. {
        let Some(slice) = core.snapshot_slice(most).unwrap() else { break };
        taken.extend(slice.records.into_iter().flatten());
        between(core, count);
    }
    core.end_snapshot();
    taken
}

#[test]
fn objects_come_in_the_order_in_which_they_would_be_evicted_whatever_moves_meanwhile() {
    let (mut core, _) = core(100);
    // What was used last is evicted last.
    let used = [3, 50, 7];
    let touch = |core: &mut Core, number: u64| {
        let key = key(number);
        let slot = core.objects.find(core.objects.hash(&key), &key).unwrap();
        core.objects.touch(Time(1), slot, |_| false);
    };
    used.iter().for_each(|number| touch(&mut core, *number));
    core.begin_snapshot();
    // The one that the walk is to meet next, each time, one that it has met, and one that it is yet to meet.
    let records = take(&mut core, 10, |core, count| {
        let next = 10 * (count as u64).saturating_sub(1) + 1;
        [next, 1, 99].into_iter().filter(|number| *number <= 100).for_each(|number| touch(core, number));
    });
    let (found, mut all) = (keys(&records), (1..=100).map(key).collect::<Vec<_>>());
    let cold: Vec<usize> = found.iter().filter_map(|key| all.iter().position(|other| other == key)).collect();
    assert_eq!(cold.len(), 100, "each of them once");
    let unused = cold.iter().filter(|index| ![2, 49, 6, 98].contains(index) && **index % 10 > 2);
    assert!(unused.is_sorted(), "{cold:?}");
    let (mut found, position) = (found.clone(), |number: u64| found.iter().position(|other| *other == key(number)));
    assert!(position(3) > position(90) && position(7) > position(50), "{cold:?}");
    found.sort();
    all.sort();
    assert_eq!(found, all);
}

#[test]
fn what_leaves_before_the_walk_is_there_is_in_it_and_what_comes_is_not() {
    let (mut core, mut fx) = core(5_000);
    core.begin_snapshot();
    let expected: Vec<String> = sorted(core.snapshot());
    let mut next = 5_000;
    let records = take(&mut core, 64, |core, count| {
        let count = count as u64;
        for number in 1..=5 {
            // From both ends, and where the slots that were left are used again.
            if core
                .objects
                .find(core.objects.hash(&key(5_001 - 5 * count - number)), &key(5_001 - 5 * count - number))
                .is_some()
            {
                remove(core, 5_001 - 5 * count - number, &mut fx);
                next += 1;
                insert(core, next, &mut fx);
            }
        }
    });
    assert!(next > 5_200, "{next}");
    assert_eq!(sorted(records.into_iter()), expected);
}

fn sorted(records: impl Iterator<Item = Record>) -> Vec<String> {
    let mut all: Vec<String> = records.map(|record| format!("{record:?}")).collect();
    all.sort();
    all
}

#[test]
fn a_snapshot_that_is_not_taken_is_given_up_and_requests_go_on() {
    let (mut core, mut fx) = core(1_000);
    core.begin_snapshot();
    core.walk.as_mut().unwrap().aside_max = 20_000;
    for number in 1..=200 {
        remove(&mut core, number, &mut fx);
    }
    let full = core.snapshot_slice(10).unwrap_err();
    let most = size_of::<Record>() + key(1).len();
    assert!((20_001..=20_000 + most).contains(&full.0), "no more than one beyond: {full}");
    core.end_snapshot();
    // The next one is whole, as long as it is taken often enough.
    core.begin_snapshot();
    core.walk.as_mut().unwrap().aside_max = 20_000;
    let mut next = 200;
    let records = take(&mut core, 10, |core, _| {
        for _ in 0..20.min(1_000 - next) {
            next += 1;
            remove(core, next, &mut fx);
        }
    });
    assert_eq!(keys(&records).len(), 800);
    assert!(next > 900, "{next}");
}

#[test]
fn a_slice_is_as_long_as_it_was_asked_to_be() {
    let (mut core, mut fx) = core(10_000);
    for number in 2..=500 {
        core.open_session(Time(1), spec(number), &mut fx).unwrap();
    }
    core.begin_snapshot();
    let mut count = 0;
    loop {
        let Some(slice) = core.snapshot_slice(100).unwrap() else { break };
        let records: usize = slice.records.iter().map(Vec::len).sum();
        assert!(records <= 110, "{records}");
        count += 1;
    }
    assert!((110..=300).contains(&count), "{count}");
}

fn long_key(number: u64) -> Box<[u8]> {
    let mut key = vec![7; 64 << 10];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key.into()
}

/// Behind other objects, so many with keys of 64 KiB.
fn insert_long(core: &mut Core, from: u64, count: u64, fx: &mut Effects) {
    for number in from..from + count {
        let extent = Extent { segment: SegmentNo(1), offset: number * GRANULE, length: GRANULE };
        let replicas = smallvec![Replica { rid: core.next_rid(), extent }];
        let object = Record::Object { key: long_key(number), size: GRANULE, crc32c: 0, pin: PinKind::None, replicas };
        core.log(Time(1), object, fx);
    }
}

#[test]
fn objects_with_long_keys_make_slices_of_few_objects() {
    let (mut core, mut fx) = core(1_000);
    insert_long(&mut core, 1_001, 40, &mut fx);
    core.begin_snapshot();
    let mut all = 0;
    while let Some(slice) = core.snapshot_slice(512).unwrap() {
        let records: Vec<Record> = slice.records.into_iter().flatten().collect();
        let bytes: usize = records.iter().map(keys_of).sum();
        assert!(bytes <= 512 * (AS_ONE + 64) + (64 << 10), "{bytes} bytes in {} records", records.len());
        all += records.iter().filter(|record| matches!(record, Record::Object { .. })).count();
    }
    assert_eq!(all, 1_040);
}

#[test]
fn objects_that_leave_while_unfinished_things_are_taken_do_not_pile_up() {
    let (mut core, mut fx) = core(500);
    insert_long(&mut core, 501, 200, &mut fx);
    for number in 2..=400 {
        core.open_session(Time(1), spec(number), &mut fx).unwrap();
    }
    core.begin_snapshot();
    core.walk.as_mut().unwrap().aside_max = 6 << 20;
    let (expected, mut next) = (sorted(core.snapshot()), 501);
    let mut parts = Vec::new();
    let mut taken = Vec::new();
    while let Some(slice) = core.snapshot_slice(10).expect("it is taken often enough") {
        parts.push(slice.part);
        taken.extend(slice.records.into_iter().flatten());
        if core.walk.as_ref().unwrap().next.part() == SnapshotPart::Unfinished {
            for number in (next..701).take(10) {
                let slot = core.objects.find(core.objects.hash(&long_key(number)), &long_key(number)).unwrap();
                core.remove_object(Time(1), slot, &mut fx);
            }
            next = 701.min(next + 10);
        }
    }
    assert_eq!(next, 701, "all of them leave before objects have their turn");
    let between = parts.windows(2).filter(|pair| pair == &[SnapshotPart::Objects, SnapshotPart::Unfinished]).count();
    assert!(between >= 2, "{parts:?}");
    assert_eq!(sorted(taken.into_iter()), expected);
}

#[test]
fn what_is_only_noted_of_changes_counts_too() {
    let (mut core, mut fx) = core(1_000);
    core.begin_snapshot();
    core.walk.as_mut().unwrap().aside_max = 20_000;
    for number in 1..=500 {
        let slot = core.objects.find(core.objects.hash(&key(number)), &key(number)).unwrap();
        let place = core.objects.object(slot).places.memory()[0];
        let (session, key) = (SessionId(1), Some(key(number)));
        core.log(Time(1), Record::Pinned { session, rid: place.rid, extent: place.extent(GRANULE), key }, &mut fx);
    }
    assert_eq!(core.walk.as_ref().unwrap().aside_bytes, 0, "there were no views");
    core.snapshot_slice(10).expect_err("it keeps too much");
}
