//! Who leaves when there is no room, and who never does.

use crate::pool;

use mooncake_core::{
    Config, EndOutcome, PinKind, Populated, PutConfig, PutStarted, Record, Remembered, RemoveOutcome, STEP_OBJECTS,
    StartOutcome,
};
use pool::{KIB, Pool, is_full, plain};

/// What its owner says of segment 1.
fn populated(bytes: u64, failed: bool) -> Populated {
    Populated { uuid: pool::uuid(1), bytes, failed }
}

/// A pool of four objects of one granule: o0 to o3.
fn full() -> (Pool, mooncake_ids::SessionId) {
    let (mut pool, a) = Pool::single(4 * KIB);
    for n in 0..4 {
        pool.put(a, &format!("o{n}"), KIB);
    }
    (pool, a)
}

#[test]
fn the_least_recently_used_leaves_in_the_same_step() {
    let (mut pool, a) = full();
    pool.get("o0");
    pool.put(a, "new", KIB);
    assert_eq!(pool.keys(), ["new", "o0", "o2", "o3"]);
    assert_eq!(pool.core.stats().counters.evicted_objects, 1);
    pool.check();
}

#[test]
fn a_put_that_finds_its_key_refreshes_it() {
    let (mut pool, a) = full();
    assert_eq!(pool.slot(a, "o0", KIB), StartOutcome::Exists);
    pool.put(a, "new", KIB);
    assert_eq!(pool.keys(), ["new", "o0", "o2", "o3"]);
}

#[test]
fn as_many_leave_as_are_needed() {
    let (mut pool, a) = full();
    pool.put(a, "large", 3 * KIB);
    assert_eq!(pool.keys(), ["large", "o3"]);
    pool.check();
}

#[test]
fn what_was_looked_up_is_spared_for_a_second_at_least() {
    let (mut pool, a) = full();
    assert!(pool.exists("o0") && pool.exists("o1"));
    for n in 0..6 {
        pool.put(a, &format!("new{n}"), KIB);
        pool.pass(150);
    }
    assert!(pool.get("o0").is_some() && pool.get("o1").is_some());
    assert_eq!(pool.core.stats().counters.lookup_then_miss, 0);
    pool.pass(2000);
    for n in 0..4 {
        pool.put(a, &format!("last{n}"), KIB);
    }
    assert!(pool.get("o0").is_none(), "protection lapses");
    assert_eq!(pool.core.stats().counters.lookup_then_miss, 1);
    assert_eq!(pool.core.stats().counters.protection_broken, 0);
}

#[test]
fn when_all_are_looked_up_a_put_waits_a_second_and_takes_the_longest_ago() {
    let (mut pool, a) = full();
    for n in [2, 0, 1, 3] {
        assert!(pool.exists(&format!("o{n}")));
        pool.pass(20);
    }
    assert!(is_full(&pool.slot(a, "new", KIB)));
    let ticket = pool.park(a, &[("new", KIB)]);
    pool.pass(980);
    assert!(pool.woken.is_empty());
    pool.pass(40);
    assert!(matches!(pool.woken[&ticket][0], StartOutcome::Placed(_)));
    assert_eq!(pool.keys(), ["o0", "o1", "o3"]);
    assert_eq!(pool.core.stats().counters.protection_broken, 1);
}

#[test]
fn every_object_looked_up_once_and_three_times_too_much_written_no_put_fails() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let mut waited = 0;
    for n in 0..192 {
        let key = format!("k{n}");
        let slot = match pool.start(a, &[(&key, KIB)], &plain(), true) {
            mooncake_core::PutStarted::Now(mut slots) => slots.remove(0),
            mooncake_core::PutStarted::Parked(ticket) => {
                let start = pool.now;
                while !pool.woken.contains_key(&ticket) {
                    pool.pass(20);
                }
                let ms = (pool.now.0 - start.0) / 1000;
                assert!(ms <= 1040);
                waited += ms;
                pool.woken.remove(&ticket).unwrap().remove(0)
            }
        };
        pool.commit(a, &pool::placed(&slot));
        assert!(pool.exists(&key));
        pool.pass(10);
    }
    assert!(waited > 0);
    pool.check();
}

/// Puts all keys as one call of a client does: what finds no room is asked for again, waiting. The rounds it took.
fn put_as_one_call(pool: &mut Pool, session: mooncake_ids::SessionId, keys: &[String], size: u64) -> u32 {
    let mut config = plain();
    let mut rest: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut rounds = 0;
    while !rest.is_empty() {
        rounds += 1;
        let entries: Vec<(&str, u64)> = rest.iter().map(|key| (*key, size)).collect();
        let slots = match pool.start(session, &entries, &config, rounds > 1) {
            PutStarted::Now(slots) => slots,
            PutStarted::Parked(ticket) => {
                while !pool.woken.contains_key(&ticket) {
                    pool.pass(20);
                }
                pool.woken.remove(&ticket).unwrap()
            }
        };
        let mut left = Vec::new();
        for (key, slot) in rest.into_iter().zip(slots) {
            match slot {
                StartOutcome::Placed(replicas) => {
                    config.first_rid = config.first_rid.or(Some(replicas[0].rid));
                    assert_eq!(pool.commit(session, &replicas), EndOutcome::Committed);
                }
                StartOutcome::Full(_) if rounds < 20 => left.push(key),
                other => panic!("{key} in round {rounds}: {other:?}"),
            }
        }
        rest = left;
    }
    rounds
}

#[test]
fn a_call_does_not_evict_what_it_has_just_stored_itself() {
    for looked_up in [100, 90] {
        let (mut pool, a) = Pool::single(100 * KIB);
        let b = pool.session(2);
        for n in 0..looked_up {
            pool.put(a, &format!("old{n}"), KIB);
            assert!(pool.exists(&format!("old{n}")));
        }
        let keys: Vec<String> = (0..80).map(|n| format!("new{n}")).collect();
        let began = pool.now;
        let rounds = put_as_one_call(&mut pool, b, &keys, KIB);
        assert!(rounds <= 4 && pool.now < began.plus_ms(2_200), "{rounds} rounds, until {:?}", pool.now);
        let there: Vec<bool> = keys.iter().map(|key| pool.get(key).is_some()).collect();
        assert!(there.iter().all(|there| *there), "of the call's own keys are left: {there:?}");
        let old: Vec<u32> = (0..looked_up).filter(|n| pool.get(&format!("old{n}")).is_some()).collect();
        assert_eq!(
            old,
            (looked_up + 80 - 100..looked_up).collect::<Vec<_>>(),
            "those looked up longest ago leave first"
        );
        pool.check();
    }
}

#[test]
fn what_is_read_meanwhile_does_not_make_a_call_wait_and_evict_its_own() {
    // As many as one look at a request has time to evict for.
    const ROUND: usize = 128;
    let (mut pool, a) = Pool::single(1000 * KIB);
    let b = pool.session(2);
    for n in 0..1000 {
        pool.put(a, &format!("old{n}"), KIB);
    }
    assert!(pool.exists("old999"));
    let mut config = plain();
    for round in 0..3 {
        let keys: Vec<String> = (0..ROUND).map(|n| format!("new{round}-{n}")).collect();
        let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
        for slot in pool.slots(b, &entries, &config) {
            let replicas = pool::placed(&slot);
            config.first_rid = config.first_rid.or(Some(replicas[0].rid));
            assert_eq!(pool.commit(b, &replicas), EndOutcome::Committed);
        }
        // All that is left was used later than what the call has stored by now.
        for n in 0..999 {
            pool.get(&format!("old{n}"));
        }
    }
    let keys = pool.keys();
    assert_eq!(keys.iter().filter(|key| key.starts_with("new")).count(), 3 * ROUND, "{keys:?}");
    assert!(pool.get("old999").is_some());
    pool.check();
}

#[test]
fn those_that_spare_their_own_cost_the_changes_of_others_nothing() {
    let (mut pool, a) = Pool::single(100 * KIB);
    for n in 0..60 {
        pool.put(a, &format!("old{n}"), KIB);
        assert!(pool.exists(&format!("old{n}")));
    }
    let first = pool.put(a, "new0", KIB)[0].rid;
    for n in 1..40 {
        pool.put(a, &format!("new{n}"), KIB);
    }
    let config = PutConfig { first_rid: Some(first), ..plain() };
    for n in 0..50 {
        let parked = pool.start(a, &[(&format!("more{n}"), KIB)], &config, true);
        assert!(matches!(parked, PutStarted::Parked(_)), "{parked:?}");
    }
    let looks = pool.core.stats().counters.evictions_attempted;
    for _ in 0..500 {
        // A view that ends may make room.
        let seen = pool.pin(a, "old0").unwrap();
        pool.unpin(a, seen.replicas[0].rid);
    }
    assert_eq!(pool.core.stats().counters.evictions_attempted, looks);
    // Nor do they keep others waiting, and they have their room when the look-ups have had their second.
    pool.put(a, "other", KIB);
    pool.pass(1_300);
    assert_eq!(pool.woken.len(), 50);
    assert!((1..40).all(|n| pool.get(&format!("new{n}")).is_some()), "{:?}", pool.keys());
}

#[test]
fn a_call_larger_than_the_pool_stores_each_key_in_bounded_time() {
    let (mut pool, a) = Pool::single(100 * KIB);
    let keys: Vec<String> = (0..350).map(|n| format!("new{n}")).collect();
    let began = pool.now;
    put_as_one_call(&mut pool, a, &keys, KIB);
    assert_eq!(pool.now, began, "with nothing else there, nothing is waited for");
    assert_eq!((250..350).filter(|n| pool.get(&keys[*n]).is_some()).count(), 100);
    pool.check();
}

#[test]
fn a_large_request_that_finds_no_room_tries_that_once() {
    let (mut pool, _) = full();
    for n in 0..4 {
        assert!(pool.exists(&format!("o{n}")));
    }
    let names: Vec<String> = (0..1_000).map(|n| format!("new{n}")).collect();
    let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), KIB)).collect();
    let b = pool.session(2);
    let slots = pool.slots(b, &entries, &plain());
    assert!(slots.iter().all(is_full));
    let StartOutcome::Full(reason) = &slots[0] else { panic!("{slots:?}") };
    assert!(reason.contains("protected by a lookup"), "{reason}");
    let said = slots.iter().filter(|slot| matches!(slot, StartOutcome::Full(reason) if !reason.is_empty())).count();
    assert_eq!(said, 1, "once for all of them");
    let is_silent = |slot: &StartOutcome| matches!(slot, StartOutcome::Full(reason) if reason.is_empty());
    let mut logged = pool.log.iter().filter_map(|record| match record {
        Record::Replied { reply: Remembered::PutStart(slots), .. } => Some(slots),
        _ => None,
    });
    assert!(logged.next_back().unwrap().iter().all(is_silent), "and not in the log");
    assert_eq!(pool.core.stats().counters.evictions_attempted, 1);
    let ticket = pool.park(b, &entries);
    pool.pass(900);
    assert!(pool.woken.is_empty());
    assert!(pool.core.stats().counters.evictions_attempted < 10, "{}", pool.core.stats().counters.evictions_attempted);
    pool.pass(120);
    let slots = &pool.woken[&ticket];
    assert_eq!(
        slots.iter().filter(|slot| matches!(slot, StartOutcome::Placed(_))).count(),
        2,
        "its limit is half the pool"
    );
    pool.check();
}

#[test]
fn soft_pinned_leave_after_all_others_and_only_if_allowed() {
    for allowed in [true, false] {
        let mut pool = Pool::with(Config { evict_soft_pinned: allowed, ..Config::default() });
        let a = pool.session(1);
        pool.mount(a, 1, 4 * KIB);
        let soft = PutConfig { pin: PinKind::Soft { ttl_ms: 60_000 }, ..plain() };
        pool.put_with(a, "s0", KIB, &soft);
        pool.put_with(a, "s1", KIB, &soft);
        pool.put(a, "p0", KIB);
        pool.put(a, "p1", KIB);
        pool.put(a, "two", 2 * KIB);
        assert_eq!(pool.keys(), ["s0", "s1", "two"]);
        let slot = pool.slot(a, "large", 3 * KIB);
        assert_eq!(matches!(slot, StartOutcome::Placed(_)), allowed, "{slot:?}");
        assert_eq!(pool.exists("s1"), !allowed || pool.exists("s1"));
        pool.check();
    }
}

#[test]
fn a_soft_pin_outlasts_an_absence_of_its_owner() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 2 * KIB);
    pool.put_with(a, "soft", KIB, &PutConfig { pin: PinKind::Soft { ttl_ms: 60_000 }, ..plain() });
    pool.put(a, "plain", KIB);
    pool.mount(b, 2, 2 * KIB);
    pool.anchor_lost(a);
    pool.reserve(b, "unfinished", 2 * KIB);
    assert!(is_full(&pool.slot(a, "new", KIB)), "what there is lies out of reach");
    pool.resume(a, &[1], &[], 1).unwrap();
    pool.put(a, "new", KIB);
    assert_eq!(pool.keys(), ["new", "soft"]);
    pool.check();
}

/// Four objects, looked up one after the other: the first of them with a pin that ends meanwhile.
fn looked_up_in_turn(pin: PinKind) -> (Pool, mooncake_ids::SessionId) {
    let mut pool = Pool::with(Config { evict_soft_pinned: false, ..Config::default() });
    let a = pool.session(1);
    pool.mount(a, 1, 4 * KIB);
    pool.put_with(a, "o0", KIB, &PutConfig { pin, ..plain() });
    for n in 1..4 {
        pool.put(a, &format!("o{n}"), KIB);
    }
    for n in 0..4 {
        assert!(pool.exists(&format!("o{n}")));
        pool.pass(300);
    }
    (pool, a)
}

#[test]
fn a_soft_pin_that_lapses_does_not_lengthen_the_protection_of_a_look_up() {
    let (mut pool, a) = looked_up_in_turn(PinKind::Soft { ttl_ms: 600 });
    pool.pass(820);
    assert!(
        matches!(pool.slot(a, "new", KIB), StartOutcome::Placed(_)),
        "two seconds have gone by since o0 was looked up"
    );
    assert_eq!(pool.keys(), ["o1", "o2", "o3"]);
    pool.check();
}

#[test]
fn a_replacement_that_finds_no_room_does_not_lengthen_the_protection_of_a_look_up() {
    let (mut pool, a) = looked_up_in_turn(PinKind::None);
    let replace = PutConfig { replace: true, ..plain() };
    assert!(is_full(&pool.slots(a, &[("o0", KIB)], &replace)[0]));
    pool.pass(820);
    assert!(
        matches!(pool.slot(a, "new", KIB), StartOutcome::Placed(_)),
        "two seconds have gone by since o0 was looked up"
    );
    assert_eq!(pool.keys(), ["o1", "o2", "o3"]);
    pool.check();
}

#[test]
fn hard_pinned_and_viewed_never_leave() {
    let (mut pool, a) = Pool::single(4 * KIB);
    pool.put_with(a, "hard", KIB, &PutConfig { pin: PinKind::Hard, ..plain() });
    pool.put(a, "viewed", KIB);
    let view = pool.pin(a, "viewed").unwrap();
    for n in 0..8 {
        pool.put(a, &format!("n{n}"), 2 * KIB);
    }
    assert_eq!(pool.keys(), ["hard", "n7", "viewed"]);
    assert!(is_full(&pool.slot(a, "large", 3 * KIB)), "a view ends one day");
    let StartOutcome::TooLarge(_) = pool.slot(a, "large", 4 * KIB) else { panic!() };
    pool.unpin(a, view.replicas[0].rid);
    assert!(matches!(pool.slot(a, "large", 3 * KIB), StartOutcome::Placed(_)));
    assert_eq!(pool.keys(), ["hard"]);
    assert_eq!(pool.core.stats().hard_pinned_objects, 1);
    pool.check();
}

#[test]
fn a_removed_object_under_a_view_keeps_its_bytes_until_the_view_ends() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let replicas = pool.put(a, "k", KIB);
    let b = pool.session(2);
    pool.pin(a, "k").unwrap();
    pool.pin(b, "k").unwrap();
    pool.pin(b, "k").unwrap();
    assert_eq!(pool.remove(a, "k", false), RemoveOutcome::Removed);
    assert!(!pool.exists("k"));
    for n in 0..6 {
        let new = pool.put(a, &format!("n{n}"), KIB);
        assert_ne!(new[0].extent.offset, replicas[0].extent.offset);
    }
    pool.restart(None);
    pool.resume(a, &[1], &[replicas[0].rid], 1).unwrap();
    pool.resume(b, &[], &[replicas[0].rid; 2], 1).unwrap();
    assert_eq!(pool.core.stats().pins, 3);
    pool.unpin(a, replicas[0].rid);
    pool.unpin(b, replicas[0].rid);
    assert!(is_full(&pool.slot(a, "large", 4 * KIB)));
    pool.over(b);
    assert!(matches!(pool.slot(a, "large", 4 * KIB), StartOutcome::Placed(_)), "the end of its session ends a view");
    pool.check();
}

#[test]
fn a_view_that_ends_twice_is_no_harm() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let rid = pool.put(a, "k", KIB)[0].rid;
    pool.pin(a, "k").unwrap();
    pool.unpin(a, rid);
    pool.unpin(a, rid);
    let b = pool.session(1);
    pool.pin(a, "k").unwrap();
    pool.unpin(b, rid);
    assert_eq!(pool.core.stats().pins, 1, "nobody ends the views of others");
    pool.check();
}

#[test]
fn objects_that_nobody_can_see_are_not_evicted_in_vain_and_come_back_first_to_go() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(b, 2, 4 * KIB);
    for n in 0..4 {
        pool.put(a, &format!("b{n}"), KIB);
    }
    pool.mount(a, 1, 4 * KIB);
    for n in 0..4 {
        pool.put_with(a, &format!("a{n}"), KIB, &PutConfig { preferred_segments: vec!["segment-1".into()], ..plain() });
    }
    pool.anchor_lost(b);
    for n in 0..6 {
        pool.put(a, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["n2", "n3", "n4", "n5"]);
    pool.resume(b, &[2], &[], 1).unwrap();
    assert_eq!(pool.keys(), ["b0", "b1", "b2", "b3", "n2", "n3", "n4", "n5"]);
    pool.put(a, "last", KIB);
    assert!(!pool.keys().contains(&"b0".into()) || !pool.keys().contains(&"b3".into()));
    assert_eq!(pool.core.stats().counters.evicted_objects, 7);
    pool.check();
}

#[test]
fn above_the_watermark_a_share_is_evicted_in_the_background() {
    let config = Config { high_watermark: 0.75, eviction_share: 0.25, ..Config::default() };
    let mut pool = Pool::with(config);
    let a = pool.session(1);
    pool.mount(a, 1, 16 * KIB);
    for n in 0..12 {
        pool.put(a, &format!("k{n:02}"), KIB);
    }
    pool.pass(20);
    assert_eq!(pool.keys().len(), 12);
    pool.put(a, "k12", KIB);
    pool.pass(20);
    assert_eq!(pool.keys(), (5..13).map(|n| format!("k{n:02}")).collect::<Vec<_>>());
}

#[test]
fn while_memory_is_being_populated_puts_wait_for_it_instead_of_evicting() {
    let mut pool = Pool::new();
    let a = pool.session(1);
    pool.try_mount(a, 1, 8 * KIB, 2 * KIB).unwrap();
    pool.put(a, "k0", KIB);
    pool.put(a, "k1", KIB);
    assert!(is_full(&pool.slot(a, "k2", KIB)));
    let ticket = pool.park(a, &[("k2", KIB)]);
    pool.pass(100);
    assert!(pool.woken.is_empty());
    pool.core.beat(pool.now, a, &[], &[populated(4 * KIB, false)], &mut pool.fx);
    pool.collect();
    assert!(matches!(pool.woken[&ticket][0], StartOutcome::Placed(_)));
    assert_eq!((pool.keys().len(), pool.core.stats().counters.evicted_objects), (2, 0));
    pool.check();
}

#[test]
fn a_populator_that_got_stuck_is_not_waited_for() {
    let mut pool = Pool::new();
    let a = pool.session(1);
    pool.try_mount(a, 1, 8 * KIB, 2 * KIB).unwrap();
    pool.put(a, "k0", KIB);
    pool.put(a, "k1", KIB);
    pool.pass(3100);
    assert!(matches!(pool.slot(a, "k2", KIB), StartOutcome::Placed(_)));
    assert_eq!(pool.core.stats().counters.evicted_objects, 1);
}

#[test]
fn only_soft_pins_that_have_not_lapsed_are_counted() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let soft = |ttl_ms| PutConfig { pin: PinKind::Soft { ttl_ms }, ..plain() };
    pool.put_with(a, "short", KIB, &soft(1_000));
    pool.put_with(a, "long", KIB, &soft(60_000));
    assert_eq!(pool.core.stats().soft_pinned_objects, 2);
    pool.pass(1_100);
    assert_eq!(pool.core.stats().soft_pinned_objects, 1);
    pool.remove(a, "long", true);
    assert_eq!(pool.core.stats().soft_pinned_objects, 0);
}

#[test]
fn memory_that_cannot_be_had_lowers_the_capacity_and_nobody_waits_for_it() {
    let mut pool = Pool::with(Config { high_watermark: 0.75, eviction_share: 0.25, ..Config::default() });
    let a = pool.session(1);
    let number = pool.try_mount(a, 1, 16 * KIB, 2 * KIB).unwrap();
    pool.put(a, "k0", KIB);
    pool.put(a, "k1", KIB);
    let ticket = pool.park(a, &[("k2", KIB)]);
    let ended = pool.core.beat(pool.now, a, &[], &[populated(4 * KIB, true)], &mut pool.fx);
    assert_eq!(ended, [number]);
    pool.collect();
    let last = pool::placed(&pool.woken[&ticket][0]);
    assert_eq!(pool.commit(a, &last), EndOutcome::Committed, "what came before the end is used");
    let view = pool.core.segment(number).unwrap();
    assert_eq!((view.bytes, view.capacity, view.populated), (16 * KIB, 4 * KIB, 4 * KIB));
    assert_eq!(pool.core.stats().capacity_bytes, 4 * KIB);
    assert_eq!(pool.core.beat(pool.now, a, &[], &[populated(4 * KIB, true)], &mut pool.fx), [], "said once");
    assert_eq!(pool.core.beat(pool.now, a, &[], &[populated(16 * KIB, false)], &mut pool.fx), [], "and final");
    pool.check();

    let slot = pool.slot(a, "large", 5 * KIB);
    assert!(matches!(&slot, StartOutcome::TooLarge(reason) if reason.contains("has 4096 bytes")), "{slot:?}");
    assert_eq!(pool.keys(), ["k0", "k1", "k2"], "nothing was evicted for what can never fit");
    pool.put(a, "k3", KIB);
    pool.pass(20);
    assert_eq!(pool.keys().len(), 2, "the watermark follows");
    pool.restart(None);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.core.stats().capacity_bytes, 4 * KIB);
    pool.check();
}

#[test]
fn what_has_lapsed_is_let_go_in_steps() {
    let (mut pool, a) = Pool::single(8_192 * KIB);
    let names: Vec<String> = (0..5_000).map(|n| format!("o{n}")).collect();
    for name in &names {
        pool.put(a, name, KIB);
        assert!(pool.exists(name));
    }
    pool.now = pool.now.plus_ms(60_000);
    let left = |pool: &Pool| pool.core.stats().protected_objects;
    let Pool { core, now, fx, .. } = &mut pool;
    core.tick(*now, fx);
    let steps: Vec<bool> = (0..3).map(|_| core.background(*now, 8 * STEP_OBJECTS, fx)).collect();
    assert_eq!((steps, left(&pool)), (vec![true, true, false], 0), "no more at a time");
    pool.check();
}

#[test]
fn of_objects_with_very_long_keys_fewer_leave_in_one_hold_and_all_that_must_in_the_end() {
    const OBJECTS: u64 = 200;
    let (mut pool, a) = Pool::single(OBJECTS * KIB);
    for nth in 0..OBJECTS {
        pool.put(a, &format!("{nth:03}{}", "x".repeat(60_000)), KIB);
    }
    let before = pool.core.stats().counters.evicted_objects;
    let keys: Vec<String> = (0..100).map(|nth| format!("new{nth}")).collect();
    let mut rest: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    let evicted = |pool: &Pool| pool.core.stats().counters.evicted_objects - before;
    let mut looks = 0;
    while !rest.is_empty() {
        let had = evicted(&pool);
        let PutStarted::Now(slots) = pool.start(a, &rest, &plain(), false) else { panic!("some are placed") };
        let left = rest.into_iter().zip(slots).filter(|(_, slot)| is_full(slot));
        rest = left.map(|(entry, _)| entry).collect();
        assert!((1..=20).contains(&(evicted(&pool) - had)), "{} at one look", evicted(&pool) - had);
        looks += 1;
    }
    assert!(looks < 20 && evicted(&pool) == 100, "{looks} looks, {} evicted", evicted(&pool));
    pool.check();
}
