//! What is on a tier outlives its place in memory, its owner and the master; what was removed does not come back.

use std::collections::{BTreeMap, BTreeSet};

use crate::pool::{KIB, Pool, placed, plain};
use mooncake_core::{
    Config, EndOutcome, Offload, OrdersAnswered, PinKind, Push, PutConfig, PutStarted, Refused, RemoveAll,
    RemoveOutcome, STEP_OBJECTS, SegmentNo, SharedStorage, Sight, StartOutcome, TierMount, TierMounted, TierProof,
    TierSpec, TierState, Verdict, Written,
};
use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid, SessionId, TIER_BLOCK, TierUuid};
use mooncake_mutant::{Mutant, is_noticed_by};

use crate::pool::tiers::{FILE_BLOCKS, Order, WINDOW, WithTiers, mount, spec, tier_uuid, whole};

/// One owner of 64 KiB of memory and a new tier.
fn pool(config: Config) -> (Pool, SessionId, SegmentNo) {
    let mut pool = Pool::with(config);
    let session = pool.session(1);
    pool.mount(session, 1, 64 * KIB);
    let number = pool.mount_tier(session, 1, true, whole([])).unwrap().number;
    (pool, session, number)
}

#[test]
fn what_is_committed_is_written_in_order_and_read_from_the_tier_once_memory_is_gone() {
    let (mut pool, session, tier) = pool(Config::default());
    let first = pool.put(session, "a", 4 * KIB)[0];
    pool.put(session, "b", 4 * KIB);
    pool.pass(20);
    let orders = pool.orders(session);
    assert_eq!(orders.iter().map(|order| &order.key[..]).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((orders[0].object_id, orders[0].source), (first.rid, first));
    assert_eq!(pool.replicas("a").len(), 1, "an order is not a record");
    pool.written(session, 1, &[(orders[0].rid, Some(3)), (orders[1].rid, None)]);
    let [in_memory, on_tier] = pool.replicas("a")[..] else { panic!("it is in memory and on a tier") };
    assert_eq!(in_memory, first, "memory comes first");
    assert_eq!((on_tier.extent.segment, on_tier.extent.offset), (tier, 3 * TIER_BLOCK));
    assert_eq!(pool.replicas("b").len(), 1, "the owner could not write it");
    // What needs all of the memory leaves the one that is written to the tier, and loses the other.
    pool.put(session, "large", 60 * KIB);
    assert_eq!((pool.replicas("a"), pool.exists("b")), (vec![on_tier], false));
    let counters = pool.core.stats().counters;
    assert_eq!((counters.evicted_clean_objects, counters.evicted_unwritten_objects), (1, 1));
    pool.check();
    pool.restart(None);
    assert!(!pool.exists("a"), "its owner is away");
    pool.resume(session, &[1], &[], 1).unwrap();
    assert!(!pool.exists("a"), "the tier is not mounted again");
    let mounted = pool.mount_tier(session, 1, false, whole([0])).unwrap();
    assert_eq!((mounted.number, mounted.head, mounted.files.len()), (tier, 1, 1));
    assert_eq!(pool.replicas("a"), [on_tier]);
    pool.check();
}

#[test]
fn members_of_a_group_are_written_side_by_side_however_their_puts_came() {
    let (mut pool, session, _) = pool(Config::default());
    let keys =
        |pool: &mut Pool| pool.orders(session).into_iter().map(|order| (order.key, order.rid)).collect::<Vec<_>>();
    let put = |pool: &mut Pool, key: &str, group: &str, bytes: u64| {
        let groups = if group.is_empty() { Vec::new() } else { vec![group.as_bytes().into()] };
        pool.put_with(session, key, bytes, &PutConfig { groups, ..plain() });
    };
    for nth in 0..2 {
        put(&mut pool, &format!("a{nth}"), "a", KIB);
        put(&mut pool, &format!("alone-{nth}"), "", KIB);
        put(&mut pool, &format!("b{nth}"), "b", KIB);
    }
    pool.pass(20);
    let ordered = keys(&mut pool);
    let named = |ordered: &[(String, Rid)]| ordered.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    assert_eq!(named(&ordered), ["a0", "a1", "alone-0", "b0", "b1", "alone-1"]);
    let written: Vec<_> = ordered.iter().zip(0..).map(|((_, rid), at)| (*rid, Some(at))).collect();
    pool.written(session, 1, &written);
    // An eighth of the segment is under order at a time: one that has no room with the first comes in its turn.
    for nth in 0..3 {
        put(&mut pool, &format!("c{nth}"), "c", 3 * KIB);
        put(&mut pool, &format!("between-{nth}"), "", KIB);
    }
    pool.pass(20);
    let (mut all, mut next) = (Vec::new(), 10);
    while let ordered = keys(&mut pool)
        && !ordered.is_empty()
    {
        let written: Vec<_> = ordered.iter().zip(next..).map(|((_, rid), at)| (*rid, Some(at))).collect();
        next += written.len() as u64;
        all.extend(named(&ordered));
        pool.written(session, 1, &written);
        pool.pass(20);
    }
    assert_eq!(all, ["c0", "c1", "between-0", "between-1", "c2", "between-2"]);
    pool.check();
}

#[test]
fn members_of_a_group_go_to_one_tier_of_several_as_far_as_it_has_room() {
    let (mut pool, session, _) = pool(Config::default());
    pool.mount_tier(session, 2, true, whole([])).unwrap();
    for group in ["a", "b"] {
        for nth in 0..3 {
            let groups = vec![group.as_bytes().into()];
            pool.put_with(session, &format!("{group}{nth}"), KIB, &PutConfig { groups, ..plain() });
        }
    }
    pool.pass(20);
    let of_tier = [1, 2].map(|number| pool.orders_of(session, number));
    let groups = of_tier.map(|orders| orders.iter().map(|order| order.key[..1].to_owned()).collect::<Vec<_>>());
    assert!(
        groups.iter().all(|groups| groups.len() == 3 && groups.iter().all(|group| *group == groups[0])),
        "{groups:?}"
    );
    pool.check();
}

/// Two sessions of one host with memory, a tier of the first, and a group of which each has three members: `a` and `b`.
fn group_of_two_sessions(config: Config, other_has_tier: bool) -> (Pool, SessionId, SessionId) {
    let (mut pool, one, _) = pool(config);
    let other = pool.session(1);
    pool.mount(other, 2, 64 * KIB);
    if other_has_tier {
        pool.mount_tier(other, 2, true, whole([])).unwrap();
    }
    for nth in 0..3 {
        for (session, name, segment) in [(one, "a", "segment-1"), (other, "b", "segment-2")] {
            let (groups, preferred_segments) = (vec![b"g".as_slice().into()], vec![segment.to_owned()]);
            pool.put_with(session, &format!("{name}{nth}"), KIB, &PutConfig { groups, preferred_segments, ..plain() });
        }
    }
    (pool, one, other)
}

fn keys_of(orders: &[Order]) -> BTreeSet<&str> {
    orders.iter().map(|order| &*order.key).collect()
}

#[test]
fn members_of_a_group_stay_with_the_tiers_of_their_own_sessions() {
    let (mut pool, one, other) = group_of_two_sessions(Config::default(), true);
    pool.pass(20);
    assert_eq!(keys_of(&pool.orders_of(one, 1)), BTreeSet::from(["a0", "a1", "a2"]));
    assert_eq!(keys_of(&pool.orders_of(other, 2)), BTreeSet::from(["b0", "b1", "b2"]));
    pool.check();
    // One that has none has it written by the other of its host.
    let (mut pool, one, _) = group_of_two_sessions(Config::default(), false);
    pool.pass(20);
    assert_eq!(keys_of(&pool.orders_of(one, 1)), BTreeSet::from(["a0", "a1", "a2", "b0", "b1", "b2"]));
}

#[test]
fn a_store_that_closes_writes_nothing_whose_memory_stays_and_waits_for_none_of_it() {
    for on_evict in [true, false] {
        let offload = Offload { on_evict, force_evict: false };
        let (mut pool, one, other) = group_of_two_sessions(Config { offload, ..Config::default() }, false);
        assert!(pool.orders_of(one, 1).is_empty());
        pool.core.closes(pool.now, one, 5_000, &mut pool.fx);
        pool.pass(20);
        let late = PutConfig { preferred_segments: vec!["segment-2".into()], ..plain() };
        pool.put_with(other, "late", KIB, &late);
        pool.pass(20);
        assert_eq!(keys_of(&pool.orders_of(one, 1)), BTreeSet::from(["a0", "a1", "a2"]), "on_evict: {on_evict}");
        let is_told = |(to, push): &(SessionId, Push)| *to == one && matches!(push, Push::TierAllOrdered { .. });
        assert_eq!(pool.pushes.iter().filter(|push| is_told(push)).count(), 1, "on_evict: {on_evict}");
        pool.check();
    }
}

#[test]
fn a_store_that_closes_is_not_held_up_by_the_tier_of_another_one_that_has_the_object_too() {
    let offload = Offload { on_evict: true, force_evict: false };
    let (mut pool, one, _) = pool(Config { offload, ..Config::default() });
    let other = pool.session(2);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    let two = PutConfig { replica_num: 2, preferred_segments: vec!["segment-2".into()], ..plain() };
    (0..3).for_each(|nth| _ = pool.put_with(one, &format!("k{nth}"), KIB, &two));
    // The disk of the other one has failed.
    pool.core.orders_answered(pool.now, other, tier_uuid(2), &OrdersAnswered::default(), &mut pool.fx);
    pool.core.closes(pool.now, one, 5_000, &mut pool.fx);
    pool.pass(20);
    assert_eq!(keys_of(&pool.orders_of(one, 1)), BTreeSet::from(["k0", "k1", "k2"]));
    pool.check();
}

#[test]
fn what_waits_for_a_store_that_closes_and_stays_holds_up_nothing_and_goes_to_the_next_tier() {
    let (mut pool, one, _) = pool(Config::default());
    let other = pool.session(1);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    // The disk of the other one has failed, so that the first one is to write for it.
    pool.core.orders_answered(pool.now, other, tier_uuid(2), &OrdersAnswered::default(), &mut pool.fx);
    let on = |segment: &str, pin| PutConfig { preferred_segments: vec![segment.to_owned()], pin, ..plain() };
    (0..12).for_each(|nth| _ = pool.put_with(other, &format!("b{nth}"), KIB, &on("segment-2", PinKind::None)));
    _ = pool.put_with(one, "pinned", KIB, &on("segment-1", PinKind::Hard));
    pool.pass(20);
    let ordered = pool.orders_of(one, 1);
    assert_eq!(ordered.len(), 8, "an eighth of a segment at a time");
    pool.core.closes(pool.now, one, 5_000, &mut pool.fx);
    pool.pass(20);
    assert_eq!(keys_of(&pool.orders_of(one, 1)), BTreeSet::from(["pinned"]));
    assert!(pool.pushes.iter().any(|(to, push)| *to == one && matches!(push, Push::TierAllOrdered { .. })));
    // Its disk is well again.
    let well = OrdersAnswered { window: WINDOW, ..OrdersAnswered::default() };
    pool.core.orders_answered(pool.now, other, tier_uuid(2), &well, &mut pool.fx);
    let written: Vec<_> = ordered.iter().zip(0..).map(|(order, at)| (order.rid, Some(at))).collect();
    pool.written(one, 1, &written);
    pool.pass(20);
    let rest = pool.orders_of(other, 2);
    assert_eq!(keys_of(&rest), BTreeSet::from(["b8", "b9", "b10", "b11"]));
    pool.check();
}

#[test]
fn what_waits_for_a_store_that_closes_and_takes_no_orders_goes_to_the_next_tier() {
    let (mut pool, one, _) = pool(Config::default());
    let other = pool.session(1);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    let here = PutConfig { preferred_segments: vec!["segment-1".into()], ..plain() };
    (0..12).for_each(|nth| _ = pool.put_with(one, &format!("k{nth}"), KIB, &here));
    pool.pass(20);
    let ordered = pool.orders_of(one, 1);
    assert_eq!(ordered.len(), 8, "an eighth of a segment at a time");
    pool.core.orders_answered(pool.now, one, tier_uuid(1), &OrdersAnswered::default(), &mut pool.fx);
    pool.core.closes(pool.now, one, 5_000, &mut pool.fx);
    pool.pass(20);
    // The last of its orders, behind which its memory has room for others.
    let written = ordered.iter().zip(0..).map(|(order, at)| Written { rid: order.rid, address: Some(at) }).collect();
    let last = OrdersAnswered { written, ..OrdersAnswered::default() };
    pool.core.orders_answered(pool.now, one, tier_uuid(1), &last, &mut pool.fx);
    pool.pass(20);
    assert_eq!(keys_of(&pool.orders_of(other, 2)), BTreeSet::from(["k8", "k9", "k10", "k11"]));
    pool.check();
}

#[test]
fn of_a_store_that_closes_what_was_read_is_written_by_what_is_left_of_its_budget_whatever_others_may_write() {
    // 1 MiB is filled six times a day: 256 KiB may be written at once, of which a fifth is left.
    let (mut pool, one, _) = pool(Config { tier_fills_per_day: 6.0, ..Config::default() });
    let mut at = 0;
    for nth in 0..40 {
        pool.put(one, &nth.to_string(), 4 * KIB);
        pool.pass(20);
        at += pool.write_all(one, 1, at);
    }
    ["read", "unread"].into_iter().for_each(|key| _ = pool.put(one, key, 4 * KIB));
    pool.get("read").unwrap();
    let other = pool.session(1);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    pool.core.closes(pool.now, one, 5_000, &mut pool.fx);
    pool.collect();
    assert_eq!(keys_of(&pool.orders_of(one, 1)), BTreeSet::from(["read"]));
    pool.check();
}

#[test]
fn what_waited_for_a_tier_that_has_gone_or_was_under_order_there_is_written_by_the_next_one() {
    let (mut pool, one, _) = pool(Config::default());
    let other = pool.session(1);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    pool.pass(20);
    // The disk of the other one fails, so that the first one is to write for it; then it is well again.
    pool.core.orders_answered(pool.now, other, tier_uuid(2), &OrdersAnswered::default(), &mut pool.fx);
    let there = PutConfig { preferred_segments: vec!["segment-2".into()], ..plain() };
    (0..12).for_each(|nth| _ = pool.put_with(other, &format!("b{nth}"), KIB, &there));
    pool.pass(20);
    assert_eq!(pool.orders_of(one, 1).len(), 8, "an eighth of a segment at a time");
    let well = OrdersAnswered { window: WINDOW, ..OrdersAnswered::default() };
    pool.core.orders_answered(pool.now, other, tier_uuid(2), &well, &mut pool.fx);
    pool.pass(20);
    assert!(pool.orders_of(other, 2).is_empty());
    pool.over(one);
    let mut written = BTreeSet::new();
    for at in [0, 8] {
        pool.pass(20);
        let ordered = pool.orders_of(other, 2);
        written.extend(ordered.iter().map(|order| order.key.clone()));
        let ended: Vec<_> = ordered.iter().zip(at..).map(|(order, at)| (order.rid, Some(at))).collect();
        pool.written(other, 2, &ended);
    }
    assert_eq!(written, (0..12).map(|nth| format!("b{nth}")).collect());
    pool.check();
}

#[test]
fn a_walk_of_a_store_that_closes_waits_where_its_tier_has_no_room_and_costs_no_step_then() {
    let offload = Offload { on_evict: true, force_evict: false };
    let (mut pool, session, _) = pool(Config { offload, ..Config::default() });
    // An eighth of the segment is under order at a time: the coldest one waits.
    (0..9).for_each(|nth| _ = pool.put(session, &format!("k{nth}"), KIB));
    pool.core.closes(pool.now, session, 5_000, &mut pool.fx);
    pool.collect();
    let ordered = pool.orders_of(session, 1);
    assert_eq!(ordered.len(), 8);
    for _ in 0..3 {
        assert!(!pool.core.background(pool.now, 3, &mut pool.fx), "nothing is to be done until it is answered");
    }
    let written: Vec<_> = ordered.iter().zip(0..).map(|(order, at)| (order.rid, Some(at))).collect();
    pool.written(session, 1, &written);
    assert_eq!(keys_of(&pool.orders_of(session, 1)), BTreeSet::from(["k0"]));
    pool.check();
}

#[test]
fn one_step_orders_no_more_than_it_may_with_groups_and_without() {
    [true, false].into_iter().for_each(one_step_orders_no_more_than_it_may);
}

fn one_step_orders_no_more_than_it_may(has_groups: bool) {
    let offload = Offload { on_evict: true, force_evict: false };
    let mut pool = Pool::with(Config { offload, ..Config::default() });
    let session = pool.session(1);
    pool.mount(session, 1, 16 << 20);
    pool.mount_tier(session, 1, true, whole([])).unwrap();
    let groups = |nth: u64| has_groups.then(|| format!("g{}", nth % 100).into_bytes().into()).into_iter().collect();
    // Nearly full of small objects; of each group the first is among the coldest.
    let count = (16 << 10) * 31 / 32;
    (0..count).for_each(|nth: u64| {
        _ = pool.put_with(session, &format!("k{nth}"), KIB, &PutConfig { groups: groups(nth), ..plain() });
    });
    assert!(pool.orders(session).len() <= 2 * STEP_OBJECTS, "what came of the puts");
    pool.now = pool.now.plus_ms(20);
    pool.core.tick(pool.now, &mut pool.fx);
    let (mut all, mut goes_on) = (0, true);
    while goes_on {
        pool.collect();
        let ordered = pool.orders(session).len();
        assert!(ordered <= STEP_OBJECTS + 64, "{ordered} in one step");
        all += ordered;
        goes_on = pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
    }
    pool.collect();
    all += pool.orders(session).len();
    assert!(all > 2 * STEP_OBJECTS, "{all} in all steps");
    pool.check();
}

#[test]
fn a_file_that_is_sealed_with_the_answer_that_says_what_is_in_it_is_not_retired() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", KIB);
    pool.put(session, "late", KIB);
    pool.pass(20);
    let [k, late] = &pool.orders(session)[..] else { panic!("two orders") };
    let (k, late) = (k.rid, late.rid);
    pool.written_and_sealed(session, 1, &[(k, Some(3))], &[0]);
    pool.pass(100);
    assert!(pool.retired().is_empty());
    assert_eq!(pool.replicas("k").len(), 2);
    // One that was said to have nothing, and has something all the same.
    pool.seal(session, 1, 1);
    pool.written(session, 1, &[(late, Some(FILE_BLOCKS + 1))]);
    pool.pass(100);
    assert!(pool.retired().is_empty());
    pool.check();
    // Once it is not needed it goes.
    assert_eq!(pool.remove(session, "late", true), RemoveOutcome::Removed);
    pool.pass(100);
    assert_eq!(pool.retired(), [1]);
}

#[test]
fn what_was_committed_before_a_tier_was_live_is_written_too() {
    let (mut pool, owner, _) = pool(Config::default());
    let number = |nth: usize| format!("earlier-{nth:02}");
    pool.mount_tier(owner, 1, true, TierProof::default()).unwrap();
    pool.core.leave_tier(pool.now, owner, tier_uuid(1), false, &mut pool.fx);
    (0..6).for_each(|nth| _ = pool.put(owner, &number(nth), KIB));
    assert!(pool.orders(owner).is_empty(), "no tier is Live");
    pool.mount_tier(owner, 1, false, whole([])).unwrap();
    pool.put(owner, "newer", KIB);
    pool.pass(20);
    let keys: Vec<String> = pool.orders(owner).into_iter().map(|order| order.key).collect();
    assert_eq!(keys.first().map(String::as_str), Some("newer"));
    assert_eq!(keys.iter().skip(1).cloned().collect::<BTreeSet<_>>(), (0..6).map(number).collect());
    pool.pass(20);
    assert!(pool.orders(owner).is_empty(), "none is ordered twice");
}

#[test]
fn several_tiers_of_a_session_share_what_is_written_and_one_that_refuses_gets_none() {
    let (mut pool, owner, _) = pool(Config::default());
    // Committed before the second one is Live, and after.
    pool.core.leave_tier(pool.now, owner, tier_uuid(1), false, &mut pool.fx);
    (0..8).for_each(|nth| _ = pool.put(owner, &format!("earlier-{nth}"), KIB));
    pool.mount_tier(owner, 1, false, whole([])).unwrap();
    pool.mount_tier(owner, 2, true, whole([])).unwrap();
    (0..8).for_each(|nth| _ = pool.put(owner, &format!("later-{nth}"), KIB));
    pool.pass(20);
    let orders_of = |pool: &mut Pool| {
        let mut of_tier = BTreeMap::<TierUuid, Vec<Rid>>::new();
        pool.pushes.retain(|(_, push)| match push {
            Push::TierOrder { tier, rid, .. } => {
                of_tier.entry(*tier).or_default().push(*rid);
                false
            }
            _ => true,
        });
        of_tier
    };
    let mut next = [0, 0];
    for _ in 0..4 {
        // An eighth of the segment is under order at a time, half of it on each tier.
        let orders = orders_of(&mut pool);
        for (number, next) in [1, 2].into_iter().zip(&mut next) {
            let rids = orders.get(&tier_uuid(number)).map_or(&[][..], |rids| rids);
            let written: Vec<_> = rids.iter().zip(*next..).map(|(rid, at)| (*rid, Some(at))).collect();
            *next += written.len() as u64;
            pool.written(owner, number, &written);
        }
        pool.pass(20);
    }
    let records: Vec<u64> = pool.core.tiers().map(|view| view.records).collect();
    assert_eq!(records.iter().sum::<u64>(), 16, "what was put before the second one was Live, too");
    assert!(records.iter().all(|records| *records >= 6), "{records:?}");
    // The disk of one does not let it write.
    let answered = OrdersAnswered { window: 0, ..OrdersAnswered::default() };
    pool.core.orders_answered(pool.now, owner, tier_uuid(1), &answered, &mut pool.fx);
    pool.collect();
    (0..8).for_each(|nth| _ = pool.put(owner, &format!("then-{nth}"), KIB));
    pool.pass(20);
    assert_eq!(
        orders_of(&mut pool).into_iter().map(|(tier, rids)| (tier, rids.len())).collect::<Vec<_>>(),
        [(tier_uuid(2), 8)]
    );
    pool.check();
}

#[test]
fn a_disk_that_is_three_times_as_fast_has_three_times_as_much_to_write() {
    let (mut pool, owner, _) = pool(Config::default());
    pool.mount_tier(owner, 2, true, whole([])).unwrap();
    for (number, window) in [(1, 3 * WINDOW), (2, WINDOW)] {
        let granted = OrdersAnswered { window, ..OrdersAnswered::default() };
        pool.core.orders_answered(pool.now, owner, tier_uuid(number), &granted, &mut pool.fx);
    }
    (0..8).for_each(|nth| _ = pool.put(owner, &format!("key-{nth}"), KIB));
    pool.pass(20);
    let ordered = [1, 2].map(|number| pool.orders_of(owner, number).len());
    assert_eq!(ordered, [6, 2]);
}

#[test]
fn a_session_that_was_silent_for_a_while_mounts_its_tier_anew() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", KIB);
    pool.pass(20);
    pool.write_all(session, 1, 1);
    let other = pool.session(2);
    pool.mount(other, 2, 64 * KIB);
    // Its process stands still for so long that it is away, and its anchor is open all the while.
    pool.pass_without(3_000, &[session, other]);
    let ended: Vec<SessionId> =
        pool.pushes.iter().filter(|(_, push)| matches!(push, Push::SessionOver(_))).map(|(to, _)| *to).collect();
    assert_eq!(ended, [session], "the anchor of the other one goes on");
    pool.core.anchor_lost(pool.now, session, &mut pool.fx);
    pool.resume(session, &[1], &[], 1).unwrap();
    pool.mount_tier(session, 1, false, whole([0])).unwrap();
    assert_eq!(pool.replicas("k").len(), 2);
    pool.check();
}

#[test]
fn clients_that_know_no_tiers_see_what_is_in_memory_and_replace_the_rest() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", 4 * KIB);
    pool.pass(20);
    assert_eq!(pool.write_all(session, 1, 0), 1);
    pool.put(session, "large", 64 * KIB);
    assert_eq!([Sight::Tiers, Sight::Memory].map(|sight| pool.exists_for("k", sight)), [true, false]);
    assert_eq!(pool.slot(session, "k", 4 * KIB), StartOutcome::Exists);
    let older = pool.session(2);
    pool.core.set_sight(older, Sight::Memory);
    let again = pool.put(older, "k", 8 * KIB);
    assert_eq!(pool.replicas("k"), again, "the one on the tier has gone with its object");
    pool.seal(session, 1, 0);
    pool.pass(20);
    assert_eq!(pool.retired(), [0]);
    pool.check();
}

#[test]
fn an_answer_to_what_is_not_the_object_any_more_leaves_dead_bytes() {
    let (mut pool, session, _) = pool(Config::default());
    for (key, then) in [("removed", 0), ("replaced", 1), ("removed and put again", 2)] {
        pool.put(session, key, KIB);
        pool.pass(20);
        let order = pool.orders(session).remove(0);
        if then != 1 {
            assert_eq!(pool.remove(session, key, true), RemoveOutcome::Removed);
        }
        if then > 0 {
            pool.put_with(session, key, KIB, &PutConfig { replace: true, ..plain() });
        }
        pool.written(session, 1, &[(order.rid, Some(0))]);
        assert_eq!(pool.replicas(key).len(), usize::from(then > 0), "{key}");
        pool.pass(20);
        pool.orders(session);
    }
    // Orders end with the anchor on both sides: an answer to one of before is to none.
    pool.put(session, "away", KIB);
    pool.pass(20);
    let order = pool.orders(session).remove(0);
    pool.anchor_lost(session);
    pool.resume(session, &[1], &[], 1).unwrap();
    pool.mount_tier(session, 1, false, whole([])).unwrap();
    let stale = pool.core.stats().counters.stale_messages;
    pool.written(session, 1, &[(order.rid, Some(0))]);
    assert_eq!((pool.replicas("away").len(), pool.core.stats().counters.stale_messages), (1, stale + 1));
    pool.check();
}

#[test]
fn rids_of_orders_are_never_used_again_though_no_log_has_them() {
    let (mut pool, session, _) = pool(Config::default());
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        let key = format!("k{round}");
        let put = pool.put(session, &key, KIB)[0].rid;
        pool.pass(20);
        let order = pool.orders(session).remove(0).rid;
        assert!(seen.insert(put) && seen.insert(order), "{put:?} or {order:?} came twice");
        pool.restart(None);
        pool.resume(session, &[1], &[], 1).unwrap();
        pool.mount_tier(session, 1, false, whole([])).unwrap();
    }
}

#[test]
fn removals_take_what_was_there_by_the_rid_of_its_first_commit() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "old", KIB);
    pool.pass(20);
    let mut removal = mooncake_core::RemoveAll::new(&mut pool.core, true);
    // The record's rid is younger than the removal, the object is not.
    assert_eq!(pool.write_all(session, 1, 0), 1);
    let younger = pool.put(session, "young", KIB);
    pool.put(session, "large", 62 * KIB);
    while !pool.core.remove_all_slice(pool.now, &mut removal, 7, &mut pool.fx) {}
    pool.collect();
    assert!(!pool.exists("old"), "it was there when the removal began");
    assert!(pool.exists("large") && younger[0].rid > Rid(0));
    pool.check();
}

#[test]
fn what_a_folder_does_not_prove_is_dropped_before_it_is_live() {
    let (mut pool, session, tier) = pool(Config::default());
    let keys: Vec<String> = (0..6).map(|nth| format!("k{nth}")).collect();
    let mut rids = BTreeMap::new();
    for (key, address) in keys.iter().zip([0, 1, 8, 16, 17, 24]) {
        pool.put(session, key, KIB);
        pool.pass(20);
        let order = pool.orders(session).remove(0);
        rids.insert(key.clone(), order.rid);
        pool.written(session, 1, &[(order.rid, Some(address))]);
    }
    pool.put(session, "large", 64 * KIB);
    pool.close(session);
    assert!(keys.iter().all(|key| !pool.exists(key)));
    let next = pool.session(1);
    // File 1 is not there, and files 2 and 3 are suspect.
    let proof = TierProof {
        files: BTreeSet::from([0, 2, 3]),
        suspects: BTreeSet::from([2, 3]),
        proven: BTreeSet::from([rids["k4"]]),
        ..TierProof::default()
    };
    let wrong = TierSpec { secret: [0; 16], ..spec(1) };
    let wrong = TierMount { spec: wrong, head: 4, ..mount(1, false, proof.clone()) };
    let refused = pool.core.mount_tier(pool.now, next, wrong, &mut pool.fx);
    assert!(matches!(refused, Err(Refused::TierSecret(_))), "{refused:?}");
    let mounted = pool.mount_tier(next, 1, false, proof).unwrap();
    assert_eq!(
        (mounted.number, mounted.files.iter().map(|(file, _)| *file).collect::<Vec<_>>()),
        (tier, vec![0, 1, 2, 3])
    );
    assert!(!pool.exists("k0"), "nothing is read there before all is looked at");
    pool.pass(20);
    let there: Vec<bool> = keys.iter().map(|key| pool.exists(key)).collect();
    assert_eq!(there, [true, true, false, false, true, false]);
    assert_eq!(pool.retired(), [3], "a file that no object needs");
    pool.check();
    // Another session has it now, and a folder that this log does not know is no tier of it.
    let late = pool.session(2);
    assert!(
        matches!(pool.mount_tier(late, 1, false, whole([])), Err(Refused::TierTaken(_, holder)) if holder == next.0)
    );
    assert!(matches!(pool.mount_tier(late, 2, false, whole([])), Err(Refused::TierUnknown(_))));
    assert_ne!(pool.mount_tier(late, 2, true, whole([])).unwrap().number, tier);
}

#[test]
fn what_comes_late_of_what_was_said_of_a_tier_does_not_count() {
    late_words_do_not_count();
    assert!(is_noticed_by(Mutant::LateWordsOfTiersCount, late_words_do_not_count));
}

fn late_words_do_not_count() {
    let (mut pool, owner, _) = pool(Config::default());
    let (uuid, other) = (tier_uuid(1), tier_uuid(2));
    let late = |pool: &mut Pool, uuid, turn| pool.core.turn_of_tier(owner, uuid, turn);
    // It mounted, left and mounted again; what it said of another one has turns of its own.
    assert_eq!(late(&mut pool, uuid, 3), Ok(()));
    assert_eq!(late(&mut pool, uuid, 3), Ok(()), "an answer was lost, and it is asked again");
    assert_eq!(late(&mut pool, uuid, 2), Err(Refused::TierTooLate(uuid)), "it is still there, and does not leave it");
    assert_eq!(late(&mut pool, other, 2), Ok(()));
    assert_eq!(late(&mut pool, uuid, 0), Ok(()), "a client that has no turns");
    // A tier of a session that is away is read by nobody.
    pool.anchor_lost(owner);
    assert_eq!(late(&mut pool, uuid, 4), Err(Refused::TierTooLate(uuid)));
    // A session that has come anew begins at one.
    let next = pool.session(2);
    assert_eq!(pool.core.turn_of_tier(next, uuid, 1), Ok(()));
    pool.check();
}

#[test]
fn an_order_that_nobody_answers_ends_and_its_late_answer_leaves_dead_bytes() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", KIB);
    pool.pass(20);
    let [order] = &pool.orders(session)[..] else { panic!("one is ordered") };
    pool.pass(29_000);
    assert!(pool.orders(session).is_empty() && pool.core.stats().tier_ordered_bytes > 0);
    pool.pass(2_000);
    let stats = pool.core.stats();
    assert_eq!((stats.tier_ordered_bytes, stats.counters.tier_orders_expired), (0, 1));
    pool.written(session, 1, &[(order.rid, Some(0))]);
    assert_eq!(pool.replicas("k").len(), 1, "memory alone has it");
    pool.check();
}

#[test]
fn an_owner_that_has_not_heard_what_to_keep_is_told_so_again() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", KIB);
    pool.pass(20);
    assert_eq!(pool.write_all(session, 1, 0), 1);
    pool.seal(session, 1, 0);
    assert!(pool.get("k").is_some());
    let rid = pool.replicas("k")[1].rid;
    let mut judge = || {
        let origin = pool.origin(session);
        let records: [(&[u8], Rid); 1] = [(b"k", rid)];
        let verdicts =
            pool.core.reclaim(pool.now, origin, (tier_uuid(1), tier_uuid(1)), 0, &records, &mut pool.fx).unwrap();
        pool.collect();
        verdicts[0]
    };
    let (Verdict::Keep(first), Verdict::Keep(second)) = (judge(), judge()) else { panic!("it was read") };
    assert_ne!(first, second);
    // Its owner could not move it: with the file it is gone from the tier, and from nowhere else.
    pool.core.reclaimed(session, tier_uuid(1), 0).unwrap();
    pool.pass(100);
    pool.written(session, 1, &[(second, None)]);
    pool.pass(100);
    assert_eq!(pool.replicas("k").len(), 1);
    assert_eq!(pool.retired(), [0]);
    pool.check();
}

#[test]
fn a_put_waits_a_little_for_the_tier_to_have_what_it_would_lose() {
    let (mut pool, session, _) = pool(Config::default());
    for nth in 0..16 {
        pool.put(session, &format!("k{nth}"), 4 * KIB);
    }
    pool.pass(20);
    let orders = pool.orders(session);
    // One eighth of a segment may be under order.
    assert_eq!(orders.len(), 2, "{orders:?}");
    pool.written(session, 1, &[(orders[0].rid, None)]);
    let ticket = pool.park(session, &[("new", 4 * KIB)]);
    pool.pass(20);
    assert!(pool.woken.is_empty(), "the owner answers");
    pool.written(session, 1, &[(orders[1].rid, Some(0))]);
    let slots = pool.woken.remove(&ticket).expect("the second one can leave");
    assert!(matches!(slots[0], StartOutcome::Placed(_)) && pool.exists("k1") && pool.exists("k0"));
    let StartOutcome::Placed(replicas) = &slots[0] else { panic!() };
    assert_eq!(pool.commit(session, replicas), EndOutcome::Committed);
    // No put fails because of a disk: a tier that answers nothing good is waited for a quarter of a second.
    let ticket = pool.park(session, &[("newer", 4 * KIB)]);
    let mut waited = 0;
    while pool.woken.is_empty() {
        let orders: Vec<(Rid, Option<u64>)> = pool.orders(session).iter().map(|order| (order.rid, None)).collect();
        pool.written(session, 1, &orders);
        pool.pass(20);
        waited += 20;
    }
    assert!((240..=300).contains(&waited), "{waited} ms");
    assert!(matches!(pool.woken.remove(&ticket).unwrap()[0], StartOutcome::Placed(_)));
    assert_eq!(pool.core.stats().counters.evicted_unwritten_objects, 1);
    pool.check();
}

#[test]
fn an_answer_brings_the_next_orders_without_a_tick() {
    let (mut pool, session, _) = pool(Config::default());
    // An eighth of the segment may be under order.
    for number in 0..6 {
        pool.put(session, &format!("k{number}"), 4 * KIB);
    }
    pool.pass(20);
    let mut written = pool.write_all(session, 1, 0);
    assert_eq!(written, 2);
    while let now @ 1.. = pool.write_all(session, 1, written) {
        written += now;
    }
    assert_eq!(written, 6, "all of them, and no time has passed");
    pool.check();
}

#[test]
fn an_owner_that_takes_no_orders_is_read_and_no_put_waits_for_it() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "a", 4 * KIB);
    pool.pass(20);
    assert_eq!(pool.write_all(session, 1, 0), 1);
    let none = OrdersAnswered::default();
    pool.core.orders_answered(pool.now, session, tier_uuid(1), &none, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.core.stats().tiers_refusing, 1);
    pool.put(session, "large", 56 * KIB);
    pool.pass(20);
    assert!(pool.orders(session).is_empty(), "its disk is let be");
    // What is written leaves, and so does what is not: at once.
    pool.put(session, "larger", 60 * KIB);
    assert_eq!([pool.exists("a"), pool.exists("large"), pool.exists("larger")], [true, false, true]);
    let again = OrdersAnswered { window: WINDOW, ..OrdersAnswered::default() };
    pool.core.orders_answered(pool.now, session, tier_uuid(1), &again, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.core.stats().tiers_refusing, 0);
    pool.pass(20);
    assert_eq!(pool.write_all(session, 1, 1), 1, "it is asked again");
    pool.check();
}

#[test]
fn a_tier_of_which_nothing_was_asked_is_asked_before_anything_is_lost() {
    let offload = Offload { on_evict: true, force_evict: false };
    let (mut pool, session, _) = pool(Config { offload, ..Config::default() });
    for nth in 0..32 {
        pool.put(session, &format!("k{nth}"), 2 * KIB);
    }
    let ticket = pool.park(session, &[("new", 2 * KIB)]);
    assert!(pool.woken.is_empty(), "memory is full before the first tick");
    pool.pass(20);
    assert!(pool.write_all(session, 1, 0) > 0);
    assert!(matches!(pool.woken.remove(&ticket).unwrap()[0], StartOutcome::Placed(_)));
    assert_eq!(pool.core.stats().counters.evicted_unwritten_objects, 0);
    // One that has answered nothing for a while is waited for no longer.
    pool.pass(600);
    assert!(!pool.orders(session).is_empty());
    let started = pool.start(session, &[("newer", 16 * KIB)], &plain(), true);
    let PutStarted::Now(slots) = started else { panic!("it waits") };
    assert!(matches!(slots[0], StartOutcome::Placed(_)));
    assert!(pool.core.stats().counters.evicted_unwritten_objects > 0);
    pool.check();
}

#[test]
fn a_budget_of_writes_is_for_what_was_read_when_little_of_it_is_left_and_no_put_waits_for_it() {
    // 1 MiB is filled six times a day: 256 KiB may be written at once.
    let (mut pool, session, _) = pool(Config { tier_fills_per_day: 6.0, ..Config::default() });
    let mut at = 0;
    let mut put = |pool: &mut Pool, keys: std::ops::Range<u64>| {
        for nth in keys {
            let before = pool.now;
            pool.put(session, &nth.to_string(), 4 * KIB);
            assert_eq!(pool.now, before, "no put waits");
            pool.pass(20);
            at += pool.write_all(session, 1, at);
        }
        pool.core.stats().counters.tier_written_objects
    };
    // With their headers, 8 KiB each: a fifth of it is left after 26.
    let written = put(&mut pool, 0..40);
    assert!((25..=27).contains(&written), "{written}");
    pool.put(session, "read", 4 * KIB);
    assert!(pool.orders(session).is_empty());
    pool.get("read").unwrap();
    pool.put(session, "large", 60 * KIB);
    let counters = pool.core.stats().counters;
    assert!(counters.tier_orders_spared > 0 && counters.evicted_unwritten_objects > 0);
    let fills = pool.core.tiers().next().unwrap().fills_per_day(pool.now);
    assert!((4.0..6.0).contains(&fills), "{fills}");
    // An hour later there is as much again.
    assert_eq!(pool.remove(session, "large", true), RemoveOutcome::Removed);
    pool.pass(3_600_000);
    assert!(put(&mut pool, 100..110) >= written + 10);
    pool.check();
}

#[test]
fn with_offload_on_evict_only_the_coldest_of_a_full_segment_are_written() {
    let offload = Offload { on_evict: true, force_evict: true };
    let (mut pool, session, _) = pool(Config { offload, ..Config::default() });
    for nth in 0..16 {
        pool.put(session, &format!("k{nth}"), 2 * KIB);
    }
    pool.pass(100);
    assert!(pool.orders(session).is_empty(), "half of the segment is free");
    for nth in 16..31 {
        pool.put(session, &format!("k{nth}"), 2 * KIB);
    }
    pool.pass(20);
    let cold: Vec<String> = pool.orders(session).into_iter().map(|order| order.key).collect();
    assert_eq!(cold, ["k0", "k1", "k2", "k3"], "one in ten");
    // A put that needs room waits for no disk.
    let started = pool.start(session, &[("new", 8 * KIB)], &plain(), true);
    let PutStarted::Now(slots) = started else { panic!("it waits") };
    assert!(matches!(slots[0], StartOutcome::Placed(_)));
    pool.check();
}

#[test]
fn what_is_new_is_written_however_many_are_on_the_tier_already_and_then_there_is_nothing_to_do() {
    let mut pool = Pool::new();
    let session = pool.session(1);
    pool.mount(session, 1, 64 << 20);
    pool.mount_tier(session, 1, true, whole([])).unwrap();
    let (mut next, mut put) = (0, 0);
    for _ in 0..22 {
        (0..1_000).for_each(|nth| _ = pool.put(session, &format!("k{}", put + nth), KIB));
        put += 1_000;
        pool.core.tick(pool.now, &mut pool.fx);
        pool.collect();
        while next < put {
            let written = pool.write_all(session, 1, next);
            assert!(written > 0, "{next} of {put} are written");
            next += written;
        }
    }
    pool.put(session, "new", KIB);
    pool.core.tick(pool.now, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.orders(session).iter().map(|order| &order.key[..]).collect::<Vec<_>>(), ["new"]);
    let has_more = pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
    assert!(!has_more, "it would look for ever at what is written");
    pool.check();
}

#[test]
fn a_store_that_closes_has_what_leaves_last_written_first_and_takes_nothing_new() {
    let offload = Offload { on_evict: true, force_evict: false };
    let (mut pool, session, _) = pool(Config { offload, ..Config::default() });
    let name = |nth: u64| format!("k{nth}");
    (0..24).for_each(|nth| _ = pool.put(session, &name(nth), KIB));
    pool.get("k3").unwrap();
    pool.pass(20);
    assert!(pool.orders(session).is_empty(), "nothing is about to leave");
    pool.exists("k7");
    pool.core.closes(pool.now, session, 5_000, &mut pool.fx);
    pool.collect();
    let is_all = |push: &Push| matches!(push, Push::TierAllOrdered { .. });
    let all_ordered = |pool: &Pool| pool.pushes.iter().filter(|(_, push)| is_all(push)).count();
    let (mut keys, mut at) = (Vec::new(), 0);
    // An eighth of the segment at a time.
    while let orders = pool.orders(session)
        && !orders.is_empty()
    {
        let written: Vec<_> = orders.iter().zip(at..).map(|(order, at)| (order.rid, Some(at))).collect();
        at += written.len() as u64;
        keys.extend(orders.into_iter().map(|order| order.key));
        assert!(keys.len() == 24 || all_ordered(&pool) == 0, "its owner waits for {} more", 24 - keys.len());
        pool.written(session, 1, &written);
    }
    pool.pass(20);
    assert_eq!(all_ordered(&pool), 1, "its owner needs to wait no longer");
    let rest = (0..24).rev().filter(|nth| ![3, 7].contains(nth)).map(name);
    assert_eq!(keys, ["k7".to_owned(), "k3".to_owned()].into_iter().chain(rest).collect::<Vec<_>>());
    let PutStarted::Now(slots) = pool.start(session, &[("new", KIB)], &plain(), false) else { panic!("it waits") };
    assert!(!matches!(slots[0], StartOutcome::Placed(_)), "{slots:?}");
    pool.check();
}

#[test]
fn a_tier_that_has_as_many_records_as_it_may_holds_up_no_other_one_of_its_store() {
    let (mut pool, session, _) = pool(Config { tier_records_max: 4, ..Config::default() });
    pool.mount_tier(session, 2, true, whole([])).unwrap();
    for nth in 0..8 {
        pool.put(session, &format!("k{nth}"), KIB);
        pool.pass(20);
        for number in [1, 2] {
            let of_tier = pool.orders_of(session, number);
            let written: Vec<_> = of_tier.iter().map(|order| (order.rid, Some(nth))).collect();
            pool.written(session, number, &written);
        }
    }
    let records: Vec<u64> = pool.core.tiers().map(|tier| tier.records).collect();
    assert_eq!(records, [4, 4]);
    pool.check();
}

#[test]
fn what_was_ordered_is_over_for_a_session_that_resumes_before_the_end_of_its_anchor_was_seen() {
    let check = || {
        let (mut pool, session, _) = pool(Config::default());
        pool.put(session, "k", KIB);
        pool.pass(20);
        let [order] = &pool.orders(session)[..] else { panic!("one order") };
        let rid = order.rid;
        // The client has another anchor by now, and nothing that it was asked at the one before.
        pool.resume(session, &[1], &[], 1).unwrap();
        pool.written(session, 1, &[(rid, Some(3))]);
        assert_eq!(pool.replicas("k").len(), 1, "an answer of before says nothing");
        assert!(!pool.core.tiers().any(|tier| tier.state == TierState::Live), "it is mounted anew");
        pool.mount_tier(session, 1, false, whole([0])).unwrap();
        pool.pass(20);
        assert_eq!(pool.write_all(session, 1, 4), 1, "it is ordered again");
        assert_eq!(pool.replicas("k").len(), 2);
        pool.check();
    };
    check();
    assert!(is_noticed_by(Mutant::ResumesKeepOrders, check));
}

#[test]
fn orders_that_end_with_their_tier_say_nothing_of_what_lies_where_their_objects_were() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "a", KIB);
    pool.pass(20);
    assert_eq!(pool.orders_of(session, 1).len(), 1);
    assert_eq!(pool.remove(session, "a", true), RemoveOutcome::Removed);
    pool.mount_tier(session, 2, true, whole([])).unwrap();
    pool.put(session, "b", KIB);
    pool.pass(20);
    let orders = pool.orders_of(session, 2);
    assert_eq!(orders.len(), 1, "the other one has less to write");
    pool.core.leave_tier(pool.now, session, tier_uuid(1), false, &mut pool.fx);
    pool.check();
    pool.pass(20);
    assert!(pool.orders_of(session, 2).is_empty(), "it is under order already");
    pool.written(session, 2, &[(orders[0].rid, Some(0))]);
    assert_eq!(pool.replicas("b").len(), 2);
    pool.check();
}

#[test]
fn a_bulk_removal_takes_what_was_there_when_it_began_however_young_its_copies_are() {
    let check = || {
        let (mut pool, session, _) = pool(Config::default());
        for key in ["k0", "k1", "replaced"] {
            pool.put(session, key, KIB);
        }
        let mut cursor = RemoveAll::new(&mut pool.core, true);
        pool.pass(20);
        assert_eq!(pool.write_all(session, 1, 0), 3, "orders are given, and answered, while it goes on");
        let replace = PutConfig { replace: true, ..plain() };
        pool.put_with(session, "replaced", KIB, &replace);
        while !pool.core.remove_all_slice(pool.now, &mut cursor, 1, &mut pool.fx) {}
        pool.collect();
        assert_eq!(["k0", "k1", "replaced"].map(|key| pool.exists(key)), [false, false, true]);
        pool.check();
    };
    check();
    assert!(is_noticed_by(Mutant::RemovalsGoByRid, check));
}

/// How often owners were told that a tier is full.
fn told_full(pool: &mut Pool) -> usize {
    let is_full = |push: &Push| matches!(push, Push::TierRetire { is_full: true, .. });
    pool.pushes.extract_if(.., |(_, push)| is_full(push)).count()
}

#[test]
fn the_owner_of_a_tier_with_as_many_records_as_that_may_have_is_told_so_until_it_has_fewer() {
    let mut pool = Pool::with(Config { tier_records_max: 100, ..Config::default() });
    let session = pool.session(1);
    pool.mount(session, 1, 64 * KIB);
    let mount = TierMount { records_max: Some(4), ..mount(1, true, whole([])) };
    pool.core.mount_tier(pool.now, session, mount, &mut pool.fx).unwrap();
    pool.collect();
    let mut address = 0;
    for nth in 0..8 {
        pool.put(session, &format!("k{nth}"), KIB);
        pool.pass(20);
        address += pool.write_all(session, 1, address);
    }
    let records = |pool: &Pool| pool.core.tiers().map(|tier| tier.records).sum::<u64>();
    assert_eq!(records(&pool), 4, "its owner's word counts where it is the lower one");
    pool.pass(20);
    assert_eq!(told_full(&mut pool), 1);
    pool.pass(500);
    assert_eq!(told_full(&mut pool), 0, "it has time to give a file up");
    pool.pass(600);
    assert_eq!(told_full(&mut pool), 1, "it may not have heard it");
    pool.remove(session, "k0", true);
    pool.pass(3_000);
    assert_eq!((records(&pool), told_full(&mut pool)), (3, 0));
    pool.put(session, "next", KIB);
    pool.pass(20);
    assert_eq!(pool.orders(session).len(), 1, "and writing goes on");
    pool.check();
}

#[test]
fn a_full_tier_keeps_what_is_pinned_and_half_a_file_of_what_was_read() {
    let (mut pool, session, _) = pool(Config::default());
    let read: Vec<String> = (0..6).map(|nth| format!("read{nth}")).collect();
    let pinned = PutConfig { pin: PinKind::Hard, ..plain() };
    pool.put_with(session, "pinned", KIB, &pinned);
    pool.put(session, "cold", 4 * KIB);
    for key in &read {
        pool.put(session, key, 4 * KIB);
    }
    let mut orders = Vec::new();
    while orders.len() < 8 {
        pool.pass(20);
        let some = pool.orders(session);
        let from = orders.len() as u64;
        let answers: Vec<(Rid, Option<u64>)> =
            some.iter().zip(from..).map(|(order, at)| (order.rid, Some(at))).collect();
        pool.written(session, 1, &answers);
        orders.extend(some);
    }
    read.iter().for_each(|key| assert!(pool.get(key).is_some()));
    let footer: Vec<(&[u8], Rid)> = orders.iter().map(|order| (order.key.as_bytes(), order.rid)).collect();
    let stranger = [(&b"cold"[..], Rid(2)), (&b"nothing"[..], Rid(4))];
    let now = pool.now;
    let origin = pool.origin(session);
    let dead = pool.core.reclaim(now, origin, (tier_uuid(1), tier_uuid(1)), 0, &stranger, &mut pool.fx).unwrap();
    assert_eq!(dead, [Verdict::Dead; 2]);
    let origin = pool.origin(session);
    let mut judged = || pool.core.reclaim(now, origin, (tier_uuid(1), tier_uuid(1)), 0, &footer, &mut pool.fx).unwrap();
    let verdicts = judged();
    assert_eq!(judged(), verdicts, "a repeat is answered as it was");
    pool.collect();
    let kept: Vec<Rid> = verdicts
        .iter()
        .filter_map(|verdict| if let Verdict::Keep(rid) = verdict { Some(*rid) } else { None })
        .collect();
    assert_eq!(kept.len(), 1 + 4, "half of a file of eight blocks, and what is pinned: {verdicts:?}");
    assert_eq!(verdicts[1], Verdict::Dropped);
    assert_eq!(pool.replicas("cold").len(), 1, "it is in memory alone");
    pool.core.reclaimed(session, tier_uuid(1), 0).unwrap();
    pool.pass(20);
    assert!(pool.retired().is_empty(), "what is kept is yet to be written");
    let moved: Vec<(Rid, Option<u64>)> = kept.iter().zip(8..).map(|(rid, at)| (*rid, Some(at))).collect();
    pool.written(session, 1, &moved);
    pool.pass(20);
    assert_eq!(pool.retired(), [0]);
    assert_eq!(pool.replicas("pinned")[1].extent.offset, 8 * TIER_BLOCK);
    pool.check();
}

/// Puts an object into a file of its own, of eight blocks: the rid of its record.
fn put_in_file(pool: &mut Pool, session: SessionId, file: u64) -> Rid {
    pool.put(session, &format!("k{file}"), 4 * KIB);
    pool.pass(20);
    let order = pool.orders(session).remove(0);
    pool.written(session, 1, &[(order.rid, Some(8 * file))]);
    order.rid
}

/// Whether what [`put_in_file`] put is kept when the owner of a tier gives its file up, and writes that to tier `into`.
fn is_kept(pool: &mut Pool, session: SessionId, into: u8, file: u64, rid: Rid) -> bool {
    let (key, origin) = (format!("k{file}"), pool.origin(session));
    let tiers = (tier_uuid(1), tier_uuid(into));
    let verdicts = pool.core.reclaim(pool.now, origin, tiers, file, &[(key.as_bytes(), rid)], &mut pool.fx).unwrap();
    pool.collect();
    assert!(matches!(verdicts[..], [Verdict::Keep(_) | Verdict::Dropped]), "{verdicts:?}");
    matches!(verdicts[..], [Verdict::Keep(_)])
}

#[test]
fn what_is_read_soon_after_it_was_written_and_then_no_more_is_not_kept() {
    let (mut pool, session, _) = pool(Config::default());
    let mut rids: Vec<Rid> = (0..9).map(|file| put_in_file(&mut pool, session, file)).collect();
    // The last third is young: from the sixth on.
    for key in ["k4", "k5", "k6", "k7"] {
        assert!(pool.get(key).is_some());
    }
    rids.extend((9..12).map(|file| put_in_file(&mut pool, session, file)));
    assert!(pool.get("k7").is_some());
    let mut is_kept = |file: usize| is_kept(&mut pool, session, 1, file as u64, rids[file]);
    assert!(is_kept(7), "it was read again");
    assert!(is_kept(5) && is_kept(4), "they were old when they were read");
    assert!(!is_kept(6) && !is_kept(3), "read while it was young, and never read");
    pool.check();
}

#[test]
fn of_a_tier_that_is_adopted_what_was_read_while_it_was_young_is_kept() {
    let mut pool = Pool::with(Config::default());
    let session = pool.session(1);
    pool.mount(session, 1, 64 * KIB);
    pool.mount_tier(session, 1, true, whole([])).unwrap();
    let rids: Vec<Rid> = (0..3).map(|file| put_in_file(&mut pool, session, file)).collect();
    assert!(pool.get("k2").is_some());
    pool.core.process_gone(pool.now, session, &mut pool.fx);
    pool.pass(20);
    let other = pool.session(2);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    let mount = TierMount { is_adopted: true, head: 3, ..mount(1, false, whole([0, 1, 2])) };
    pool.core.mount_tier(pool.now, other, mount, &mut pool.fx).unwrap();
    pool.collect();
    // The oldest first, as its owner does it.
    assert!(!is_kept(&mut pool, other, 2, 1, rids[1]), "nobody has read it");
    assert!(is_kept(&mut pool, other, 2, 2, rids[2]));
    pool.check();
}

#[test]
fn a_tier_is_gone_when_it_was_hidden_for_its_retention_or_is_forgotten() {
    let (mut pool, session, _) = pool(Config { tier_retention_ms: 60_000, ..Config::default() });
    pool.put(session, "k", KIB);
    pool.pass(20);
    assert_eq!(pool.write_all(session, 1, 0), 1);
    pool.put(session, "large", 64 * KIB);
    pool.core.leave_tier(pool.now, session, tier_uuid(1), false, &mut pool.fx);
    assert!(!pool.exists("k"));
    pool.pass(59_000);
    pool.mount_tier(session, 1, false, whole([0])).unwrap();
    assert!(pool.exists("k"));
    pool.core.leave_tier(pool.now, session, tier_uuid(1), false, &mut pool.fx);
    pool.pass(61_000);
    assert!(matches!(pool.mount_tier(session, 1, false, whole([0])), Err(Refused::TierUnknown(_))));
    assert_eq!((pool.core.tiers().count(), pool.core.objects()), (0, 1));
    pool.check();
}

#[test]
fn a_tier_in_use_may_be_forgotten_and_its_owner_is_told_and_says_nothing_that_counts_any_more() {
    let (mut pool, session, number) = pool(Config::default());
    for key in ["written", "ordered"] {
        pool.put(session, key, KIB);
        pool.pass(20);
        if key == "written" {
            assert_eq!(pool.write_all(session, 1, 0), 1);
        }
    }
    let order = pool.orders(session).remove(0);
    assert!(!pool.core.forget_tier(pool.now, tier_uuid(9), &mut pool.fx), "it is not known");
    assert!(pool.core.forget_tier(pool.now, tier_uuid(1), &mut pool.fx));
    pool.collect();
    let told = Push::SegmentGone { uuid: SegmentUuid(tier_uuid(1).0), number, pinned: Vec::new() };
    assert!(pool.pushes.contains(&(session, told)), "{:?}", pool.pushes);
    assert_eq!((pool.core.tiers().count(), pool.replicas("written").len()), (0, 1), "what memory has stays");
    // What its owner says before it has heard of it.
    let stale = pool.core.stats().counters.stale_messages;
    pool.written(session, 1, &[(order.rid, Some(1))]);
    assert_eq!((pool.replicas("ordered").len(), pool.core.stats().counters.stale_messages), (1, stale + 1));
    let origin = pool.origin(session);
    let named = [("written".as_bytes(), order.rid)];
    let judged = pool.core.reclaim(pool.now, origin, (tier_uuid(1), tier_uuid(1)), 0, &named, &mut pool.fx);
    assert!(matches!(judged, Err(Refused::TierUnknown(_))), "{judged:?}");
    assert!(matches!(pool.core.reclaimed(session, tier_uuid(1), 0), Err(Refused::TierUnknown(_))));
    // With what it has it is not mounted again. Another one is, and gets what is in memory.
    assert!(matches!(pool.mount_tier(session, 1, false, whole([0])), Err(Refused::TierUnknown(_))));
    pool.mount_tier(session, 2, true, whole([])).unwrap();
    pool.pass(20);
    assert_eq!(pool.write_all(session, 2, 0), 2);
    assert_eq!((pool.replicas("written").len(), pool.replicas("ordered").len()), (2, 2));
    pool.check();
    pool.restart(None);
    assert_eq!(pool.core.tiers().map(|view| view.spec.uuid).collect::<Vec<_>>(), [tier_uuid(2)]);
    pool.check();
}

#[test]
fn a_bad_record_is_looked_at_by_its_owner_and_dropped() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", KIB);
    pool.pass(20);
    let order = pool.orders(session).remove(0);
    pool.written(session, 1, &[(order.rid, Some(5))]);
    pool.core.bad_replica(pool.now, session, b"k", order.rid, &mut pool.fx);
    pool.collect();
    let asked = pool.pushes.iter().find_map(|(to, push)| match push {
        Push::TierRecheck { tier, replica, key } => Some((*to, *tier, replica.rid, key.to_vec())),
        _ => None,
    });
    assert_eq!(asked, Some((session, tier_uuid(1), order.rid, b"k".to_vec())));
    pool.core.rechecked(pool.now, session, order.rid, false, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.replicas("k").len(), 1);
    pool.check();
}

#[test]
fn views_are_over_memory_alone() {
    let (mut pool, session, _) = pool(Config::default());
    pool.put(session, "k", KIB);
    pool.pass(20);
    assert_eq!(pool.write_all(session, 1, 0), 1);
    let view = pool.pin(session, "k").unwrap();
    assert_eq!(view.replicas.len(), 1);
    assert_eq!(placed(&pool.slot(session, "large", 62 * KIB)).len(), 1, "what is under a view stays");
    pool.unpin(session, view.replicas[0].rid);
    assert!(matches!(pool.slot(session, "larger", 63 * KIB), StartOutcome::Full(_)));
    pool.check();
}

/// One whose process has ended and left tier 1 with these objects, and another one that has tier 2.
fn left_tier(keys: &[&str]) -> (Pool, SessionId, Vec<(String, Rid)>) {
    let mut pool = Pool::with(Config::default());
    // Whoever looks is another session, which stays.
    let [_, session] = [9, 1].map(|host| pool.session(host));
    pool.mount(session, 1, 64 * KIB);
    pool.mount_tier(session, 1, true, whole([])).unwrap();
    keys.iter().for_each(|key| _ = pool.put(session, key, 4 * KIB));
    pool.pass(20);
    let orders = pool.orders(session);
    let written: Vec<(Rid, Option<u64>)> = orders.iter().zip(0..).map(|(order, at)| (order.rid, Some(at))).collect();
    pool.written(session, 1, &written);
    pool.seal(session, 1, 0);
    pool.core.process_gone(pool.now, session, &mut pool.fx);
    pool.pass(20);
    let other = pool.session(2);
    pool.mount(other, 2, 64 * KIB);
    pool.mount_tier(other, 2, true, whole([])).unwrap();
    (pool, other, orders.into_iter().map(|order| (order.key, order.rid)).collect())
}

fn adopt(pool: &mut Pool, session: SessionId) {
    let mount = TierMount { is_adopted: true, head: 1, ..mount(1, false, whole([0])) };
    pool.core.mount_tier(pool.now, session, mount, &mut pool.fx).unwrap();
    pool.collect();
}

#[test]
fn what_a_process_has_left_is_read_beside_another_tier_and_what_is_kept_of_it_is_written_there() {
    let (mut pool, session, records) = left_tier(&["read", "cold"]);
    assert!(!pool.exists("read") && !pool.exists("cold"));
    adopt(&mut pool, session);
    // A query would protect the other one.
    assert!(pool.core.peek(b"cold").is_some() && pool.get("read").is_some());
    let view = |pool: &Pool| pool.core.tiers().find(|tier| tier.spec.uuid == tier_uuid(1)).map(|tier| tier.is_adopted);
    assert_eq!((view(&pool), pool.core.stats().tiers_adopted), (Some(true), 1));
    // Nothing is written there, whatever there is to be written.
    pool.put(session, "new", 4 * KIB);
    pool.pass(100);
    assert!(pool.orders_of(session, 1).is_empty());
    assert_eq!(pool.orders_of(session, 2).len(), 1);
    let footer: Vec<(&[u8], Rid)> = records.iter().map(|(key, rid)| (key.as_bytes(), *rid)).collect();
    // Nor is anything moved there.
    let (now, origin) = (pool.now, pool.origin(session));
    let into_itself = pool.core.reclaim(now, origin, (tier_uuid(1), tier_uuid(1)), 0, &footer, &mut pool.fx);
    assert!(matches!(into_itself, Err(Refused::TierUnknown(_))), "{into_itself:?}");
    let origin = pool.origin(session);
    let verdicts = pool.core.reclaim(now, origin, (tier_uuid(1), tier_uuid(2)), 0, &footer, &mut pool.fx).unwrap();
    let [Verdict::Keep(kept), Verdict::Dropped] = verdicts[..] else { panic!("{verdicts:?}") };
    pool.written(session, 2, &[(kept, Some(5))]);
    let [replica] = pool.replicas("read")[..] else { panic!("it is on one tier") };
    assert_eq!((replica.rid, replica.extent.offset), (kept, 5 * TIER_BLOCK));
    assert!(!pool.exists("cold"));
    pool.core.reclaimed(session, tier_uuid(1), 0).unwrap();
    pool.pass(20);
    assert_eq!(pool.retired(), [0]);
    // Its folder has no file any more.
    pool.core.leave_tier(pool.now, session, tier_uuid(1), true, &mut pool.fx);
    pool.collect();
    assert_eq!(view(&pool), None);
    pool.check();
    pool.restart(None);
    assert_eq!(pool.core.tiers().map(|tier| tier.spec.uuid).collect::<Vec<_>>(), [tier_uuid(2)]);
    pool.check();
}

#[test]
fn what_is_moved_out_of_a_tier_that_is_forgotten_or_left_meanwhile_stays_as_that_has_it() {
    for is_forgotten in [true, false] {
        let (mut pool, session, records) = left_tier(&["k"]);
        adopt(&mut pool, session);
        assert!(pool.get("k").is_some());
        let footer: Vec<(&[u8], Rid)> = records.iter().map(|(key, rid)| (key.as_bytes(), *rid)).collect();
        let (now, origin) = (pool.now, pool.origin(session));
        let verdicts = pool.core.reclaim(now, origin, (tier_uuid(1), tier_uuid(2)), 0, &footer, &mut pool.fx).unwrap();
        let [Verdict::Keep(kept)] = verdicts[..] else { panic!("{verdicts:?}") };
        match is_forgotten {
            true => _ = pool.core.forget_tier(pool.now, tier_uuid(1), &mut pool.fx),
            false => pool.core.leave_tier(pool.now, session, tier_uuid(1), true, &mut pool.fx),
        }
        pool.written(session, 2, &[(kept, Some(5))]);
        assert!(!pool.exists("k"));
        pool.check();
        // One that is left with records is not Gone, whatever its folder is said to have.
        assert_eq!(pool.core.tiers().count(), if is_forgotten { 1 } else { 2 });
        if !is_forgotten {
            adopt(&mut pool, session);
            assert!(pool.exists("k"));
        }
        pool.check();
    }
}

const FILE_SYSTEM: FileSystemUuid = FileSystemUuid([7; 16]);

/// Sessions that share a file system may have tiers there, and no others.
fn sharing() -> Config {
    let (root, cluster_id) = ("/mnt/fs".to_owned(), "c".to_owned());
    let shared_storage = Some(SharedStorage { root, cluster_id, quota_bytes: 0, evicts: true });
    Config { shared_storage, tiers_allowed: false, ..Config::default() }
}

fn mount_shared(pool: &mut Pool, session: SessionId, number: u8, files: &[u64]) -> Result<TierMounted, Refused> {
    let mount = mount(number, files.is_empty(), whole(files.iter().copied()));
    let mount = TierMount { file_system: Some(FILE_SYSTEM), ..mount };
    let mounted = pool.core.mount_tier(pool.now, session, mount, &mut pool.fx);
    pool.collect();
    mounted
}

/// What owners were told of the file system since the last question: how many write there, and what is to be adopted.
fn told(pool: &mut Pool, session: SessionId) -> Vec<(usize, Option<TierUuid>)> {
    let mut told = Vec::new();
    pool.pushes.retain(|(to, push)| match push {
        Push::TierShared { writers, left, .. } if *to == session => {
            told.push((*writers, *left));
            false
        }
        _ => true,
    });
    told
}

#[test]
fn what_lies_on_a_shared_file_system_is_read_as_long_as_a_session_has_that_and_adopted_by_the_lowest_writer() {
    let mut pool = Pool::with(sharing());
    let [_, first, second, reader] = [9, 1, 2, 3].map(|number| pool.session(number));
    pool.mount(first, 1, 64 * KIB);
    assert!(matches!(pool.mount_tier(first, 1, true, whole([])), Err(Refused::TiersNotAllowed)), "a local disk's");
    mount_shared(&mut pool, first, 1, &[]).unwrap();
    pool.pass(20);
    assert_eq!(told(&mut pool, first), [(1, None)]);
    mount_shared(&mut pool, second, 2, &[]).unwrap();
    pool.pass(20);
    assert_eq!((told(&mut pool, first), told(&mut pool, second)), (vec![(2, None)], vec![(2, None)]));
    pool.core.announce(pool.now, reader, FILE_SYSTEM, &mut pool.fx).unwrap();
    pool.put(first, "k", 4 * KIB);
    pool.put(first, "removed", 4 * KIB);
    pool.pass(20);
    let orders = pool.orders_of(first, 1);
    let written: Vec<(Rid, Option<u64>)> = orders.iter().zip(0..).map(|(order, at)| (order.rid, Some(at))).collect();
    pool.written(first, 1, &written);
    pool.mount(second, 2, 64 * KIB);
    pool.check();
    // Its writer is gone, with all of its memory: what it wrote is there all the same.
    pool.core.process_gone(pool.now, first, &mut pool.fx);
    pool.pass(20);
    let [replica] = pool.replicas("k")[..] else { panic!("it is on the tier alone") };
    assert_eq!(replica.rid, orders.iter().find(|order| order.key == "k").unwrap().rid);
    assert!(pool.get("removed").is_some() && pool.orders_of(second, 1).is_empty());
    assert_eq!(pool.remove(second, "removed", true), RemoveOutcome::Removed);
    pool.check();
    assert_eq!(told(&mut pool, second), [(1, None), (1, Some(tier_uuid(1)))]);
    pool.pass(9_000);
    assert_eq!(told(&mut pool, second), []);
    pool.pass(2_000);
    assert_eq!(told(&mut pool, second), [(1, Some(tier_uuid(1)))], "it did not, and is asked once more");
    let adopt = |pool: &mut Pool| {
        let (file_system, proof) = (Some(FILE_SYSTEM), whole([0]));
        let mount = TierMount { is_adopted: true, file_system, head: 1, ..mount(1, false, proof) };
        pool.core.mount_tier(pool.now, second, mount, &mut pool.fx).unwrap();
        pool.collect();
    };
    adopt(&mut pool);
    assert!(pool.exists("k") && !pool.exists("removed"));
    pool.check();
    // Should it come back, it has to begin another one.
    let back = pool.session(4);
    assert!(matches!(mount_shared(&mut pool, back, 1, &[0]), Err(Refused::TierAdopted(_))));
    // Without any writer the reader has it, and without that nobody.
    pool.core.process_gone(pool.now, second, &mut pool.fx);
    pool.pass(20_000);
    assert!(pool.exists("k") && !pool.exists("removed"));
    pool.check();
    pool.core.process_gone(pool.now, reader, &mut pool.fx);
    pool.pass(20);
    assert!(!pool.exists("k"));
    assert!(pool.core.tiers().all(|tier| tier.state == TierState::Hidden));
    pool.check();
    // The log knows of it, and whoever has the file system next has it.
    let next = pool.session(5);
    pool.core.announce(pool.now, next, FILE_SYSTEM, &mut pool.fx).unwrap();
    assert!(pool.exists("k") && !pool.exists("removed"));
    pool.check();
    let other = pool.core.announce(pool.now, next, FileSystemUuid([8; 16]), &mut pool.fx);
    assert!(other.is_ok() && pool.exists("k"));
    pool.check();
}

#[test]
fn a_session_that_is_away_does_not_say_which_file_system_it_reads() {
    let check = || {
        let mut pool = Pool::with(sharing());
        let [_, writer, reader] = [9, 1, 2].map(|number| pool.session(number));
        pool.mount(writer, 1, 64 * KIB);
        mount_shared(&mut pool, writer, 1, &[]).unwrap();
        pool.put(writer, "k", 4 * KIB);
        pool.pass(20);
        let rid = pool.orders_of(writer, 1)[0].rid;
        pool.written(writer, 1, &[(rid, Some(0))]);
        pool.mount(reader, 2, 64 * KIB);
        pool.core.process_gone(pool.now, writer, &mut pool.fx);
        pool.pass(20);
        pool.core.announce(pool.now, reader, FILE_SYSTEM, &mut pool.fx).unwrap();
        assert!(pool.exists("k"));
        // It is told again over a connection for calls, behind the end of the anchor.
        pool.anchor_lost(reader);
        let late = pool.core.announce(pool.now, reader, FILE_SYSTEM, &mut pool.fx);
        assert_eq!((late, pool.exists("k")), (Err(Refused::SessionAway(reader.0)), false));
        pool.resume(reader, &[2], &[], 1).unwrap();
        pool.core.announce(pool.now, reader, FILE_SYSTEM, &mut pool.fx).unwrap();
        assert!(pool.exists("k"));
        pool.check();
    };
    check();
    assert!(is_noticed_by(Mutant::AwaySessionsAnnounce, check));
}

/// One that has written `k`, in whose memory and another's it lies, to its tier, and whose process has ended.
struct Left {
    pool: Pool,
    /// The number of its tier.
    number: u8,
    /// The record there.
    rid: Rid,
    /// That has `k` in its memory, and the number of its tier.
    second: (SessionId, u8),
    /// That has a tier.
    third: SessionId,
    /// That only reads.
    reader: SessionId,
}

fn left_on_a_shared_file_system(config: Config) -> Left {
    let mut pool = Pool::with(config);
    let [_, one, two, third, reader] = [9, 1, 2, 3, 4].map(|number| pool.session(number));
    for (session, number) in [(one, 1), (two, 2), (third, 3)] {
        mount_shared(&mut pool, session, number, &[]).unwrap();
    }
    pool.core.announce(pool.now, reader, FILE_SYSTEM, &mut pool.fx).unwrap();
    pool.mount(one, 1, 64 * KIB);
    pool.mount(two, 2, 64 * KIB);
    pool.put_with(one, "k", 4 * KIB, &PutConfig { replica_num: 2, ..plain() });
    pool.pass(20);
    let orders = [(one, 1), (two, 2)].map(|(session, number)| pool.orders_of(session, number));
    assert_eq!(orders.iter().map(Vec::len).sum::<usize>(), 1, "it is written once");
    let (writer, number, second) = if orders[1].is_empty() { (one, 1, (two, 2)) } else { (two, 2, (one, 1)) };
    let rid = orders.concat()[0].rid;
    pool.written(writer, number, &[(rid, Some(0))]);
    pool.core.process_gone(pool.now, writer, &mut pool.fx);
    Left { pool, number, rid, second, third, reader }
}

#[test]
fn a_tier_that_is_left_is_offered_to_all_who_write_there_in_turn_and_is_gone_after_its_retention() {
    let config = Config { tier_retention_ms: 60_000, ..sharing() };
    let Left { mut pool, number, second: (second, _), third, .. } = left_on_a_shared_file_system(config);
    let mut asked = Vec::new();
    for _ in 0..4 {
        pool.pass(11_000);
        for session in [second, third] {
            asked.extend(told(&mut pool, session).iter().filter(|(_, left)| left.is_some()).map(|_| session));
        }
    }
    assert_eq!(asked[..4], [second, third, second, third]);
    assert!(pool.core.tiers().any(|tier| tier.spec.uuid == tier_uuid(number)));
    pool.pass(20_000);
    assert!(pool.core.tiers().all(|tier| tier.spec.uuid != tier_uuid(number)), "nobody has had it for a minute");
    pool.check();
}

#[test]
fn a_tier_that_no_writer_has_room_for_is_offered_again_when_ten_seconds_have_passed() {
    let mut pool = Pool::with(sharing());
    let writer = pool.session(200);
    mount_shared(&mut pool, writer, 200, &[]).unwrap();
    for number in 1..=17 {
        let session = pool.session(number);
        mount_shared(&mut pool, session, number, &[]).unwrap();
        pool.core.process_gone(pool.now, session, &mut pool.fx);
    }
    pool.pass(20);
    for number in 1..=16 {
        let file_system = Some(FILE_SYSTEM);
        let mount = TierMount { is_adopted: true, file_system, ..mount(number, false, whole([])) };
        pool.core.mount_tier(pool.now, writer, mount, &mut pool.fx).unwrap();
    }
    pool.pass(11_000);
    let asked = |pool: &mut Pool| told(pool, writer).into_iter().filter_map(|(_, left)| left).collect::<Vec<_>>();
    asked(&mut pool);
    pool.core.leave_tier(pool.now, writer, tier_uuid(1), false, &mut pool.fx);
    pool.pass(20);
    assert_eq!(asked(&mut pool), [], "it was looked for a writer with room a second ago");
    pool.pass(10_000);
    assert_eq!(asked(&mut pool), [tier_uuid(17)]);
    pool.check();
}

#[test]
fn what_lies_on_a_tier_that_is_left_is_written_anew_before_it_leaves_memory() {
    let Left { mut pool, rid, second: (second, number), .. } = left_on_a_shared_file_system(sharing());
    assert!(pool.replicas("k").iter().any(|replica| replica.rid == rid), "it is read there meanwhile");
    // Its memory is nearly full.
    (0..14).for_each(|nth| _ = pool.put(second, &format!("more/{nth}"), 4 * KIB));
    pool.pass(1_000);
    let orders = pool.orders_of(second, number);
    let order = orders.iter().find(|order| order.key == "k").expect("it is about to leave memory");
    pool.written(second, number, &[(order.rid, Some(0))]);
    let rids: Vec<Rid> = pool.replicas("k").iter().map(|replica| replica.rid).collect();
    assert!(rids.contains(&order.rid) && !rids.contains(&rid), "{rids:?}");
    pool.check();
}

#[test]
fn who_has_the_file_system_of_a_tier_that_is_left_says_that_a_record_is_not_there() {
    let Left { mut pool, rid, reader, .. } = left_on_a_shared_file_system(sharing());
    let stranger = pool.session(7);
    pool.core.bad_replica(pool.now, stranger, b"k", rid, &mut pool.fx);
    assert!(pool.replicas("k").iter().any(|replica| replica.rid == rid), "it cannot know");
    pool.core.bad_replica(pool.now, reader, b"k", rid, &mut pool.fx);
    pool.collect();
    assert!(pool.replicas("k").iter().all(|replica| replica.rid != rid));
    pool.check();
}

#[test]
fn a_master_without_a_shared_folder_takes_no_tier_there() {
    let (mut pool, session, _) = pool(Config::default());
    assert!(matches!(mount_shared(&mut pool, session, 2, &[]), Err(Refused::TiersNotAllowed)));
    let announced = pool.core.announce(pool.now, session, FILE_SYSTEM, &mut pool.fx);
    assert!(matches!(announced, Err(Refused::TiersNotAllowed)));
    pool.check();
}

#[test]
fn a_copy_of_a_folder_is_not_adopted_by_the_session_that_writes_there() {
    let (mut pool, owner, _) = pool(Config::default());
    pool.put(owner, "key", KIB);
    pool.pass(20);
    pool.write_all(owner, 1, 0);
    let copy = TierMount { is_adopted: true, head: 1, ..mount(1, false, whole([])) };
    let refused = pool.core.mount_tier(pool.now, owner, copy, &mut pool.fx);
    assert!(matches!(refused, Err(Refused::TierTaken(..))), "{refused:?}");
    assert_eq!(pool.replicas("key").len(), 2, "what is there stays, and is ordered");
    pool.put(owner, "more", KIB);
    pool.pass(20);
    assert_eq!(pool.orders_of(owner, 1).len(), 1);
}
