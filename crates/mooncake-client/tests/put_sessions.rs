//! Put sessions over a master and owners that run.

use std::time::Duration;

use mooncake_client::{ErrorKind, PutOptions, PutRanges, Source, Store, StoreError, WriteRange};

use crate::cluster::{Cluster, MIB, eventually, put, value};

const SIZE: usize = 300_000;

fn start(store: &Store, key: &str, copies: u32) -> Result<(), StoreError> {
    let options = PutOptions { replica_num: copies, ..PutOptions::default() };
    store.start_put_sessions(&[key], &[SIZE as u64], &options).remove(0)
}

fn fill(store: &Store, key: &str, bytes: &[u8], (from, to): (usize, usize)) -> Result<u64, StoreError> {
    let ranges = vec![WriteRange { offset: from as u64, source: Source::new(&bytes[from..to]) }];
    store.write_in_sessions(&[PutRanges { key: key.as_bytes(), ranges }]).remove(0)
}

fn end(store: &Store, key: &str) -> Result<(), StoreError> {
    store.end_put_sessions(&[key]).remove(0)
}

fn kind<T>(result: Result<T, StoreError>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Cuts that no granule knows, the middle first.
fn parts() -> Vec<(usize, usize)> {
    vec![(100_001, 100_002), (100_002, 250_007), (0, 513), (250_007, SIZE), (513, 100_001)]
}

#[test]
fn threads_fill_all_copies_in_any_order_and_the_whole_is_verified() {
    let cluster = Cluster::start();
    let owners = [cluster.store(8 * MIB), cluster.store(8 * MIB)];
    let (bytes, other) = (value("k", SIZE), value("other", SIZE));
    for (number, store) in [owners[0].clone(), cluster.store(0), cluster.tcp_store(0)].iter().enumerate() {
        let key = format!("k{number}");
        start(store, &key, 2).unwrap();
        assert_eq!(kind(start(store, &key, 2)), Some(ErrorKind::InvalidParams), "it has one");
        assert_eq!(kind(start(&owners[1], &key, 1)), Some(ErrorKind::Busy), "another store puts it");
        assert_eq!(store.get(key.as_bytes()).unwrap(), None, "it is no object yet");
        // One of the parts holds something else at first: the last bytes count.
        fill(store, &key, &other, (40_000, 200_000)).unwrap();
        std::thread::scope(|threads| {
            for part in parts() {
                let (key, bytes) = (&key, &bytes);
                threads.spawn(move || assert_eq!(fill(store, key, bytes, part).unwrap(), (part.1 - part.0) as u64));
            }
        });
        end(store, &key).unwrap();
        for reader in &owners {
            assert!(reader.get(key.as_bytes()).unwrap().as_ref() == Some(&bytes), "with the right checksum");
        }
        assert_eq!(store.describe(&[&key]).unwrap()[0].as_ref().map(Vec::len), Some(2));
        assert_eq!(kind(start(store, &key, 1)), Some(ErrorKind::Exists));
        assert_eq!(kind(fill(store, &key, &bytes, (0, 1))), Some(ErrorKind::InvalidParams));
    }
    // Each copy has all bytes.
    owners[0].close();
    for key in ["k0", "k1", "k2"] {
        assert!(owners[1].get(key.as_bytes()).unwrap().as_ref() == Some(&bytes), "{key}");
    }
}

#[test]
fn what_is_aborted_or_left_by_a_store_that_closes_is_room_and_a_free_key_at_once() {
    let cluster = Cluster::start();
    let owner = cluster.store(MIB);
    let bytes = value("k", SIZE);
    for store in [cluster.store(0), cluster.tcp_store(0)] {
        start(&store, "k", 1).unwrap();
        fill(&store, "k", &bytes, (7, 1_000)).unwrap();
        store.abort_put_sessions(&["k"]).remove(0).unwrap();
        assert_eq!(kind(store.abort_put_sessions(&["k"]).remove(0)), Some(ErrorKind::InvalidParams));
        put(&store, "k", SIZE).unwrap();
        store.remove(&["k"], true).unwrap();
        start(&store, "k", 1).unwrap();
        fill(&store, "k", &bytes, (0, 9)).unwrap();
        store.close();
        put(&owner, "k", SIZE).unwrap();
        owner.remove(&["k"], true).unwrap();
    }
    eventually("nothing is reserved or in quarantine", Duration::from_secs(3), || {
        cluster.metric("master_allocated_bytes") == 0
    });
}

#[test]
fn a_session_is_over_for_a_key_whose_owner_leaves_and_goes_on_with_another_copy() {
    let cluster = Cluster::start();
    let leaving = cluster.store(8 * MIB);
    let writers = [cluster.store(0), cluster.tcp_store(0)];
    let bytes = value("k", SIZE);
    for (number, store) in writers.iter().enumerate() {
        start(store, &format!("one-{number}"), 1).unwrap();
    }
    let staying = cluster.store(8 * MIB);
    for (number, store) in writers.iter().enumerate() {
        start(store, &format!("two-{number}"), 2).unwrap();
        fill(store, &format!("two-{number}"), &bytes, (0, 1_000)).unwrap();
        fill(store, &format!("one-{number}"), &bytes, (0, 1_000)).unwrap();
    }
    leaving.close();
    for (number, store) in writers.iter().enumerate() {
        let (one, two) = (format!("one-{number}"), format!("two-{number}"));
        // A store that has not heard of it yet fills memory that nothing will be read from.
        eventually("the session is over for the key", Duration::from_secs(3), || {
            kind(fill(store, &one, &bytes, (1_000, SIZE))) == Some(ErrorKind::SessionOver)
        });
        assert_eq!(kind(end(store, &one)), Some(ErrorKind::SessionOver));
        start(store, &one, 1).unwrap();
        fill(store, &two, &bytes, (1_000, SIZE)).unwrap();
        end(store, &two).unwrap();
        assert!(staying.get(two.as_bytes()).unwrap().as_ref() == Some(&bytes));
    }
}

#[test]
fn a_store_hears_that_an_owner_left_and_its_keys_may_be_started_again_without_another_call() {
    let cluster = Cluster::start();
    let leaving = cluster.store(8 * MIB);
    let writers = [cluster.store(0), cluster.tcp_store(0)];
    for (number, store) in writers.iter().enumerate() {
        for key in ["started", "aborted"] {
            start(store, &format!("{key}-{number}"), 1).unwrap();
        }
    }
    let _staying = cluster.store(8 * MIB);
    leaving.close();
    for (number, store) in writers.iter().enumerate() {
        let (started, aborted) = (format!("started-{number}"), format!("aborted-{number}"));
        eventually("it has heard", Duration::from_secs(5), || start(store, &started, 1).is_ok());
        fill(store, &started, &value("k", SIZE), (0, SIZE)).unwrap();
        end(store, &started).unwrap();
        let abort = || store.abort_put_sessions(&[&aborted]).remove(0);
        assert_eq!(kind(abort()), Some(ErrorKind::SessionOver), "it was lost, not aborted");
        assert_eq!(kind(abort()), Some(ErrorKind::InvalidParams));
        start(store, &aborted, 1).unwrap();
        abort().unwrap();
    }
}

#[test]
fn what_sessions_hold_counts_among_what_a_client_may_have_unfinished() {
    let cluster = Cluster::start();
    let store = cluster.store(4 * MIB);
    let options = PutOptions::default();
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let sizes = vec![100 << 10; keys.len()];
    let started = store.start_put_sessions(&keys, &sizes, &options);
    let held: Vec<&String> =
        keys.iter().zip(&started).filter(|(_, started)| started.is_ok()).map(|(key, _)| key).collect();
    assert!((10..=21).contains(&held.len()), "half of the pool: {}", held.len());
    let refused = started.into_iter().find_map(Result::err).unwrap();
    assert!(refused.kind() == ErrorKind::NoSpace && refused.to_string().contains("unfinished"), "{refused}");
    assert!(store.abort_put_sessions(&held).into_iter().all(|aborted| aborted.is_ok()));
    assert!(store.start_put_sessions(&keys[..5], &sizes[..5], &options).into_iter().all(|started| started.is_ok()));
}

#[test]
fn a_session_outlasts_a_master_that_is_restarted() {
    let mut cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    let bytes = value("k", SIZE);
    start(&store, "k", 1).unwrap();
    fill(&store, "k", &bytes, (0, 70_000)).unwrap();
    cluster.stop_master();
    fill(&store, "k", &bytes, (70_000, SIZE)).unwrap();
    assert_eq!(kind(end(&store, "k")), Some(ErrorKind::MasterUnreachable));
    assert_eq!(kind(fill(&store, "k", &bytes, (0, 1))), Some(ErrorKind::InvalidParams), "the master may have heard");
    cluster.start_master();
    eventually("the store is back", Duration::from_secs(5), || end(&store, "k").is_ok());
    assert!(store.get(b"k").unwrap().as_ref() == Some(&bytes));
}

#[test]
fn a_session_outlasts_a_restart_whatever_its_store_does_behind_it() {
    let mut cluster = Cluster::start();
    let stores = [cluster.store(8 * MIB), cluster.store(0), cluster.tcp_store(0)];
    let bytes = value("k", SIZE);
    let key = |number: usize| format!("k{number}");
    for (number, store) in stores.iter().enumerate() {
        start(store, &key(number), 1).unwrap();
        fill(store, &key(number), &bytes, (0, 70_000)).unwrap();
    }
    cluster.stop_master();
    cluster.start_master();
    for (number, store) in stores.iter().enumerate() {
        let other = format!("other{number}");
        eventually("the store is back", Duration::from_secs(5), || put(store, &other, 3_000).is_ok());
        assert!(store.get(other.as_bytes()).unwrap().is_some());
        // Some of it twice: it is read back.
        fill(store, &key(number), &bytes, (60_000, SIZE)).unwrap();
        end(store, &key(number)).unwrap();
        assert!(store.get(key(number).as_bytes()).unwrap().as_ref() == Some(&bytes));
    }
}

#[test]
fn a_call_for_many_sessions_waits_for_memory_that_is_being_populated() {
    let cluster = Cluster::start();
    for store in [cluster.store(512 * MIB), cluster.tcp_store(512 * MIB)] {
        let names: Vec<String> = (0..7).map(|number| format!("{number}")).collect();
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        let started = store.start_put_sessions(&keys, &[32 * MIB; 7], &PutOptions::default());
        assert!(started.iter().all(Result::is_ok), "{started:?}");
        store.close();
    }
}
