//! The end of an engine: when it says that memory is nobody's any more, it is.

mod memory;

use std::time::{Duration, Instant};

use memory::Memory;
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, PeerId, Status};

const LEN: usize = 64 << 20;

fn engine(same_host: bool) -> Engine {
    Engine::new("127.0.0.1", EngineOptions { same_host, ..EngineOptions::default() }).unwrap()
}

/// A peer in another process, and memory that it lends.
fn lender(initiator: &Engine, same_host: bool) -> (ChildProcess, PeerId, u64) {
    let mut lender = ChildProcess::start("other", &format!("lender {same_host}"));
    let (name, addr) = (lender.hear(), lender.hear().parse().unwrap());
    let peer = initiator.open(&name).unwrap();
    initiator.transfer(peer, &[Memory::new(1).read_from(addr)]).unwrap();
    (lender, peer, addr)
}

/// What the other process of these tests is; nothing where nobody started it as something.
#[test]
fn other() {
    let Some(role) = role() else { return };
    let engine = engine(role == "lender true");
    let lent = Memory::filled(LEN, 1);
    engine.register(&[lent.range()], "*").unwrap();
    say(engine.name());
    say(lent.addr());
    hear();
}

#[test]
fn close_ends_a_batch_and_its_memory_is_the_callers() {
    let initiator = engine(false);
    let (lender, peer, addr) = lender(&initiator, false);
    lender.stop();
    let here = Memory::new(LEN);
    let batch = initiator.allocate(1);
    initiator.submit(batch, vec![(peer, here.read_from(addr))], None).unwrap();
    initiator.close().unwrap();
    assert_eq!(initiator.status(batch).unwrap(), Status::Failed);
    assert_eq!(initiator.batch_error(batch).unwrap().as_deref(), Some("the engine is closed"));
    lender.go_on();
}

#[test]
fn close_within_a_call_of_the_engine_says_that_its_memory_is_still_used() {
    let initiator = engine(false);
    let (lender, peer, addr) = lender(&initiator, false);
    lender.stop();
    let here = Memory::new(LEN);
    // As a signal's handler does, which Python calls while the transfer waits.
    let handler = || {
        let began = Instant::now();
        let closed = initiator.close();
        assert!(matches!(closed, Err(EngineError::CallsUnderWay { calls: 1, .. })), "{closed:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "it waits for what it keeps waiting itself");
        false
    };
    let result = initiator.transfer_with(peer, &[here.read_from(addr)], &handler);
    assert!(matches!(result, Err(EngineError::Closed)), "{result:?}");
    // Asked again, it says so as soon as that is true.
    initiator.close().unwrap();
    lender.go_on();
}

#[test]
fn two_that_close_at_once_both_return_when_it_is_done() {
    let initiator = engine(false);
    let (lender, peer, addr) = lender(&initiator, false);
    lender.stop();
    let here = Memory::new(LEN);
    let batch = initiator.allocate(1);
    initiator.submit(batch, vec![(peer, here.read_from(addr))], None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                initiator.close().unwrap();
                assert_eq!(initiator.status(batch).unwrap(), Status::Failed);
            });
        }
    });
    lender.go_on();
}

#[test]
fn close_ends_a_copy_within_the_process() {
    let alone = engine(true);
    let (here, there) = (Memory::new(LEN), Memory::new(LEN));
    alone.register(&[there.range()], "*").unwrap();
    let requests = vec![here.write_to(there.addr()); 10_000];
    let batch = alone.allocate(requests.len());
    let requests: Vec<_> = requests.into_iter().map(|request| (PeerId::SELF, request)).collect();
    alone.submit(batch, requests, None).unwrap();
    let began = Instant::now();
    alone.close().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(alone.status(batch).unwrap(), Status::Failed);
}

#[test]
fn a_closed_engine_takes_no_calls() {
    let (engine, lent) = (engine(true), Memory::new(1 << 20));
    engine.register(&[lent.range()], "*").unwrap();
    engine.close().unwrap();
    engine.close().unwrap();
    let here = Memory::new(1 << 20);
    let batch = engine.allocate(1);
    for refused in [
        engine.transfer(PeerId::SELF, &[here.read_from(lent.addr())]),
        engine.submit(batch, vec![(PeerId::SELF, here.read_from(lent.addr()))], None),
        engine.register(&[here.range()], "*"),
        engine.unregister(lent.range().addr()),
    ] {
        assert!(matches!(refused, Err(EngineError::Closed)), "{refused:?}");
    }
}
