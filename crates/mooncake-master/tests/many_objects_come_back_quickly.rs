//! A restart with 200,000 objects: all there within 0.6 s, in which the master says that it is not ready.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mooncake_master::Settings;
use mooncake_wire::message::{self, reply, request};
use mooncake_wire::pack_keys;

use crate::support::{Client, Running, Scratch};

const OBJECTS: usize = 200_000;
const BATCH: usize = 1000;

/// From the start of the process's work until it serves. A build that is not optimised takes ten times as long.
const RESTART_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 8_000 } else { 600 });

/// Restarts of which the best counts: other tests have the processors too.
const RESTARTS: usize = 5;

fn key(number: usize) -> String {
    format!("object-{number:08}")
}

/// What `/health` says from the first moment on, and what another page says while that is no.
fn readiness_until_true(web: SocketAddr) -> (Vec<bool>, Vec<String>) {
    let page = |path: &str| -> Option<String> {
        let mut stream = TcpStream::connect(web).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let (mut said, mut keys) = (Vec::new(), Vec::new());
    let until = Instant::now() + Duration::from_secs(60);
    while said.last() != Some(&true) && Instant::now() < until {
        // The processors are for the master.
        std::thread::sleep(Duration::from_millis(20));
        // Asked before health is: what is not ready after it was not ready before.
        let answer = page("/get_all_keys");
        let Some(health) = page("/health") else { continue };
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
        said.push(health.contains("\"service_ready\":true"));
        if said.last() == Some(&false) {
            keys.extend(answer.map(|answer| answer.lines().next().unwrap_or_default().to_owned()));
        }
    }
    (said, keys)
}

/// A master that has read the log, and how long that took it.
fn restarted(scratch: &Scratch) -> (Running, Duration) {
    let web = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let asking = std::thread::spawn(move || readiness_until_true(web));
    let start = Instant::now();
    let master = Running::start(Settings { metrics_port: web.port(), ..scratch.settings() });
    let took = start.elapsed();
    let (said, keys) = asking.join().unwrap();
    assert!(said.contains(&false), "it was asked while it read the log");
    assert!(said.is_sorted(), "ready once and for all: {said:?}");
    assert!(keys.iter().all(|head| head.starts_with("HTTP/1.1 503")), "no page answers from half a log: {keys:?}");
    println!("replayed {OBJECTS} objects in {took:?}");
    (master, took)
}

#[test]
fn two_hundred_thousand_objects_come_back_quickly() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(OBJECTS as u64 * 1024);
    for batch in 0..OBJECTS / BATCH {
        let keys: Vec<String> = (batch * BATCH..(batch + 1) * BATCH).map(key).collect();
        let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 64)).collect();
        let rids = client.start(&entries);
        assert!(client.end(&rids).iter().all(|o| *o == message::put_end_reply::Outcome::Committed as i32));
        if batch % 20 == 0 {
            client.beat();
        }
    }
    master.stop();

    let (mut master, mut best) = restarted(&scratch);
    for _ in 1..RESTARTS {
        if best <= RESTART_MAX {
            break;
        }
        master.stop();
        let (again, took) = restarted(&scratch);
        (master, best) = (again, best.min(took));
    }
    assert!(best <= RESTART_MAX, "{OBJECTS} objects came back in {best:?} at best");
    client.resume(master.rpc);
    let mut there = 0;
    for batch in 0..OBJECTS / BATCH {
        let keys: Vec<String> = (batch * BATCH..(batch + 1) * BATCH).map(key).collect();
        let ask = message::Exists { keys: Some(pack_keys(&keys)), sizes: false };
        let reply::Body::Exists(found) = client.call(request::Body::Exists(ask)) else { panic!("no answer") };
        there += found.found.iter().filter(|found| **found == 1).count();
    }
    assert_eq!(there, OBJECTS);
    master.stop();
}
