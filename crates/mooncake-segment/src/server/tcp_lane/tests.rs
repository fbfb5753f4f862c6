//! Lanes without a acceptor: requests as they lie on the wire, and what becomes of them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

use mooncake_ids::Rid;
use mooncake_memory::{SegmentMemory, SegmentOptions, Source};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::*;
use crate::link::fixture::{Quiet, hello, owner};
use crate::protocol::frames::{HELLO_LEN, Purpose};
use crate::server::{SegmentServer, ServerOptions};

fn connection() -> (TcpStream, Guarded<TcpStream>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, peer) = listener.accept().unwrap();
    (caller, Guarded::new(stream), peer)
}

/// A lane of the owner's segment as it stands after the hello, which no worker knows of.
fn unstarted(server: &SegmentServer, memory: &SegmentMemory) -> (TcpStream, Lane) {
    let (caller, stream, peer) = connection();
    prepare(&stream).unwrap();
    caller.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    (caller, Lane::new(served(server, memory), stream, peer, server.shared.options.stall_timeout))
}

fn served(server: &SegmentServer, memory: &SegmentMemory) -> Arc<Served> {
    server.shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone()
}

/// An owner whose peers may stand still for so long.
fn with_timeout(bytes: u64, stall_timeout: Duration) -> (Arc<SegmentServer>, Arc<SegmentMemory>) {
    let options = ServerOptions { stall_timeout, ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
    let server = SegmentServer::start(options, Box::new(Quiet)).unwrap();
    let memory = Arc::new(SegmentMemory::create(bytes, SegmentOptions::default()).unwrap());
    server.add(memory.clone(), 1);
    (server, memory)
}

/// A lane of the owner's segment that serves.
fn open_lane(server: &SegmentServer, memory: &SegmentMemory) -> TcpStream {
    let (mut caller, stream, peer) = connection();
    open(&server.shared, stream, peer, &hello(Purpose::Lane, memory.uuid()), served(server, memory)).unwrap();
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

const RID: Rid = Rid::new(1, 1);

fn request(op: Op, rid: Rid, offset: u64, len: u64) -> Frame {
    Frame { op, epoch: 1, rid: rid.0, offset, len, sequence: offset ^ len ^ rid.0 }
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
        (request(Op::Write, Rid(RID.0 + 2), BYTES - len + 1, len), Status::OutOfRange),
        (request(Op::Write, Rid(RID.0 + 2), BYTES, len), Status::OutOfRange),
        (request(Op::Write, Rid(RID.0 + 2), u64::MAX - 1, len), Status::OutOfRange),
        (request(Op::Write, Rid(RID.tombstone()), last, len), Status::Unsupported),
        (request(Op::Write, Rid(0), 0, len), Status::Unsupported),
        (request(Op::Write, Rid(RID.0 - 2), last, len), Status::Superseded),
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
        (request(Op::Read, Rid(0), 4096, 1024), Status::Unsupported),
        (request(Op::Read, Rid(RID.tombstone()), 0, 1024), Status::Unsupported),
        (request(Op::Read, Rid(RID.0 + 2), last, 1024), Status::Stale),
        (request(Op::Read, Rid(RID.0 + 2), last, len), Status::Stale),
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
    let lanes = Lanes::new(1, 1).unwrap();
    assert!(matches!(lane.serve_one(&mut Worker::new(&lanes)), Err(End::Quiet)));
    assert_eq!(memory.mapping().max_stamp(0, 1024).unwrap(), 0, "not begun either");
}

#[test]
fn a_peer_that_asks_and_does_not_read_holds_no_worker_for_longer_than_the_timeout() {
    const BYTES: u64 = 16 << 20;
    let (server, memory) = with_timeout(BYTES, Duration::from_millis(50));
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
fn a_peer_that_goes_on_byte_by_byte_loses_its_lane_when_its_request_has_taken_too_long() {
    let (server, memory) = with_timeout(1 << 20, Duration::from_millis(300));
    let mut head = open_lane(&server, &memory);
    let mut bytes = open_lane(&server, &memory);
    bytes.write_all(&request(Op::Write, RID, 0, 1024).encode()).unwrap();
    let began = Instant::now();
    for number in 0.. {
        // A head takes a second, and the bytes of a write twenty.
        let over = [head.write_all(&[0; 1]), bytes.write_all(&[0; 1])].iter().all(Result::is_err);
        if over || server.lanes() == 0 {
            break;
        }
        assert!(number < 40, "they keep their lanes for {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_peer_may_pause_in_mid_request_for_longer_than_a_worker_stays_at_a_silent_lane() {
    let (server, memory, _) = owner(1 << 20, Quiet);
    let mut lane = open_lane(&server, &memory);
    let write = [&request(Op::Write, RID, 0, 1024).encode()[..], &[7; 1024]].concat();
    for part in [&write[..FRAME_LEN / 2], &write[FRAME_LEN / 2..FRAME_LEN + 100], &write[FRAME_LEN + 100..]] {
        std::thread::sleep(STAY * 3);
        lane.write_all(part).unwrap();
    }
    let mut reply = [0; REPLY_LEN];
    lane.read_exact(&mut reply).unwrap();
    assert_eq!(Reply::decode(&reply).unwrap().status, Status::Ok);
}

#[test]
fn a_peer_that_reads_slowly_gets_all_bytes_as_long_as_they_move() {
    const BYTES: u64 = 4 << 20;
    // Each wait of the kernel is for part of the bytes; all of them take longer than one wait may.
    let timeout = Duration::from_millis(800);
    let (server, memory) = with_timeout(BYTES, timeout);
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    memory.mapping().write(RID, 0, &[Source::new(&bytes)]).unwrap();

    let (mut caller, mut lane) = unstarted(&server, &memory);
    set_socket_send_buffer_size(lane.fd(), 64 << 10).unwrap();
    set_socket_recv_buffer_size(&caller, 64 << 10).unwrap();
    caller.write_all(&request(Op::Read, RID, 0, BYTES).encode()).unwrap();
    let serves = std::thread::spawn(move || {
        let lanes = Lanes::new(1, 1).unwrap();
        // As often as it is put aside, by one worker after the other.
        loop {
            match lane.serve_one(&mut Worker::new(&lanes)) {
                Ok(false) => {}
                ended => return ended.is_ok(),
            }
        }
    });
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
