//! A restart with 200,000 objects: all there, well under a second of replay.

mod support;

use std::time::{Duration, Instant};

use mooncake_wire::message::{self, reply, request};
use mooncake_wire::pack_keys;
use support::{Client, Running, Scratch};

const OBJECTS: usize = 200_000;
const BATCH: usize = 1000;

fn key(number: usize) -> String {
    format!("object-{number:08}")
}

#[test]
fn two_hundred_thousand_objects_come_back_quickly() {
    let scratch = Scratch::new("many");
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

    let start = Instant::now();
    let master = Running::start(scratch.settings());
    let took = start.elapsed();
    println!("replayed {OBJECTS} objects in {took:?}");
    // Optimised it takes a few hundred milliseconds; without, on a busy machine, some seconds.
    assert!(took < if cfg!(debug_assertions) { Duration::from_secs(8) } else { Duration::from_secs(1) });
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
