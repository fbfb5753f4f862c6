//! Who makes room for whom, and when there is another worker.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use mooncake_os::Guarded;

use super::*;
use crate::eventually::eventually;
use crate::link::fixture::{Quiet, hello, owner};
use crate::protocol::frames::{FRAME_LEN, Frame, HELLO_LEN, HelloReply, Op, Purpose, REPLY_LEN, Reply};
use crate::server::{SegmentServer, ServerOptions};

/// An owner of that many lanes and workers, and its segment.
fn small(max_lanes: usize, max_workers: usize) -> (Arc<SegmentServer>, Arc<mooncake_memory::SegmentMemory>) {
    // No test here is about that time, which a busy machine may take.
    let stall_timeout = Duration::from_secs(60);
    let local = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
    let options = ServerOptions { max_lanes, max_workers, stall_timeout, ..local };
    let server = SegmentServer::start(options, Box::new(Quiet)).unwrap();
    let memory = mooncake_memory::SegmentMemory::create(1 << 20, mooncake_memory::SegmentOptions::default()).unwrap();
    let memory = Arc::new(memory);
    server.add(memory.clone(), 1);
    (server, memory)
}

/// How an owner answers to a caller, and the caller's end of that.
fn knock(server: &SegmentServer, uuid: SegmentUuid) -> (Status, TcpStream) {
    let mut lane = TcpStream::connect(server.tcp_addr()).unwrap();
    lane.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    lane.write_all(&hello(Purpose::Lane, uuid).encode()).unwrap();
    let mut reply = [0; HELLO_LEN];
    lane.read_exact(&mut reply).unwrap();
    (HelloReply::decode(&reply).unwrap().status, lane)
}

fn request(offset: u64) -> [u8; FRAME_LEN] {
    Frame { op: Op::Write, epoch: 1, rid: 1 << 48 | 2, offset, len: 1, sequence: offset }.encode()
}

/// Whether the next request on a lane is served.
fn serves(lane: &mut TcpStream, offset: u64) -> bool {
    let mut reply = [0; REPLY_LEN];
    // At once, so that the worker need not wait for the byte.
    let asked = lane.write_all(&[&request(offset)[..], &[7]].concat());
    let answered = asked.and_then(|()| lane.read_exact(&mut reply));
    answered.is_ok_and(|()| Reply::decode(&reply).unwrap().status == Status::Ok)
}

/// Writes that come byte by byte for ever: each keeps a worker.
struct Dripping {
    callers: Vec<TcpStream>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Dripping {
    /// So many workers are at them from here on.
    fn start(lanes: &Lanes, mut callers: Vec<TcpStream>, workers: usize) -> Dripping {
        for (caller, number) in callers.iter_mut().zip(0..) {
            let write =
                Frame { op: Op::Write, epoch: 1, rid: 1 << 48 | 4, offset: number * 16_384, len: 16_384, sequence: 7 };
            caller.write_all(&write.encode()).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let ends: Vec<TcpStream> = callers.iter().map(|caller| caller.try_clone().unwrap()).collect();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    // Some may be cut.
                    ends.iter().for_each(|mut end| _ = end.write(&[7]));
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        eventually("workers are at them", || lanes.table.lock().workers.held_up == workers);
        Dripping { callers, stop, thread }
    }

    fn end(self) -> Vec<TcpStream> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.callers
    }
}

/// The lanes have been idle for so long, in the order in which they came.
fn idle_for(lanes: &Lanes, times: &[Duration]) {
    let mut table = lanes.table.lock();
    let mut ids: Vec<u64> = table.lanes.keys().copied().collect();
    ids.sort_unstable();
    for (id, time) in ids.iter().zip(times) {
        let (_, since) = table.lanes.get_mut(id).unwrap().idle.as_mut().unwrap();
        *since = Instant::now().checked_sub(*time).expect("the host has been up for longer");
    }
}

#[test]
fn the_lane_that_has_stood_idle_for_longest_makes_room_and_none_with_a_request() {
    let (server, memory) = small(4, 1);
    let lanes = &server.shared.lanes;
    let mut callers: Vec<TcpStream> = (0..4).map(|_| knock(&server, memory.uuid()).1).collect();
    assert_eq!(knock(&server, memory.uuid()).0, Status::Overloaded, "all are young");
    // The only worker is at the last one, so that the request of the first stays unseen.
    let busy = Dripping::start(lanes, vec![callers.pop().unwrap()], 1);
    idle_for(lanes, &[LANE_KEPT * 3, LANE_KEPT, LANE_KEPT * 2]);
    callers[0].write_all(&request(32 * 1024)).unwrap();
    let mut welcome = knock(&server, memory.uuid());
    assert_eq!(welcome.0, Status::Ok);
    assert_eq!(callers[2].read(&mut [0]).unwrap(), 0, "it was idle for longest");
    // It stays: one that hangs up makes room, too, once a worker looks.
    let other = knock(&server, memory.uuid());
    assert_eq!((lanes.len(), other.0), (4, Status::Ok));
    assert_eq!(callers[1].read(&mut [0]).unwrap(), 0);
    assert_eq!(knock(&server, memory.uuid()).0, Status::Overloaded);
    drop(busy.end());
    let mut reply = [0; REPLY_LEN];
    callers[0].write_all(&[7]).unwrap();
    callers[0].read_exact(&mut reply).unwrap();
    assert_eq!(Reply::decode(&reply).map(|reply| (reply.status, reply.sequence)), Some((Status::Ok, 32 * 1024)));
    assert!(serves(&mut welcome.1, 33 * 1024));
}

#[test]
fn lanes_that_wait_for_a_worker_are_cut_with_their_segment_and_serve_no_more() {
    let (server, memory) = small(8, 1);
    let mut callers: Vec<TcpStream> = (0..3).map(|_| knock(&server, memory.uuid()).1).collect();
    let busy = Dripping::start(&server.shared.lanes, vec![callers.pop().unwrap()], 1);
    callers[1].write_all(&[&request(32 * 1024)[..], &[7]].concat()).unwrap();
    assert!(server.remove(memory.uuid()), "in the middle of a write, waiting and idle");
    assert_eq!(server.lanes(), 0);
    callers.extend(busy.end());
    for caller in &mut callers {
        assert!(matches!(caller.read(&mut [0]), Ok(0) | Err(_)));
    }
    assert_eq!(memory.mapping().max_stamp(32 * 1024, 1).unwrap(), 0, "what waited has not begun");
}

#[test]
fn there_are_more_workers_for_those_that_are_held_up_and_they_end_when_there_is_nothing_to_do() {
    const MOST: usize = 24;
    let (server, memory) = small(100, MOST);
    let lanes = &server.shared.lanes;
    let mut callers: Vec<TcpStream> = (0..MOST + 2).map(|_| knock(&server, memory.uuid()).1).collect();
    for _ in 0..4 {
        assert!(callers.iter_mut().zip(0..).all(|(caller, number)| serves(caller, number * 1024)));
    }
    assert!(lanes.table.lock().workers.all <= hands() + STAYING, "none of them waited for its peer in a request");
    let callers = Dripping::start(lanes, callers, MOST).end();
    assert_eq!(lanes.table.lock().workers.all, MOST);
    drop(callers);
    eventually("their lanes have ended", || lanes.len() == 0);
    let inside = Arc::downgrade(lanes);
    drop(server);
    eventually("every worker ends with its owner", || inside.strong_count() == 0);
}

#[test]
fn peers_that_stand_still_in_a_request_keep_no_worker_and_are_served_when_they_go_on() {
    const PEERS: u64 = 12;
    let (server, memory) = small(100, 2);
    let lanes = &server.shared.lanes;
    let mut callers: Vec<TcpStream> = (0..PEERS).map(|_| knock(&server, memory.uuid()).1).collect();
    for (caller, number) in callers.iter_mut().zip(0..) {
        // In the head of a request, and in its bytes.
        caller.write_all(&request(number * 1024)[..if number % 2 == 0 { 20 } else { FRAME_LEN }]).unwrap();
    }
    eventually("all are put aside", || {
        let table = lanes.table.lock();
        table.aside.len() as u64 == PEERS && table.workers.held_up == 0
    });
    assert!(serves(&mut knock(&server, memory.uuid()).1, 64 * 1024), "both workers are there");
    for (caller, number) in callers.iter_mut().zip(0..) {
        let rest = [&request(number * 1024)[if number % 2 == 0 { 20 } else { FRAME_LEN }..], &[7]].concat();
        let mut reply = [0; REPLY_LEN];
        caller.write_all(&rest).unwrap();
        caller.read_exact(&mut reply).unwrap();
        let reply = Reply::decode(&reply).map(|reply| (reply.status, reply.sequence));
        assert_eq!(reply, Some((Status::Ok, number * 1024)));
    }
    eventually("none is aside", || lanes.table.lock().aside.is_empty());
}

/// An idle worker ends after [`IDLE_TIMEOUT`], and the others a little after it.
#[test]
fn workers_that_have_nothing_to_do_end_while_a_peer_stands_still_in_a_request() {
    const WORKERS: usize = 6;
    let (server, memory) = small(100, WORKERS);
    let lanes = &server.shared.lanes;
    let mut callers: Vec<TcpStream> = (0..WORKERS).map(|_| knock(&server, memory.uuid()).1).collect();
    let mut still = knock(&server, memory.uuid()).1;
    callers = Dripping::start(lanes, callers, WORKERS).end();
    still.write_all(&request(0)[..20]).unwrap();
    eventually("all are put aside", || lanes.table.lock().aside.len() == WORKERS + 1);
    assert_eq!(lanes.table.lock().workers.all, WORKERS);
    eventually("all but one have ended", || lanes.table.lock().workers.all == 1);
    assert_eq!(lanes.len(), WORKERS + 1, "no lane is lost for it");
    drop(callers);
    eventually("those that go on are served, the one that hangs up in a request is ended", || lanes.len() == 1);
}

#[test]
fn each_lane_that_stands_still_in_a_request_ends_in_its_time_however_many_did_before() {
    let stall_timeout = Duration::from_millis(100);
    let local = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
    let server = SegmentServer::start(ServerOptions { stall_timeout, ..local }, Box::new(Quiet)).unwrap();
    let memory = mooncake_memory::SegmentMemory::create(1 << 20, mooncake_memory::SegmentOptions::default()).unwrap();
    let memory = Arc::new(memory);
    server.add(memory.clone(), 1);
    let idle = knock(&server, memory.uuid()).1;
    for _ in 0..3 {
        // The first of each two goes on, so that the alarm that was set for it finds nothing.
        let mut callers = [knock(&server, memory.uuid()).1, knock(&server, memory.uuid()).1];
        callers[0].write_all(&request(0)[..20]).unwrap();
        eventually("it is put aside", || server.shared.lanes.table.lock().aside.len() == 1);
        callers[1].write_all(&request(1024)[..20]).unwrap();
        let _ = callers[0].write_all(&[&request(0)[20..], &[7]].concat());
        assert!(matches!(callers[1].read(&mut [0]), Ok(0)), "it is ended");
        drop(callers);
        eventually("only those between two requests are left", || server.lanes() == 1);
    }
    drop(idle);
}

/// Has a worker that stays at this caller's lane.
fn have_it_stay(lanes: &Lanes, caller: &mut TcpStream) {
    eventually("a worker stays", || serves(caller, 0) && lanes.table.lock().workers.staying == 1);
}

#[test]
fn a_worker_stays_with_a_caller_that_asks_again_and_leaves_one_that_is_silent() {
    let (server, memory) = small(8, 2);
    let lanes = &server.shared.lanes;
    let mut callers: Vec<TcpStream> = (0..2).map(|_| knock(&server, memory.uuid()).1).collect();
    have_it_stay(lanes, &mut callers[0]);
    assert!(serves(&mut callers[1], 1024), "there is another one for the other lanes");
    eventually("all lanes are laid back", || {
        let table = lanes.table.lock();
        table.workers.staying == 0 && table.lanes.values().all(|held| held.idle.is_some())
    });
    assert!(serves(&mut callers[0], 0));
}

#[test]
fn no_worker_stays_while_there_is_none_for_other_lanes() {
    let (server, memory) = small(8, 2);
    let lanes = &server.shared.lanes;
    let mut callers: Vec<TcpStream> = (0..3).map(|_| knock(&server, memory.uuid()).1).collect();
    let busy = Dripping::start(lanes, vec![callers.pop().unwrap()], 1);
    for _ in 0..50 {
        assert!(serves(&mut callers[0], 32 * 1024) && serves(&mut callers[1], 33 * 1024));
        assert_eq!(lanes.table.lock().workers.staying, 0);
    }
    busy.end();
}

#[test]
fn a_lane_at_which_a_worker_stays_is_cut_with_its_segment() {
    let (server, memory) = small(8, 2);
    let mut caller = knock(&server, memory.uuid()).1;
    have_it_stay(&server.shared.lanes, &mut caller);
    assert!(server.remove(memory.uuid()));
    assert_eq!(server.lanes(), 0);
    assert!(matches!(caller.read(&mut [0]), Ok(0) | Err(_)));
    assert_eq!(server.shared.lanes.table.lock().workers.staying, 0);
}

#[test]
fn a_connection_that_is_cut_off_before_it_is_in_takes_no_place() {
    let (server, memory, _) = owner(1 << 20, Quiet);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, peer) = listener.accept().unwrap();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(caller);
    let served = server.shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
    let hello = hello(Purpose::Lane, memory.uuid());
    let opened = super::super::tcp_lane::open(&server.shared, Guarded::new(stream), peer, &hello, served);
    assert_eq!((opened, server.lanes()), (Ok(()), 0));
}
