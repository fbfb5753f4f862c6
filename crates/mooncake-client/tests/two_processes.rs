//! Clients in different processes of one host: shared memory, and its end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_client::{Path, PutOptions, PutOutcome, Source, Store};
use mooncake_test_support::child_process::{asked, say};
use mooncake_test_support::test_name;
use mooncake_wire::message::{AnchorDown, AnchorUp, Hello, anchor_down, anchor_up, hello};
use prost::Message;

use crate::child;
use crate::cluster::{Cluster, MIB, eventually, put, value};

/// Not a test by itself: what the other process does.
#[test]
fn host() {
    let Some(options) = child::options(32 * MIB) else { return };
    let store = Store::connect(options.clone()).unwrap();
    let mut others = Vec::new();
    say(store.hostname());
    for line in asked() {
        let (verb, key) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "put" => say(format!("{:?}", put(&store, key, 2 << 20))),
            "replace" => {
                let (key, there) = key.split_once(' ').unwrap();
                let new = value("new", 2 << 20);
                say(format!("{:?}", store.upsert(key.as_bytes(), &[Source::new(&new)], &prefer(there))));
            }
            "file" => {
                let mut options = options.clone();
                options.global_segment_size = 0;
                let other = Store::connect(options).unwrap();
                other.mount_file(std::path::Path::new(key), 0, 8 * MIB).unwrap();
                say(other.hostname());
                others.push(other);
            }
            "get" => say(store.get(key.as_bytes()).unwrap() == Some(value(key, 2 << 20))),
            "close" => {
                store.close();
                say("closed");
            }
            _ => break,
        }
    }
}

fn prefer(name: &str) -> PutOptions {
    PutOptions { preferred_segments: vec![name.to_owned()], ..PutOptions::default() }
}

#[test]
fn bytes_go_through_shared_memory_both_ways() {
    let cluster = Cluster::start();
    let (mut host, _) = child::start(&cluster, &test_name!("host"));
    let store = cluster.store(0);
    assert_eq!(host.ask("put theirs"), "Ok(Stored { replicas: 1 })");
    assert!(store.get(b"theirs").unwrap() == Some(value("theirs", 2 << 20)));
    put(&store, "ours", 2 << 20).unwrap();
    assert_eq!(host.ask("get ours"), "true");
    assert_eq!(store.links().iter().map(|link| link.path).collect::<Vec<_>>(), [Path::SharedMemory]);
    let view = store.view(&["ours"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy());
    // Its owner closes: the object is gone, the view is not.
    assert_eq!(host.ask("close"), "closed");
    eventually("the object is gone", Duration::from_secs(1), || store.get(b"ours").unwrap().is_none());
    assert!(view[..] == value("ours", 2 << 20)[..]);
}

#[test]
fn a_killed_owner_is_a_miss_and_puts_go_elsewhere_within_a_second() {
    let cluster = Cluster::start();
    let (mut host, there) = child::start(&cluster, &test_name!("host"));
    let store = cluster.store(32 * MIB);
    let tcp = cluster.tcp_store(0);
    let bytes = value("a", 2 << 20);
    store.put(b"a", &[Source::new(&bytes)], &prefer(&there)).unwrap();
    store.put(b"viewed", &[Source::new(&bytes)], &prefer(&there)).unwrap();
    assert!(tcp.get(b"a").unwrap().as_ref() == Some(&bytes));
    let view = store.view(&["viewed"]).remove(0).unwrap().unwrap();
    let both = PutOptions { replica_num: 2, ..PutOptions::default() };
    assert_eq!(store.put(b"both", &[Source::new(&bytes)], &both).unwrap(), PutOutcome::Stored { replicas: 2 });

    host.kill();
    let killed = Instant::now();
    for reader in [&store, &tcp] {
        assert!(reader.get(b"both").unwrap().as_ref() == Some(&bytes));
    }
    eventually("gets miss", Duration::from_secs(1), || {
        store.get(b"a").unwrap().is_none() && tcp.get(b"a").unwrap().is_none()
    });
    for store in [&store, &tcp] {
        let started = Instant::now();
        let key = format!("after/{:?}", started);
        let stored = store.put(key.as_bytes(), &[Source::new(&bytes)], &prefer(&there)).unwrap();
        assert_eq!(stored, PutOutcome::Stored { replicas: 1 });
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }
    eventually("it does not exist", Duration::from_secs(2).saturating_sub(killed.elapsed()), || {
        store.exists(&["a"]).unwrap() == [false]
    });
    assert!(view[..] == bytes[..]);
}

#[test]
fn a_killed_writer_does_not_keep_its_key() {
    let cluster = Cluster::start();
    let store = cluster.store(64 * MIB);
    for round in 0..5 {
        let (mut host, _) = child::start(&cluster, &test_name!("host"));
        let key = format!("k{round}");
        host.say(format_args!("put {key}"));
        std::thread::sleep(Duration::from_micros(round * 700));
        host.kill();
        let killed = Instant::now();
        eventually("the key is there, whole", Duration::from_secs(1), || {
            put(&store, &key, 2 << 20).is_ok() && store.get(key.as_bytes()).unwrap() == Some(value(&key, 2 << 20))
        });
        println!("free after {:?}", killed.elapsed());
    }
}

#[test]
fn a_killed_writer_of_a_replacement_leaves_a_whole_value() {
    let cluster = Cluster::start();
    let store = cluster.store(64 * MIB);
    let (old, new) = (value("old", 2 << 20), value("new", 2 << 20));
    for round in 0..6 {
        let (mut host, _) = child::start(&cluster, &test_name!("host"));
        // Both values only here, so that nothing of them goes with the writer.
        store.upsert(b"k", &[Source::new(&old)], &prefer(store.hostname())).unwrap();
        host.say(format_args!("replace k {}", store.hostname()));
        std::thread::sleep(Duration::from_micros(round * 900));
        host.kill();
        let found = store.get(b"k").unwrap().expect("one value or the other");
        assert!(found == old || found == new, "round {round}");
        eventually("the key can be replaced again", Duration::from_secs(2), || {
            store.upsert(b"k", &[Source::new(&new)], &prefer(store.hostname())).is_ok()
        });
        assert!(store.get(b"k").unwrap().as_ref() == Some(&new));
    }
}

#[test]
fn memory_over_a_file_is_reached_by_tcp_on_the_same_host_too() {
    let cluster = Cluster::start();
    let (mut host, _) = child::start(&cluster, &test_name!("host"));
    let path = format!("/dev/shm/mooncake-two-processes-{}", std::process::id());
    std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let name = host.ask(format!("file {path}"));
    let store = cluster.store(0);
    let bytes = value("a", 2 << 20);
    store.put(b"a", &[Source::new(&bytes)], &prefer(&name)).unwrap();
    assert_eq!(store.describe(&["a"]).unwrap()[0].as_ref().unwrap()[0].endpoint, name);
    assert!(store.get(b"a").unwrap().as_ref() == Some(&bytes));
    assert_eq!(host.ask("get a"), "true");
    assert_eq!(store.links().iter().map(|link| link.path).collect::<Vec<_>>(), [Path::Tcp]);
    assert!(store.view(&["a"]).remove(0).unwrap().unwrap().is_private_copy());
    host.kill();
    eventually("it is gone with its owner", Duration::from_secs(2), || store.get(b"a").unwrap().is_none());
    std::fs::remove_file(&path).unwrap();
}

/// Carries frames, but for what the master says of segments that are gone. An anchor is cut in the place of the first
/// message that says that a peer is gone; counts these messages.
fn forgetful_proxy(master: String) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let told = Arc::new(AtomicU64::new(0));
    let counted = told.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&master) else { continue };
            let (up, told) = ((client.try_clone().unwrap(), server.try_clone().unwrap()), counted.clone());
            std::thread::spawn(move || carry_up(up, &told));
            std::thread::spawn(move || {
                carry((server, client), |frame| {
                    let message = AnchorDown::decode(frame).unwrap_or_default();
                    Some(!matches!(message.body, Some(anchor_down::Body::SegmentGone(_))))
                })
            });
        }
    });
    (address, told)
}

fn carry_up((mut from, mut to): (TcpStream, TcpStream), told: &AtomicU64) {
    let mut preface = [0; 8];
    if from.read_exact(&mut preface).and_then(|()| to.write_all(&preface)).is_err() {
        return;
    }
    let mut hello = None;
    carry((from, to), |frame| {
        let Some(is_anchor) = hello else {
            let role = Hello::decode(frame).unwrap_or_default().role;
            hello = Some(!matches!(role, Some(hello::Role::Attach(_))));
            return Some(true);
        };
        let message = AnchorUp::decode(frame).unwrap_or_default();
        let is_told = is_anchor && matches!(message.body, Some(anchor_up::Body::PeerGone(_)));
        // None: cut.
        (!is_told || told.fetch_add(1, Ordering::SeqCst) > 0).then_some(true)
    });
}

/// Frames one way. `judge`: whether one is carried; none ends both ways.
fn carry((mut from, mut to): (TcpStream, TcpStream), mut judge: impl FnMut(&[u8]) -> Option<bool>) {
    let mut header = [0; 4];
    while from.read_exact(&mut header).is_ok() {
        let mut body = vec![0; u32::from_le_bytes(header) as usize];
        if from.read_exact(&mut body).is_err() {
            break;
        }
        match judge(&body) {
            None => break,
            Some(false) => {}
            Some(true) if to.write_all(&header).and_then(|()| to.write_all(&body)).is_err() => break,
            Some(true) => {}
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
fn what_a_process_saw_of_anothers_end_is_told_again_when_the_connection_ended_under_it() {
    let cluster = Cluster::start_with(|settings| settings.unix_socket = false);
    let (mut host, _) = child::start(&cluster, &test_name!("host"));
    let (address, told) = forgetful_proxy(cluster.address());
    let mut options = cluster.options(0);
    options.master = address;
    let store = Store::connect(options).unwrap();
    assert_eq!(host.ask("put theirs"), "Ok(Stored { replicas: 1 })");
    // One that never changed anything has nothing to come back for.
    drop(store.view(&["theirs"]).remove(0).unwrap().unwrap());
    assert_eq!(store.links().iter().map(|link| link.path).collect::<Vec<_>>(), [Path::SharedMemory]);
    host.kill();
    eventually("it is told twice", Duration::from_secs(3), || told.load(Ordering::SeqCst) >= 2);
}
