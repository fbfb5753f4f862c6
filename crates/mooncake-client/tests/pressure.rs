//! More is put than fits, by one and by several at a time.

use std::time::{Duration, Instant};

use mooncake_client::{Cause, ErrorKind, PutItem, PutOptions, Source, Store};

use crate::cluster;
use crate::cluster::{Cluster, MIB, value};

/// Puts three times the pool, each object looked up just before; none may fail.
fn overcommit(cluster: &Cluster, pool: u64, sizes: &[usize], look: bool) {
    let store = cluster.store(pool);
    let mut total = 0;
    let mut keys: Vec<String> = Vec::new();
    while total < 3 * pool {
        let size = sizes[keys.len() % sizes.len()];
        let key = format!("k{}", keys.len());
        if look && !keys.is_empty() {
            store.exists(&keys[keys.len().saturating_sub(4)..]).unwrap();
        }
        let outcome = cluster::put(&store, &key, size);
        assert!(outcome.is_ok(), "{key} of {size} bytes after {total}: {outcome:?}");
        assert_eq!(store.get(key.as_bytes()).unwrap(), Some(value(&key, size)));
        total += size as u64;
        keys.push(key);
    }
    store.remove_all(true).unwrap();
    store.close();
}

#[test]
fn no_put_fails_when_three_times_the_pool_is_put() {
    let cluster = Cluster::start();
    overcommit(&cluster, 32 * MIB, &[1 << 20], false);
    overcommit(&cluster, 32 * MIB, &[4 << 20], false);
    overcommit(&cluster, 32 * MIB, &[4 << 10, 3 << 20, 100_000, 1 << 20, 5000], false);
}

#[test]
fn no_put_fails_when_each_object_was_looked_up_before() {
    let cluster = Cluster::start_with(|settings| {
        settings.core.lookup_protect_ms = 400;
        settings.core.full_wait_ms = 200;
    });
    overcommit(&cluster, 16 * MIB, &[1 << 20], true);
    overcommit(&cluster, 16 * MIB, &[4 << 10, 3 << 20, 100_000, 1 << 20, 5000], true);
}

#[test]
fn a_batch_larger_than_the_pool_goes_through() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    let names: Vec<String> = (0..48).map(|n| format!("k{n}")).collect();
    let values: Vec<Vec<u8>> = names.iter().map(|name| value(name, 1 << 20)).collect();
    let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
    let items: Vec<PutItem<'_>> =
        names.iter().zip(&sources).map(|(name, value)| PutItem { key: name.as_bytes(), value }).collect();
    for (name, result) in names.iter().zip(store.put_batch(&items, &PutOptions::default())) {
        assert!(result.is_ok(), "{name}: {result:?}");
    }
    assert_eq!(store.get(b"k47").unwrap().as_ref(), Some(&values[47]));
}

#[test]
fn a_large_batch_into_a_pool_that_was_just_looked_up_is_there_when_it_is_through() {
    let cluster = Cluster::start();
    let store = cluster.store(24 * MIB);
    let old: Vec<String> = (0..250).map(|n| format!("old{n}")).collect();
    for key in &old {
        cluster::put(&store, key, 100_000).unwrap();
    }
    assert!(store.exists(&old).unwrap().iter().filter(|there| **there).count() >= 230);
    let names: Vec<String> = (0..1_500).map(|n| format!("new{n}")).collect();
    let values: Vec<Vec<u8>> = names.iter().map(|name| value(name, 12_000)).collect();
    let took = put_all(&store, &names, &values);
    let there = store.exists(&names).unwrap().iter().filter(|there| **there).count();
    assert_eq!(there, names.len(), "after {took:?}");
    assert!(took < Duration::from_millis(3_500), "{took:?}");
}

fn put_all(store: &Store, names: &[String], values: &[Vec<u8>]) -> Duration {
    let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
    let items: Vec<PutItem<'_>> =
        names.iter().zip(&sources).map(|(name, value)| PutItem { key: name.as_bytes(), value }).collect();
    let started = Instant::now();
    for (name, result) in names.iter().zip(store.put_batch(&items, &PutOptions::default())) {
        assert!(result.is_ok(), "{name}: {result:?}");
    }
    started.elapsed()
}

#[test]
fn two_clients_that_put_the_same_keys_in_opposite_order_both_finish() {
    let cluster = Cluster::start();
    let _owner = cluster.store(192 * MIB);
    let (one, two) = (cluster.store(0), cluster.store(0));
    for round in 0..3 {
        let names: Vec<String> = (0..64).map(|n| format!("{round}/{n}")).collect();
        let values: Vec<Vec<u8>> = names.iter().map(|name| value(name, 1 << 20)).collect();
        let backwards: (Vec<String>, Vec<Vec<u8>>) =
            (names.iter().rev().cloned().collect(), values.iter().rev().cloned().collect());
        std::thread::scope(|scope| {
            scope.spawn(|| put_all(&one, &names, &values));
            scope.spawn(|| put_all(&two, &backwards.0, &backwards.1));
        });
        for (name, value) in names.iter().zip(&values) {
            assert!(one.get(name.as_bytes()).unwrap().as_ref() == Some(value), "{name}");
        }
        one.remove_all(true).unwrap();
    }
}

#[test]
fn while_one_put_waits_for_room_more_changes_go_through_than_replies_are_kept() {
    let cluster = Cluster::start_with(|settings| {
        settings.core.lookup_protect_ms = 20_000;
        settings.core.full_wait_ms = 2_000;
    });
    let store = cluster.store(16 * MIB);
    let old: Vec<String> = (0..15).map(|n| format!("old{n}")).collect();
    for key in &old {
        cluster::put(&store, key, 1 << 20).unwrap();
    }
    cluster::put(&store, "viewed", 1000).unwrap();
    assert_eq!(store.exists(&old).unwrap(), [true; 15]);
    assert_eq!(store.exists(&["viewed"]).unwrap(), [true]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster::put(&store, "large", 4 << 20));
        // More than the master keeps replies for: each is a mutation, and so is its end.
        for nth in 0..600 {
            let viewed = store.view(&["viewed"]).remove(0);
            assert!(matches!(viewed, Ok(Some(_))), "view {nth}: {viewed:?}");
        }
        assert!(!waiting.is_finished(), "it is to wait as long as that takes");
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(store.get(b"large").unwrap(), Some(value("large", 4 << 20)));
}

#[test]
fn however_many_puts_wait_for_room_a_read_does_not_wait_for_them() {
    let cluster = Cluster::start_with(|settings| {
        settings.core.lookup_protect_ms = 20_000;
        settings.core.full_wait_ms = 2_000;
    });
    let store = cluster.store(16 * MIB);
    let old: Vec<String> = (0..15).map(|n| format!("old{n}")).collect();
    for key in &old {
        cluster::put(&store, key, 1 << 20).unwrap();
    }
    cluster::put(&store, "read", 1000).unwrap();
    assert_eq!(store.exists(&old).unwrap(), [true; 15]);
    assert_eq!(store.exists(&["read"]).unwrap(), [true]);
    let large = vec![0; 4 << 20];
    std::thread::scope(|scope| {
        let puts: Vec<_> = (0..80)
            .map(|nth| {
                let (store, large) = (&store, &large);
                scope.spawn(move || {
                    store.put(format!("large{nth}").as_bytes(), &[Source::new(large)], &PutOptions::default())
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..20 {
            assert_eq!(store.get(b"read").unwrap(), Some(value("read", 1000)));
        }
        assert!(!puts.iter().any(|put| put.is_finished()), "they all wait");
    });
}

#[test]
fn a_put_that_gets_no_connection_says_so_and_does_not_blame_the_master() {
    let cluster = Cluster::start_with(|settings| {
        settings.core.lookup_protect_ms = 20_000;
        // Longer than a put waits for a connection.
        settings.core.full_wait_ms = 10_000;
    });
    let store = cluster.store(16 * MIB);
    let old: Vec<String> = (0..15).map(|n| format!("old{n}")).collect();
    for key in &old {
        cluster::put(&store, key, 1 << 20).unwrap();
    }
    assert_eq!(store.exists(&old).unwrap(), [true; 15]);
    let large = vec![0; 4 << 20];
    let put = |nth: usize| store.put(format!("large{nth}").as_bytes(), &[Source::new(&large)], &PutOptions::default());
    let errors: Vec<_> = std::thread::scope(|scope| {
        let puts: Vec<_> = (0..70).map(|nth| scope.spawn(move || put(nth))).collect();
        puts.into_iter().filter_map(|put| put.join().unwrap().err()).collect()
    });
    let stranded: Vec<_> = errors.iter().filter(|e| matches!(e.cause(), Cause::NoConnection { .. })).collect();
    assert!(stranded.len() >= 20, "{errors:?}");
    for error in stranded {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let said = error.to_string();
        assert!(said.contains("48") && said.contains("another store") && !said.contains("did not answer"), "{said}");
    }
}
