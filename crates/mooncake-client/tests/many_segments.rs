//! One client that lends very many segments, and one that uses them, by shared memory and by TCP.

mod child;
mod cluster;

use std::time::Instant;

use cluster::Cluster;
use mooncake_client::{Path, PutOptions, PutOutcome, Source, Store};
use mooncake_test_support::child_process::{asked, say};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as a large pool has.
const MANY: usize = 1_000;

/// One object fills one.
const SEGMENT: u64 = 16 << 10;

/// Not a test by itself: a process that lends so many segments as it is asked to.
#[test]
fn lender() {
    let Some(options) = child::options(0) else { return };
    let store = Store::connect(options).unwrap();
    say("ready");
    for line in asked() {
        let began = Instant::now();
        for _ in 0..line.parse::<usize>().unwrap() {
            store.mount_memory(SEGMENT).unwrap();
        }
        say(format!("{} {}", descriptors(), began.elapsed().as_millis()));
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn key(number: usize) -> Vec<u8> {
    format!("object {number}").into_bytes()
}

fn value(number: usize) -> Vec<u8> {
    cluster::value(&format!("{number}"), SEGMENT as usize)
}

/// Fills all segments, and reads what is there, some of it by several threads.
fn use_all(store: &Store, segments: usize) {
    for number in 0..segments {
        let put = store.put(&key(number), &[Source::new(&value(number))], &PutOptions::default());
        assert_eq!(put.unwrap(), PutOutcome::Stored { replicas: 1 }, "object {number}");
    }
    std::thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                for number in (first..segments).step_by(4) {
                    assert!(store.get(&key(number)).unwrap() == Some(value(number)), "object {number}");
                }
            });
        }
    });
}

/// Not a test by itself: a process that uses all segments, and says what that takes.
#[test]
fn user() {
    let Some(mut options) = child::options(0) else { return };
    say("ready");
    for line in asked() {
        let (segments, path) = line.split_once(' ').unwrap();
        let segments: usize = segments.parse().unwrap();
        options.shared_memory = path == Path::SharedMemory.to_string();
        let store = Store::connect(options.clone()).unwrap();
        let (descriptors_before, threads_before, began) = (descriptors(), threads(), Instant::now());
        use_all(&store, segments);
        let took = began.elapsed().as_millis();
        let links = store.links();
        assert!(links.iter().all(|link| link.path.to_string() == path), "{links:?}");
        let (opened, more) = (descriptors() - descriptors_before, threads().saturating_sub(threads_before));
        say(format!("{} {opened} {more} {took}", links.len()));
    }
}

fn crowd(segments: usize, path: Path) {
    let cluster = Cluster::start();
    let (mut lender, _) = child::start(&cluster, "lender");
    let lent = figures(&lender.ask(segments.to_string()));
    let (mut user, _) = child::start(&cluster, "user");
    let [links, opened, threads, took] = figures(&user.ask(format!("{segments} {path}")))[..] else { unreachable!() };
    println!(
        "{segments} segments by {path}: lent in {} ms with {} descriptors; filled and read in {took} ms with {opened} \
         descriptors and {threads} threads",
        lent[1], lent[0]
    );
    assert_eq!(links, segments);
    // What calls to the master take besides.
    let most = 96 + if path == Path::Tcp { segments } else { 5 * segments };
    assert!(opened <= most, "{opened} descriptors for {segments} segments");
    assert!(threads < 16, "{threads} threads for {segments} segments");
}

fn figures(told: &str) -> Vec<usize> {
    told.split(' ').map(|figure| figure.parse().unwrap()).collect()
}

#[test]
fn a_client_uses_a_thousand_segments_over_shared_memory() {
    crowd(MANY, Path::SharedMemory);
}

#[test]
fn a_client_uses_a_thousand_segments_over_tcp() {
    crowd(MANY, Path::Tcp);
}

/// Not a test by itself: a process that may have few files open, and uses all that there is.
#[test]
fn short_of_descriptors() {
    let Some(mut options) = child::options(0) else { return };
    options.raise_descriptors = false;
    options.shared_memory = false;
    let store = Store::connect(options).unwrap();
    say("ready");
    for line in asked() {
        let segments: usize = line.parse().unwrap();
        // Warm: the calls to the master have what they need.
        store.get(&key(0)).unwrap();
        let limit = descriptors() as u64 + 20;
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..getrlimit(Resource::Nofile) }).unwrap();
        let (mut hits, mut told) = (0, 0);
        for number in 0..segments {
            match store.get(&key(number)) {
                Ok(Some(read)) => hits += usize::from(read == value(number)),
                Ok(None) => {}
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("no descriptor is left of the") && text.contains("ulimit"), "{text}");
                    told += 1;
                }
            }
        }
        let raised = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: raised, maximum: raised }).unwrap();
        let after = (0..segments).filter(|number| store.get(&key(*number)).unwrap() == Some(value(*number))).count();
        say(format!("{hits} {told} {after}"));
    }
}

#[test]
fn an_object_that_there_is_no_descriptor_for_is_an_error_that_says_so_and_no_miss() {
    const SEGMENTS: usize = 40;
    let cluster = Cluster::start();
    let (mut lender, _) = child::start(&cluster, "lender");
    lender.ask(SEGMENTS.to_string());
    use_all(&cluster.store(0), SEGMENTS);
    let (mut reader, _) = child::start(&cluster, "short_of_descriptors");
    let [hits, told, after] = figures(&reader.ask(SEGMENTS.to_string()))[..] else { unreachable!() };
    assert!(hits > 0 && told > 0 && hits + told == SEGMENTS, "{hits} hits, {told} errors");
    assert_eq!(after, SEGMENTS, "with more of them all is read at once");
}

#[test]
fn a_store_raises_the_limit_of_open_files_unless_it_is_told_not_to() {
    let cluster = Cluster::start();
    for (raises, wanted) in [("0", "64"), ("1", "128")] {
        let limited = ["sh", "-c", "ulimit -Sn 64; ulimit -Hn 128; exec \"$@\"", raises];
        let (_other, limit) = child::start_by(&limited, &cluster, if raises == "1" { "raising" } else { "modest" });
        assert_eq!(limit, wanted);
    }
}

/// Not tests by themselves: processes with a low limit of open files, which say what it is with a store.
#[test]
fn raising() {
    say_limit(true);
}

#[test]
fn modest() {
    say_limit(false);
}

fn say_limit(raise_descriptors: bool) {
    let Some(mut options) = child::options(0) else { return };
    options.raise_descriptors = raise_descriptors;
    let _store = Store::connect(options).unwrap();
    say(getrlimit(Resource::Nofile).current.unwrap());
}
