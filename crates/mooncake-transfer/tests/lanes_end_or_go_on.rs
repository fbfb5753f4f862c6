//! What an owner's lanes do when their peers are slow, silent or in the middle of something.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mooncake_memory::Source;
use mooncake_transfer::{LinkError, LinkOptions, Path, Paths, ServerOptions};
use support::*;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An owner whose lanes may stand still for this long.
fn impatient(data_timeout: Duration) -> Owner {
    Owner::with(4 * MIB, ServerOptions { data_timeout, ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) })
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

#[test]
fn a_lane_that_has_ended_makes_room_for_another() {
    let options = ServerOptions { max_lanes: 1, ..ServerOptions::new([127, 0, 0, 1].into(), 0, OWNER) };
    let owner = Owner::with(MIB, options);
    let first = lane(&owner);
    let options =
        LinkOptions { paths: Paths::only(Path::Tcp), retry_after: Duration::ZERO, ..LinkOptions::new(WRITER) };
    let (links, _noticed) = links_with(options);
    assert!(matches!(links.link(&owner.address(), &wait()), Err(LinkError::NoPath { .. })));
    drop(first);
    eventually("there is room", || links.link(&owner.address(), &wait()).is_ok());
}
