//! The lanes to owners that do what the tests say.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};

use mooncake_ids::SegmentUuid;

use super::*;
use crate::epoch::Epoch;
use crate::eventually::eventually;
use crate::link::fixture::hello;
use crate::protocol::frames::{HELLO_LEN, HelloReply, LANE_REUSED, Purpose, Status};

const SOON: Duration = Duration::from_secs(10);

/// A pool of lanes to the listener, behind addresses where nobody is.
fn pool(listener: &TcpListener, options: &LinkOptions) -> LanePool {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = SegmentAddress {
        uuid: SegmentUuid([7; 16]),
        bytes: 4096,
        name: "owner".into(),
        boot_id: [0; 16],
        unix_socket: String::new(),
        tcp: vec![nobody.to_string(), listener.local_addr().unwrap().to_string()],
        access_key: 1,
        process: None,
        tier_file_blocks: 0,
    };
    let hello = Hello { session: options.session, ..hello(Purpose::Lane, address.uuid) };
    LanePool::new(&address, options, hello, Arc::default()).unwrap()
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn options() -> LinkOptions {
    LinkOptions { max_lanes: 1, connect_timeout: SOON, retry_after: SOON, ..LinkOptions::new(1) }
}

/// Lets the next lane in.
fn welcome(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
    stream.write_all(&hello_reply()).unwrap();
    stream
}

fn hello_reply() -> [u8; HELLO_LEN] {
    let (epoch, uuid) = (Epoch::default(), SegmentUuid([7; 16]));
    HelloReply { version: 1, status: Status::Ok, epoch, bytes: 4096, uuid, features: 0, tenure: 0 }.encode()
}

fn soon() -> Deadline<'static> {
    Deadline::at(Instant::now() + SOON)
}

/// A request that is answered.
fn answered(_: &mut Lane) -> Outcome<()> {
    Outcome { result: Ok(()), reusable: true, settled: true }
}

#[test]
fn a_lane_that_could_not_be_had_takes_no_room() {
    let listener = listener();
    let pool = pool(&listener, &LinkOptions { retry_after: Duration::ZERO, ..options() });
    scope(|threads| {
        let owner = threads.spawn(|| {
            drop(listener.accept().unwrap());
            welcome(&listener)
        });
        let outcome = pool.with_lane(&soon(), answered);
        assert!(outcome.result.is_err() && outcome.settled, "nothing of it can have been written");
        pool.with_lane(&soon(), answered).result.unwrap();
        owner.join().unwrap();
    });
}

#[test]
fn an_owner_that_cannot_be_reached_is_not_tried_again_so_soon() {
    let listener = listener();
    let pool = pool(&listener, &options());
    scope(|threads| {
        threads.spawn(|| drop(listener.accept().unwrap()));
        pool.with_lane(&soon(), answered).result.unwrap_err();
    });
    listener.set_nonblocking(true).unwrap();
    let e = pool.with_lane(&soon(), answered).result.unwrap_err();
    assert!(e.to_string().contains("not tried again so soon"), "{e}");
    assert!(listener.accept().is_err());
}

#[test]
fn an_owner_that_stands_still_is_one_that_passes_for_whoever_comes_before_it_is_tried_again_too() {
    let listener = listener();
    let pool = pool(&listener, &LinkOptions { retry_after: Duration::from_secs(60), ..options() });
    let deadline = Deadline::at(Instant::now() + Duration::from_secs(60));
    for again in [false, true] {
        let e = pool.with_lane(&deadline, answered).result.unwrap_err();
        assert!(e.is_passing() && e.to_string().contains("not tried again so soon") == again, "{e}");
    }
    // One that is gone is none.
    let (at, pool) = (listener.local_addr().unwrap(), self::pool(&listener, &options()));
    drop(listener);
    for again in [false, true] {
        let e = pool.with_lane(&deadline, answered).result.unwrap_err();
        assert!(!e.is_passing() && e.to_string().contains("not tried again so soon") == again, "{at}: {e}");
    }
}

#[test]
fn a_caller_without_time_keeps_no_other_from_trying() {
    let listener = listener();
    let pool = pool(&listener, &options());
    let short = Deadline::at(Instant::now() + Duration::from_millis(60));
    pool.with_lane(&short, answered).result.unwrap_err();
    let interrupted = Deadline { interrupted: &|| true, ..soon() };
    assert!(matches!(pool.with_lane(&interrupted, answered).result, Err(TransferError::Interrupted)));
    let (kept, served) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    scope(|threads| {
        // Those that did not wait come first, as far as they came.
        let owner = threads.spawn(|| {
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                if stream.read_exact(&mut [0; HELLO_LEN]).is_ok() && stream.write_all(&hello_reply()).is_ok() {
                    kept.lock().push(stream);
                }
                if served.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        pool.with_lane(&soon(), answered).result.unwrap();
        served.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        owner.join().unwrap();
    });
}

#[test]
fn a_lane_that_its_owner_has_closed_is_used_by_nobody() {
    let listener = listener();
    let pool = pool(&listener, &options());
    scope(|threads| {
        let owner = threads.spawn(|| drop(welcome(&listener)));
        pool.try_connect(&soon()).unwrap();
        owner.join().unwrap();
        eventually("the end of the lane is seen", || !pool.state.lock().idle[0].is_alive());
        let owner = threads.spawn(|| welcome(&listener));
        let outcome = pool.with_lane(&soon(), |lane| {
            assert!(lane.is_alive());
            answered(lane)
        });
        outcome.result.unwrap();
        owner.join().unwrap();
    });
}

#[test]
fn lanes_are_kept_for_the_next_request_and_no_more_than_said() {
    let listener = listener();
    let pool = pool(&listener, &LinkOptions { max_lanes: 64, ..options() });
    scope(|threads| {
        let owner = threads.spawn(|| (0..IDLE_MAX + 2).map(|_| welcome(&listener)).collect::<Vec<_>>());
        nest(&pool, IDLE_MAX + 2);
        assert_eq!(pool.state.lock().idle.len(), IDLE_MAX);
        let _kept = owner.join().unwrap();
        nest(&pool, IDLE_MAX);
        let state = pool.state.lock();
        assert_eq!((state.idle.len(), state.in_use), (IDLE_MAX, 0));
    });
}

#[test]
fn lanes_that_were_left_idle_for_long_are_closed_and_not_used_again() {
    let listener = listener();
    let pool = pool(&listener, &LinkOptions { max_lanes: 64, ..options() });
    scope(|threads| {
        let owner = threads.spawn(|| (0..3).map(|_| welcome(&listener)).collect::<Vec<_>>());
        nest(&pool, 3);
        let mut kept = owner.join().unwrap();
        let old = Instant::now().checked_sub(LANE_REUSED).expect("the host has been up for longer");
        pool.state.lock().idle[0].left_at(old);
        pool.close_idle();
        let closed = kept.iter_mut().map(is_closed).filter(|closed| *closed).count();
        assert_eq!((pool.state.lock().idle.len(), closed), (2, 1));
        pool.state.lock().idle.iter_mut().for_each(|idle| idle.left_at(old));
        let owner = threads.spawn(|| welcome(&listener));
        pool.with_lane(&soon(), answered).result.unwrap();
        let _fresh = owner.join().unwrap();
        assert!(kept.iter_mut().all(is_closed));
        assert_eq!((pool.state.lock().idle.len(), pool.all_idle.count()), (1, 1));
    });
}

fn is_closed(lane: &mut TcpStream) -> bool {
    lane.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    matches!(lane.read(&mut [0]), Ok(0))
}

/// Says to the next caller that there are too many lanes.
fn turn_away(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
    let (epoch, uuid) = (Epoch::default(), SegmentUuid([7; 16]));
    let reply = HelloReply { version: 1, status: Status::Overloaded, epoch, bytes: 0, uuid, features: 0, tenure: 0 };
    stream.write_all(&reply.encode()).unwrap();
}

#[test]
fn an_owner_with_too_many_lanes_is_asked_again_and_one_that_cannot_be_reached_is_not_while_a_lane_will_come_back() {
    let listener = listener();
    let pool = pool(&listener, &LinkOptions { max_lanes: 8, ..options() });
    scope(|threads| {
        let mut owner = Some(threads.spawn(|| {
            turn_away(&listener);
            welcome(&listener)
        }));
        let (mut next, mut kept) = (None, None);
        let outcome = pool.with_lane(&soon(), |lane| {
            let stream = owner.take().expect("asked once").join().unwrap();
            let owner = threads.spawn(|| drop(listener.accept().unwrap()));
            next = Some(threads.spawn(|| pool.with_lane(&soon(), answered).result));
            owner.join().unwrap();
            eventually("it was tried", || pool.state.lock().failed.is_some());
            sleep(Duration::from_millis(20));
            assert!(!next.as_ref().unwrap().is_finished(), "it waits for this one");
            kept = Some(stream);
            answered(lane)
        });
        outcome.result.unwrap();
        next.expect("it was started").join().unwrap().unwrap();
        drop(kept);
    });
}

/// So many requests at a time.
fn nest(pool: &LanePool, deep: usize) {
    if deep > 0 {
        let outcome = pool.with_lane(&soon(), |lane| {
            nest(pool, deep - 1);
            answered(lane)
        });
        outcome.result.unwrap();
    }
}

#[test]
fn who_waits_for_a_lane_has_it_when_it_comes_back_and_hears_of_the_end() {
    let listener = listener();
    let pool = pool(&listener, &options());
    let waits = |deadline| pool.with_lane(&Deadline::at(deadline), answered).result;
    scope(|threads| {
        let owner = threads.spawn(|| welcome(&listener));
        pool.try_connect(&soon()).unwrap();
        let mut stream = owner.join().unwrap();
        let mut next = None;
        let outcome = pool.with_lane(&soon(), |lane| {
            let e = waits(Instant::now()).unwrap_err();
            assert!(e.to_string().contains("no lane was free"), "{e}");
            next = Some(threads.spawn(|| waits(Instant::now() + SOON)));
            answered(lane)
        });
        outcome.result.unwrap();
        next.expect("it was started").join().unwrap().unwrap();
        let outcome = pool.with_lane(&soon(), |lane| {
            let next = threads.spawn(|| waits(Instant::now() + SOON));
            pool.close();
            assert!(matches!(next.join().unwrap(), Err(TransferError::Gone { .. })));
            answered(lane)
        });
        outcome.result.unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a lane that comes back to closed ones is closed");
    });
}

#[test]
fn who_waits_for_a_lane_waits_until_there_is_one_or_it_is_interrupted() {
    let listener = listener();
    let pool = pool(&listener, &options());
    let (asked, calls) = (std::sync::atomic::AtomicUsize::new(0), AtomicBool::new(false));
    scope(|threads| {
        let owner = threads.spawn(|| welcome(&listener));
        pool.try_connect(&soon()).unwrap();
        let _stream = owner.join().unwrap();
        let outcome = pool.with_lane(&soon(), |lane| {
            let waits = threads.spawn(|| {
                let interrupted = || asked.fetch_add(1, Ordering::SeqCst) > 2;
                let deadline = Deadline { interrupted: &interrupted, ..soon() };
                let outcome = pool.with_lane(&deadline, answered);
                assert!(outcome.settled && !outcome.reusable, "it had none");
                outcome.result
            });
            assert!(matches!(waits.join().unwrap(), Err(TransferError::Interrupted)));
            calls.store(true, Ordering::SeqCst);
            answered(lane)
        });
        outcome.result.unwrap();
    });
    assert!(calls.load(Ordering::SeqCst) && pool.state.lock().in_use == 0);
}
