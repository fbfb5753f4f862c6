//! A put with several replicas waits for the memory of a node that is still being populated, as one with a single
//! replica does, and does with fewer where there is no room to come.

use mooncake_core::{Populated, PutConfig, PutStarted, StartOutcome};
use mooncake_ids::SessionId;

use crate::pool::{self, KIB, Pool, plain, uuid};

fn two() -> PutConfig {
    PutConfig { replica_num: 2, ..plain() }
}

/// Two nodes of 8 KiB: the first has all of its memory, the second as much as is given.
fn nodes(second: u64) -> (Pool, [SessionId; 2]) {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 8 * KIB);
    pool.try_mount(b, 2, 8 * KIB, second).unwrap();
    (pool, [a, b])
}

fn populate(pool: &mut Pool, owner: SessionId, bytes: u64, failed: bool) {
    pool.core.beat(pool.now, owner, &[], &[Populated { uuid: uuid(2), bytes, failed }], &mut pool.fx);
    pool.collect();
}

fn park(pool: &mut Pool, session: SessionId, keys: &[(&str, u64)]) -> mooncake_core::Ticket {
    match pool.start(session, keys, &two(), true) {
        PutStarted::Parked(ticket) => ticket,
        now => panic!("{now:?}"),
    }
}

fn replicas(slot: &StartOutcome) -> usize {
    pool::placed(slot).len()
}

#[test]
fn a_put_with_two_replicas_waits_for_memory_that_is_being_populated() {
    let (mut pool, [a, b]) = nodes(KIB);
    let ticket = park(&mut pool, a, &[("k", 3 * KIB)]);
    assert!(pool.woken.is_empty());
    populate(&mut pool, b, 2 * KIB, false);
    pool.pass(100);
    assert!(pool.woken.is_empty(), "not yet");
    populate(&mut pool, b, 4 * KIB, false);
    assert_eq!(replicas(&pool.woken[&ticket][0]), 2, "as soon as it is there");
    pool.check();
}

#[test]
fn it_keeps_nobody_waiting_who_needs_no_more_than_there_is() {
    let (mut pool, [a, b]) = nodes(KIB);
    let ticket = park(&mut pool, a, &[("k", 3 * KIB)]);
    let started = pool.start(a, &[("one", 3 * KIB)], &plain(), true);
    let PutStarted::Now(slots) = started else { panic!("{started:?}") };
    assert_eq!(replicas(&slots[0]), 1);
    let started = pool.start(a, &[("small", KIB)], &two(), true);
    let PutStarted::Now(slots) = started else { panic!("{started:?}") };
    assert_eq!(replicas(&slots[0]), 2);
    populate(&mut pool, b, 8 * KIB, false);
    assert_eq!(replicas(&pool.woken[&ticket][0]), 2);
}

#[test]
fn who_came_first_has_what_was_populated_first() {
    let (mut pool, [a, b]) = nodes(0);
    let (first, second) = (park(&mut pool, a, &[("k", 3 * KIB)]), park(&mut pool, b, &[("l", 3 * KIB)]));
    populate(&mut pool, b, 4 * KIB, false);
    assert_eq!(replicas(&pool.woken[&first][0]), 2);
    assert!(!pool.woken.contains_key(&second));
    populate(&mut pool, b, 8 * KIB, false);
    assert_eq!(replicas(&pool.woken[&second][0]), 2);
}

#[test]
fn of_a_batch_those_keys_wait_that_have_to() {
    let (mut pool, [a, _]) = nodes(2 * KIB);
    let started = pool.start(a, &[("k", 2 * KIB), ("l", 2 * KIB)], &two(), false);
    let PutStarted::Now(slots) = started else { panic!("{started:?}") };
    assert_eq!(replicas(&slots[0]), 2);
    assert!(matches!(&slots[1], StartOutcome::Full(why) if why.contains("populated")), "{slots:?}");
}

#[test]
fn a_populator_that_is_too_slow_for_a_puts_timeout_leaves_it_with_fewer_replicas() {
    let (mut pool, [a, _]) = nodes(KIB);
    let ticket = park(&mut pool, a, &[("k", 3 * KIB)]);
    pool.pass(900);
    assert!(pool.woken.is_empty());
    pool.pass(200);
    assert_eq!(replicas(&pool.woken[&ticket][0]), 1);
    pool.check();
}

#[test]
fn one_that_fails_while_a_put_waits_for_it_does_so_at_once() {
    let (mut pool, [a, b]) = nodes(KIB);
    let ticket = park(&mut pool, a, &[("k", 3 * KIB)]);
    populate(&mut pool, b, 2 * KIB, true);
    assert_eq!(replicas(&pool.woken[&ticket][0]), 1);
}

#[test]
fn a_populator_that_got_stuck_before_is_not_waited_for() {
    let (mut pool, [a, _]) = nodes(KIB);
    pool.pass(3_100);
    let started = pool.start(a, &[("k", 3 * KIB)], &two(), true);
    let PutStarted::Now(slots) = started else { panic!("{started:?}") };
    assert_eq!(replicas(&slots[0]), 1);
}

#[test]
fn where_no_room_is_to_come_a_put_does_with_fewer_replicas_at_once() {
    let (mut pool, [a, b]) = nodes(8 * KIB);
    let c = pool.session(3);
    pool.try_mount(c, 3, 2 * KIB, KIB).unwrap();
    let hard =
        PutConfig { pin: mooncake_core::PinKind::Hard, preferred_segments: vec!["segment-2".to_owned()], ..plain() };
    pool.put_with(b, "fills", 8 * KIB, &hard);
    let started = pool.start(a, &[("k", 3 * KIB)], &two(), true);
    let PutStarted::Now(slots) = started else { panic!("{started:?}") };
    assert_eq!(replicas(&slots[0]), 1, "the one that is being populated is too small");
}

#[test]
fn a_node_that_has_a_replica_already_is_not_waited_for_and_room_is_made_elsewhere() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 4 * KIB);
    pool.put(a, "old", 4 * KIB);
    pool.try_mount(b, 2, 16 * KIB, 4 * KIB).unwrap();
    let started = pool.start(a, &[("k", 3 * KIB)], &two(), true);
    let PutStarted::Now(slots) = started else { panic!("{started:?}") };
    assert_eq!((replicas(&slots[0]), pool.core.stats().counters.evicted_objects), (2, 1));
    pool.check();
}

/// A node of 16 KiB, half of which `old` has, and one of 4 KiB with 1 KiB populated.
fn with_an_old_value() -> (Pool, [SessionId; 2]) {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 16 * KIB);
    pool.put(a, "old", 8 * KIB);
    pool.try_mount(b, 2, 4 * KIB, KIB).unwrap();
    (pool, [a, b])
}

#[test]
fn one_whose_populator_failed_waits_for_room_behind_those_that_came_before_it() {
    let (mut pool, [a, b]) = with_an_old_value();
    let writer = pool.session(3);
    pool.mount(writer, 3, KIB);
    let there = PutConfig { preferred_segments: vec!["segment-3".to_owned()], ..plain() };
    let rid = pool::placed(&pool.slots(writer, &[("busy", KIB)], &there)[0])[0].rid;
    let first = pool.park(a, &[("busy", 8 * KIB)]);
    let second = park(&mut pool, b, &[("k", 3 * KIB)]);
    pool.reserve(b, "fills", 6 * KIB);
    pool.pass(100);
    assert!(pool.exists("old"), "it is protected now");
    pool.abort(writer, rid, true);
    populate(&mut pool, b, KIB, true);
    pool.pass(100);
    assert!(pool.woken.is_empty(), "both wait for room: {:?}", pool.woken);
    pool.remove(a, "old", true);
    assert!(pool.woken.contains_key(&first), "it came first");
    assert!(!pool.woken.contains_key(&second), "{:?}", pool.woken);
    pool.check();
}

#[test]
fn one_that_does_with_fewer_replicas_has_nobody_else_look_for_room_at_each_tick() {
    let (mut pool, [a, b]) = with_an_old_value();
    park(&mut pool, a, &[("k", 3 * KIB)]);
    assert!(pool.exists("old"), "it is protected now");
    pool.park(b, &[("large", 9 * KIB)]);
    pool.pass(20);
    let looked = |pool: &Pool| pool.core.stats().counters.evictions_attempted;
    let before = looked(&pool);
    pool.pass(400);
    assert_eq!(looked(&pool), before, "nothing has changed for it");
    populate(&mut pool, b, KIB, true);
    assert!(looked(&pool) > before, "something has");
}
