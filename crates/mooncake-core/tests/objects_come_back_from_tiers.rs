//! What only a tier has comes back to memory before it is read, or because it was; whatever happens meanwhile, a copy
//! counts only for the object that it is of.

use std::collections::BTreeSet;

use crate::pool::{KIB, Pool, Taken, durable, placed, plain, replayed};
use mooncake_core::{Config, Promotion, PutConfig, RemoveOutcome, SegmentNo, StartOutcome, TierProof};
use mooncake_ids::{Rid, SessionId};

use crate::pool::{
    self,
    tiers::{Promotion as Asked, WithTiers, whole},
};

/// An owner of 64 KiB of memory and a tier, on which these keys are alone: of 4 KiB each.
fn cold(config: Config, keys: &[&str]) -> (Pool, SessionId, SegmentNo) {
    let mut pool = Pool::with(config);
    let session = pool.session(1);
    pool.mount(session, 1, 64 * KIB);
    let tier = pool.mount_tier(session, 1, true, TierProof::default()).unwrap().number;
    for (nth, key) in keys.iter().enumerate() {
        pool.put(session, key, 4 * KIB);
        pool.pass(20);
        let orders = pool.orders(session);
        pool.written(session, 1, &[(orders[0].rid, Some(2 * nth as u64))]);
    }
    pool.put(session, "filler", 64 * KIB);
    assert_eq!(pool.remove(session, "filler", true), RemoveOutcome::Removed);
    pool.pass(20);
    assert!(keys.iter().all(|key| pool.replicas(key).len() == 1), "they are on the tier alone");
    assert!(pool.orders(session).is_empty());
    (pool, session, tier)
}

/// Each of them, as one existence query asks for them.
fn found(pool: &mut Pool, session: SessionId, keys: &[&str]) -> Vec<Asked> {
    assert!(keys.iter().all(|key| pool.exists(key)));
    pool.pass(20);
    pool.promotions(session)
}

fn used(pool: &Pool) -> u64 {
    pool.core.segments().map(|segment| segment.used).sum()
}

#[test]
fn what_an_existence_query_finds_on_a_tier_alone_is_in_memory_before_it_is_read() {
    let (mut pool, session, tier) = cold(Config::default(), &["a", "b", "c"]);
    let asked = found(&mut pool, session, &["c", "a"]);
    let keys: Vec<&str> = asked.iter().map(|asked| &asked.key[..]).collect();
    assert_eq!(keys, ["c", "a"], "in the order of the keys");
    assert_eq!((asked[0].from.extent.segment, asked[0].from.extent.offset), (tier, 4 * 4096));
    assert_eq!(pool.replicas("c"), [asked[0].from], "a copy that is not whole is not there");
    pool.check();
    assert!(found(&mut pool, session, &["a", "c"]).is_empty(), "it is under way");
    pool.promoted(session, &[(asked[0].to.rid, true), (asked[1].to.rid, false)]);
    assert_eq!(pool.replicas("c"), [asked[0].to, asked[0].from], "memory comes first");
    assert_eq!(pool.replicas("a"), [asked[1].from], "its owner could not");
    assert_eq!(pool.take_fences(session), [(asked[1].to.rid, true)], "nothing more is written there");
    pool.fence_done(session, &[asked[1].to.rid]);
    pool.check();
    assert!(found(&mut pool, session, &["c"]).is_empty(), "it is in memory");
    let again = found(&mut pool, session, &["a"]);
    assert_eq!(again.len(), 1, "it is tried again");
    pool.promoted(session, &[(again[0].to.rid, false)]);
    pool.fence_done(session, &[again[0].to.rid]);
    let counters = pool.core.stats().counters;
    assert_eq!((counters.promotions_begun, counters.promotions_done, counters.promotions_failed), (3, 1, 2));
    assert_eq!(counters.promoted_bytes, 4 * KIB);
    // It leaves memory again without loss.
    pool.pass(3_000);
    pool.put(session, "large", 62 * KIB);
    assert_eq!(pool.replicas("c"), [asked[0].from]);
    assert_eq!(pool.core.stats().counters.evicted_unwritten_objects, 0);
    pool.check();
    // The copy survives a restart of the master.
    assert_eq!(pool.remove(session, "large", true), RemoveOutcome::Removed);
    let asked = found(&mut pool, session, &["b"]);
    pool.promoted(session, &[(asked[0].to.rid, true)]);
    pool.restart(None);
    pool.resume(session, &[1], &[], 1).unwrap();
    assert_eq!(pool.replicas("b"), [asked[0].to]);
    pool.mount_tier(session, 1, false, whole([0])).unwrap();
    assert_eq!(pool.replicas("b"), [asked[0].to, asked[0].from]);
    pool.check();
}

#[test]
fn a_promotion_makes_no_put_busy_and_takes_nothing_of_its_session_s_cap() {
    let config = Config { unfinished_share_max: 0.25, ..Config::default() };
    let (mut pool, session, _) = cold(config, &["a", "b"]);
    let asked = found(&mut pool, session, &["a", "b"]);
    assert_eq!(asked.len(), 2);
    assert!(matches!(pool.slot(session, "a", 4 * KIB), StartOutcome::Exists));
    let upsert = PutConfig { replace: true, ..plain() };
    let first = pool.reserve(session, "other", 4 * KIB);
    let replacement = placed(&pool.slots(session, &[("a", 8 * KIB)], &upsert)[0]);
    pool.commit(session, &first);
    assert_eq!(pool.core.stats().unfinished_puts, 1);
    pool.check();
    // The old value comes to memory while it is being replaced, and leaves with the end of that.
    pool.promoted(session, &[(asked[0].to.rid, true)]);
    assert_eq!(pool.replicas("a"), [asked[0].to, asked[0].from]);
    pool.check();
    pool.commit(session, &replacement);
    assert_eq!(pool.replicas("a"), replacement);
    pool.check();
}

#[test]
fn a_promotion_takes_free_room_or_what_leaves_without_loss_and_else_its_object_stays_where_it_is() {
    let (mut pool, session, _) = cold(Config::default(), &["a"]);
    // Nothing is free, and nothing of it is on a tier.
    for nth in 0..16 {
        pool.put(session, &format!("dirty-{nth}"), 4 * KIB);
    }
    let unwritten: Vec<Rid> = pool.orders(session).iter().map(|order| order.rid).collect();
    assert!(found(&mut pool, session, &["a"]).is_empty());
    assert_eq!(pool.core.stats().counters.promotions_without_room, 1);
    assert_eq!(pool.keys().len(), 17, "nothing was evicted for it");
    // One that a tier has goes; not while it is protected.
    let orders = pool.orders(session);
    assert!(unwritten.is_empty() && !orders.is_empty());
    let clean = orders[0].clone();
    pool.written(session, 1, &[(clean.rid, Some(20))]);
    assert!(pool.exists(&clean.key));
    assert!(found(&mut pool, session, &["a"]).is_empty());
    pool.pass(2_500);
    let asked = found(&mut pool, session, &["a"]);
    assert_eq!(asked.len(), 1);
    assert_eq!(pool.replicas(&clean.key).len(), 1, "it left memory for it");
    assert_eq!(pool.core.stats().counters.evicted_unwritten_objects, 0);
    pool.check();
}

#[test]
fn what_was_read_often_enough_comes_back_once_there_is_room_within_ten_seconds() {
    let promotion = Promotion { prefetch: false, on_hit: true, threshold: 3 };
    let (mut pool, session, _) = cold(Config { promotion, ..Config::default() }, &["a", "b"]);
    assert!(found(&mut pool, session, &["a"]).is_empty(), "prefetch is off");
    // It was read once above.
    pool.get("a").unwrap();
    pool.pass(20);
    assert!(pool.promotions(session).is_empty(), "twice is not three times");
    pool.put(session, "large", 64 * KIB);
    pool.get("a").unwrap();
    pool.pass(5_000);
    assert!(pool.promotions(session).is_empty(), "there is no room");
    assert_eq!(pool.remove(session, "large", true), RemoveOutcome::Removed);
    pool.pass(20);
    let asked = pool.promotions(session);
    assert_eq!(asked.iter().map(|asked| &asked.key[..]).collect::<Vec<_>>(), ["a"]);
    pool.put(session, "large", 60 * KIB);
    (0..2).for_each(|_| _ = pool.get("b").unwrap());
    pool.pass(10_100);
    assert_eq!(pool.remove(session, "large", true), RemoveOutcome::Removed);
    pool.pass(40);
    assert!(pool.promotions(session).is_empty(), "its time is over");
    pool.check();
}

/// Something that happens while a copy is being made.
type Step = (&'static str, fn(&mut Pool, SessionId));

const STEPS: &[Step] = &[
    ("removed", |pool, session| assert_eq!(pool.remove(session, "k", true), RemoveOutcome::Removed)),
    ("all removed", |pool, _| assert!(pool.remove_all(true) > 0)),
    ("replaced", |pool, session| {
        let upsert = PutConfig { replace: true, ..plain() };
        pool.put_with(session, "k", 2 * KIB, &upsert);
    }),
    ("removed and put again", |pool, session| {
        assert_eq!(pool.remove(session, "k", true), RemoveOutcome::Removed);
        pool.put(session, "k", 4 * KIB);
    }),
    ("tier hidden", |pool, session| {
        pool.core.leave_tier(pool.now, session, pool::tiers::tier_uuid(1), false, &mut pool.fx);
    }),
    ("tier forgotten", |pool, _| {
        assert!(pool.core.forget_tier(pool.now, pool::tiers::tier_uuid(1), &mut pool.fx));
        pool.collect();
    }),
    ("owner away and back", |pool, session| {
        pool.anchor_lost(session);
        pool.pass(100);
        pool.resume(session, &[1], &[], 1).unwrap();
    }),
    ("master restarted", |pool, session| {
        pool.restart(None);
        pool.resume(session, &[1], &[], 1).unwrap();
    }),
    ("epoch raised", |pool, session| {
        pool.restart(Some(pool.core.epoch().number + 1));
        pool.resume(session, &[1], &[], pool.core.epoch().number).unwrap();
    }),
    ("its deadline passed", |pool, _| pool.pass(31_000)),
    ("its owner's end", |pool, session| pool.over(session)),
    ("nothing", |_, _| {}),
];

#[test]
fn promotion_against_everything() {
    for (name, step) in STEPS {
        for is_good in [true, false] {
            let (mut pool, session, _) = cold(Config::default(), &["k"]);
            let asked = found(&mut pool, session, &["k"]).remove(0);
            let mut taken = Taken::begin(&mut pool);
            let half = taken.slice(&mut pool.core, 2);
            assert!(half.is_none());
            let before = pool.replicas("k");
            step(&mut pool, session);
            pool.check();
            let after = pool.replicas("k");
            pool.promoted(session, &[(asked.to.rid, is_good)]);
            let now = pool.replicas("k");
            let has_copy = now.contains(&asked.to);
            let may_have = matches!(*name, "tier hidden" | "owner away and back" | "master restarted" | "nothing");
            assert_eq!(has_copy, may_have && is_good, "{name}, {is_good}: {before:?}, {after:?}, {now:?}");
            let others: Vec<_> = now.iter().filter(|replica| **replica != asked.to).copied().collect();
            assert_eq!(others, after, "{name}, {is_good}: nothing else comes or goes with it");
            pool.check();
            assert_eq!(durable(&replayed(pool.log.clone())), durable(&pool.core), "{name}, {is_good}");
            if !matches!(*name, "master restarted" | "epoch raised") {
                taken.finish(&mut pool, 3);
            }
            // Whatever became of it, its extent is used or comes back.
            pool.promoted(session, &[(asked.to.rid, true)]);
            assert_eq!(pool.replicas("k"), now, "{name}, {is_good}: it is answered once");
            let fences: Vec<Rid> = pool.take_fences(session).into_iter().map(|(rid, _)| rid).collect();
            pool.fence_done(session, &fences);
            pool.pass(100);
            let in_objects: BTreeSet<u64> = now
                .iter()
                .filter(|replica| replica.extent.segment.0 == 1)
                .map(|replica| replica.extent.length)
                .collect();
            if pool.is_here(session) {
                assert_eq!(used(&pool), in_objects.iter().sum::<u64>(), "{name}, {is_good}: {now:?}");
            }
            pool.check();
        }
    }
}
