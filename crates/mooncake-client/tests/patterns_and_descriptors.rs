//! Removing by pattern, and telling where copies lie.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_client::{Cause, ErrorKind, PutOptions, RemoveOutcome, ReplicaKind, ReplicaStatus, Source};

use crate::cluster::{Cluster, MIB, put};

#[test]
fn what_a_pattern_is_found_in_is_removed_and_counted() {
    let cluster = Cluster::start();
    let store = cluster.store(64 * MIB);
    for n in 0..2500 {
        put(&store, &format!("m@rank:{}/page{n}", n % 2), 10).unwrap();
    }
    // Unanchored.
    assert_eq!(store.remove_by_regex("rank:0", false).unwrap(), 1250);
    assert_eq!(store.remove_by_regex("^rank", false).unwrap(), 0);
    assert!(store.exists(&["m@rank:1/page7"]).unwrap()[0]);
    assert_eq!(store.remove_by_regex(r"page\d$", false).unwrap(), 4, "one of five was looked up");
    assert_eq!(store.remove_by_regex(r"page\d$", true).unwrap(), 1);
    assert_eq!(store.remove_by_regex("", true).unwrap(), 1245, "it is found everywhere");
}

#[test]
fn a_pattern_that_cannot_be_searched_for_is_a_typed_error_that_says_why() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    put(&store, "a", 10).unwrap();
    for (pattern, reason) in [("(a", "unclosed group"), ("(?=a)", "look-around"), (r"(a)\1", "backreferences")] {
        let error = store.remove_by_regex(pattern, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        assert!(matches!(error.cause(), Cause::BadPattern { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(store.remove_by_regex("a", true).unwrap(), 1, "the store goes on");
}

#[test]
fn dear_patterns_over_long_keys_do_not_hold_up_other_calls() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    // No two states of the search are alike, so that it cannot remember any.
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    let mut letter = || {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        if bits & 1 == 0 { 'a' } else { 'b' }
    };
    for _ in 0..8 {
        put(&store, &(0..50_000).map(|_| letter()).collect::<String>(), 10).unwrap();
    }
    let searching = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let searches: Vec<_> = (0..4)
            .map(|_| {
                let other = cluster.store(0);
                scope.spawn(move || other.remove_by_regex("[ab]*a[ab]{300}c", true).map_err(|error| error.kind()))
            })
            .collect();
        let asking = scope.spawn(|| {
            let (mut asked, mut longest) = (0, Duration::ZERO);
            while searching.load(Ordering::Relaxed) || asked < 100 {
                let begin = Instant::now();
                store.exists(&["none"]).unwrap();
                longest = longest.max(begin.elapsed());
                asked += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        for search in searches {
            // One that waits too long for its turn is given up by its client.
            assert!(matches!(search.join().unwrap(), Ok(0) | Err(ErrorKind::MasterUnreachable | ErrorKind::Timeout)));
        }
        searching.store(false, Ordering::Relaxed);
        let longest = asking.join().unwrap();
        assert!(longest < Duration::from_millis(400), "a query took {longest:?}");
    });
}

#[test]
fn every_copy_is_described_and_protected() {
    let cluster = Cluster::start();
    let stores = [cluster.store(16 * MIB), cluster.store(16 * MIB)];
    let reader = cluster.store(0);
    let two = PutOptions { replica_num: 2, ..PutOptions::default() };
    reader.put(b"two", &[Source::new(&[7; 5000])], &two).unwrap();
    put(&reader, "one", 100).unwrap();
    let described = reader.describe(&["two", "none", "", "one"]).unwrap();
    assert_eq!(
        described.iter().map(|found| found.as_ref().map(Vec::len)).collect::<Vec<_>>(),
        [Some(2), None, None, Some(1)]
    );
    let two = described[0].as_ref().unwrap();
    let mut endpoints: Vec<&str> = two.iter().map(|replica| replica.endpoint.as_str()).collect();
    let mut names: Vec<&str> = stores.iter().map(|store| store.hostname()).collect();
    endpoints.sort_unstable();
    names.sort_unstable();
    assert_eq!(endpoints, names);
    for replica in two {
        assert_eq!((replica.size, replica.status, replica.kind), (5000, ReplicaStatus::Complete, ReplicaKind::Memory));
        assert!(replica.address < 16 * MIB);
    }
    assert_ne!(two[0].id, two[1].id);
    assert_eq!(reader.describe(&["two"]).unwrap()[0].as_ref().unwrap(), two, "the same as long as it lies there");
    assert_eq!(reader.remove(&["one", "two"], false).unwrap(), [RemoveOutcome::Protected; 2]);
}
