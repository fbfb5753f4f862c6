//! Objects of a group are renewed together, and leave one after another.

use mooncake_core::{Config, PutConfig, Record, Sight, StartOutcome};
use mooncake_ids::SessionId;

use crate::pool::{KIB, Pool, is_full, placed, plain};

fn grouped(names: &[&str]) -> PutConfig {
    PutConfig { groups: names.iter().map(|name| name.as_bytes().into()).collect(), ..plain() }
}

fn put(pool: &mut Pool, session: SessionId, key: &str, group: &str) {
    pool.put_with(session, key, KIB, &grouped(&[group]));
}

/// Groups a and b of three, their members put by turns, and one object of none.
fn two_groups() -> (Pool, SessionId) {
    let (mut pool, session) = Pool::single(7 * KIB);
    for n in 0..3 {
        put(&mut pool, session, &format!("a{n}"), "a");
        put(&mut pool, session, &format!("b{n}"), "b");
    }
    pool.put(session, "single", KIB);
    (pool, session)
}

#[test]
fn members_leave_in_a_row() {
    let (mut pool, session) = two_groups();
    for (n, left) in
        ["b0 b1 b2 single", "b0 b1 b2 single", "b0 b1 b2 single", "single", "single", "single"].iter().enumerate()
    {
        pool.put(session, &format!("n{n}"), KIB);
        let groups: Vec<String> = pool.keys().into_iter().filter(|key| !key.starts_with('n')).collect();
        // The group that leaves is a until it has left, then b.
        let leaving = if n < 3 { 'a' } else { 'b' };
        let others: Vec<&String> = groups.iter().filter(|key| !key.starts_with(leaving)).collect();
        let mut expected: Vec<&str> = left.split(' ').collect();
        expected.sort_unstable();
        assert_eq!(others, expected, "{n}");
        assert_eq!(groups.len() - others.len(), 2 - n % 3, "{n}");
        pool.check();
    }
}

#[test]
fn a_get_of_one_keeps_all_of_its_group() {
    let (mut pool, session) = two_groups();
    pool.get("a1");
    for n in 0..3 {
        pool.put(session, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["a0", "a1", "a2", "n0", "n1", "n2", "single"]);
}

#[test]
fn a_query_for_one_protects_all_of_its_group() {
    let (mut pool, session) = two_groups();
    assert!(pool.exists("a1"));
    for n in 0..4 {
        pool.put(session, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["a0", "a1", "a2", "n0", "n1", "n2", "n3"]);
    assert!(is_full(&pool.slot(session, "large", 5 * KIB)));
    pool.pass(1000);
    // Renewed with another member.
    assert!(pool.exists("a2"));
    pool.pass(1500);
    assert_eq!(pool.core.stats().protected_objects, 3);
    pool.pass(1000);
    pool.put(session, "all", 7 * KIB);
    assert_eq!(pool.core.stats().counters.protection_broken, 0);
}

#[test]
fn a_lost_member_is_a_miss_and_the_others_are_not() {
    let (mut pool, session) = two_groups();
    pool.remove(session, "a1", true);
    assert!(pool.get("a1").is_none() && pool.get("a0").is_some() && pool.get("a2").is_some());
    put(&mut pool, session, "a1", "a");
    pool.pass(200);
    // It is of the group again.
    pool.get("b0");
    pool.get("single");
    for n in 0..3 {
        pool.put(session, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["b0", "b1", "b2", "n0", "n1", "n2", "single"]);
    pool.check();
}

#[test]
fn a_batch_has_a_group_for_each_key_and_an_empty_one_is_none() {
    let (mut pool, session) = Pool::single(8 * KIB);
    let slots = pool.slots(session, &[("k0", KIB), ("k1", KIB), ("k2", KIB)], &grouped(&["g", "", "h"]));
    for slot in &slots {
        pool.commit(session, &placed(slot));
    }
    let mut groups: Vec<(String, String)> = Vec::new();
    for record in pool.core.snapshot() {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match record {
            Record::GroupedObject { key, group, .. } => groups.push((text(&key), text(&group))),
            Record::Object { key, .. } => groups.push((text(&key), String::new())),
            _ => {}
        }
    }
    groups.sort();
    let expected = [("k0", "g"), ("k1", ""), ("k2", "h")].map(|(key, group)| (key.to_owned(), group.to_owned()));
    assert_eq!(groups, expected);
    pool.check();
}

#[test]
fn a_replacement_stays_in_the_group_and_another_one_is_refused() {
    let (mut pool, session) = two_groups();
    let replacing = |group: &str| PutConfig { replace: true, ..grouped(&[group]) };
    for group in ["a", ""] {
        pool.put_with(session, "a0", KIB / 2, &replacing(group));
        pool.check();
    }
    for (key, group) in [("a0", "b"), ("single", "a")] {
        assert!(matches!(pool.slots(session, &[(key, KIB)], &replacing(group))[0], StartOutcome::Refused(_)));
    }
    // What is not there joins the group that is asked for.
    pool.remove(session, "b0", true);
    pool.put_with(session, "b0", KIB, &replacing("a"));
    pool.pass(200);
    pool.get("b1");
    pool.get("single");
    for n in 0..4 {
        pool.put(session, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["b1", "b2", "n0", "n1", "n2", "n3", "single"]);
    pool.check();
}

#[test]
fn groups_outlast_a_restart_of_the_master() {
    let (mut pool, session) = two_groups();
    pool.restart(None);
    pool.resume(session, &[1], &[], 1).unwrap();
    pool.get("a1");
    for n in 0..3 {
        pool.put(session, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["a0", "a1", "a2", "n0", "n1", "n2", "single"]);
    pool.check();
}

#[test]
fn a_large_group_costs_an_operation_no_more_than_it_may() {
    // Every member looked up, got, evicted and removed: none of it takes a look at all the others each time.
    let (mut pool, session) = {
        let mut pool = Pool::with(Config::default());
        let session = pool.session(1);
        pool.mount(session, 1, 20_000 * KIB);
        (pool, session)
    };
    let keys: Vec<String> = (0..20_000).map(|n| format!("k{n}")).collect();
    for some in keys.chunks(1000) {
        let entries: Vec<(&str, u64)> = some.iter().map(|key| (key.as_str(), KIB)).collect();
        let config = PutConfig { groups: some.iter().map(|_| Box::from(*b"all")).collect(), ..plain() };
        for slot in pool.slots(session, &entries, &config) {
            pool.commit(session, &placed(&slot));
        }
    }
    pool.log.clear();
    let started = std::time::Instant::now();
    for key in &keys {
        assert!(pool.exists(key) && pool.get(key).is_some());
    }
    pool.pass(3000);
    pool.put(session, "half", 8_000 * KIB);
    assert_eq!(pool.remove_all(true), 12_001);
    let took = started.elapsed();
    assert!(took.as_secs() < 10, "{took:?}");
}

#[test]
fn of_many_large_groups_that_one_query_finds_some_are_protected_at_once_and_the_others_a_moment_later() {
    let (mut pool, session) = Pool::single(2_048 * KIB);
    let groups = ["a", "b", "c", "d"];
    for group in groups {
        (0..400).for_each(|n| put(&mut pool, session, &format!("{group}{n}"), group));
    }
    let keys = groups.map(|group| format!("{group}7"));
    pool.core.exists(pool.now, Sight::Tiers, keys.iter().map(|key| key.as_bytes()), |size| assert!(size.is_ok()));
    let protected = |pool: &Pool| pool.core.stats().protected_objects;
    assert_eq!(protected(&pool), 3 * 400 + 1, "there is time for 1,024 and what the last of them has beside");
    // One that has left meanwhile says nothing of its group any more.
    pool.remove(session, "d7", true);
    pool.pass(20);
    assert_eq!(protected(&pool), 3 * 400);
    assert!(pool.exists("d8"));
    assert_eq!(protected(&pool), 3 * 400 + 1, "it has been protected a moment ago, as far as it knows");
    pool.pass(300);
    let keys = groups.map(|group| format!("{group}8"));
    pool.core.exists(pool.now, Sight::Tiers, keys.iter().map(|key| key.as_bytes()), |_| {});
    pool.pass(20);
    assert_eq!(protected(&pool), 3 * 400 + 399);
    pool.check();
}
