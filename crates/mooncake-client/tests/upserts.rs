//! Values are replaced as a whole or not at all.

use std::time::Duration;

use mooncake_client::{ErrorKind, PinKind, PutItem, PutOptions, PutOutcome, Source};

use crate::cluster::{Cluster, MIB, eventually, put, value};

const STORED: PutOutcome = PutOutcome::Stored { replicas: 1 };

#[test]
fn a_value_is_replaced_by_one_of_any_size_on_every_path() {
    let cluster = Cluster::start();
    let owner = cluster.store(64 * MIB);
    for (writer, name) in [(cluster.store(0), "local"), (cluster.tcp_store(0), "tcp")] {
        for size in [5000, 5000, 1, 3 << 20, 700] {
            let bytes = value(name, size);
            let outcome = writer.upsert(name.as_bytes(), &[Source::new(&bytes)], &PutOptions::default()).unwrap();
            assert_eq!(outcome, STORED);
            for store in [&owner, &writer] {
                assert_eq!(store.get(name.as_bytes()).unwrap().as_deref(), Some(&bytes[..]), "{name} {size}");
            }
        }
        assert_eq!(put(&writer, name, 10).unwrap(), PutOutcome::Existed, "a put leaves it");
    }
}

#[test]
fn a_batch_replaces_and_puts_key_by_key_and_the_last_of_a_key_counts() {
    let cluster = Cluster::start();
    let store = cluster.store(64 * MIB);
    put(&store, "k1", 100).unwrap();
    let values: Vec<Vec<u8>> = (0..5).map(|n| value(&format!("new{n}"), 1000 + n)).collect();
    let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
    let keys: [&[u8]; 5] = [b"k0", b"k1", b"", b"k1", b"k1"];
    let items: Vec<PutItem<'_>> = keys.iter().zip(&sources).map(|(key, value)| PutItem { key, value }).collect();
    let results = store.upsert_batch(&items, &PutOptions::default());
    assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::InvalidKey);
    for index in [0, 1, 3, 4] {
        assert_eq!(*results[index].as_ref().unwrap(), STORED, "{index}");
    }
    assert_eq!(store.get(b"k0").unwrap().as_ref(), Some(&values[0]));
    assert_eq!(store.get(b"k1").unwrap().as_ref(), Some(&values[4]));
}

#[test]
fn a_replacement_that_fails_leaves_the_value() {
    let cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    eventually("the segment is populated", Duration::from_secs(5), || put(&store, "a", 5 << 20).is_ok());
    let bytes = value("b", 5 << 20);
    let mut options = cluster.options(0);
    options.put_timeout = Duration::from_millis(1500);
    let writer = mooncake_client::Store::connect(options).unwrap();
    let error = writer.upsert(b"a", &[Source::new(&bytes)], &PutOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(store.get(b"a").unwrap(), Some(value("a", 5 << 20)));
}

#[test]
fn a_view_of_the_old_value_does_not_change() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    put(&store, "a", 100_000).unwrap();
    let view = store.view(&["a"]).remove(0).unwrap().unwrap();
    for n in 0..20 {
        store.upsert(b"a", &[Source::new(&value(&n.to_string(), 100_000))], &PutOptions::default()).unwrap();
    }
    assert_eq!(view[..], value("a", 100_000)[..]);
    assert_eq!(store.get(b"a").unwrap(), Some(value("19", 100_000)));
}

#[test]
fn readers_see_one_value_or_the_other_while_writers_replace_it() {
    let cluster = Cluster::start();
    let owner = cluster.store(32 * MIB);
    let values: Vec<Vec<u8>> = (0..4).map(|n| value(&n.to_string(), 200_000 + n * 999)).collect();
    owner.put(b"a", &[Source::new(&values[0])], &PutOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for n in 1..3 {
            let (writer, values) = (cluster.store(0), &values);
            scope.spawn(move || {
                for turn in 0..30 {
                    let bytes = &values[(turn + n) % 4];
                    writer.upsert(b"a", &[Source::new(bytes)], &PutOptions::default()).unwrap();
                }
            });
        }
        let (reader, values) = (cluster.tcp_store(0), &values);
        scope.spawn(move || {
            let mut misses = 0;
            for _ in 0..100 {
                match reader.get(b"a").unwrap() {
                    Some(bytes) => assert!(values.contains(&bytes)),
                    // Overtaken twice while it was being read.
                    None => misses += 1,
                }
            }
            assert!(misses < 50, "{misses} misses");
        });
    });
}

#[test]
fn a_soft_pin_that_is_too_long_is_refused() {
    let cluster = Cluster::start_with(|settings| settings.core.soft_pin_ttl_max_ms = 1000);
    let store = cluster.store(16 * MIB);
    for (ttl_ms, kind) in [(Some(1000), None), (Some(1001), Some(ErrorKind::InvalidParams)), (Some(0), None)] {
        let options = PutOptions { pin: PinKind::Soft { ttl_ms }, ..PutOptions::default() };
        let outcome = store.upsert(b"a", &[Source::new(b"bytes")], &options);
        assert_eq!(outcome.map_err(|error| error.kind()).err(), kind, "{ttl_ms:?}");
    }
}

#[test]
fn a_master_that_comes_back_in_between_changes_nothing() {
    let mut cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    put(&store, "a", 5000).unwrap();
    store.upsert(b"a", &[Source::new(&value("b", 6000))], &PutOptions::default()).unwrap();
    cluster.stop_master();
    cluster.start_master();
    eventually("the store is back", Duration::from_secs(5), || store.exists(&["a"]).is_ok_and(|there| there[0]));
    assert_eq!(store.get(b"a").unwrap(), Some(value("b", 6000)));
    store.upsert(b"a", &[Source::new(&value("c", 7000))], &PutOptions::default()).unwrap();
    assert_eq!(store.get(b"a").unwrap(), Some(value("c", 7000)));
}
