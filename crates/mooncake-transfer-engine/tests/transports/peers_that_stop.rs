//! A peer in another process that is frozen or killed keeps no call for ever: each ends at its deadline, at its
//! caller's wish, and with its engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_test_support::child_process::{ChildProcess, hear, say};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Opcode, PeerId, Request};

use crate::memory::Memory;
use crate::row::Row;

const LEN: usize = 64 << 20;

/// What a call takes that ends at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The peer: it lends memory until it is told to end.
pub fn lend(row: &Row) {
    let engine = row.engine();
    let lent = row.memory(LEN);
    engine.register(&[lent.range()], "*").unwrap();
    say(engine.name());
    say(lent.addr().to_string());
    hear();
}

/// A peer in another process that has answered a request, and memory that it lends.
pub fn lender(initiator: &Engine, row: &Row) -> (ChildProcess, PeerId, u64) {
    let mut lender = ChildProcess::start("other", row.role);
    let (name, addr) = (lender.hear(), lender.hear().parse().unwrap());
    let peer = initiator.open(&name).unwrap();
    initiator.transfer(peer, &[Memory::new(1).read_from(addr)]).unwrap();
    assert!(row.has_moved_bytes(initiator), "{:?}", initiator.links());
    (lender, peer, addr)
}

fn request(here: &Memory, opcode: Opcode, addr: u64) -> Request {
    match opcode {
        Opcode::Read => here.read_from(addr),
        Opcode::Write => here.write_to(addr),
    }
}

/// Calls `waits` with each request that stands still with the peer. Others are done without it.
fn each_that_stands_still(row: &Row, options: &EngineOptions, waits: impl Fn(&Engine, &ChildProcess, PeerId, Request)) {
    for opcode in [Opcode::Read, Opcode::Write] {
        let initiator = row.engine_with(options.clone());
        let (lender, peer, addr) = lender(&initiator, row);
        let here = Memory::new(LEN);
        lender.stop();
        let request = request(&here, opcode, addr);
        match row.needs_the_peer(opcode) {
            true => waits(&initiator, &lender, peer, request),
            false => initiator.transfer(peer, &[request]).unwrap(),
        }
        lender.go_on();
    }
}

pub fn a_call_to_a_frozen_peer_ends_at_its_deadline(row: &Row) {
    let timeout = Duration::from_secs(1);
    let options = EngineOptions { transfer_timeout: timeout, ..EngineOptions::default() };
    each_that_stands_still(row, &options, |initiator, _, peer, request| {
        let began = Instant::now();
        let result = initiator.transfer(peer, &[request]);
        let took = began.elapsed();
        assert!(matches!(result, Err(EngineError::Timeout { .. })), "{result:?}");
        assert!(took >= timeout && took < timeout + AT_ONCE, "{took:?}");
    });
}

pub fn a_call_to_a_frozen_peer_ends_at_its_callers_wish(row: &Row) {
    each_that_stands_still(row, &EngineOptions::default(), |initiator, _, peer, request| {
        let began = Instant::now();
        let wish = || began.elapsed() > Duration::from_millis(300);
        let result = initiator.transfer_with(peer, &[request], &wish);
        assert!(matches!(result, Err(EngineError::Interrupted)), "{result:?}");
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    });
}

/// Close ends a call that stands before a peer that does not answer, and returns when it has ended.
pub fn close_ends_a_call_to_a_frozen_peer(row: &Row) {
    each_that_stands_still(row, &EngineOptions::default(), |initiator, _, peer, request| {
        let (waits, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let hook = || {
            waits.store(true, Ordering::SeqCst);
            false
        };
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let result = initiator.transfer_with(peer, &[request], &hook);
                ended.store(true, Ordering::SeqCst);
                result
            });
            while !waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let began = Instant::now();
            initiator.close().unwrap();
            let took = began.elapsed();
            // What the caller's thread does behind the engine's last line may be a moment later.
            let late = Instant::now() + AT_ONCE;
            while !ended.load(Ordering::SeqCst) && Instant::now() < late {
                std::thread::yield_now();
            }
            assert!(ended.load(Ordering::SeqCst), "the call is still under way after close, which took {took:?}");
            assert!(took < AT_ONCE, "{took:?}");
            let result = call.join().unwrap();
            assert!(matches!(result, Err(EngineError::Closed)), "{result:?}");
        });
    });
}

/// Requests of which there are far too many to be done, and which never stand still.
pub fn close_ends_calls_that_go_on_and_on(row: &Row) {
    for opcode in [Opcode::Read, Opcode::Write] {
        let initiator = row.engine();
        let (_lender, peer, addr) = lender(&initiator, row);
        let here = Memory::new(LEN);
        let request = request(&here, opcode, addr);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| initiator.transfer(peer, &vec![request; 10_000]));
            std::thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            initiator.close().unwrap();
            assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
            let result = call.join().unwrap();
            assert!(matches!(result, Err(EngineError::Closed)), "{result:?}");
        });
    }
}

pub fn a_peer_that_was_killed_is_an_error_in_time(row: &Row) {
    let initiator = row.engine();
    let (lender, peer, addr) = lender(&initiator, row);
    let here = Memory::new(LEN);
    let began = Instant::now();
    drop(lender);
    for request in [here.read_from(addr), here.write_to(addr)] {
        let result = initiator.transfer(peer, &[request]);
        assert!(result.is_err(), "the bytes of a process that has ended are nobody's");
        assert!(began.elapsed() < AT_ONCE, "{result:?} after {:?}", began.elapsed());
    }
}
