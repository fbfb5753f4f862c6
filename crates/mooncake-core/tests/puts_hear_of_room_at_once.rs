//! What waits is answered by the very operation that makes room for it, and not by a later one.

use mooncake_core::{Populated, PutConfig, PutStarted, STEP_OBJECTS, StartOutcome, Ticket};
use mooncake_ids::{Rid, SessionId};

use crate::pool::{KIB, Pool, is_full, placed, plain, uuid};

fn is_placed(pool: &Pool, ticket: Ticket) -> bool {
    pool.woken.get(&ticket).is_some_and(|slots| matches!(slots[0], StartOutcome::Placed(_)))
}

/// 8 KiB, of which an unfinished put has all but one.
fn one_left() -> (Pool, SessionId, SessionId, Rid) {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    let stuff = pool.reserve(a, "stuff", 7 * KIB)[0].rid;
    (pool, a, b, stuff)
}

#[test]
fn the_one_behind_a_request_whose_connection_closes_is_next() {
    let (mut pool, _, b, _) = one_left();
    let large = pool.park(b, &[("large", 4 * KIB)]);
    let small = pool.park(b, &[("small", KIB)]);
    pool.core.cancel_ticket(pool.now, large, &mut pool.fx);
    pool.collect();
    assert!(is_placed(&pool, small));
    pool.check();
}

#[test]
fn the_one_behind_a_request_whose_session_is_over_is_next() {
    let (mut pool, _, b, _) = one_left();
    let c = pool.session(3);
    pool.park(b, &[("large", 4 * KIB)]);
    let small = pool.park(c, &[("small", KIB)]);
    pool.over(b);
    assert!(is_placed(&pool, small));
}

#[test]
fn the_one_behind_a_request_that_has_waited_long_enough_is_next() {
    let (mut pool, _, b, _) = one_left();
    let c = pool.session(3);
    let large = pool.park(b, &[("large", 4 * KIB)]);
    pool.pass(500);
    let small = pool.park(c, &[("small", KIB)]);
    while !pool.woken.contains_key(&large) {
        assert!(!is_placed(&pool, small), "it overtakes");
        pool.pass(20);
    }
    assert!(is_full(&pool.woken[&large][0]) && is_placed(&pool, small));
}

#[test]
fn a_key_that_is_free_gives_no_room_before_those_that_waited_for_room() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let (b, c, d) = (pool.session(2), pool.session(3), pool.session(4));
    pool.reserve(d, "stuff", 6 * KIB);
    let busy = pool.reserve(a, "busy", KIB)[0].rid;
    let first = pool.park(b, &[("large", 2 * KIB)]);
    let second = pool.park(c, &[("busy", KIB)]);
    pool.abort(a, busy, true);
    assert!(!pool.woken.contains_key(&second), "it overtakes");
    pool.fence_done(a, &[busy]);
    assert!(is_placed(&pool, first));
}

#[test]
fn a_key_has_failed_with_the_last_word_that_its_writer_hears_and_not_before() {
    let (mut pool, _, b, _) = one_left();
    let both = [("first", KIB), ("second", KIB)];
    let PutStarted::Now(slots) = pool.start(b, &both, &plain(), true) else { panic!("one has room") };
    assert!(matches!(slots[0], StartOutcome::Placed(_)) && is_full(&slots[1]));
    assert_eq!(pool.core.counters().put_failed_full, 0, "its writer asks again for the second");
    let again = pool.park(b, &both[1..]);
    while !pool.woken.contains_key(&again) {
        pool.pass(20);
    }
    assert!(is_full(&pool.woken[&again][0]));
    assert_eq!(pool.core.counters().put_failed_full, 1);
    let asks_again = PutConfig { comes_again: true, ..plain() };
    for (config, failed) in [(asks_again, 1), (plain(), 2)] {
        let told = pool.start(b, &both[1..], &config, false);
        assert!(matches!(told, PutStarted::Now(slots) if is_full(&slots[0])));
        assert_eq!(pool.core.counters().put_failed_full, failed);
    }
}

#[test]
fn what_needs_very_many_evictions_goes_on_without_others_doing_anything() {
    let (mut pool, a) = Pool::single(17_000 * KIB);
    for batch in 0..17 {
        let names: Vec<String> = (0..1000).map(|n| format!("{batch}-{n}")).collect();
        let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        for slot in pool.slots(a, &entries, &plain()) {
            pool.commit(a, &placed(&slot));
        }
    }
    let large = pool.park(a, &[("large", 17_000 * KIB)]);
    let mut holds = 0;
    while !pool.woken.contains_key(&large) {
        assert!(pool.core.keeps_waiting(), "it is not left alone");
        pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
        let evicted = pool.fx.records.len();
        assert!(evicted <= STEP_OBJECTS, "{evicted} evictions in one hold of the lock");
        pool.collect();
        holds += 1;
    }
    assert!(is_placed(&pool, large) && holds > 10, "{holds}");
}

#[test]
fn memory_that_comes_or_comes_back_serves_the_line() {
    let (mut pool, _, b, _) = one_left();
    let c = pool.session(3);
    let waits = pool.park(b, &[("k", 4 * KIB)]);
    pool.mount(c, 2, 4 * KIB);
    assert!(is_placed(&pool, waits), "mounted");
    pool.anchor_lost(c);
    let waits = pool.park(b, &[("l", 4 * KIB)]);
    let rid = placed(&pool.woken.iter().next().unwrap().1[0])[0].rid;
    pool.abort(b, rid, true);
    pool.fence_done(c, &[rid]);
    assert!(!pool.woken.contains_key(&waits), "its owner is away");
    pool.resume(c, &[2], &[], 1).unwrap();
    assert!(is_placed(&pool, waits), "its owner is back");
    pool.check();
}

#[test]
fn what_is_removed_or_found_bad_or_lapses_gives_its_room_to_the_line() {
    let ways: [fn(&mut Pool, SessionId, Rid); 5] = [
        |pool, a, _| _ = pool.remove(a, "old", true),
        |pool, _, _| _ = pool.remove_all(true),
        |pool, _, _| _ = pool.remove_where(true, |key| key == "old", |_| {}),
        |pool, a, rid| {
            pool.core.bad_replica(pool.now, a, b"old", rid, &mut pool.fx);
            pool.core.rechecked(pool.now, a, rid, false, &mut pool.fx);
            pool.collect();
        },
        |pool, _, _| {
            pool.now = pool.now.plus_ms(900);
            pool.core.tick(pool.now, &mut pool.fx);
            pool.collect();
        },
    ];
    for (nth, free) in ways.into_iter().enumerate() {
        let (mut pool, a) = Pool::single(8 * KIB);
        let b = pool.session(2);
        let old = pool.put(a, "old", 8 * KIB)[0].rid;
        assert!(pool.exists("old"));
        pool.pass(1_500);
        let waits = pool.park(b, &[("k", 8 * KIB)]);
        free(&mut pool, a, old);
        assert!(is_placed(&pool, waits), "way {nth}");
        pool.check_books();
    }
}

#[test]
fn the_end_of_a_session_gives_what_it_was_writing_to_those_who_wait_for_it() {
    let (mut pool, _) = Pool::single(8 * KIB);
    let (b, c) = (pool.session(2), pool.session(3));
    pool.reserve(b, "k", KIB);
    let waits = pool.park(c, &[("k", KIB)]);
    pool.over(b);
    assert!(is_placed(&pool, waits));
}

#[test]
fn a_populator_that_got_stuck_while_a_put_waits_for_it_is_given_up() {
    let mut pool = Pool::new();
    let a = pool.session(1);
    pool.try_mount(a, 1, 8 * KIB, 4 * KIB).unwrap();
    pool.put(a, "old", 4 * KIB);
    // It gets on, and so is waited for, however long ago the segment was mounted.
    for granules in [5, 6] {
        pool.pass(2_500);
        let populated = Populated { uuid: uuid(1), bytes: granules * KIB, failed: false };
        let logged = pool.log.len();
        for records in [1, 0] {
            pool.core.beat(pool.now, a, &[], &[populated], &mut pool.fx);
            assert_eq!(pool.fx.records.len(), records, "said once");
            pool.collect();
        }
        assert_eq!(pool.log.len(), logged + 1);
    }
    pool.pass(2_500);
    let waits = pool.park(a, &[("k", 6 * KIB)]);
    assert_eq!(pool.core.stats().counters.evicted_objects, 0);
    pool.pass(400);
    assert!(!pool.woken.contains_key(&waits));
    pool.pass(200);
    assert!(is_placed(&pool, waits), "long before its deadline");
    pool.check();
}

#[test]
fn a_segment_too_small_for_a_put_is_not_waited_for() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    pool.put(a, "old", 8 * KIB);
    pool.try_mount(b, 2, 4 * KIB, KIB).unwrap();
    assert!(matches!(pool.slot(a, "k", 8 * KIB), StartOutcome::Placed(_)));
}

#[test]
fn the_next_key_of_a_batch_may_have_the_room_that_a_replacement_could_not() {
    let (mut pool, a) = Pool::single(4 * KIB);
    pool.put(a, "old", 3 * KIB);
    let replace = PutConfig { replace: true, ..plain() };
    let slots = pool.slots(a, &[("old", 2 * KIB), ("new", 2 * KIB)], &replace);
    assert!(is_full(&slots[0]) && matches!(slots[1], StartOutcome::Placed(_)), "{slots:?}");
    pool.check();
}

/// Parks a put of many keys for a session whose unfinished puts are all that it may have.
fn capped(pool: &mut Pool, session: SessionId, name: &str) -> Ticket {
    let keys: Vec<String> = (0..100).map(|n| format!("{name}{n}")).collect();
    let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    pool.park(session, &entries)
}

#[test]
fn sessions_hear_of_their_own_puts_one_after_the_other_and_again() {
    let (mut pool, owner) = Pool::single(400 * KIB);
    let (b, c) = (pool.session(2), pool.session(3));
    let held =
        [0, 1].map(|nth| [b, c].map(|session| pool.reserve(session, &format!("{session:?}{nth}"), 100 * KIB)[0].rid));
    let waits = [capped(&mut pool, c, "c"), capped(&mut pool, b, "b")];
    // That of the later session first, and while its line is being gone through that of the other one.
    for [of_b, of_c] in held {
        for (session, rid) in [(c, of_c), (b, of_b)] {
            pool.abort(session, rid, true);
            pool.fence_done(owner, &[rid]);
        }
    }
    while pool.core.keeps_waiting() {
        pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
        pool.collect();
    }
    assert!(waits.iter().all(|ticket| is_placed(&pool, *ticket)));
    pool.check();
}

#[test]
fn a_key_that_many_wait_for_is_not_given_to_a_newcomer_before_they_have_heard_of_it() {
    let (mut pool, a) = Pool::single(1_000 * KIB);
    let (b, c) = (pool.session(2), pool.session(3));
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let rids: Vec<Rid> = keys.iter().map(|key| pool.reserve(a, key, KIB)[0].rid).collect();
    let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    let waits = pool.park(b, &entries);
    pool.abort(a, rids[0], true);
    assert!(!pool.woken.contains_key(&waits) && pool.core.keeps_waiting(), "too many keys to look at beside an abort");
    assert!(matches!(pool.slot(c, "k0", KIB), StartOutcome::Busy(_)));
    pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
    pool.collect();
    assert!(is_placed(&pool, waits));
    pool.check();
}

#[test]
fn further_replicas_are_no_reason_to_evict_more_in_one_hold() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 4_000 * KIB);
    for batch in 0..8 {
        let names: Vec<String> = (0..500).map(|n| format!("{batch}-{n}")).collect();
        let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), KIB)).collect();
        for slot in pool.slots(a, &entries, &plain()) {
            pool.commit(a, &placed(&slot));
        }
    }
    pool.mount(b, 2, 100_000 * KIB);
    let config = PutConfig { replica_num: 2, ..plain() };
    let names: Vec<String> = (0..100).map(|n| format!("new{n}")).collect();
    let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 64 * KIB)).collect();
    let before = pool.core.stats().counters.evicted_objects;
    pool.slots(a, &entries, &config);
    let evicted = pool.core.stats().counters.evicted_objects - before;
    assert!(evicted <= 256, "{evicted}");
    pool.check();
}

#[test]
fn a_put_that_has_no_time_to_evict_for_all_copies_of_a_key_stores_none_of_it_yet() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 500 * KIB);
    pool.mount(b, 2, 500 * KIB);
    for batch in 0..10 {
        for n in 0..100 {
            pool.put(a, &format!("old{batch}-{n}"), KIB);
        }
    }
    let config = PutConfig { replica_num: 2, ..plain() };
    let mut names: Vec<String> = (0..200).map(|n| format!("new{n}")).collect();
    for rounds in 1.. {
        let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), KIB)).collect();
        let slots = pool.slots(a, &entries, &config);
        let replicas: Vec<usize> =
            slots.iter().map(|slot| if is_full(slot) { 0 } else { placed(slot).len() }).collect();
        assert!(replicas.iter().all(|replicas| *replicas != 1), "{replicas:?}");
        let mut had = replicas.iter().map(|replicas| *replicas > 0);
        names.retain(|_| !had.next().unwrap());
        if names.is_empty() {
            assert!(rounds > 1, "there is time for all of them at once");
            break;
        }
        assert!(names.len() < replicas.len(), "nothing was placed: {replicas:?}");
    }
    pool.check();
}
