//! Parked puts: first come first served, each with its own deadline.

use mooncake_core::{PutStarted, Replica, StartOutcome, Ticket};
use mooncake_ids::SessionId;

use crate::pool::{self, KIB, Pool, is_busy, is_full, plain};

fn is_placed(slot: &StartOutcome) -> bool {
    matches!(slot, StartOutcome::Placed(_))
}

/// A pool that is full of one unfinished put of `a`.
fn stuffed() -> (Pool, SessionId, SessionId, mooncake_ids::Rid) {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    let rid = pool.reserve(a, "stuff", 8 * KIB)[0].rid;
    (pool, a, b, rid)
}

#[test]
fn a_busy_key_is_waited_for_half_a_second() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(2);
    pool.reserve(a, "k", KIB);
    let ticket = pool.park(b, &[("k", KIB)]);
    pool.pass(480);
    assert!(pool.woken.is_empty());
    pool.pass(40);
    assert!(is_busy(&pool.woken[&ticket][0]));
}

#[test]
fn a_commit_answers_those_who_wait_for_the_key() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(2);
    let k = pool.reserve(a, "k", KIB);
    let l = pool.reserve(a, "l", KIB);
    let tickets: Vec<Ticket> = (0..3).map(|_| pool.park(b, &[("l", KIB), ("k", KIB)])).collect();
    pool.commit(a, &k);
    for ticket in tickets {
        let slots = pool.woken.remove(&ticket).unwrap();
        assert!(is_busy(&slots[0]) && slots[1] == StartOutcome::Exists);
    }
    pool.commit(a, &l);
}

#[test]
fn a_put_given_up_passes_its_key_to_the_first_in_line() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let (b, c) = (pool.session(2), pool.session(3));
    let rid = pool.reserve(a, "k", KIB)[0].rid;
    let first = pool.park(b, &[("k", KIB)]);
    let second = pool.park(c, &[("k", KIB)]);
    pool.abort(a, rid, true);
    assert!(is_placed(&pool.woken[&first][0]));
    assert!(!pool.woken.contains_key(&second));
}

#[test]
fn keys_of_a_writer_that_goes_away_are_given_to_those_in_line_at_once() {
    let (mut pool, a) = Pool::single(2_048 * KIB);
    let (b, c, away) = (pool.session(2), pool.session(3), pool.session(4));
    // More than one step goes through.
    let keys: Vec<String> = (0..400).map(|nth| format!("k{nth}")).collect();
    let first: Vec<Ticket> = keys
        .iter()
        .map(|key| {
            pool.reserve(away, key, KIB);
            pool.park(b, &[(key, KIB)])
        })
        .collect();
    let second = pool.park(c, &[("k399", KIB)]);
    pool.put(a, "another", KIB);
    pool.anchor_lost(away);
    pool.check_books();
    pool.pass(20);
    let placed: Vec<Vec<Replica>> =
        first.iter().map(|ticket| pool::placed(&pool.woken.remove(ticket).unwrap()[0])).collect();
    assert!(!pool.woken.contains_key(&second), "the first in line has it");
    pool.commit(b, &placed[399]);
    assert_eq!(pool.woken[&second], [StartOutcome::Exists]);
    pool.check();
}

#[test]
fn a_writer_that_is_away_yields_its_keys_so_many_at_a_time_and_all_of_them_in_the_end() {
    let (mut pool, _) = Pool::single(2_048 * KIB);
    let (b, away) = (pool.session(2), pool.session(3));
    let keys: Vec<String> = (0..800).map(|nth| format!("k{nth}")).collect();
    keys.iter().for_each(|key| _ = pool.reserve(away, key, KIB));
    pool.anchor_lost(away);
    // Nothing of this can be placed, so that it is parked for the rest of them.
    let large: Vec<(&str, u64)> = keys[..400].iter().map(|key| (key.as_str(), 4_096 * KIB)).collect();
    let before = pool.log.len();
    let ticket = pool.park(b, &large);
    assert!(pool.log.len() - before <= 260, "{} records", pool.log.len() - before);
    pool.pass(20);
    let slots = pool.woken.remove(&ticket).expect("it has had its turns");
    assert!(slots.iter().all(|slot| matches!(slot, StartOutcome::TooLarge(_))), "{slots:?}");
    // Of this some is placed at once.
    let mut left: Vec<(&str, u64)> = keys[400..].iter().map(|key| (key.as_str(), KIB)).collect();
    for round in 0.. {
        let before = pool.log.len();
        let slots = pool.slots(b, &left, &plain());
        assert!(pool.log.len() - before <= 350, "{} records", pool.log.len() - before);
        let mut placed = slots.iter().map(is_placed);
        left.retain(|_| !placed.next().unwrap());
        if left.is_empty() {
            assert_eq!(round, 3, "400 keys, 128 at a time");
            break;
        }
        assert!(slots.iter().all(|slot| is_placed(slot) || is_busy(slot)), "{slots:?}");
    }
    pool.check();
}

#[test]
fn a_writer_that_is_back_before_those_in_line_have_heard_keeps_its_keys() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let (b, writer) = (pool.session(2), pool.session(3));
    let k = pool.reserve(writer, "k", KIB);
    let waits = pool.park(b, &[("k", KIB)]);
    pool.anchor_lost(writer);
    pool.resume(writer, &[], &[], 1).unwrap();
    pool.put(a, "another", KIB);
    assert!(pool.woken.is_empty());
    pool.commit(writer, &k);
    assert_eq!(pool.woken[&waits], [StartOutcome::Exists]);
}

#[test]
fn room_goes_to_the_first_in_line_and_newcomers_do_not_barge() {
    let (mut pool, a, b, rid) = stuffed();
    let first = pool.park(b, &[("k1", 6 * KIB)]);
    let c = pool.session(3);
    let second = pool.park(c, &[("k2", 2 * KIB)]);
    let slot = pool.slot(b, "newcomer", KIB);
    assert!(matches!(&slot, StartOutcome::Full(reason) if reason.contains("others wait")), "{slot:?}");
    pool.abort(a, rid, true);
    assert!(pool.woken.is_empty(), "the extent is in quarantine");
    assert!(is_full(&pool.slot(b, "newcomer", KIB)) || !pool.woken.is_empty());
    pool.fence_done(a, &[rid]);
    assert!(is_placed(&pool.woken[&first][0]) && is_placed(&pool.woken[&second][0]));
    assert!(is_full(&pool.slot(b, "newcomer", KIB)));
    pool.check();
}

#[test]
fn a_large_one_in_front_is_not_overtaken_by_a_small_one() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    let x = pool.reserve(a, "x", 4 * KIB)[0].rid;
    let c = pool.session(3);
    let y = pool.reserve(c, "y", 4 * KIB)[0].rid;
    let large = pool.park(b, &[("large", 6 * KIB)]);
    let small = pool.park(c, &[("small", KIB)]);
    pool.abort(a, x, true);
    pool.fence_done(a, &[x]);
    assert!(pool.woken.is_empty(), "room for the small one only, which waits");
    pool.abort(c, y, true);
    pool.fence_done(a, &[y]);
    assert!(is_placed(&pool.woken[&large][0]) && is_placed(&pool.woken[&small][0]));
}

#[test]
fn nobody_waits_for_room_longer_than_a_second() {
    let (mut pool, _, b, _) = stuffed();
    let ticket = pool.park(b, &[("k", KIB)]);
    pool.pass(980);
    assert!(pool.woken.is_empty());
    pool.pass(40);
    let StartOutcome::Full(reason) = &pool.woken[&ticket][0] else { panic!() };
    assert!(reason.contains("8192 in unfinished puts"), "{reason}");
}

#[test]
fn at_its_own_deadline_one_takes_protected_objects_even_when_it_is_not_first() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let (b, c) = (pool.session(2), pool.session(3));
    for n in 0..2 {
        pool.put(a, &format!("o{n}"), KIB);
        assert!(pool.exists(&format!("o{n}")));
    }
    pool.reserve(a, "stuff", 6 * KIB);
    let small = pool.park(b, &[("small", KIB)]);
    // It goes ahead in the line, as a populator's ticket would, and can never be served.
    let large = pool.park(c, &[("large", 7 * KIB)]);
    pool.pass(1020);
    assert!(is_placed(&pool.woken[&small][0]));
    assert!(is_full(&pool.woken[&large][0]));
    assert!(pool.core.stats().counters.protection_broken >= 1);
}

#[test]
fn lapsed_protection_serves_the_line() {
    let (mut pool, a) = Pool::single(4 * KIB);
    for n in 0..4 {
        pool.put(a, &format!("o{n}"), KIB);
        assert!(pool.exists(&format!("o{n}")));
    }
    pool.pass(1500);
    let ticket = pool.park(a, &[("k", KIB)]);
    pool.pass(520);
    assert!(is_placed(&pool.woken[&ticket][0]));
    assert_eq!(pool.core.stats().counters.protection_broken, 0);
}

#[test]
fn a_waiting_request_returns_with_the_first_of_its_keys() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    pool.reserve(a, "busy", KIB);
    let PutStarted::Now(slots) = pool.start(b, &[("busy", KIB), ("free", KIB)], &plain(), true) else { panic!() };
    assert!(is_busy(&slots[0]) && is_placed(&slots[1]));
}

#[test]
fn without_wait_nothing_is_parked() {
    let (mut pool, _, b, _) = stuffed();
    assert!(is_full(&pool.slots(b, &[("k", KIB)], &plain())[0]));
    assert_eq!(pool.core.stats().tickets, 0);
}

#[test]
fn a_closed_connection_leaves_the_line() {
    let (mut pool, a, b, rid) = stuffed();
    let first = pool.park(b, &[("k1", 8 * KIB)]);
    let second = pool.park(b, &[("k2", KIB)]);
    pool.core.cancel_ticket(pool.now, first, &mut pool.fx);
    pool.abort(a, rid, true);
    pool.fence_done(a, &[rid]);
    assert!(is_placed(&pool.woken[&second][0]));
    assert!(!pool.woken.contains_key(&first));
}

#[test]
fn a_retry_of_a_parked_request_takes_its_place() {
    let (mut pool, a, b, rid) = stuffed();
    let origin = pool.origin(b);
    let park = |pool: &mut Pool| match pool
        .core
        .put_start(pool.now, origin, &[(b"k", KIB)], &plain(), true, &mut pool.fx)
        .unwrap()
    {
        PutStarted::Parked(ticket) => ticket,
        PutStarted::Now(slots) => panic!("{slots:?}"),
    };
    let first = park(&mut pool);
    let second = park(&mut pool);
    pool.collect();
    pool.abort(a, rid, true);
    pool.fence_done(a, &[rid]);
    assert!(is_placed(&pool.woken[&second][0]));
    assert!(!pool.woken.contains_key(&first), "answered once");
}

#[test]
fn the_end_of_a_session_answers_its_parked_requests() {
    let (mut pool, _, b, _) = stuffed();
    let ticket = pool.park(b, &[("k", KIB)]);
    pool.over(b);
    assert!(matches!(pool.woken[&ticket][0], StartOutcome::Refused(_)));
}

#[test]
fn two_clients_with_the_same_keys_in_opposite_order_both_finish() {
    let (mut pool, a) = Pool::single(128 * KIB);
    let b = pool.session(2);
    let keys: Vec<String> = (0..64).map(|n| format!("k{n:02}")).collect();
    let forward: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    let backward: Vec<(&str, u64)> = forward.iter().rev().copied().collect();
    let PutStarted::Now(slots) = pool.start(a, &forward, &plain(), true) else { panic!() };
    let ticket = pool.park(b, &backward);
    for slot in &slots {
        pool.commit(a, &pool::placed(slot));
    }
    // It was answered with the first key that was there; it asks again for the rest.
    let first = pool.woken.remove(&ticket).unwrap();
    assert_eq!(first.iter().filter(|slot| **slot == StartOutcome::Exists).count(), 1);
    let PutStarted::Now(slots) = pool.start(b, &backward, &plain(), true) else { panic!() };
    assert!(slots.iter().all(|slot| *slot == StartOutcome::Exists));
    pool.check();
}
