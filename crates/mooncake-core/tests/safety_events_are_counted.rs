//! What safety is about can be seen from outside: each event moves its figure, once.

use mooncake_core::PutConfig;
use mooncake_ids::Rid;

use crate::pool::{self, KIB, Pool, plain, uuid};

#[test]
fn fences_quarantine_and_its_age() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(2);
    let given_up = pool.reserve(b, "given up", KIB)[0].rid;
    pool.abort(b, given_up, false);
    pool.reserve(b, "overdue", 2 * KIB);
    pool.pass(31_000);
    let stats = pool.core.stats();
    assert_eq!((stats.quarantined_extents, stats.quarantined_bytes), (2, 3 * KIB));
    assert_eq!((stats.counters.fences_asked, stats.counters.fences_done), (2, 0));
    assert_eq!((stats.counters.puts_aborted, stats.counters.puts_expired), (1, 1));
    assert!((31_000_000..32_000_000).contains(&pool.core.quarantine_age_us(pool.now)), "the older one's");
    let fences: Vec<Rid> = pool.take_fences(a).into_iter().map(|(rid, _)| rid).collect();
    pool.fence_done(b, &fences);
    assert_eq!(pool.core.stats().counters.stale_messages, 2, "not the owner's word");
    pool.fence_done(a, &fences);
    pool.fence_done(a, &fences[..1]);
    let stats = pool.core.stats();
    assert_eq!((stats.counters.fences_done, stats.counters.stale_messages, stats.quarantined_extents), (2, 3, 0));
    assert_eq!(pool.core.quarantine_age_us(pool.now), 0);
}

#[test]
fn sessions_by_how_they_end() {
    let mut pool = Pool::new();
    let (a, b, c, d) = (pool.session(1), pool.session(2), pool.session(3), pool.session(4));
    for (session, id) in [(a, 1), (b, 2), (c, 3)] {
        pool.mount(session, id, 4 * KIB);
    }
    pool.anchor_lost(d);
    assert_eq!(pool.core.stats().counters.sessions_closed, 1, "it never did anything");
    pool.anchor_lost(a);
    pool.anchor_lost(a);
    pool.resume(a, &[1], &[], 1).unwrap();
    pool.close(a);
    pool.core.process_gone(pool.now, b, &mut pool.fx);
    pool.core.process_gone(pool.now, b, &mut pool.fx);
    pool.collect();
    pool.anchor_lost(c);
    pool.pass(601_000);
    let stats = pool.core.stats();
    assert_eq!(
        (stats.counters.sessions_opened, stats.counters.sessions_resumed, stats.counters.sessions_lost),
        (4, 1, 2)
    );
    assert_eq!(
        (stats.counters.sessions_closed, stats.counters.sessions_died, stats.counters.sessions_expired),
        (2, 1, 1)
    );
    assert_eq!((stats.sessions, stats.counters.segments_mounted, stats.counters.segments_gone), (0, 3, 3));
}

#[test]
fn epochs_reports_pins_and_repeats() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let replicas = pool.put_with(a, "k", 100, &PutConfig { ..plain() });
    assert_eq!(pool.core.stats().counters.epoch_raises, 1, "the first one");
    pool.core.raise_epoch(pool.now, 5, &mut pool.fx);
    pool.core.raise_epoch(pool.now, 4, &mut pool.fx);
    assert_eq!(pool.core.stats().counters.epoch_raises, 2);
    pool.core.epoch_taken(pool.now, a, 4, &[uuid(1)], &mut pool.fx);
    assert_eq!((pool.core.stats().counters.stale_messages, pool.core.stats().segments_closed), (1, 1));
    pool.core.epoch_taken(pool.now, a, 5, &[uuid(1)], &mut pool.fx);
    assert_eq!((pool.core.stats().counters.stale_messages, pool.core.stats().segments_closed), (1, 0));

    for good in [true, false] {
        pool.core.bad_replica(pool.now, a, b"k", replicas[0].rid, &mut pool.fx);
        pool.core.rechecked(pool.now, a, replicas[0].rid, good, &mut pool.fx);
    }
    pool.core.bad_replica(pool.now, a, b"k", replicas[0].rid, &mut pool.fx);
    let stats = pool.core.stats();
    assert_eq!(
        (stats.counters.replicas_reported, stats.counters.replicas_cleared, stats.counters.replicas_bad),
        (3, 1, 1)
    );
    assert_eq!(stats.counters.stale_messages, 2, "the last report is about what is no more");

    pool.put(a, "view", KIB);
    let rid = pool.pin(a, "view").unwrap().replicas[0].rid;
    pool.unpin(a, rid);
    pool.unpin(a, rid);
    let stats = pool.core.stats();
    assert_eq!((stats.counters.pins_taken, stats.pins, stats.counters.stale_messages), (1, 0, 3));

    let origin = pool.origin(a);
    for repeats in 0..3 {
        pool.core.unpin(pool.now, origin, &[], &mut pool.fx).unwrap();
        assert_eq!(pool.core.stats().counters.replies_repeated, repeats);
    }
}

#[test]
fn evictions_by_whether_they_gave_room() {
    let (mut pool, a) = Pool::single(4 * KIB);
    for key in ["a", "b", "c", "d"] {
        pool.put(a, key, KIB);
    }
    pool.put(a, "e", 2 * KIB);
    let stats = pool.core.stats();
    assert_eq!(
        (stats.counters.evictions_attempted, stats.counters.evictions_successful, stats.counters.evicted_objects),
        (1, 1, 2)
    );
    pool.exists("c");
    pool.exists("d");
    pool.exists("e");
    assert!(pool::is_full(&pool.slot(a, "f", KIB)));
    let stats = pool.core.stats();
    assert_eq!((stats.counters.evictions_attempted, stats.counters.evictions_successful), (2, 1), "protected");
}

#[test]
fn what_callers_ask_and_what_comes_of_it() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let b = pool.session(2);
    let entries = [("large", 5 * KIB), ("a", KIB), ("b", KIB), ("", KIB)];
    let slots = pool.slots(a, &entries, &plain());
    for slot in &slots[1..3] {
        pool.commit(a, &pool::placed(slot));
    }
    let c = pool.reserve(a, "c", KIB)[0].rid;
    let slots = pool.slots(b, &[("a", KIB), ("c", KIB), ("full", 4 * KIB)], &plain());
    assert!(slots[0] == mooncake_core::StartOutcome::Exists && pool::is_busy(&slots[1]) && pool::is_full(&slots[2]));
    let stats = pool.core.stats();
    assert_eq!((stats.counters.put_keys, stats.counters.put_placed, stats.counters.put_exists), (8, 3, 1));
    assert_eq!(
        (stats.counters.put_busy, stats.counters.put_full, stats.counters.put_too_large, stats.counters.put_refused),
        (1, 1, 1, 1)
    );
    assert_eq!((stats.counters.puts_committed, stats.unfinished_bytes), (2, KIB));

    pool.end(a, &[(c, false)], 1);
    pool.end(a, &[(c, true)], 1);
    let stats = pool.core.stats();
    assert_eq!((stats.counters.puts_aborted, stats.counters.puts_superseded, stats.unfinished_bytes), (1, 1, 0));
    assert_eq!(
        (stats.counters.evicted_objects, stats.counters.evicted_bytes),
        (2, 2 * KIB),
        "for the one that did not fit all the same"
    );
    pool.fence_done(a, &[c]);
    pool.put(a, "d", 3 * KIB);
    let before = pool.core.stats();
    assert!(pool.exists("d") && !pool.exists("never"));
    assert!(pool.get("d").is_some() && pool.get("never").is_none());
    assert!(pool.pin(a, "d").is_some() && pool.pin(a, "never").is_none());
    pool.remove(a, "d", true);
    pool.remove(a, "never", true);
    let stats = pool.core.stats();
    assert_eq!(
        (
            stats.counters.exists_keys - before.counters.exists_keys,
            stats.counters.exists_hits - before.counters.exists_hits
        ),
        (2, 1)
    );
    assert_eq!(
        (
            stats.counters.lookup_keys - before.counters.lookup_keys,
            stats.counters.lookup_hits - before.counters.lookup_hits
        ),
        (4, 2)
    );
    assert_eq!(
        (stats.counters.removed_objects - before.counters.removed_objects, stats.counters.lookup_then_miss),
        (1, 0)
    );
}
