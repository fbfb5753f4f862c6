//! Puts from and gets into a device's memory: the pool does what it does with any other memory.

mod bit_flip;
mod cluster;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bit_flip::{flip, segment};
use cluster::{Cluster, MIB, eventually, put, value};
use mooncake_client::{Destination, ErrorKind, ForeignRange, GetInto, PutItem, PutOptions, Source, Store, StoreError};
use mooncake_test_support::fake_cuda::{FakeCuda, ILLEGAL_ADDRESS, OUT_OF_MEMORY};

fn stores() -> (Cluster, Store, Store) {
    let cluster = Cluster::start();
    let owner = cluster.store(64 * MIB);
    let tcp = cluster.tcp_store(0);
    (cluster, owner, tcp)
}

fn put_from(store: &Store, key: &str, range: ForeignRange) -> Result<(), StoreError> {
    store.put(key.as_bytes(), &[Source::foreign(range, store.registry()).unwrap()], &PutOptions::default()).map(drop)
}

fn get_into(store: &Store, key: &str, range: ForeignRange) -> Result<Option<u64>, StoreError> {
    let destination = Destination::foreign(range, store.registry()).unwrap();
    store.get_into(&mut [GetInto { key: key.as_bytes(), destinations: vec![destination] }]).remove(0)
}

/// The shape in which an engine stores the blocks of its cache: one object of
/// many pieces, one for each layer, out of one registered range.
#[test]
fn batches_of_many_buffers_of_one_registered_cache_come_back() {
    const KEYS: usize = 16;
    const LAYERS: usize = 32;
    const BLOCK: usize = 16 << 10;
    let fake = FakeCuda::load();
    fake.delay(20);
    let (_cluster, owner, tcp) = stores();
    for store in [&owner, &tcp] {
        let contents = value("cache", KEYS * LAYERS * BLOCK);
        let cache = fake.holding(0, &contents);
        store.register(cache.range()).unwrap();
        let block = |key: usize, layer: usize| cache.part((layer * KEYS + key) * BLOCK, BLOCK);
        let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("{key}-{}", cache.addr).into_bytes()).collect();
        let sources: Vec<Vec<Source>> = (0..KEYS)
            .map(|key| (0..LAYERS).map(|layer| Source::foreign(block(key, layer), store.registry()).unwrap()).collect())
            .collect();
        let items: Vec<PutItem> = keys.iter().zip(&sources).map(|(key, value)| PutItem { key, value }).collect();
        assert!(store.put_batch(&items, &PutOptions::default()).iter().all(Result::is_ok));

        cache.write(0, &vec![0; contents.len()]);
        let mut items: Vec<GetInto> = (0..KEYS)
            .map(|key| GetInto {
                key: &keys[key],
                destinations: (0..LAYERS)
                    .map(|layer| Destination::foreign(block(key, layer), store.registry()).unwrap())
                    .collect(),
            })
            .collect();
        for got in store.get_into(&mut items) {
            assert_eq!(got.unwrap(), Some((LAYERS * BLOCK) as u64));
        }
        assert!(cache.read() == contents);
        // What any process without a device reads.
        let first: Vec<u8> =
            (0..LAYERS).flat_map(|layer| &contents[layer * KEYS * BLOCK..][..BLOCK]).copied().collect();
        assert!(owner.get(&keys[0]).unwrap().unwrap() == first);
        store.unregister(cache.addr).unwrap();
    }
    assert_eq!(fake.count("strays"), 0);
}

/// Objects of a batch that is large, each of them short: what is on its way for one must not wait for another's.
#[test]
fn objects_of_a_large_batch_go_side_by_side_and_each_has_its_own_outcome() {
    const KEYS: usize = 24;
    const LEN: usize = 1 << 20;
    const BEYOND: usize = 13;
    let fake = FakeCuda::load();
    let (_cluster, owner, tcp) = stores();
    for (nth, store) in [&owner, &tcp].into_iter().enumerate() {
        fake.delay(2_000);
        let contents = value("batch", KEYS * LEN);
        let memory = fake.holding(0, &contents);
        let small = fake.alloc(0, 100);
        let range = |key: usize| if key == BEYOND { small.part(0, LEN) } else { memory.part(key * LEN, LEN) };
        let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("{nth}-{key}").into_bytes()).collect();
        let sources: Vec<Source> =
            (0..KEYS).map(|key| Source::foreign(range(key), store.registry()).unwrap()).collect();
        let items: Vec<PutItem> =
            keys.iter().zip(&sources).map(|(key, value)| PutItem { key, value: std::slice::from_ref(value) }).collect();
        fake.count("abreast");
        let outcomes = store.put_batch(&items, &PutOptions::default());
        let putting = fake.count("abreast");
        for (key, outcome) in outcomes.iter().enumerate() {
            match key {
                BEYOND => assert_eq!(outcome.as_ref().unwrap_err().kind(), ErrorKind::InvalidParams),
                _ => assert!(outcome.is_ok(), "{key}: {outcome:?}"),
            }
        }
        put(store, &format!("{nth}-{BEYOND}"), LEN).unwrap();

        memory.write(0, &vec![0; contents.len()]);
        let mut items: Vec<GetInto> = keys
            .iter()
            .enumerate()
            .map(|(nth, key)| GetInto {
                key,
                destinations: vec![Destination::foreign(range(nth), store.registry()).unwrap()],
            })
            .collect();
        for (key, outcome) in store.get_into(&mut items).into_iter().enumerate() {
            match key {
                BEYOND => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidParams),
                _ => assert_eq!(outcome.unwrap(), Some(LEN as u64), "{key}"),
            }
        }
        let mut expected = contents;
        expected[BEYOND * LEN..][..LEN].fill(0);
        assert!(memory.read() == expected);
        let getting = fake.count("abreast");
        // One object has four copies on their way at most, by TCP fewer. One processor gains nothing by another thread.
        if nth == 0 && std::thread::available_parallelism().unwrap().get() > 1 {
            assert!(putting > 4 && getting > 4, "{putting} and {getting}");
        }
    }
    assert_eq!(fake.count("strays"), 0);
}

#[test]
fn what_interrupts_a_large_batch_ends_it_on_all_its_threads_and_nothing_is_stored() {
    const KEYS: usize = 32;
    let fake = FakeCuda::load();
    let cluster = Cluster::start();
    let owner = cluster.store(64 * MIB);
    // The caller wants no more once so many copies are made, whenever it is asked.
    let enough = Arc::new(AtomicI64::new(i64::MAX));
    let (copies, limit) = (fake.counter("copies"), enough.clone());
    let mut options = cluster.options(0);
    options.interrupted = Some(Arc::new(move || {
        let thread = std::thread::current();
        assert!(!thread.name().is_some_and(|name| name.starts_with("mooncake-copy")), "it is the caller's to ask");
        // Says it once, as a signal does.
        copies() >= limit.load(Ordering::SeqCst) && limit.swap(i64::MAX, Ordering::SeqCst) < i64::MAX
    }));
    let store = Store::connect(options).unwrap();
    put(&store, "warm", 2 << 20).unwrap();
    let memory = fake.alloc(0, KEYS << 20);
    let names: Vec<String> = (0..KEYS).map(|key| format!("interrupted-{key}")).collect();
    let sources: Vec<Source> =
        (0..KEYS).map(|key| Source::foreign(memory.part(key << 20, 1 << 20), store.registry()).unwrap()).collect();
    let items: Vec<PutItem> = names
        .iter()
        .zip(&sources)
        .map(|(key, value)| PutItem { key: key.as_bytes(), value: std::slice::from_ref(value) })
        .collect();
    fake.delay(2_000);
    enough.store(fake.count("copies") + 8, Ordering::SeqCst);
    for outcome in store.put_batch(&items, &PutOptions::default()) {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Interrupted);
    }
    assert!(owner.exists(&names).unwrap().iter().all(|found| !found));
    // What it held is free again at once: the segment has no room for this otherwise.
    put(&store, "after", 40 << 20).unwrap();
}

#[test]
fn the_threads_of_a_batch_report_what_is_bad_and_leave_the_hook_to_the_caller() {
    const KEYS: usize = 8;
    let fake = FakeCuda::load();
    let cluster = Cluster::start();
    // A size that no other segment of this process has.
    let size = 37 * MIB;
    let owner = cluster.store(size);
    let mut options = cluster.options(0);
    options.interrupted = Some(Arc::new(|| {
        let thread = std::thread::current();
        assert!(!thread.name().is_some_and(|name| name.starts_with("mooncake-copy")), "it is the caller's to ask");
        false
    }));
    let reader = Store::connect(options).unwrap();
    let names: Vec<String> = (0..KEYS).map(|key| format!("bad-{key}")).collect();
    for name in &names {
        put(&owner, name, 1 << 20).unwrap();
        flip(&segment(size), &value(name, 1 << 20));
    }
    fake.delay(2_000);
    let memory = fake.alloc(0, KEYS << 20);
    let mut items: Vec<GetInto> = (0..KEYS)
        .map(|key| GetInto {
            key: names[key].as_bytes(),
            destinations: vec![Destination::foreign(memory.part(key << 20, 1 << 20), reader.registry()).unwrap()],
        })
        .collect();
    for got in reader.get_into(&mut items) {
        assert_eq!(got.unwrap(), None);
    }
    eventually("all are dropped", Duration::from_secs(2), || !owner.exists(&names).unwrap().contains(&true));
}

#[test]
fn a_device_that_fails_is_no_miss_and_leaves_the_key_free() {
    let fake = FakeCuda::load();
    let (_cluster, owner, tcp) = stores();
    for (nth, store) in [&owner, &tcp].into_iter().enumerate() {
        let (bad, good) = (format!("bad-{nth}"), format!("good-{nth}"));
        let memory = fake.alloc(0, 3 << 20);
        put(store, &good, 3 << 20).unwrap();
        for (call, code, after) in [
            // After a failure like this the next call makes its pinned memory anew.
            ("cuMemcpyDtoHAsync", ILLEGAL_ADDRESS, 0),
            ("cuMemHostAlloc", OUT_OF_MEMORY, 0),
            // In the middle of the first object, or of a stream.
            ("cuMemcpyDtoHAsync", ILLEGAL_ADDRESS, [2, 6][nth]),
            ("cuStreamSynchronize", ILLEGAL_ADDRESS, 2),
        ] {
            fake.fail(call, code, after, -1);
            let error = put_from(store, &bad, memory.range()).unwrap_err();
            fake.mend();
            assert_eq!(error.kind(), ErrorKind::Transfer, "{call}: {error}");
            assert!(error.to_string().contains(call), "{error}");
        }
        for (call, after) in [("cuMemHostAlloc", 0), ("cuMemcpyHtoDAsync", 2), ("cuStreamSynchronize", 0)] {
            fake.fail(call, ILLEGAL_ADDRESS, after, -1);
            let error = get_into(store, &good, memory.range()).unwrap_err();
            fake.mend();
            assert_eq!(error.kind(), ErrorKind::Transfer, "{call}: {error}");
            // So that the next has to make its own.
            fake.fail("cuMemcpyDtoHAsync", ILLEGAL_ADDRESS, 0, 1);
            put_from(store, &bad, memory.range()).unwrap_err();
            fake.mend();
        }
        put(store, &bad, 300_000).unwrap();
        assert_eq!(get_into(store, &good, memory.range()).unwrap(), Some(3 << 20));
        assert!(memory.read() == value(&good, 3 << 20));
    }
}

#[test]
fn a_range_beyond_a_devices_memory_is_the_callers_mistake() {
    let fake = FakeCuda::load();
    let (_cluster, owner, tcp) = stores();
    for store in [&owner, &tcp] {
        let memory = fake.alloc(0, 100_000);
        for range in [memory.part(0, 100_001), memory.part(99_999, 4096), memory.part(1 << 33, 4096)] {
            assert_eq!(store.register(range).unwrap_err().kind(), ErrorKind::InvalidParams);
            let error = put_from(store, "beyond", range).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        }
        store.register(memory.range()).unwrap();
        let freed = memory.range();
        drop(memory);
        let error = put_from(store, "freed", freed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        store.unregister(freed.addr()).unwrap();
    }
}
