//! Removals of what a caller chooses by its key, in slices.

use mooncake_core::{PutConfig, RemoveAll, Sight};

use crate::pool::{KIB, Pool, placed, plain};

fn filled(keys: u32) -> (Pool, mooncake_ids::SessionId) {
    let (mut pool, a) = Pool::single(u64::from(keys) * 2 * KIB);
    for n in 0..keys {
        pool.put(a, &format!("{}/{n}", if n % 2 == 0 { "even" } else { "odd" }), KIB);
    }
    (pool, a)
}

#[test]
fn what_is_chosen_goes_and_the_rest_stays() {
    let (mut pool, _) = filled(50);
    assert_eq!(pool.remove_where(false, |key| key.starts_with("even"), |_| {}), 25);
    assert!(pool.keys().len() == 25 && pool.keys().iter().all(|key| key.starts_with("odd")));
    assert_eq!(pool.core.stats().counters.removed_objects, 25);
    assert_eq!(pool.remove_where(false, |_| false, |_| {}), 0);
    pool.check();
}

#[test]
fn what_was_looked_up_is_skipped_without_force() {
    let (mut pool, _) = filled(20);
    assert!(pool.exists("even/4") && pool.exists("odd/7"));
    assert_eq!(pool.remove_where(false, |_| true, |_| {}), 18);
    assert_eq!(pool.keys(), ["even/4", "odd/7"]);
    assert_eq!(pool.remove_where(true, |_| true, |_| {}), 2);
}

#[test]
fn what_changes_while_the_caller_chooses_is_not_taken_for_what_it_was() {
    let (mut pool, a) = filled(20);
    let mut turn = 0;
    let removed = pool.remove_where(
        false,
        |key| key.starts_with("even"),
        |pool| {
            turn += 1;
            if turn == 1 {
                // Removed and put again, looked up, and removed for good.
                pool.remove(a, "even/0", true);
                pool.put(a, "even/0", KIB);
                assert!(pool.exists("even/2"));
                pool.remove(a, "even/4", true);
            }
        },
    );
    assert_eq!(removed, 7);
    let left: Vec<String> = pool.keys().into_iter().filter(|key| key.starts_with("even")).collect();
    assert_eq!(left, ["even/0", "even/2"]);
    pool.check();
}

#[test]
fn what_is_put_meanwhile_stays() {
    let (mut pool, a) = filled(20);
    let under_way = pool.reserve(a, "even/late", KIB);
    let mut turn = 0;
    let removed = pool.remove_where(
        true,
        |key| key.starts_with("even"),
        |pool| {
            turn += 1;
            match turn {
                1 => _ = pool.put(a, "even/new", KIB),
                2 => _ = pool.commit(a, &under_way),
                _ => {}
            }
        },
    );
    assert_eq!(removed, 10);
    assert!(pool.get("even/new").is_some() && pool.get("even/late").is_some());
    pool.check();
}

#[test]
fn a_replica_listing_protects_what_it_finds() {
    let (mut pool, a) = filled(4);
    let mut found = Vec::new();
    pool.core.describe(pool.now, Sight::Tiers, [&b"even/0"[..], b"none"].into_iter(), |object| {
        found.push(object.map(|object| object.replicas().count()));
    });
    assert_eq!(found, [Some(1), None]);
    assert!(pool.core.peek(b"odd/1").is_some() && pool.core.peek(b"none").is_none());
    assert_eq!(pool.remove(a, "even/0", false), mooncake_core::RemoveOutcome::Protected);
    assert_eq!(pool.remove(a, "odd/1", false), mooncake_core::RemoveOutcome::Removed);
}

#[test]
fn what_is_chosen_goes_though_one_of_its_replicas_went_meanwhile() {
    let mut pool = Pool::new();
    let (one, two, writer) = (pool.session(1), pool.session(2), pool.session(3));
    let first = pool.mount(one, 1, 8 * KIB);
    pool.mount(two, 2, 8 * KIB);
    let twice = PutConfig { replica_num: 2, ..plain() };
    let replicas = pool.put_with(writer, "k", KIB, &twice);
    let owner = if replicas[0].extent.segment == first { one } else { two };
    let mut leaves = Some(owner);
    let removed = pool.remove_where(
        true,
        |_| true,
        |pool| {
            if let Some(owner) = leaves.take() {
                pool.over(owner);
                while pool.core.background(pool.now, 1000, &mut pool.fx) {}
                pool.collect();
            }
        },
    );
    assert_eq!((removed, pool.get("k").is_none()), (1, true));
}

#[test]
fn a_put_that_was_unfinished_stays_whichever_of_its_replicas_became_good() {
    let mut pool = Pool::new();
    let (one, two) = (pool.session(1), pool.session(2));
    pool.mount(one, 1, 8 * KIB);
    pool.mount(two, 2, 8 * KIB);
    let twice = PutConfig { replica_num: 2, ..plain() };
    let replicas = placed(&pool.slots(one, &[("k", KIB)], &twice)[0]);
    let mut cursor = RemoveAll::new(&mut pool.core, true);
    pool.end(one, &[(replicas[0].rid, false), (replicas[1].rid, true)], 7);
    while !pool.core.remove_all_slice(pool.now, &mut cursor, 100, &mut pool.fx) {}
    pool.collect();
    assert!(pool.get("k").is_some(), "it was committed after the removal began");
}
