//! What a session says counts for what is its own, and each is told what concerns it.

use mooncake_core::{
    Config, Core, EndOutcome, Extent, PinKind, Push, PutConfig, Record, Replica, SegmentNo, SegmentSpec, SessionSpec,
};
use mooncake_ids::{Rid, SegmentUuid, SessionId};

use crate::pool::{self, KIB, Pool, durable, placed, plain, replayed, uuid};

/// Two owners of 8 KiB each.
fn two_owners() -> (Pool, SessionId, SessionId) {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 8 * KIB);
    pool.mount(b, 2, 8 * KIB);
    (pool, a, b)
}

fn on(segment: u8) -> PutConfig {
    PutConfig { preferred_segments: vec![format!("segment-{segment}")], ..plain() }
}

#[test]
fn only_its_owner_opens_a_segment_and_only_for_the_epoch_that_there_is() {
    let (mut pool, a, b) = two_owners();
    pool.core.raise_epoch(pool.now, 5, &mut pool.fx);
    pool.core.epoch_taken(pool.now, b, 5, &[uuid(1)], &mut pool.fx);
    pool.core.epoch_taken(pool.now, a, 9, &[uuid(1)], &mut pool.fx);
    assert_eq!(pool.core.stats().segments_closed, 2);
    pool.collect();
    let logged = pool.log.len();
    for records in [1, 0] {
        pool.core.epoch_taken(pool.now, a, 5, &[uuid(1)], &mut pool.fx);
        assert_eq!((pool.fx.records.len(), pool.core.stats().segments_closed), (records, 1));
        pool.collect();
    }
    assert_eq!(pool.log.len(), logged + 1);
    pool.check();
}

#[test]
fn what_lies_on_a_segment_leaves_for_others_as_soon_as_its_owner_has_taken_the_epoch() {
    let (mut pool, a, b) = two_owners();
    pool.put_with(a, "closed", 8 * KIB, &on(1));
    pool.put_with(b, "open", 8 * KIB, &on(2));
    pool.core.raise_epoch(pool.now, 2, &mut pool.fx);
    pool.core.epoch_taken(pool.now, b, 2, &[uuid(2)], &mut pool.fx);
    // It is met first, as what was used longest ago, and nothing can be placed where it lies.
    let kept = placed(&pool.slots(b, &[("first", 8 * KIB)], &plain())[0]);
    assert_eq!(pool.keys(), ["closed"]);
    pool.commit(b, &kept);
    pool.exists("first");
    pool.core.epoch_taken(pool.now, a, 2, &[uuid(1)], &mut pool.fx);
    pool.put(b, "second", 8 * KIB);
    assert_eq!(pool.keys(), ["first", "second"]);
    pool.check();
}

#[test]
fn only_the_writers_beats_renew_its_put() {
    let (mut pool, a, b) = two_owners();
    let replicas = pool.reserve(a, "k", KIB);
    for _ in 0..2 {
        pool.pass(20_000);
        pool.core.beat(pool.now, b, &[replicas[0].rid], &[], &mut pool.fx);
    }
    assert_eq!(pool.commit(a, &replicas), EndOutcome::Superseded);
}

#[test]
fn each_owner_is_asked_again_for_its_own_and_in_portions() {
    let (mut pool, a, b) = two_owners();
    let c = pool.session(3);
    let mut given_up = |key: &str, segment: u8| {
        let rid = placed(&pool.slots(c, &[(key, KIB)], &on(segment))[0])[0].rid;
        pool.abort(c, rid, true);
        rid
    };
    let (first, other, second) = (given_up("k", 1), given_up("l", 2), given_up("m", 1));
    let bad: Vec<Rid> = [1, 2].map(|n| pool.put_with(c, &format!("o{n}"), KIB, &on(n))[0].rid).to_vec();
    for (nth, rid) in bad.iter().enumerate() {
        pool.core.bad_replica(pool.now, c, format!("o{}", nth + 1).as_bytes(), *rid, &mut pool.fx);
    }
    pool.collect();
    for (owner, id, rids) in [(a, 1, vec![first, second]), (b, 2, vec![other])] {
        pool.anchor_lost(owner);
        pool.pushes.clear();
        pool.resume(owner, &[id], &[], 1).unwrap();
        let rechecks: Vec<(SessionId, Rid)> = pool
            .pushes
            .iter()
            .filter_map(|(to, push)| match push {
                Push::Recheck { replica, .. } => Some((*to, replica.rid)),
                _ => None,
            })
            .collect();
        assert_eq!(rechecks, [(owner, bad[id as usize - 1])]);
        let fences: Vec<Rid> = pool.take_fences(owner).iter().map(|(rid, _)| *rid).collect();
        assert_eq!(fences, rids);
        assert!(pool.take_fences(a).is_empty() && pool.take_fences(b).is_empty(), "another's");
    }
    assert_eq!(pool.core.ask_fences(a, Rid(0), 1, &mut pool.fx), Some(second));
    assert_eq!(pool.fx.pushes.len(), 1);
    assert_eq!(pool.core.ask_fences(a, second, 1, &mut pool.fx), None);
    assert_eq!(pool.fx.pushes.len(), 2);
}

#[test]
fn reports_about_a_segment_that_is_gone_leave_room_for_others() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 4_200 * KIB);
    for batch in 0..64 {
        let names: Vec<String> = (0..64).map(|n| format!("{batch}-{n}")).collect();
        let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        for (slot, name) in pool.slots(a, &entries, &plain()).iter().zip(&names) {
            let rid = placed(slot)[0].rid;
            pool.end(a, &[(rid, true)], 1);
            pool.core.bad_replica(pool.now, b, name.as_bytes(), rid, &mut pool.fx);
        }
    }
    pool.collect();
    pool.over(a);
    pool.mount(b, 2, 8 * KIB);
    let rid = pool.put(b, "k", KIB)[0].rid;
    pool.pushes.clear();
    pool.core.bad_replica(pool.now, b, b"k", rid, &mut pool.fx);
    pool.collect();
    assert!(matches!(pool.pushes[..], [(to, Push::Recheck { .. })] if to == b), "{:?}", pool.pushes);
}

#[test]
fn a_client_whose_session_is_over_is_told_so() {
    let (mut pool, a, b) = two_owners();
    for (session, why) in [(a, "its process is gone"), (b, "it closed")] {
        pool.pushes.clear();
        match session == a {
            true => pool.over(session),
            false => pool.close(session),
        }
        assert!(pool.pushes.contains(&(session, Push::SessionOver(why.to_owned()))), "{:?}", pool.pushes);
    }
}

#[test]
fn a_master_that_was_stopped_counts_absences_anew_too_and_makes_nobody_absent() {
    let (mut pool, a, b) = two_owners();
    pool.anchor_lost(b);
    pool.pass(590_000);
    pool.core.stalled(pool.now);
    assert_eq!(pool.core.stats().sessions_away, 1);
    pool.pass(590_000);
    assert!(pool.core.session_spec(b).is_some());
    pool.pass(20_000);
    assert!(pool.core.session_spec(b).is_none() && pool.core.session_spec(a).is_some());
}

#[test]
fn a_session_that_is_back_has_as_long_to_its_first_beat_as_any() {
    let (mut pool, _, b) = two_owners();
    pool.anchor_lost(b);
    pool.pass(5_000);
    pool.resume(b, &[2], &[], 1).unwrap();
    pool.pass_without(1_980, &[b]);
    assert_eq!(pool.core.stats().sessions_away, 0);
    pool.pass_without(60, &[b]);
    assert_eq!(pool.core.stats().sessions_away, 1);
}

#[test]
fn an_older_list_of_views_is_known_as_such() {
    let (mut pool, a, _) = two_owners();
    for (number, latest) in [(5, true), (3, false), (5, true), (0, true), (4, false), (6, true)] {
        assert_eq!(pool.core.is_latest_list(a, number), latest, "{number}");
    }
}

#[test]
fn no_view_is_noted_where_nothing_is_left_to_hold() {
    let (mut pool, a, b) = two_owners();
    let rid = pool.put_with(a, "k", KIB, &on(1))[0].rid;
    let origin = pool.origin(a);
    pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx).unwrap();
    let resumed = pool.resume_each(b, &[(2, 1)], &[rid]).unwrap();
    assert_eq!((resumed.unknown_pins, pool.core.stats().pins), (vec![rid], 0));
    pool.check();
}

#[test]
fn what_two_read_stays_when_one_has_ended() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    let rid = pool.put(a, "viewed", KIB)[0].rid;
    pool.pin(a, "viewed").unwrap();
    pool.pin(b, "viewed").unwrap();
    pool.unpin(a, rid);
    for n in 0..16 {
        pool.put(a, &format!("n{n}"), KIB);
    }
    assert!(pool.keys().contains(&"viewed".to_owned()));
    pool.unpin(b, rid);
    pool.check();
}

#[test]
fn a_log_that_contradicts_itself_is_refused() {
    let (mut pool, a, _) = two_owners();
    pool.put(a, "k", KIB);
    let unfinished = pool.reserve(a, "l", KIB)[0];
    pool.abort(a, unfinished.rid, false);
    let reserved = |rid: u64, offset: u64| {
        let extent = Extent { segment: SegmentNo(1), offset, length: KIB };
        let replicas = [Replica { rid: Rid::new(1, rid), extent }].into_iter().collect();
        Record::Reserved { session: a, key: b"m".as_slice().into(), size: KIB, pin: plain().pin, replicas }
    };
    let spec = SessionSpec { secret: 1, name: String::new(), boot_id: Vec::new(), process: Vec::new() };
    let memory = |id| SegmentSpec { uuid: uuid(id), name: String::new(), bytes: 8 * KIB, endpoint: Vec::new() };
    let mounted = |number, session, id| Record::SegmentMounted { number, session, spec: memory(id), epoch: 1 };
    let (nobody, nowhere) = (SessionId(999), SegmentNo(999));
    let contradictions = [
        Record::Epoch(1),
        Record::SessionOpened { session: a, spec },
        Record::SessionOver(nobody),
        mounted(SegmentNo(1), a, 9),
        mounted(SegmentNo(9), a, 1),
        mounted(SegmentNo(9), nobody, 9),
        Record::SegmentTookEpoch { number: nowhere, epoch: 1 },
        Record::SegmentPopulated { number: nowhere, bytes: KIB },
        Record::SegmentEnds { number: nowhere, bytes: KIB },
        Record::SegmentLeaves { number: nowhere, grace_ms: 1 },
        Record::SegmentGone(nowhere),
        Record::Dropped(Rid::new(1, 999)),
        Record::Released(Rid::new(1, 999)),
        Record::Committed { reservation: Rid::new(1, 999), good: Default::default(), crc32c: 1 },
        Record::Removed { key: b"missing".as_slice().into(), rid: Rid::new(1, 1) },
    ];
    let refused = |record: &Record| {
        let mut core: Core = Core::new(Config::default());
        pool.log.iter().for_each(|record| core.replay(record.clone()).unwrap());
        core.replay(record.clone()).is_err()
    };
    let accepted: Vec<&Record> = contradictions.iter().filter(|record| !refused(record)).collect();
    assert!(accepted.is_empty(), "{accepted:?}");
    let of = |record: Record, change: &dyn Fn(&mut Replica)| match record {
        Record::Reserved { session, key, size, pin, mut replicas } => {
            change(&mut replicas[0]);
            Record::Reserved { session, key, size, pin, replicas }
        }
        other => other,
    };
    assert!(!refused(&reserved(900, 5 * KIB)) && refused(&reserved(900, 0)), "two that overlap");
    assert!(refused(&of(reserved(900, 5 * KIB), &|replica| replica.extent.segment = nowhere)));
    let begun = reserved(900, 5 * KIB);
    pool.log.push(begun.clone());
    let refused = |record: Record| {
        let mut core: Core = Core::new(Config::default());
        pool.log.iter().for_each(|record| core.replay(record.clone()).unwrap());
        core.replay(record).is_err()
    };
    assert!(refused(reserved(901, 6 * KIB)), "a second put of a key");
    let committed = |good: &[u64]| {
        let good = good.iter().map(|rid| Rid::new(1, *rid)).collect();
        Record::Committed { reservation: Rid::new(1, 900), good, crc32c: 1 }
    };
    assert!(refused(committed(&[])) && refused(committed(&[900, 901])) && !refused(committed(&[900])));
    pool.log.pop();
    assert_eq!(durable(&replayed(pool.log.clone())), durable(&pool.core));
}

#[test]
fn nothing_is_overdue_because_its_master_was_away() {
    let (mut pool, a, b) = two_owners();
    let replicas = placed(&pool.slots(b, &[("k", KIB)], &on(1))[0]);
    let soft = PutConfig { pin: PinKind::Soft { ttl_ms: 60_000 }, ..on(1) };
    pool.put_with(a, "soft", 4 * KIB, &soft);
    pool.now = pool.now.plus_ms(3_600_000);
    pool.restart(None);
    pool.core.tick(pool.now, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.core.stats().soft_pinned_objects, 1);
    pool.resume(a, &[1], &[], 1).unwrap();
    pool.resume(b, &[2], &[], 1).unwrap();
    assert_eq!(pool.commit(b, &replicas), EndOutcome::Committed);
    pool.check();
}

#[test]
fn owners_that_are_there_are_asked_at_once_to_take_a_new_epoch() {
    let (mut pool, a, b) = two_owners();
    let idle = pool.session(3);
    pool.anchor_lost(b);
    pool.pushes.clear();
    pool.core.raise_epoch(pool.now, 2, &mut pool.fx);
    pool.collect();
    let asked: Vec<SessionId> = pool
        .pushes
        .iter()
        .filter_map(|(to, push)| matches!(push, Push::TakeEpoch(epoch) if epoch.number == 2).then_some(*to))
        .collect();
    assert_eq!(asked, [a], "neither {b:?}, which is away, nor {idle:?}, which has nothing");
}

#[test]
fn a_replacement_stays_in_the_group_of_what_it_replaces() {
    let (mut pool, a, _) = two_owners();
    let grouped = PutConfig { groups: vec![b"g".as_slice().into()], ..on(1) };
    pool.put_with(a, "k", KIB, &grouped);
    pool.put_with(a, "k", KIB, &PutConfig { replace: true, ..on(1) });
    let groups: Vec<Box<[u8]>> = pool
        .core
        .snapshot()
        .filter_map(|record| match record {
            Record::GroupedObject { group, .. } => Some(group),
            _ => None,
        })
        .collect();
    assert_eq!(groups, [b"g".as_slice().into()]);
    pool.check();
}

#[test]
fn what_lay_on_segments_that_went_one_after_the_other_is_forgotten() {
    let (mut pool, a, b) = two_owners();
    let c = pool.session(3);
    for n in 0..8 {
        pool.put_with(c, &format!("a{n}"), KIB, &on(1));
        pool.put_with(c, &format!("b{n}"), KIB, &on(2));
    }
    pool.over(a);
    assert!(pool.core.background(pool.now, 10, &mut pool.fx), "there is more");
    pool.over(b);
    while pool.core.background(pool.now, 10, &mut pool.fx) {}
    pool.collect();
    assert!(!pool.core.snapshot().any(|record| matches!(record, Record::Object { .. })));
    pool.check_books();
}

#[test]
fn what_is_under_a_view_is_held_by_a_master_that_begins_from_a_snapshot() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let viewed = pool.put(a, "viewed", 4 * KIB)[0];
    pool.pin(a, "viewed").unwrap();
    pool.remove(a, "viewed", true);
    pool.log = pool.core.snapshot().collect();
    pool.restart(None);
    pool.resume(a, &[1], &[viewed.rid], 1).unwrap();
    assert!(pool::is_full(&pool.slot(a, "k", 8 * KIB)));
    let other = pool.put(a, "l", 4 * KIB)[0];
    assert_ne!(other.extent.offset, viewed.extent.offset);
    pool.unpin(a, viewed.rid);
    pool.put(a, "m", 4 * KIB);
    pool.check_books();
}

#[test]
fn a_session_that_was_away_hears_of_each_segment_that_went_up_to_a_limit() {
    const MOST: u32 = 1_024;
    let (mut pool, a, b) = two_owners();
    let gone = |pool: &Pool| {
        let told = pool.pushes.iter().filter_map(|(to, push)| match push {
            Push::SegmentGone { number, .. } if *to == b => Some(number.0),
            _ => None,
        });
        told.collect::<Vec<u32>>()
    };
    let come_and_go = |pool: &mut Pool, times: u32| {
        for _ in 0..times {
            let (mounted, unmounted) = (pool.origin(a), pool.origin(a));
            let spec = SegmentSpec { uuid: fresh(pool), name: String::new(), bytes: KIB, endpoint: Vec::new() };
            let uuid = spec.uuid;
            pool.core.mount(pool.now, mounted, spec, KIB, &mut pool.fx).unwrap();
            pool.core.unmount(pool.now, unmounted, uuid, 0, &mut pool.fx).unwrap();
        }
        pool.collect();
    };
    for (times, first) in [(2, 3), (MOST + 3, 8)] {
        pool.anchor_lost(b);
        pool.pushes.clear();
        come_and_go(&mut pool, times);
        assert!(gone(&pool).is_empty());
        pool.check_books();
        pool.resume(b, &[2], &[], 1).unwrap();
        // The rest in steps.
        pool.pass(20);
        let told = gone(&pool);
        assert_eq!((told.len() as u32, told[0]), (times.min(MOST), first));
    }
}

/// A UUID that no segment has had.
fn fresh(pool: &Pool) -> SegmentUuid {
    let mut uuid = [9; 16];
    uuid[..8].copy_from_slice(&pool.sequences.values().sum::<u64>().to_le_bytes());
    SegmentUuid(uuid)
}
