//! One byte of a stored object turns: nobody gets it, and the key is not poisoned.

use std::time::Duration;

use mooncake_client::{Destination, GetInto, GetRanges, PutOptions, PutOutcome, ReadRange, Source, Store};

use crate::bit_flip::{flip, segment, stamps};
use crate::cluster::{Cluster, MIB, eventually, put, value};

#[test]
fn a_flipped_byte_is_a_miss_and_a_put_replaces_the_object() {
    // A size that no other segment of this process has.
    let size = 5 * MIB;
    let cluster = Cluster::start();
    let owner = cluster.store(size);
    let readers = [cluster.store(0), cluster.tcp_store(0)];
    for (nth, reader) in readers.iter().enumerate() {
        let key = format!("k{nth}");
        put(&owner, &key, 300_000).unwrap();
        flip(&segment(size), &value(&key, 300_000));
        assert_eq!(reader.get(key.as_bytes()).unwrap(), None);
        assert!(reader.last_miss_cause().unwrap().contains("checksum"), "{:?}", reader.last_miss_cause());
        // Its owner looks for itself, and the replica is dropped.
        eventually("it does not exist any more", Duration::from_secs(1), || reader.exists(&[&key]).unwrap() == [false]);
        assert_eq!(put(reader, &key, 300_000).unwrap(), PutOutcome::Stored { replicas: 1 });
        assert_eq!(owner.get(key.as_bytes()).unwrap(), Some(value(&key, 300_000)));
    }
}

/// Two owners, the first with a segment of this size, each with a copy of "a", a store that reads it, and its bytes.
fn two_copies(cluster: &Cluster, size: u64) -> ([Store; 3], Vec<u8>) {
    let stores = [size, 9 * MIB, 0].map(|segment| cluster.store(segment));
    let bytes = value("a", 300_000);
    let two = PutOptions { replica_num: 2, ..PutOptions::default() };
    assert_eq!(stores[2].put(b"a", &[Source::new(&bytes)], &two).unwrap(), PutOutcome::Stored { replicas: 2 });
    (stores, bytes)
}

#[test]
fn the_other_copy_of_a_flipped_one_is_read() {
    let size = 7 * MIB;
    let cluster = Cluster::start();
    let ([_bad, _good, reader], bytes) = two_copies(&cluster, size);
    flip(&segment(size), &bytes);
    for _ in 0..8 {
        assert_eq!(reader.get(b"a").unwrap().as_ref(), Some(&bytes));
        assert!(reader.view(&["a"]).remove(0).unwrap().unwrap()[..] == bytes[..]);
    }
}

/// One way to read an object of 300,000 bytes. True when it was there.
type Reading = fn(&Store, &str) -> bool;

const READINGS: [(&str, Reading); 4] = [
    ("get", |store, key| store.get(key.as_bytes()).unwrap().is_some()),
    ("get_into", |store, key| {
        let mut bytes = vec![0; 300_000];
        let mut items = [GetInto { key: key.as_bytes(), destinations: vec![Destination::new(&mut bytes)] }];
        store.get_into(&mut items).remove(0).unwrap().is_some()
    }),
    ("get_ranges", |store, key| {
        // The middle, where the stamp is.
        let mut bytes = vec![0; 2_000];
        let ranges = vec![ReadRange { offset: 149_000, destination: Destination::new(&mut bytes) }];
        let mut items = [GetRanges { key: key.as_bytes(), ranges }];
        store.get_ranges(&mut items).remove(0).remove(0).unwrap().is_some()
    }),
    ("view", |store, key| store.view(&[key]).remove(0).unwrap().is_some()),
];

#[test]
fn a_stamp_that_turns_is_a_miss_and_a_put_replaces_the_object() {
    let size = 11 * MIB;
    let cluster = Cluster::start();
    let owner = cluster.store(size);
    let readers = [("local", cluster.store(0)), ("tcp", cluster.tcp_store(0))];
    // One that makes it older, and two that make it newer than any that will come.
    let flips: [u64; 3] = [1 << 48, 1 << 30, 1 << 62];
    for (path, reader) in &readers {
        for (nth, (name, reading)) in READINGS.into_iter().enumerate() {
            let key = format!("{path}/{name}");
            put(&owner, &key, 300_000).unwrap();
            assert!(reading(reader, &key), "{key}");
            stamps(size).flip(&value(&key, 300_000), flips[nth % flips.len()]);
            assert!(!reading(reader, &key), "{key}");
            eventually(&format!("{key} does not exist any more"), Duration::from_secs(1), || {
                reader.exists(&[&key]).unwrap() == [false]
            });
            assert_eq!(put(reader, &key, 300_000).unwrap(), PutOutcome::Stored { replicas: 1 }, "{key}");
            assert_eq!(owner.get(key.as_bytes()).unwrap(), Some(value(&key, 300_000)), "{key}");
        }
    }
}

#[test]
fn a_copy_whose_stamp_turned_is_dropped_though_the_other_one_is_read() {
    let size = 13 * MIB;
    let cluster = Cluster::start();
    let ([_bad, _good, reader], bytes) = two_copies(&cluster, size);
    stamps(size).flip(&bytes, 1 << 48);
    eventually("one copy is left", Duration::from_secs(2), || {
        assert_eq!(reader.get(b"a").unwrap().as_ref(), Some(&bytes));
        reader.describe(&["a"]).unwrap()[0].as_ref().unwrap().len() == 1
    });
    assert_eq!(reader.get(b"a").unwrap().as_ref(), Some(&bytes));
}
