//! A put that replaces: always in a new extent, and nothing is lost before it has ended well.

use mooncake_core::{EndOutcome, PinKind, PutConfig, PutStarted, RemoveOutcome, Replica, StartOutcome};
use mooncake_ids::SessionId;

use crate::pool::{KIB, Pool, durable, is_busy, is_full, placed, plain, replayed};

fn replacing() -> PutConfig {
    PutConfig { replace: true, ..plain() }
}

fn begin(pool: &mut Pool, session: SessionId, key: &str, size: u64) -> Vec<Replica> {
    placed(&pool.slots(session, &[(key, size)], &replacing())[0])
}

#[test]
fn the_old_value_is_found_until_the_new_one_has_ended() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let old = pool.put(a, "k", 100);
    let new = begin(&mut pool, a, "k", 300);
    assert_ne!(old[0].extent, new[0].extent, "never in place");
    assert_eq!(pool.get("k").unwrap().replicas[0].rid, old[0].rid);
    assert!(pool.exists("k"));
    assert_eq!(pool.commit(a, &new), EndOutcome::Committed);
    let found = pool.get("k").unwrap();
    assert_eq!((found.size, found.replicas[0].rid), (300, new[0].rid));
    assert_eq!(pool.core.stats().used_bytes, KIB, "the old extent is free");
    pool.check();
}

#[test]
fn what_is_missing_is_put() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let new = begin(&mut pool, a, "k", 300);
    assert_eq!(pool.commit(a, &new), EndOutcome::Committed);
    assert_eq!(pool.get("k").unwrap().size, 300);
    pool.check();
}

#[test]
fn the_old_value_stays_after_a_bad_end_an_abort_a_deadline_and_a_dead_writer() {
    for how in 0..5 {
        let (mut pool, a) = Pool::single(8 * KIB);
        let writer = pool.session(2);
        let old = pool.put(a, "k", 100);
        let new = begin(&mut pool, writer, "k", 300);
        match how {
            0 => assert_eq!(pool.end(writer, &[(new[0].rid, false)], 1), EndOutcome::Aborted),
            1 => pool.abort(writer, new[0].rid, true),
            2 => pool.pass(31_000),
            3 => pool.over(writer),
            _ => pool.close(writer),
        }
        assert_eq!(pool.get("k").unwrap().replicas[0].rid, old[0].rid, "{how}");
        pool.check();
        // It can be evicted again.
        pool.fence_done(a, &[new[0].rid]);
        for n in 0..8 {
            pool.put(a, &format!("n{n}"), KIB);
        }
        assert!(pool.get("k").is_none(), "{how}");
        pool.check();
    }
}

#[test]
fn no_put_takes_the_room_of_a_value_that_is_being_replaced() {
    let (mut pool, a) = Pool::single(4 * KIB);
    pool.put(a, "k", 2 * KIB);
    pool.put(a, "other", KIB);
    // Neither its own replacement, which takes the other one,
    let new = begin(&mut pool, a, "k", 2 * KIB);
    assert_eq!(pool.keys(), ["k"]);
    // nor anybody else, by force.
    let ticket = match pool.start(a, &[("late", KIB)], &plain(), true) {
        PutStarted::Parked(ticket) => ticket,
        PutStarted::Now(slots) => panic!("{slots:?}"),
    };
    pool.pass(1100);
    assert!(is_full(&pool.woken[&ticket][0]));
    assert!(pool.get("k").is_some());
    pool.commit(a, &new);
    pool.put(a, "late", KIB);
    assert_eq!(pool.keys(), ["k", "late"]);
    pool.check();
}

#[test]
fn a_replacement_without_room_beside_the_old_value_is_refused_and_that_stays() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let old = pool.put(a, "k", 3 * KIB);
    let refused = pool.slots(a, &[("k", 3 * KIB)], &replacing()).remove(0);
    assert!(matches!(&refused, StartOutcome::Full(reason) if reason.contains("3072 in the values")), "{refused:?}");
    assert_eq!(pool.core.stats().replaced_bytes, 0);
    assert_eq!(pool.get("k").unwrap().replicas[0].rid, old[0].rid);
    pool.put(a, "large", 4 * KIB);
    assert_eq!(pool.keys(), ["large"], "it is not held any more");
    pool.check();
}

#[test]
fn a_put_of_the_key_under_way_is_waited_for() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    for first in [plain(), replacing()] {
        let under_way = placed(&pool.slots(a, &[("k", 100)], &first)[0]);
        assert!(is_busy(&pool.slots(b, &[("k", 200)], &replacing())[0]));
        let PutStarted::Parked(ticket) = pool.start(b, &[("k", 200)], &replacing(), true) else { panic!() };
        pool.pass(100);
        assert!(pool.woken.is_empty());
        pool.commit(a, &under_way);
        let new = placed(&pool.woken.remove(&ticket).unwrap()[0]);
        assert_eq!(pool.get("k").unwrap().size, 100);
        pool.commit(b, &new);
        assert_eq!(pool.get("k").unwrap().size, 200);
    }
    // A plain put finds the value there, whatever becomes of it.
    let new = begin(&mut pool, b, "k", 300);
    assert_eq!(pool.slot(a, "k", 10), StartOutcome::Exists);
    pool.commit(b, &new);
    pool.check();
}

#[test]
fn of_a_key_twice_in_a_batch_the_last_value_comes_last() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let slots = pool.slots(a, &[("k", 100), ("k", 200)], &replacing());
    assert!(is_busy(&slots[1]), "to be asked for again, behind the first");
    pool.commit(a, &placed(&slots[0]));
    let new = begin(&mut pool, a, "k", 200);
    pool.commit(a, &new);
    assert_eq!(pool.get("k").unwrap().size, 200);
}

#[test]
fn a_view_of_the_old_value_outlives_it() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let old = pool.put(a, "k", KIB);
    let view = pool.pin(a, "k").unwrap();
    assert_eq!(view.replicas[0].rid, old[0].rid);
    let new = begin(&mut pool, a, "k", KIB);
    pool.commit(a, &new);
    assert_eq!(pool.core.stats().used_bytes, 2 * KIB);
    pool.check();
    pool.unpin(a, old[0].rid);
    assert_eq!(pool.core.stats().used_bytes, KIB);
    pool.check();
}

#[test]
fn a_remove_takes_the_old_value_and_the_new_one_comes_all_the_same() {
    let (mut pool, a) = Pool::single(4 * KIB);
    pool.put(a, "k", KIB);
    let new = begin(&mut pool, a, "k", 2 * KIB);
    assert_eq!(pool.remove(a, "k", false), RemoveOutcome::Removed);
    assert!(pool.get("k").is_none());
    assert_eq!(pool.commit(a, &new), EndOutcome::Committed);
    assert_eq!(pool.get("k").unwrap().size, 2 * KIB);
    pool.check();
}

#[test]
fn a_restarted_master_swaps_at_the_end_too() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let old = pool.put(a, "k", KIB);
    let new = begin(&mut pool, a, "k", KIB);
    pool.check();
    pool.restart(None);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.get("k").unwrap().replicas[0].rid, old[0].rid);
    // Still held for its replacement.
    assert!(is_full(&pool.slot(a, "x", 3 * KIB)));
    assert_eq!(pool.commit(a, &new), EndOutcome::Committed);
    assert_eq!(pool.get("k").unwrap().replicas[0].rid, new[0].rid);
    pool.check();
}

#[test]
fn a_segment_that_leaves_takes_the_replacement_and_not_the_value() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 4 * KIB);
    pool.put(a, "k", KIB);
    pool.mount(b, 2, 4 * KIB);
    let there = PutConfig { preferred_segments: vec!["segment-2".into()], ..replacing() };
    let new = placed(&pool.slots(a, &[("k", KIB)], &there)[0]);
    pool.over(b);
    assert_eq!(pool.commit(a, &new), EndOutcome::Superseded);
    assert!(pool.get("k").is_some());
    pool.put(a, "all", 4 * KIB);
    assert_eq!(pool.keys(), ["all"], "nothing holds it any more");
    pool.check();
}

#[test]
fn a_value_that_was_looked_up_passes_its_protection_on() {
    let (mut pool, a) = Pool::single(2 * KIB);
    pool.put(a, "k", KIB);
    assert!(pool.exists("k"));
    let new = begin(&mut pool, a, "k", KIB);
    pool.commit(a, &new);
    pool.put(a, "x", KIB);
    pool.pass(500);
    assert!(is_full(&pool.slot(a, "y", 2 * KIB)));
    assert!(pool.get("k").is_some());
    assert_eq!(pool.core.stats().counters.lookup_then_miss, 0);
}

#[test]
fn a_hard_pin_is_decided_when_the_object_is_made() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let hard = PutConfig { pin: PinKind::Hard, ..plain() };
    pool.put_with(a, "pinned", KIB, &hard);
    pool.put(a, "plain", KIB);
    for pin in [PinKind::None, PinKind::Cleared, PinKind::Soft { ttl_ms: 100 }, PinKind::Hard] {
        for key in ["pinned", "plain"] {
            pool.put_with(a, key, KIB, &PutConfig { pin, ..replacing() });
            pool.check();
        }
        assert_eq!((pool.core.stats().hard_pinned_objects, pool.core.stats().pinned_bytes), (1, KIB));
    }
    pool.pass(200);
    for n in 0..8 {
        pool.put(a, &format!("n{n}"), KIB);
    }
    assert!(pool.get("pinned").is_some() && pool.get("plain").is_none());
    pool.check();
}

#[test]
fn a_soft_pin_is_kept_with_its_end_renewed_or_cleared_as_the_replacement_says() {
    let soft = |ttl_ms| PutConfig { pin: PinKind::Soft { ttl_ms }, ..plain() };
    for (pin, after_300, after_900) in [
        (PinKind::None, true, false),
        (PinKind::Soft { ttl_ms: 2_000 }, true, true),
        (PinKind::Soft { ttl_ms: 100 }, false, false),
        (PinKind::Cleared, false, false),
        (PinKind::Hard, true, false),
    ] {
        let (mut pool, a) = Pool::single(8 * KIB);
        pool.put_with(a, "k", KIB, &soft(500));
        pool.pass(100);
        pool.put_with(a, "k", KIB, &PutConfig { pin, ..replacing() });
        pool.check();
        for (ms, pinned) in [(200, after_300), (600, after_900)] {
            pool.pass(ms);
            assert_eq!(pool.core.stats().soft_pinned_objects, u64::from(pinned), "{pin:?} {ms}");
            pool.check();
        }
    }
    // One that has lapsed is not there to be kept.
    let (mut pool, a) = Pool::single(8 * KIB);
    pool.put_with(a, "k", KIB, &soft(100));
    pool.pass(200);
    pool.put_with(a, "k", KIB, &replacing());
    assert_eq!(pool.core.stats().soft_pinned_objects, 0);
    pool.check();
}

#[test]
fn what_went_with_its_segment_passes_nothing_on_and_a_successor_agrees() {
    let mut pool = Pool::new();
    let (owner, writer) = (pool.session(1), pool.session(2));
    // Full with the old value.
    pool.mount(owner, 1, KIB);
    let soft = PutConfig { pin: PinKind::Soft { ttl_ms: 3000 }, ..plain() };
    let old = placed(&pool.slots(writer, &[("k", 100)], &soft)[0]);
    assert_eq!(pool.commit(writer, &old), EndOutcome::Committed);
    pool.mount(writer, 2, 8 * KIB);
    let hard = PutConfig { pin: PinKind::Hard, ..replacing() };
    let new = placed(&pool.slots(writer, &[("k", 300)], &hard)[0]);
    assert_ne!(old[0].extent.segment, new[0].extent.segment);

    // Here it is cleared away before the commit; a successor, who reads the log at once, has it lying about still.
    pool.over(owner);
    while pool.core.background(pool.now, 1 << 10, &mut pool.fx) {}
    pool.collect();
    assert_eq!(pool.commit(writer, &new), EndOutcome::Committed);
    assert_eq!(durable(&replayed(pool.log.clone())), durable(&pool.core), "the log gives another state");
    assert!(pool.core.stats().pinned_bytes > 0, "{:?}", pool.core.stats());
}

#[test]
fn a_refused_replacement_does_not_keep_what_it_would_replace() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let b = pool.session(2);
    let keys = ["k0", "k1", "k2", "k3"];
    for key in keys {
        pool.put(a, key, KIB);
        assert!(pool.exists(key));
    }
    let entries = keys.map(|key| (key, KIB));
    assert!(pool.slots(b, &entries, &replacing()).iter().all(is_full), "all were looked up a moment ago");
    for _ in 0..3 {
        pool.pass(500);
        pool.slots(b, &entries, &replacing());
    }
    pool.pass(600);
    let slots = pool.slots(b, &entries, &replacing());
    assert!(!slots.iter().all(is_full), "two seconds after the only look-up: {slots:?}");
}
