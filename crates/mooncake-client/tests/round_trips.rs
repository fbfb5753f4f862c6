//! What is put comes back, byte by byte, by every path.

use mooncake_client::{
    Destination, ErrorKind, GetInto, Path, PutItem, PutOptions, PutOutcome, RemoveOutcome, Source, Store, StoreOptions,
};

use crate::cluster::{Cluster, MIB, put, value};

const SIZES: [usize; 11] =
    [1, 2, 1023, 1024, 1025, 4096, 16 << 10, (16 << 10) + 1, (256 << 10) - 1, (1 << 20) + 7, 5 << 20];

fn odd_sizes_and_pieces(owner: &Store, writer: &Store, reader: &Store, path: Path) {
    for size in SIZES {
        let key = format!("{path}/{size}");
        let bytes = value(&key, size);
        let cut = size / 3;
        let pieces = [Source::new(&bytes[..cut]), Source::new(&[]), Source::new(&bytes[cut..])];
        let outcome = writer.put(key.as_bytes(), &pieces, &PutOptions::default()).unwrap();
        assert_eq!(outcome, PutOutcome::Stored { replicas: 1 });

        for store in [owner, reader] {
            assert_eq!(store.get(key.as_bytes()).unwrap().as_deref(), Some(&bytes[..]), "{key}");
        }
        let mut into = vec![0xee; size + 3];
        let (one, two) = into.split_at_mut(size / 2);
        let mut items = [GetInto {
            key: key.as_bytes(),
            destinations: vec![Destination::new(one), Destination::new(&mut []), Destination::new(two)],
        }];
        assert_eq!(reader.get_into(&mut items).remove(0).unwrap(), Some(size as u64));
        drop(items);
        assert_eq!(&into[..size], &bytes[..]);
        assert_eq!(&into[size..], [0xee; 3]);
        let view = reader.view(&[&key]).remove(0).unwrap().unwrap();
        assert_eq!(view[..], bytes[..]);
        assert_eq!(view.is_private_copy(), path == Path::Tcp);
    }
    assert!(reader.links().iter().all(|link| link.path == path), "{:?}", reader.links());
}

#[test]
fn odd_sizes_and_several_pieces_come_back_in_one_process() {
    let cluster = Cluster::start();
    let owner = cluster.store(64 * MIB);
    let (writer, reader) = (cluster.store(0), cluster.store(0));
    odd_sizes_and_pieces(&owner, &writer, &reader, Path::Local);
}

#[test]
fn odd_sizes_and_several_pieces_come_back_over_tcp() {
    let cluster = Cluster::start();
    let owner = cluster.store(64 * MIB);
    let (writer, reader) = (cluster.tcp_store(0), cluster.tcp_store(0));
    odd_sizes_and_pieces(&owner, &writer, &reader, Path::Tcp);
}

#[test]
fn the_first_writer_wins() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    assert_eq!(put(&store, "a", 5000).unwrap(), PutOutcome::Stored { replicas: 1 });
    let other = cluster.store(0);
    let outcome = other.put(b"a", &[Source::new(b"something else")], &PutOptions::default()).unwrap();
    assert_eq!(outcome, PutOutcome::Existed);
    assert_eq!(other.get(b"a").unwrap(), Some(value("a", 5000)));
}

#[test]
fn batches_keep_their_order_and_fail_key_by_key() {
    let cluster = Cluster::start();
    let store = cluster.store(64 * MIB);
    let long = vec![b'k'; 70_000];
    let values: Vec<Vec<u8>> = (0..200).map(|n| value(&format!("b{n}"), 100 + n * 37)).collect();
    let names: Vec<String> = (0..200).map(|n| format!("b{n}")).collect();
    let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
    let mut items: Vec<PutItem<'_>> =
        names.iter().zip(&sources).map(|(name, value)| PutItem { key: name.as_bytes(), value }).collect();
    items.insert(3, PutItem { key: b"", value: &sources[0] });
    items.insert(50, PutItem { key: &long, value: &sources[0] });
    items.insert(100, PutItem { key: b"empty", value: &[] });
    // The same key twice: the first one wins, the second is there already.
    items.push(PutItem { key: b"b0", value: &sources[1] });
    let results = store.put_batch(&items, &PutOptions::default());
    assert_eq!(results.len(), 204);
    assert_eq!(results[3].as_ref().unwrap_err().kind(), ErrorKind::InvalidKey);
    assert_eq!(results[50].as_ref().unwrap_err().kind(), ErrorKind::InvalidKey);
    assert_eq!(results[100].as_ref().unwrap_err().kind(), ErrorKind::InvalidParams);
    assert_eq!(*results[203].as_ref().unwrap(), PutOutcome::Existed);
    let stored = results.iter().filter(|result| matches!(result, Ok(PutOutcome::Stored { .. }))).count();
    assert_eq!(stored, 200);

    let asked = ["b0", "missing", "", "b199"];
    assert_eq!(store.exists(&asked).unwrap(), [true, false, false, true]);
    assert_eq!(store.sizes(&asked).unwrap(), [Some(100), None, None, Some(100 + 199 * 37)]);
    let got = store.get_batch_with(&asked, |_, size| Ok(vec![0; size as usize]));
    assert_eq!(got[0].as_ref().unwrap().as_deref(), Some(&values[0][..]));
    assert_eq!(*got[1].as_ref().unwrap(), None);
    assert_eq!(got[2].as_ref().unwrap_err().kind(), ErrorKind::InvalidKey);
    assert_eq!(got[3].as_ref().unwrap().as_deref(), Some(&values[199][..]));
}

#[test]
fn keys_are_any_bytes() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    let keys: [&[u8]; 5] = [b"\0", b"a\0b", "ключ/@:\u{1f680}".as_bytes(), b"\xff\xfe", &[b'x'; 64 << 10]];
    for key in keys {
        store.put(key, &[Source::new(key)], &PutOptions::default()).unwrap();
    }
    for key in keys {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(key));
    }
    assert_eq!(
        store.remove(&[keys[1], b"none", b""], true).unwrap(),
        [RemoveOutcome::Removed, RemoveOutcome::Missing, RemoveOutcome::Missing]
    );
    assert_eq!(store.get(keys[1]).unwrap(), None);
    assert_eq!(store.remove_all(true).unwrap(), 4);
    assert_eq!(store.exists(&keys).unwrap(), [false; 5]);
}

#[test]
fn what_was_looked_up_is_removed_by_force_only() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    put(&store, "a", 10).unwrap();
    assert_eq!(store.exists(&["a"]).unwrap(), [true]);
    assert_eq!(store.remove(&["a"], false).unwrap(), [RemoveOutcome::Protected]);
    assert_eq!(store.remove_all(false).unwrap(), 0);
    assert_eq!(store.remove(&["a"], true).unwrap(), [RemoveOutcome::Removed]);
}

#[test]
fn a_buffer_that_is_too_small_is_told_both_sizes() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    put(&store, "a", 5000).unwrap();
    let mut small = vec![0; 4999];
    let mut items = [GetInto { key: b"a", destinations: vec![Destination::new(&mut small)] }];
    let error = store.get_into(&mut items).remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidParams);
    let text = error.to_string();
    assert!(text.contains("5000") && text.contains("4999"), "{text}");
}

#[test]
fn a_value_that_can_never_fit_fails_at_once_with_the_figures() {
    let cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    let started = std::time::Instant::now();
    let error = put(&store, "big", 9 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(started.elapsed().as_millis() < 500, "{:?}", started.elapsed());
    assert!(error.to_string().contains(&(9 << 20).to_string()), "{error}");
}

#[test]
fn a_master_that_is_not_there_is_named_and_a_second_one_is_refused() {
    let cluster = Cluster::start();
    let mut options = cluster.options(0);
    options.master = format!("127.0.0.1:1,{}", cluster.address());
    let error = Store::connect(options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidParams);
    assert!(error.to_string().contains("standby"), "{error}");

    let error = Store::connect(StoreOptions::new("localhost", "127.0.0.1:1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MasterUnreachable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let error = Store::connect(StoreOptions::new("localhost", "etcd://127.0.0.1:1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
