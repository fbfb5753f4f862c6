//! One byte of a stored object turns: nobody gets it, and the key is not poisoned.

mod cluster;
mod flip;

use std::time::Duration;

use cluster::{Cluster, MIB, eventually, put, value};
use flip::{flip, segment};
use mooncake_client::{PutOptions, PutOutcome, Source};

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

#[test]
fn the_other_copy_of_a_flipped_one_is_read() {
    let size = 7 * MIB;
    let cluster = Cluster::start();
    let _bad = cluster.store(size);
    let _good = cluster.store(9 * MIB);
    let reader = cluster.store(0);
    let bytes = value("a", 300_000);
    let two = PutOptions { replica_num: 2, ..PutOptions::default() };
    assert_eq!(reader.put(b"a", &[Source::new(&bytes)], &two).unwrap(), PutOutcome::Stored { replicas: 2 });
    flip(&segment(size), &bytes);
    for _ in 0..8 {
        assert_eq!(reader.get(b"a").unwrap().as_ref(), Some(&bytes));
        assert!(reader.view(&["a"]).remove(0).unwrap().unwrap()[..] == bytes[..]);
    }
}
