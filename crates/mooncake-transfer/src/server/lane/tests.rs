//! Lanes without a door: requests as they lie on the wire, and what becomes of them.

use std::io::Read;
use std::net::TcpListener;

use mooncake_memory::{SegmentMemory, SegmentOptions, Source};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::*;
use crate::link::fixture::{Quiet, hello, owner};
use crate::server::{SegmentServer, ServerOptions};
use crate::wire::{HELLO_LEN, Purpose};

fn connection() -> (TcpStream, Guarded<TcpStream>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, peer) = listener.accept().unwrap();
    (caller, Guarded::new(stream), peer)
}

/// A lane of the owner's segment as it stands after the hello, and its thread's end of it, not yet running.
fn unstarted(server: &SegmentServer, memory: &SegmentMemory) -> (TcpStream, Lane) {
    let (caller, stream, peer) = connection();
    prepare(&stream, server.shared.options.data_timeout).unwrap();
    caller.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (stream, uuid) = (Arc::new(stream), memory.uuid());
    let (cut, idle_since) = (AtomicBool::new(false), AtomicU64::new(0));
    let control = LaneControl { stream: stream.clone(), uuid, cut, born: Instant::now(), idle_since };
    let served = server.shared.state.lock().owner.segment(&uuid).unwrap().clone();
    (caller, Lane { served, stream, control: Arc::new(control), peer, small: Vec::new() })
}

/// A lane of the owner's segment that serves.
fn open_lane(server: &SegmentServer, memory: &SegmentMemory) -> TcpStream {
    let (mut caller, stream, peer) = connection();
    let served = server.shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
    open(&server.shared, stream, peer, &hello(Purpose::Lane, memory.uuid()), served).unwrap();
    caller.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    caller.read_exact(&mut [0; HELLO_LEN]).unwrap();
    caller
}

/// What is answered to a request, and the bytes that came with that.
fn ask(lane: &mut TcpStream, frame: Frame, bytes: &[u8]) -> (Status, Vec<u8>) {
    lane.write_all(&frame.encode()).unwrap();
    lane.write_all(bytes).unwrap();
    let mut reply = [0; REPLY_LEN];
    lane.read_exact(&mut reply).unwrap();
    let reply = Reply::decode(&reply).unwrap();
    assert_eq!(reply.sequence, frame.sequence);
    let mut found = vec![0; reply.len as usize];
    if reply.len > 0 {
        lane.read_exact(&mut found).unwrap();
        let mut trailer = [0; TRAILER_LEN];
        lane.read_exact(&mut trailer).unwrap();
        assert_eq!(Trailer::decode(&trailer), Some(Trailer { status: Status::Ok, sequence: frame.sequence }));
    }
    (reply.status, found)
}

const RID: u64 = 1 << 48 | 2;

fn request(op: Op, rid: u64, offset: u64, len: u64) -> Frame {
    Frame { op, epoch: 1, rid, offset, len, sequence: offset ^ len ^ rid }
}

/// A lane that has had no request for so long; `None`: it is inside one.
fn lane(uuid: Uuid, idle: Option<Duration>) -> (TcpStream, Arc<LaneControl>) {
    let (caller, stream, _) = connection();
    let born = Instant::now().checked_sub(idle.unwrap_or(IDLE * 2)).expect("the host has been up for longer");
    let idle_since = AtomicU64::new(if idle.is_some() { 0 } else { BUSY });
    let cut = AtomicBool::new(false);
    (caller, Arc::new(LaneControl { stream: Arc::new(stream), uuid, cut, born, idle_since }))
}

#[test]
fn a_lane_is_busy_inside_a_request_and_idle_between_two() {
    let (server, memory, _) = owner(1 << 20, Quiet);
    let (shared, uuid) = (&server.shared, memory.uuid());
    let served = shared.state.lock().owner.segment(&uuid).unwrap().clone();
    let hello = hello(Purpose::Lane, uuid);
    let (mut caller, stream, peer) = connection();
    open(shared, stream, peer, &hello, served).unwrap();
    caller.read_exact(&mut [0; HELLO_LEN]).unwrap();
    let control = shared.state.lock().lanes.values().next().unwrap().clone();
    let becomes = |busy: bool| {
        let until = Instant::now() + Duration::from_secs(5);
        while control.idle().is_none() != busy {
            assert!(Instant::now() < until, "busy: {busy}");
            std::thread::yield_now();
        }
    };
    let write = Frame { op: Op::Write, epoch: 1, rid: 1 << 48 | 2, offset: 0, len: 2, sequence: 1 };
    caller.write_all(&write.encode()).unwrap();
    becomes(true);
    caller.write_all(&[5; 2]).unwrap();
    becomes(false);
}

#[test]
fn the_lane_that_has_stood_idle_for_longest_makes_room_and_no_busy_one() {
    let (server, memory, _) = owner(1 << 20, Quiet);
    let (shared, uuid) = (&server.shared, memory.uuid());
    let served = shared.state.lock().owner.segment(&uuid).unwrap().clone();
    let hello = hello(Purpose::Lane, uuid);
    let knock = || {
        let (mut caller, stream, peer) = connection();
        let opened = open(shared, stream, peer, &hello, served.clone());
        let mut reply = [0; HELLO_LEN];
        caller.read_exact(&mut reply).unwrap();
        assert_eq!(HelloReply::decode(&reply).map(|reply| reply.status), Some(opened.err().unwrap_or(Status::Ok)));
        (opened, caller)
    };
    let idle = [Some(IDLE), Some(IDLE * 3), Some(IDLE * 2), None, Some(Duration::ZERO)];
    let (_callers, lanes): (Vec<_>, Vec<_>) = idle.into_iter().map(|idle| lane(uuid, idle)).unzip();
    let cut = || lanes.iter().map(|lane| lane.is_cut()).collect::<Vec<_>>();
    {
        let mut state = shared.state.lock();
        let most = shared.options.max_lanes as u64;
        // The others are of one kind: at work.
        let (_busy_caller, busy) = lane(uuid, None);
        state.lanes.extend((0..most).map(|id| (id + 1000, busy.clone())));
        state.lanes.extend(lanes.iter().cloned().zip(1000..).map(|(lane, id)| (id, lane)));
    }
    let mut callers = Vec::new();
    for left in
        [[false, true, false, false, false], [false, true, true, false, false], [true, true, true, false, false]]
    {
        let (opened, caller) = knock();
        assert_eq!((opened, cut().as_slice()), (Ok(()), &left[..]));
        callers.push(caller);
    }
    assert_eq!(knock().0, Err(Status::Overloaded));
    assert_eq!(cut(), [true, true, true, false, false]);
    shared.state.lock().lanes.retain(|id, _| *id < 1000);
    // Removed between its hello and this.
    assert!(server.remove(uuid));
    assert_eq!(knock().0, Err(Status::UnknownSegment));
}

#[test]
fn a_request_beside_the_segment_or_of_no_placement_is_refused_and_the_next_one_is_found_behind_its_bytes() {
    const BYTES: u64 = 1 << 20;
    let (server, memory, _) = owner(BYTES, Quiet);
    let mut lane = open_lane(&server, &memory);
    // Up to the very end, and bytes of a size that passes in several parts.
    let len = 100_000;
    let good: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let last = BYTES - 100 * 1024;
    let written = request(Op::Write, RID, last, len);
    assert_eq!(ask(&mut lane, written, &good), (Status::Ok, vec![]));
    let end = request(Op::Write, RID, BYTES - 1024, 1024);
    assert_eq!(ask(&mut lane, end, &[7; 1024]).0, Status::Ok);

    let bad = vec![9; len as usize];
    let small = request(Op::Read, RID, BYTES - 1024, 1024);
    let large = request(Op::Read, RID, last, len - 2048);
    for (frame, status) in [
        (request(Op::Write, RID + 2, BYTES - len + 1, len), Status::OutOfRange),
        (request(Op::Write, RID + 2, BYTES, len), Status::OutOfRange),
        (request(Op::Write, RID + 2, u64::MAX - 1, len), Status::OutOfRange),
        (request(Op::Write, RID | 1, last, len), Status::Unsupported),
        (request(Op::Write, 0, 0, len), Status::Unsupported),
        (request(Op::Write, RID - 2, last, len), Status::Superseded),
    ] {
        assert_eq!(ask(&mut lane, frame, &bad), (status, vec![]), "{frame:?}");
        assert_eq!(ask(&mut lane, small, &[]), (Status::Ok, vec![7; 1024]), "behind {frame:?}");
        assert_eq!(ask(&mut lane, large, &[]), (Status::Ok, good[..len as usize - 2048].to_vec()));
    }
    memory.mapping().tombstone(RID, 0, 1024).unwrap();
    for (frame, status) in [
        (request(Op::Read, RID, BYTES - 1024, 1025), Status::OutOfRange),
        (request(Op::Read, RID, BYTES, 1), Status::OutOfRange),
        (request(Op::Read, RID, u64::MAX, 2), Status::OutOfRange),
        // What was never written, and what is fenced, carry these; they are nobody's bytes.
        (request(Op::Read, 0, 4096, 1024), Status::Unsupported),
        (request(Op::Read, RID | 1, 0, 1024), Status::Unsupported),
        (request(Op::Read, RID + 2, last, 1024), Status::Stale),
        (request(Op::Read, RID + 2, last, len), Status::Stale),
    ] {
        assert_eq!(ask(&mut lane, frame, &[]), (status, vec![]), "{frame:?}");
        assert_eq!(ask(&mut lane, small, &[]), (Status::Ok, vec![7; 1024]), "behind {frame:?}");
    }
    assert_eq!(server.lanes(), 1);
}

#[test]
fn what_lanes_do_not_know_is_answered_and_ends_the_lane() {
    let (server, memory, _) = owner(1 << 20, Quiet);
    for op in [Op::Upgrade, Op::Detached, Op::Introduce] {
        let mut lane = open_lane(&server, &memory);
        assert_eq!(ask(&mut lane, request(op, RID, 0, 0), &[]).0, Status::Unsupported);
        assert_eq!(lane.read(&mut [0]).unwrap(), 0, "what follows it may be anything");
    }
}

#[test]
fn a_request_that_came_before_its_lane_was_cut_is_not_done_behind_that() {
    let (server, memory, _) = owner(1 << 20, Quiet);
    let (mut caller, mut lane) = unstarted(&server, &memory);
    let frame = request(Op::Write, RID, 0, 1024);
    caller.write_all(&frame.encode()).unwrap();
    caller.write_all(&[5; 1024]).unwrap();
    lane.control.cut();
    assert!(matches!(lane.serve_one(), Err(End::Quiet)));
    assert_eq!(memory.mapping().max_stamp(0, 1024).unwrap(), 0, "not begun either");
}

#[test]
fn a_peer_that_asks_and_does_not_read_costs_no_thread_for_longer_than_the_timeout() {
    const BYTES: u64 = 16 << 20;
    let options =
        ServerOptions { data_timeout: Duration::from_millis(50), ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
    let server = SegmentServer::start(options, Box::new(Quiet)).unwrap();
    let memory = Arc::new(SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap());
    server.add(memory.clone(), 1);
    memory.mapping().stamp_if_newest(RID, 0, BYTES).unwrap();
    let mut caller = open_lane(&server, &memory);
    caller.write_all(&request(Op::Read, RID, 0, BYTES).encode()).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while server.lanes() > 0 {
        assert!(Instant::now() < until, "its thread waits for ever");
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_reads_slowly_gets_all_bytes_as_long_as_they_move() {
    const BYTES: u64 = 4 << 20;
    // Each wait of the kernel is for part of the bytes; all of them take longer than one wait may.
    let timeout = Duration::from_millis(800);
    let options = ServerOptions { data_timeout: timeout, ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
    let server = SegmentServer::start(options, Box::new(Quiet)).unwrap();
    let memory = Arc::new(SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap());
    server.add(memory.clone(), 1);
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    memory.mapping().write(RID, 0, &[Source::new(&bytes)]).unwrap();

    let (mut caller, mut lane) = unstarted(&server, &memory);
    set_socket_send_buffer_size(&**lane.stream, 64 << 10).unwrap();
    set_socket_recv_buffer_size(&caller, 64 << 10).unwrap();
    caller.write_all(&request(Op::Read, RID, 0, BYTES).encode()).unwrap();
    let serves = std::thread::spawn(move || lane.serve_one().is_ok());
    let (mut found, total) = (Vec::new(), REPLY_LEN + BYTES as usize + TRAILER_LEN);
    let began = Instant::now();
    while found.len() < total {
        // Half of them before the first wait is over, and the rest behind it.
        if found.len() > total / 2 {
            std::thread::sleep((timeout + timeout / 4).saturating_sub(began.elapsed()));
        }
        let mut part = [0; 16 << 10];
        let count = caller.read(&mut part).unwrap();
        found.extend(&part[..count]);
        assert!(count > 0, "it hung up after {} bytes", found.len());
    }
    assert!(serves.join().unwrap());
    assert!(found[REPLY_LEN..][..bytes.len()] == bytes);
    let trailer = Trailer::decode(found[REPLY_LEN + bytes.len()..].try_into().unwrap());
    assert_eq!(trailer.map(|trailer| trailer.status), Some(Status::Ok));
}
