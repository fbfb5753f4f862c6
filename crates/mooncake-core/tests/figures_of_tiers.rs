//! What is told of tiers: what their owners say of their disks, and what memory has that no tier has.

use mooncake_core::{Config, PlacementStrategy, TierEngine, TierOperations, TierStats};

use crate::pool::tiers::{WithTiers, mount, tier_uuid, whole};
use crate::pool::{KIB, Pool};
use mooncake_ids::SessionId;

fn stats(used_bytes: u64) -> TierStats {
    let reads = TierOperations { count: 3, micros: 400, failed: 1 };
    TierStats { engine: TierEngine::Ring, used_bytes, reads, ..TierStats::default() }
}

fn told(pool: &Pool) -> Vec<Option<TierStats>> {
    pool.core.tiers().map(|tier| tier.stats.copied()).collect()
}

/// One owner of 64 KiB of memory and a new tier, and another one without a tier.
fn pool() -> (Pool, [SessionId; 2]) {
    let mut pool = Pool::with(Config { placement: PlacementStrategy::LocalFirst, ..Config::default() });
    let owners = [1, 2].map(|host| pool.session(host));
    owners.into_iter().zip(1..).for_each(|(owner, number)| _ = pool.mount(owner, number, 64 * KIB));
    pool.mount_tier(owners[0], 1, true, whole([])).unwrap();
    (pool, owners)
}

#[test]
fn what_an_owner_says_last_of_its_disk_is_told_until_its_tier_is_hidden() {
    let (mut pool, [owner, other]) = pool();
    assert_eq!(told(&pool), [None], "an owner of before says nothing");
    pool.core.tier_stats(owner, tier_uuid(1), stats(1));
    pool.core.tier_stats(owner, tier_uuid(1), stats(2));
    assert_eq!(told(&pool), [Some(stats(2))]);
    assert_eq!(pool.core.stats().counters.stale_messages, 0);
    // What others say of it is nothing, nor is what is said of a tier that is not there.
    pool.core.tier_stats(other, tier_uuid(1), stats(3));
    pool.core.tier_stats(owner, tier_uuid(9), stats(3));
    assert_eq!((told(&pool), pool.core.stats().counters.stale_messages), (vec![Some(stats(2))], 2));
    pool.core.leave_tier(pool.now, owner, tier_uuid(1), false, &mut pool.fx);
    assert_eq!(told(&pool), [None]);
    pool.core.tier_stats(owner, tier_uuid(1), stats(4));
    assert_eq!(told(&pool), [None], "it is not mounted");
    pool.core.mount_tier(pool.now, owner, mount(1, false, whole([])), &mut pool.fx).unwrap();
    assert_eq!(told(&pool), [None], "of this mount nothing was said yet");
    pool.core.tier_stats(owner, tier_uuid(1), stats(5));
    pool.check();
    // No log has it.
    pool.restart(None);
    assert_eq!(told(&pool), [None]);
}

#[test]
fn what_the_files_of_a_tier_may_have_is_what_its_owner_says_and_else_what_it_was_mounted_with() {
    let (mut pool, [owner, _]) = pool();
    let capacity = |pool: &Pool| pool.core.tiers().next().unwrap().capacity;
    let says = |pool: &mut Pool, capacity_bytes: u64| {
        pool.core.tier_stats(owner, tier_uuid(1), TierStats { capacity_bytes, ..stats(1) });
        assert_eq!(pool.core.stats().tier_capacity_bytes, capacity(pool));
    };
    says(&mut pool, 0);
    assert_eq!(capacity(&pool), 1_024 * KIB, "an owner of before says nothing of it");
    // Another writer has come to its file system.
    says(&mut pool, 128 * KIB);
    assert_eq!(capacity(&pool), 128 * KIB);
    pool.put(owner, "large", 17 * KIB);
    pool.put(owner, "small", 16 * KIB);
    pool.pass(20);
    let orders = pool.orders(owner);
    assert_eq!(orders.iter().map(|order| &order.key[..]).collect::<Vec<_>>(), ["small"], "an eighth is the most");
    pool.written(owner, 1, &[(orders[0].rid, Some(1))]);
    let fills_per_day = |pool: &Pool| pool.core.tiers().next().unwrap().fills_per_day(pool.now);
    let before = fills_per_day(&pool);
    says(&mut pool, 256 * KIB);
    assert_eq!(fills_per_day(&pool), before / 2.0);
    pool.check();
    // No log has it.
    pool.restart(None);
    assert_eq!(capacity(&pool), 1_024 * KIB);
}

#[test]
fn bytes_that_no_tier_has_are_those_of_memory_with_a_tier_near_it() {
    let (mut pool, [owner, other]) = pool();
    let unwritten = |pool: &Pool| pool.core.stats().tier_unwritten_bytes;
    pool.put(owner, "a", 4 * KIB);
    pool.put(owner, "b", 3 * KIB);
    pool.put(other, "far", 6 * KIB);
    assert_eq!(unwritten(&pool), 7 * KIB, "nothing is written yet");
    let age = |pool: &Pool| pool.core.tier_order_age_us(pool.now);
    pool.pass(20);
    let orders = pool.orders(owner);
    assert_eq!(orders.len(), 2);
    let before = age(&pool);
    pool.pass(50);
    assert_eq!(age(&pool), before + 50_000);
    let written: Vec<_> = orders.iter().zip(1..).map(|(order, address)| (order.rid, Some(address))).collect();
    pool.written(owner, 1, &written);
    assert_eq!((unwritten(&pool), age(&pool)), (0, 0));
    pool.check();
    pool.remove(owner, "a", true);
    assert_eq!(unwritten(&pool), 0, "what has left is not counted");
    pool.put(owner, "c", 5 * KIB);
    pool.core.leave_tier(pool.now, owner, tier_uuid(1), false, &mut pool.fx);
    assert_eq!(unwritten(&pool), 0, "no tier is near any memory");
    pool.mount_tier(owner, 1, false, whole([0])).unwrap();
    assert_eq!(unwritten(&pool), 5 * KIB);
    pool.check();
}
