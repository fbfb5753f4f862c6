//! A pool full of views: a put waits for their end as for any room, and says whose they are.

use mooncake_core::{EndOutcome, PinKind, PutConfig, StartOutcome};
use mooncake_ids::{Rid, SessionId};

use crate::pool::{KIB, Pool, is_full, placed, plain};

/// A pool of 64 KiB of which 48 are under the views of another client.
fn viewed() -> (Pool, SessionId, SessionId, Vec<Rid>) {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(2);
    let mut rids = Vec::new();
    for n in 0..6 {
        let key = format!("v{n}");
        rids.push(pool.put(a, &key, 8 * KIB)[0].rid);
        pool.pin(b, &key).unwrap();
    }
    (pool, a, b, rids)
}

fn reason(slot: &StartOutcome) -> &str {
    match slot {
        StartOutcome::Full(reason) => reason,
        other => panic!("not full: {other:?}"),
    }
}

#[test]
fn a_put_into_a_pool_full_of_views_waits_and_then_names_who_holds_them() {
    let (mut pool, a, b, rids) = viewed();
    let ticket = pool.park(a, &[("k", 24 * KIB)]);
    pool.pass(980);
    assert!(pool.woken.is_empty(), "it waits as for any room");
    pool.pass(40);
    let text = reason(&pool.woken[&ticket][0]).to_owned();
    assert!(text.contains("49152 bytes are under views") && text.contains("client-2"), "{text}");
    let stats = pool.core.stats();
    assert_eq!(
        (stats.counters.put_full, stats.counters.put_too_large, stats.counters.evicted_objects),
        (1, 0, 0),
        "{text}"
    );

    // Only what is left of them is named; a second view of one object is no second object.
    pool.pin(a, "v0").unwrap();
    pool.pin(b, "v0").unwrap();
    for rid in &rids[1..] {
        pool.unpin(b, *rid);
    }
    pool.unpin(b, rids[0]);
    let text = reason(&pool.slot(a, "k", 60 * KIB)).to_owned();
    assert!(text.contains("8192 bytes are under views"), "{text}");
    assert!(text.contains("client-1") && text.contains("client-2"), "{text}");
    pool.over(b);
    let text = reason(&pool.slot(a, "k", 60 * KIB)).to_owned();
    assert!(text.contains("client-1") && !text.contains("client-2"), "{text}");
    pool.check();
}

#[test]
fn the_end_of_the_views_serves_the_put_that_waits_and_the_first_one_behind_it() {
    let (mut pool, a, b, rids) = viewed();
    let ticket = pool.park(a, &[("k", 32 * KIB)]);
    pool.pass(500);
    pool.unpin(b, rids[5]);
    assert!(pool.woken.is_empty(), "eight of them are not enough");
    pool.unpin(b, rids[4]);
    let k = placed(&pool.woken[&ticket][0]);
    assert_eq!(pool.commit(a, &k), EndOutcome::Committed);
    for rid in &rids[..4] {
        pool.unpin(b, *rid);
    }
    pool.put(a, "l", 40 * KIB);
    pool.check();
}

#[test]
fn a_put_that_waits_for_views_keeps_nobody_waiting_who_needs_less() {
    let (mut pool, a, b, rids) = viewed();
    let large = pool.park(a, &[("large", 24 * KIB)]);
    for n in 0..8 {
        pool.put(a, &format!("small{n}"), 4 * KIB);
    }
    assert_eq!(pool.core.stats().counters.evicted_objects, 4, "they leave for each other");
    pool.unpin(b, rids[5]);
    assert!(matches!(&pool.woken[&large][0], StartOutcome::Placed(_)), "and it comes as soon as it can");
    pool.check();
}

#[test]
fn only_what_hard_pins_leave_is_the_measure_of_too_large() {
    let (mut pool, a) = Pool::single(64 * KIB);
    pool.put_with(a, "hard", 8 * KIB, &PutConfig { pin: PinKind::Hard, ..plain() });
    let rid = pool.put(a, "viewed", 8 * KIB)[0].rid;
    pool.pin(a, "hard").unwrap();
    pool.pin(a, "viewed").unwrap();
    let StartOutcome::TooLarge(text) = pool.slot(a, "k", 57 * KIB) else { panic!() };
    assert!(text.contains("has 65536 bytes, of which 8192 are pinned hard"), "{text}");
    assert!(is_full(&pool.slot(a, "k", 56 * KIB)));
    pool.unpin(a, rid);
    assert!(matches!(pool.slot(a, "k", 56 * KIB), StartOutcome::Placed(_)));

    // Removed, it is held by its view alone, for as long as that lasts.
    let (mut pool, a) = Pool::single(64 * KIB);
    let hard = pool.put_with(a, "hard", 8 * KIB, &PutConfig { pin: PinKind::Hard, ..plain() })[0].rid;
    pool.pin(a, "hard").unwrap();
    pool.remove(a, "hard", true);
    assert!(is_full(&pool.slot(a, "k", 64 * KIB)));
    pool.restart(None);
    pool.resume(a, &[1], &[hard], 1).unwrap();
    assert!(is_full(&pool.slot(a, "k", 64 * KIB)));
    pool.unpin(a, hard);
    assert!(matches!(pool.slot(a, "k", 64 * KIB), StartOutcome::Placed(_)));
    pool.check();
}

#[test]
fn quarantine_is_waited_for_however_old_it_is() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let rid = pool.reserve(a, "stuck", 32 * KIB)[0].rid;
    pool.abort(a, rid, false);
    pool.pass(5_000);
    let ticket = pool.park(a, &[("k", 40 * KIB)]);
    pool.pass(500);
    pool.fence_done(a, &[rid]);
    let k = placed(&pool.woken[&ticket][0]);
    assert_eq!(pool.commit(a, &k), EndOutcome::Committed);

    let stuck = pool.reserve(a, "again", 16 * KIB)[0].rid;
    pool.abort(a, stuck, false);
    let text = reason(&pool.slot(a, "l", 60 * KIB)).to_owned();
    assert!(text.contains("16384 in quarantine"), "{text}");
}

#[test]
fn what_views_hold_on_a_segment_that_is_gone_is_held_by_nobody() {
    let (mut pool, a, b, _) = viewed();
    let c = pool.session(3);
    pool.mount(c, 2, 16 * KIB);
    pool.put_with(c, "other", 4 * KIB, &PutConfig { preferred_segments: vec!["segment-2".into()], ..plain() });
    let other = pool.pin(c, "other").unwrap().replicas[0].rid;
    pool.over(a);
    let text = reason(&pool.slot(c, "k", 16 * KIB)).to_owned();
    assert!(text.contains("4096 bytes are under views of client-3") && !text.contains("client-2"), "{text}");
    pool.close(b);
    pool.unpin(c, other);
    assert!(matches!(pool.slot(c, "k", 16 * KIB), StartOutcome::Placed(_)));
    pool.check();
}
