//! Replicas leave by request, on one segment or on all, but those of objects that somebody uses.

use mooncake_core::{PinKind, PutConfig, RemoveOutcome};
use mooncake_ids::SessionId;

use RemoveOutcome::{Busy, Missing, Protected, Removed};

use crate::pool::{self, KIB, Pool, plain};

/// Two owners with a segment each.
fn two() -> (Pool, SessionId, SessionId) {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 64 * KIB);
    pool.mount(b, 2, 64 * KIB);
    (pool, a, b)
}

#[test]
fn a_replica_leaves_alone_and_an_object_with_its_last_one() {
    let (mut pool, a, b) = two();
    pool.put_with(a, "k", KIB, &PutConfig { replica_num: 2, ..plain() });
    assert_eq!(pool.clear(a, "k", "segment-3"), Missing, "there is no such segment");
    assert_eq!(pool.clear(b, "k", "segment-1"), Removed, "whoever put it");
    let left = pool.get("k").unwrap().replicas;
    assert_eq!((left.len(), left[0].extent.segment), (1, pool.core.segments().nth(1).unwrap().number));
    assert_eq!(pool.clear(a, "k", "segment-1"), Missing, "it has none there any more");
    assert_eq!((pool.clear(a, "k", "segment-2"), pool.keys().len()), (Removed, 0));
    pool.put_with(a, "k", KIB, &PutConfig { replica_num: 2, ..plain() });
    assert_eq!((pool.clear(a, "k", ""), pool.keys().len()), (Removed, 0));
    assert_eq!(pool.clear(a, "k", ""), Missing);
    assert_eq!(pool.core.stats().counters.cleared_objects, 3);
    pool.restart(None);
    assert_eq!(pool.keys().len(), 0, "the log has it");
    pool.check();
}

#[test]
fn what_is_pinned_viewed_looked_up_or_being_written_stays() {
    let (mut pool, a, b) = two();
    let pinned = |pin| PutConfig { pin, ..plain() };
    pool.put_with(a, "hard", KIB, &pinned(PinKind::Hard));
    pool.put_with(a, "soft", KIB, &pinned(PinKind::Soft { ttl_ms: 1_000 }));
    pool.put(a, "seen", KIB);
    pool.put(a, "viewed", KIB);
    pool.put(a, "replaced", KIB);
    assert!(pool.exists("seen"));
    let view = pool.pin(b, "viewed").unwrap().replicas[0].rid;
    let upsert = PutConfig { replace: true, ..plain() };
    let replacement = pool::placed(&pool.slots(b, &[("replaced", KIB)], &upsert)[0]);
    let started = pool.reserve(b, "new", KIB);
    let told = ["hard", "soft", "seen", "viewed", "replaced", "new"].map(|key| pool.clear(a, key, ""));
    assert_eq!(told, [Protected, Protected, Protected, Protected, Busy, Busy]);
    assert_eq!(pool.clear(a, "seen", "elsewhere"), Missing, "where it has no copy nothing of it is in use");
    assert_eq!(pool.keys().len(), 5);

    pool.unpin(b, view);
    pool.commit(b, &replacement);
    pool.abort(b, started[0].rid, true);
    pool.pass(2_500);
    let told = ["hard", "soft", "seen", "viewed", "replaced", "new"].map(|key| pool.clear(a, key, ""));
    assert_eq!(told, [Protected, Removed, Removed, Removed, Removed, Missing]);
    pool.check();
}

#[test]
fn what_nobody_can_see_is_missing_and_stays_for_its_owner() {
    let (mut pool, a, b) = two();
    pool.put_with(a, "k", KIB, &PutConfig { preferred_segments: vec!["segment-1".into()], ..plain() });
    pool.anchor_lost(a);
    assert_eq!(pool.clear(b, "k", ""), Missing);
    pool.resume(a, &[1], &[], pool.core.epoch().number).unwrap();
    assert!(pool.exists("k"));
    pool.check();
}

#[test]
fn a_repeat_is_told_the_same() {
    let (mut pool, a, _) = two();
    pool.put(a, "k", KIB);
    let origin = pool.origin(a);
    let mut clear = || pool.core.clear_replicas(pool.now, origin, &[b"k"], "", &mut pool.fx).unwrap();
    assert_eq!((clear(), clear()), (vec![Removed], vec![Removed]));
}
