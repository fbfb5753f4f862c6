//! What safety is about can be seen from outside: each event moves its figure, once.

mod pool;

use mooncake_core::{PutConfig, Rid};
use pool::{KIB, Pool, plain, uuid};

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
    assert_eq!((stats.fences_asked, stats.fences_done), (2, 0));
    assert_eq!((stats.puts_revoked, stats.puts_expired), (1, 1));
    assert!((31_000_000..32_000_000).contains(&pool.core.quarantine_age_us(pool.now)), "the older one's");
    let fences: Vec<Rid> = pool.take_fences(a).into_iter().map(|(rid, _)| rid).collect();
    pool.fence_done(b, &fences);
    assert_eq!(pool.core.stats().stale_messages, 2, "not the owner's word");
    pool.fence_done(a, &fences);
    pool.fence_done(a, &fences[..1]);
    let stats = pool.core.stats();
    assert_eq!((stats.fences_done, stats.stale_messages, stats.quarantined_extents), (2, 3, 0));
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
    assert_eq!(pool.core.stats().sessions_closed, 1, "it never did anything");
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
    assert_eq!((stats.sessions_opened, stats.sessions_resumed, stats.sessions_lost), (4, 1, 2));
    assert_eq!((stats.sessions_closed, stats.sessions_died, stats.sessions_expired), (2, 1, 1));
    assert_eq!((stats.sessions, stats.segments_mounted, stats.segments_gone), (0, 3, 3));
}

#[test]
fn reigns_reports_pins_and_repeats() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let replicas = pool.put_with(a, "k", 100, &PutConfig { ..plain() });
    assert_eq!(pool.core.stats().epoch_raises, 1, "the first one");
    pool.core.raise_epoch(pool.now, 5, &mut pool.fx);
    pool.core.raise_epoch(pool.now, 4, &mut pool.fx);
    assert_eq!(pool.core.stats().epoch_raises, 2);
    pool.core.epoch_taken(pool.now, a, 4, &[uuid(1)], &mut pool.fx);
    assert_eq!((pool.core.stats().stale_messages, pool.core.stats().segments_closed), (1, 1));
    pool.core.epoch_taken(pool.now, a, 5, &[uuid(1)], &mut pool.fx);
    assert_eq!((pool.core.stats().stale_messages, pool.core.stats().segments_closed), (1, 0));

    for good in [true, false] {
        pool.core.bad_replica(pool.now, a, b"k", replicas[0].rid, &mut pool.fx);
        pool.core.rechecked(pool.now, a, replicas[0].rid, good, &mut pool.fx);
    }
    pool.core.bad_replica(pool.now, a, b"k", replicas[0].rid, &mut pool.fx);
    let stats = pool.core.stats();
    assert_eq!((stats.replicas_reported, stats.replicas_cleared, stats.replicas_bad), (3, 1, 1));
    assert_eq!(stats.stale_messages, 2, "the last report is about what is no more");

    pool.put(a, "view", KIB);
    let rid = pool.pin(a, "view").unwrap().replicas[0].rid;
    pool.unpin(a, rid);
    pool.unpin(a, rid);
    let stats = pool.core.stats();
    assert_eq!((stats.pins_taken, stats.pins, stats.stale_messages), (1, 0, 3));

    let origin = pool.origin(a);
    for repeats in 0..3 {
        pool.core.unpin(pool.now, origin, &[], &mut pool.fx).unwrap();
        assert_eq!(pool.core.stats().replies_repeated, repeats);
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
    assert_eq!((stats.evictions_attempted, stats.evictions_successful, stats.evicted_objects), (1, 1, 2));
    pool.exists("c");
    pool.exists("d");
    pool.exists("e");
    assert!(pool::is_full(&pool.slot(a, "f", KIB)));
    let stats = pool.core.stats();
    assert_eq!((stats.evictions_attempted, stats.evictions_successful), (2, 1), "protected");
}
