//! Get sessions over a master and owners that run.

use std::time::{Duration, Instant};

use mooncake_client::{Destination, ErrorKind, GetRanges, PutOptions, ReadRange, Source, Store, StoreError};

use crate::cluster::{Cluster, MIB, put, value};

const SIZE: usize = 200_000;

/// Parts `(offset, len)` of the session of a key.
fn read(store: &Store, key: &str, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut into: Vec<Vec<u8>> = parts.iter().map(|(_, len)| vec![0; *len]).collect();
    let ranges = parts.iter().zip(&mut into);
    let ranges =
        ranges.map(|((offset, _), into)| ReadRange { offset: *offset, destination: Destination::new(into) }).collect();
    let read = store.read_in_sessions(&mut [GetRanges { key: key.as_bytes(), ranges }]).remove(0)?;
    assert_eq!(read, parts.iter().map(|(_, len)| *len as u64).sum::<u64>());
    Ok(into)
}

fn kind(result: Result<Vec<Vec<u8>>, StoreError>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn parts_are_the_objects_and_the_master_is_asked_for_nothing_more() {
    let mut cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    put(&owner, "k", SIZE).unwrap();
    let bytes = value("k", SIZE);
    let readers = [owner.clone(), cluster.store(0), cluster.tcp_store(0)];
    for store in &readers {
        store.start_get_sessions(&["k"]).remove(0).unwrap();
        assert_eq!(store.start_get_sessions(&["none"]).remove(0).unwrap_err().kind(), ErrorKind::NotFound);
        for outside in [(SIZE as u64, 1), (SIZE as u64 - 1, 2), (u64::MAX, 2)] {
            assert_eq!(kind(read(store, "k", &[(0, 1), outside])), Some(ErrorKind::InvalidParams));
        }
        assert_eq!(kind(read(store, "none", &[(0, 1)])), Some(ErrorKind::InvalidParams));
    }
    cluster.stop_master();
    for store in &readers {
        let parts = [(0, 1_000), (1_000, 4_096), (150_000, 50_000), (7, 0), (3, 66_000)];
        let got = read(store, "k", &parts).unwrap();
        for ((offset, len), got) in parts.into_iter().zip(got) {
            assert!(got == bytes[offset as usize..][..len], "{len} bytes from {offset} on");
        }
        assert!(read(store, "k", &[(0, SIZE)]).unwrap()[0] == bytes);
        store.end_get_sessions(&["k", "none"]).unwrap();
        assert_eq!(kind(read(store, "k", &[(0, 1)])), Some(ErrorKind::InvalidParams), "it has ended");
    }
}

#[test]
fn a_session_of_a_placement_that_is_gone_is_over_and_never_gives_other_bytes() {
    let cluster = Cluster::start();
    let owner = cluster.store(MIB);
    for store in [&cluster.store(0), &cluster.tcp_store(0)] {
        owner.remove_all(true).unwrap();
        put(&owner, "k", SIZE).unwrap();
        store.start_get_sessions(&["k"]).remove(0).unwrap();
        owner.remove(&["k"], true).unwrap();
        // Others have its place by now.
        for number in 0..5 {
            put(&owner, &format!("other-{number}"), SIZE).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(kind(read(store, "k", &[(0, 4_096)])), Some(ErrorKind::SessionOver));
        }
        store.end_get_sessions(&["k"]).unwrap();
        assert_eq!(kind(read(store, "k", &[(0, 4_096)])), Some(ErrorKind::InvalidParams), "it has ended");
    }
}

#[test]
fn a_session_reads_the_other_copy_when_an_owner_leaves_and_is_over_when_both_have() {
    let cluster = Cluster::start();
    let owners = [cluster.store(8 * MIB), cluster.store(8 * MIB)];
    let bytes = value("k", SIZE);
    let both = PutOptions { replica_num: 2, ..PutOptions::default() };
    for store in [cluster.store(0), cluster.tcp_store(0)] {
        store.put(b"k", &[Source::new(&bytes)], &both).unwrap();
        store.start_get_sessions(&["k"]).remove(0).unwrap();
    }
    let readers = [cluster.store(0), cluster.tcp_store(0)];
    readers.iter().for_each(|store| store.start_get_sessions(&["k"]).remove(0).unwrap());
    for (left, owner) in owners.iter().enumerate() {
        owner.close();
        for store in &readers {
            if left == 0 {
                assert!(read(store, "k", &[(70_000, 9_000)]).unwrap()[0] == bytes[70_000..79_000]);
                continue;
            }
            // The owner gives its memory back a moment after it has left: what is read until then is still the object.
            let until = Instant::now() + Duration::from_secs(5);
            let ended = loop {
                match read(store, "k", &[(70_000, 9_000)]) {
                    Ok(got) => assert!(got[0] == bytes[70_000..79_000]),
                    ended => break kind(ended),
                }
                assert!(Instant::now() < until, "it goes on without an owner");
            };
            assert_eq!(ended, Some(ErrorKind::SessionOver));
        }
    }
}

#[test]
fn what_a_session_looks_up_stays_for_as_long_as_an_existence_query_would_have_it() {
    let cluster = Cluster::start();
    let owner = cluster.store(MIB);
    put(&owner, "k", SIZE).unwrap();
    owner.start_get_sessions(&["k"]).remove(0).unwrap();
    let removed = owner.remove(&["k"], false).unwrap();
    assert_eq!(removed, [mooncake_client::RemoveOutcome::Protected]);
}
