//! What a put says of its placements at its end: which were written, which were not, and what may still land.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mooncake_client::{Cause, PutItem, PutOptions, PutOutcome, Source, Store, StoreOptions};
use mooncake_test_support::child_process::{asked, say};
use mooncake_test_support::test_name;

use crate::child;
use crate::cluster::{Cluster, MIB, eventually, put, value};
use crate::proxy::Proxy;

/// Not a test by itself: a process that lends memory.
#[test]
fn owner() {
    let Some(options) = child::options(32 * MIB) else { return };
    let store = Store::connect(options).unwrap();
    say(store.hostname());
    assert_eq!(asked().count(), 0, "nothing is asked of it");
}

/// A writer over TCP that does not wait long for an owner that stands still, nor for another place.
fn hasty(cluster: &Cluster) -> StoreOptions {
    let mut options = cluster.options(0);
    options.shared_memory = false;
    options.stall_timeout = Duration::from_millis(250);
    options.put_timeout = Duration::from_millis(1);
    options
}

fn quarantine_ends(cluster: &Cluster) {
    eventually("the owner has proven what it was asked", Duration::from_secs(5), || {
        cluster.metric("mooncake_quarantined_bytes") == 0
    });
}

#[test]
fn a_copy_that_could_not_be_written_is_neither_counted_nor_listed_and_its_space_is_proven_first() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let (stopped, _) = child::start(&cluster, &test_name!("owner"));
    let good = cluster.store(32 * MIB);
    let proxy = Proxy::to(cluster.address());
    let writer = Store::connect(StoreOptions { master: proxy.address.clone(), ..hasty(&cluster) }).unwrap();
    let two = PutOptions { replica_num: 2, ..PutOptions::default() };
    let bytes = value("k", 100_000);
    let warm = writer.put(b"warm", &[Source::new(&bytes)], &two);
    assert_eq!(warm.unwrap(), PutOutcome::Stored { replicas: 2 });
    stopped.stop();
    let half = writer.put(b"k", &[Source::new(&bytes)], &two);
    assert_eq!(half.unwrap(), PutOutcome::Stored { replicas: 1 });
    let described = writer.describe(&["k"]).unwrap().remove(0).unwrap();
    let endpoints: Vec<&str> = described.iter().map(|copy| copy.endpoint.as_str()).collect();
    assert_eq!(endpoints, [good.hostname()]);
    assert!(cluster.metric("mooncake_quarantined_bytes") >= 100_000, "its bytes may still land");
    assert!(proxy.losses.writer_done.lock().unwrap().is_empty(), "nor did the writer say that they cannot");
    assert_eq!(writer.get(b"k").unwrap(), Some(bytes));
    stopped.signal(rustix::process::Signal::CONT);
    quarantine_ends(&cluster);
}

#[test]
fn a_put_whose_bytes_may_still_land_does_not_say_that_it_is_done() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let (stopped, _) = child::start(&cluster, &test_name!("owner"));
    let proxy = Proxy::to(cluster.address());
    let writer = Store::connect(StoreOptions { master: proxy.address.clone(), ..hasty(&cluster) }).unwrap();
    put(&writer, "warm", 4096).unwrap();
    stopped.stop();
    // All of it lies in the sockets, and the owner will find it there.
    assert!(put(&writer, "late", 4096).is_err());
    assert_eq!(*proxy.losses.writer_done.lock().unwrap(), [false]);
    stopped.signal(rustix::process::Signal::CONT);
    quarantine_ends(&cluster);
}

#[test]
fn each_key_of_a_batch_gets_its_own_outcome() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let (small, large) = (cluster.store(4 * MIB), cluster.store(32 * MIB));
    let proxy = Proxy::to(cluster.address());
    let mut options = cluster.options(0);
    options.master = proxy.address.clone();
    options.put_timeout = Duration::from_millis(1);
    let writer = Store::connect(options).unwrap();
    for owner in [&small, &large] {
        // It knows both from now on, and asks for nothing in between.
        let there = PutOptions { preferred_segments: vec![owner.hostname().to_owned()], ..PutOptions::default() };
        writer.put(owner.hostname().as_bytes(), &[Source::new(b"warm")], &there).unwrap();
    }
    // The first alone has no place but with the owner that leaves.
    let sizes = [8 << 20, 1000, 1000];
    let values: Vec<Vec<u8>> = sizes.iter().map(|size| value("bytes", *size)).collect();
    let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
    let items: Vec<PutItem<'_>> =
        ["a", "b", "c"].iter().zip(&sources).map(|(key, value)| PutItem { key: key.as_bytes(), value }).collect();
    let with_small = PutOptions { preferred_segments: vec![small.hostname().to_owned()], ..PutOptions::default() };
    proxy.losses.holding.store(true, Ordering::SeqCst);
    proxy.losses.pass.store(1, Ordering::SeqCst);
    proxy.losses.hold.store(1, Ordering::SeqCst);
    let results = std::thread::scope(|scope| {
        let putting = scope.spawn(|| writer.put_batch(&items, &with_small));
        eventually("the batch is about to end", Duration::from_secs(5), || {
            proxy.losses.held.load(Ordering::SeqCst) == 1
        });
        large.close();
        proxy.losses.holding.store(false, Ordering::SeqCst);
        putting.join().unwrap()
    });
    assert!(matches!(results[0].as_ref().unwrap_err().cause(), Cause::Superseded { .. }), "{results:?}");
    assert_eq!(writer.get(b"a").unwrap(), None);
    for (at, key) in [(1, b"b"), (2, b"c")] {
        assert_eq!(*results[at].as_ref().unwrap(), PutOutcome::Stored { replicas: 1 });
        assert_eq!(writer.get(key).unwrap().as_ref(), Some(&values[at]));
    }
}
