//! What an owner's lanes do when their peers are slow, silent or in the middle of something.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mooncake_memory::{Destination, Source};
use mooncake_os::Deadline;
use mooncake_segment::{LinkOptions, Path, Paths, ServerOptions};
use support::*;

/// An owner whose lanes may stand still for this long.
fn impatient(stall_timeout: Duration) -> Owner {
    Owner::with(4 * MIB, ServerOptions { stall_timeout, ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) })
}

fn lane(owner: &Owner) -> TcpStream {
    let lane = lane_by_hand(&owner.address(), None);
    lane.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    lane
}

/// What was answered: its status, and the length that it announces.
fn answer(lane: &mut TcpStream) -> (u8, u64) {
    let mut reply = [0; 32];
    lane.read_exact(&mut reply).unwrap();
    (reply[4], u64::from_le_bytes(reply[16..24].try_into().unwrap()))
}

#[test]
fn a_lane_is_silent_between_requests_for_as_long_as_it_likes_and_not_inside_one() {
    let owner = impatient(Duration::from_millis(100));
    let [mut idle, mut half_asked, mut half_written] = [(); 3].map(|()| lane(&owner));
    half_asked.write_all(&request_by_hand(1, rid(1, 1), 0, 1)[..30]).unwrap();
    half_written.write_all(&request_by_hand(2, rid(1, 1), 0, 4096)).unwrap();
    half_written.write_all(&[5; 100]).unwrap();
    for lane in [&mut half_asked, &mut half_written] {
        assert!(matches!(lane.read(&mut [0]), Ok(0) | Err(_)), "closed");
    }
    eventually("their threads have ended", || owner.server.lanes() == 1);
    // Nobody waits for the writer either: the extent is free.
    idle.write_all(&[&request_by_hand(2, rid(1, 2), 0, 4096)[..], &[6; 4096]].concat()).unwrap();
    assert_eq!(answer(&mut idle).0, 0);
}

#[test]
fn a_large_read_that_is_late_already_is_refused_without_its_bytes() {
    let owner = impatient(Duration::from_secs(3));
    owner.memory.mapping().write(rid(1, 2), 0, &[Source::new(&pattern(MIB, 1))]).unwrap();
    let mut lane = lane(&owner);
    lane.write_all(&request_by_hand(1, rid(1, 1), 0, MIB)).unwrap();
    assert_eq!(answer(&mut lane), (1, 0));
    // And the lane is at its next request.
    lane.write_all(&request_by_hand(1, rid(1, 2), 0, MIB)).unwrap();
    assert_eq!(answer(&mut lane), (0, MIB));
}

#[test]
fn a_fence_does_not_wait_for_a_peer_that_leaves_its_answers_unread() {
    let owner = impatient(Duration::from_secs(20));
    let mut lane = lane_by_hand(&owner.address(), Some(4096));
    lane.set_nonblocking(true).unwrap();
    let request = [&request_by_hand(2, rid(1, 1), 0, 1)[..], &[5]].concat();
    let (mut sent, mut still_since) = (0, Instant::now());
    // Until the owner takes no more, as nobody reads what it answers.
    while still_since.elapsed() < Duration::from_millis(100) {
        match lane.write(&request[sent % request.len()..]) {
            Ok(count) => (sent, still_since) = (sent + count, Instant::now()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("{e}"),
        }
    }
    let fenced = owner.fence(rid(1, 1), 0, 4096);
    assert!(fenced || owner.hears_within(5000) == Some(Heard::Fenced(rid(1, 1))));
    // Not by cutting the lane, which answers all that it was asked.
    lane.set_nonblocking(false).unwrap();
    lane.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..sent / request.len() {
        let mut reply = [0; 32];
        lane.read_exact(&mut reply).unwrap();
    }
}

#[test]
fn a_segment_that_is_removed_cuts_the_lanes_in_mid_write_and_ends_its_fences() {
    let owner = impatient(Duration::from_secs(20));
    let _idle: Vec<TcpStream> = (0..8).map(|_| lane(&owner)).collect();
    let mut lane = lane(&owner);
    lane.write_all(&request_by_hand(2, rid(1, 1), 0, 4096)).unwrap();
    lane.write_all(&[5; 100]).unwrap();
    let mapping = owner.memory.mapping();
    eventually("the write has begun", || mapping.crc(0, 100).unwrap() == mooncake_memory::crc32c(&[5; 100]));
    assert!(!owner.fence(rid(1, 1), 0, 4096));
    let begun = Instant::now();
    assert!(owner.server.remove(owner.memory.uuid()), "nothing writes there any more");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(owner.server.lanes(), 0);
    assert_eq!(owner.hears_within(5000), Some(Heard::Fenced(rid(1, 1))));
    assert!(matches!(lane.read(&mut [0]), Ok(0) | Err(_)), "closed");
}

#[test]
fn a_mapped_peer_hears_at_once_that_a_segment_is_removed() {
    let owner = impatient(Duration::from_secs(3));
    let mut peer = attached_by_hand(&owner.address(), 1);
    assert!(owner.server.remove(owner.memory.uuid()));
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "hung up");
    assert_eq!(owner.server.attached(), 0);
}

#[test]
fn a_peer_that_says_what_is_not_its_to_say_is_hung_up_on_and_still_waited_for() {
    let owner = impatient(Duration::from_secs(3));
    let mut peer = attached_by_hand(&owner.address(), 1);
    peer.write_all(&attach_frame(4, 0)).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "hung up");
    assert_eq!(owner.server.attached(), 1, "the memory may be mapped");
}

#[test]
fn a_restarted_owner_gets_its_port_back_at_once() {
    let owner = impatient(Duration::from_secs(3));
    let at = owner.server.tcp_addr();
    let mut lane = lane(&owner);
    // The owner closes first: the connection lingers on its side.
    owner.server.shutdown();
    assert!(matches!(lane.read(&mut [0]), Ok(0) | Err(_)));
    drop(lane);
    drop(owner);
    let again = Owner::with(MIB, ServerOptions::new(at.ip(), at.port(), OWNER));
    assert_eq!(again.server.tcp_addr(), at);
}

/// What a store does that reaches this owner over TCP only.
fn over_tcp(most: usize) -> LinkOptions {
    LinkOptions { paths: Paths::only(Path::Tcp), max_lanes: most, ..LinkOptions::new(WRITER) }
}

#[test]
fn whoever_finds_an_owner_with_too_many_lanes_waits_for_one() {
    let options = ServerOptions { max_lanes: 1, ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) };
    let owner = Owner::with(MIB, options);
    let first = lane(&owner);
    let (links, _noticed) = links_with(over_tcp(8));
    let short = Deadline::at(Instant::now() + Duration::from_millis(150));
    assert!(links.link(&owner.address(), &short).is_err(), "it is told why in its time");
    let address = owner.address();
    std::thread::scope(|threads| {
        let linked = threads.spawn(|| links.link(&address, &soon()).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        drop(first);
        linked.join().unwrap().unwrap();
    });
}

#[test]
fn no_read_fails_and_no_put_loses_a_replica_because_an_owner_has_few_lanes_or_few_workers() {
    for (max_lanes, max_workers) in [(2, 2), (64, 2), (2, 64)] {
        let options = ServerOptions { max_lanes, max_workers, ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) };
        let owner = Owner::with(16 * MIB, options);
        let (links, _noticed) = links_with(over_tcp(64));
        let (links, address) = (&links, &owner.address());
        std::thread::scope(|threads| {
            for thread in 0..8 {
                threads.spawn(move || {
                    for round in 1..=12 {
                        // Small ones, and such as hold their worker up.
                        let len = if round % 3 == 0 { 300_000 } else { 4096 };
                        let (placement, offset) = (rid(1, round * 8 + thread), thread * MIB);
                        let value = pattern(len, placement.0 as u8);
                        let link = links.link(address, &soon()).unwrap();
                        let crc = link.write(placement, offset, &[Source::new(&value)], &soon()).unwrap();
                        let mut back = vec![0; value.len()];
                        link.read(placement, offset, &mut [Destination::new(&mut back)], Some(crc), &soon()).unwrap();
                        assert!(back == value);
                    }
                });
            }
        });
        assert!(owner.server.lanes() <= max_lanes);
    }
}

/// An owner of few workers, whose peers may stand still for longer than any test lasts.
fn with_workers(max_workers: usize) -> Owner {
    let local = ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER);
    let owner = Owner::with(32 * MIB, ServerOptions { stall_timeout: Duration::from_secs(60), max_workers, ..local });
    owner.memory.mapping().write(rid(1, 1), 0, &[Source::new(&pattern(24 * MIB, 1))]).unwrap();
    owner
}

#[test]
fn peers_that_stand_still_in_mid_request_keep_no_worker_from_the_others() {
    let owner = with_workers(3);
    let mut other = lane(&owner);
    // None of them reads the megabytes that it asks for, or writes what it announces.
    let _frozen: Vec<TcpStream> = (0..24)
        .map(|number| {
            let mut frozen = lane(&owner);
            let asked = match number % 2 {
                0 => request_by_hand(1, rid(1, 1), 0, 24 * MIB),
                _ => request_by_hand(2, rid(1, 2), 24 * MIB + number * 1024, 1024),
            };
            frozen.write_all(&asked).unwrap();
            frozen
        })
        .collect();
    let mut waits: Vec<Duration> = (0..100)
        .map(|number| {
            let began = Instant::now();
            let write = [&request_by_hand(2, rid(1, 3 + number), 30 * MIB, 1)[..], &[5]].concat();
            other.write_all(&write).unwrap();
            assert_eq!(answer(&mut other).0, 0);
            began.elapsed()
        })
        .collect();
    waits.sort_unstable();
    println!("half of the others' requests took {:?}, the longest {:?}", waits[50], waits[99]);
    assert!(waits[50] < Duration::from_millis(50) && waits[99] < Duration::from_secs(2), "{waits:?}");
}

#[test]
fn more_large_requests_than_there_are_workers_are_all_served() {
    const LEN: u64 = 8 * MIB;
    let owner = with_workers(2);
    let mut lanes: Vec<TcpStream> = (0..12).map(|_| lane(&owner)).collect();
    for (lane, number) in lanes.iter_mut().zip(0..) {
        lane.write_all(&request_by_hand(1, rid(1, 1), number * MIB, LEN)).unwrap();
    }
    let pattern = pattern(24 * MIB, 1);
    // Whoever asked last reads first.
    for (number, lane) in lanes.iter_mut().enumerate().rev() {
        assert_eq!(answer(lane), (0, LEN));
        let mut found = vec![0; LEN as usize];
        lane.read_exact(&mut found).unwrap();
        assert!(found == pattern[number * MIB as usize..][..LEN as usize]);
        lane.read_exact(&mut [0; 16]).unwrap();
    }
    assert!(threads("mooncake-lane") <= 40);
}

#[test]
fn a_thousand_peers_are_served_by_a_few_threads_and_none_is_refused() {
    const PEERS: u64 = 1000;
    let owner = impatient(Duration::from_secs(3));
    let mut peers: Vec<TcpStream> = (0..PEERS).map(|_| lane(&owner)).collect();
    assert_eq!(owner.server.lanes(), PEERS as usize);
    for round in 0..2 {
        // All of them at once.
        for (number, peer) in peers.iter_mut().enumerate() {
            let write = [&request_by_hand(2, rid(1, 1 + round), number as u64 * 1024, 1)[..], &[5]].concat();
            peer.write_all(&write).unwrap();
        }
        for peer in &mut peers {
            assert_eq!(answer(peer), (0, 0));
        }
    }
    let workers = threads("mooncake-lane");
    assert!((1..=40).contains(&workers), "{workers} threads");
}

/// How many threads of this process have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)).count()
}
