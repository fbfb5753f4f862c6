//! Calls of an engine, whatever the transport is; what each transport promises is in the folder `transports`.

use std::time::Duration;

use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Notify, PeerId, Status};

use crate::memory::Memory;

fn options(same_host: bool) -> EngineOptions {
    EngineOptions { same_host, ..EngineOptions::default() }
}

fn engine(same_host: bool) -> Engine {
    Engine::new("127.0.0.1", options(same_host)).unwrap()
}

/// An initiator, a target with registered memory, and the peer's id.
fn pair(same_host: bool, bytes: usize) -> (Engine, Engine, PeerId, Memory) {
    let (target, initiator) = (engine(same_host), engine(same_host));
    let there = Memory::new(bytes);
    target.register(&[there.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    (initiator, target, peer, there)
}

#[test]
fn stripes_of_a_large_request_make_up_the_whole() {
    let options = EngineOptions { stripes: 4, ..options(false) };
    let (target, initiator) = (engine(false), Engine::new("127.0.0.1", options).unwrap());
    let there = Memory::new((40 << 20) + 17);
    target.register(&[there.range()], "*").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let here = Memory::filled((40 << 20) + 17, 3);
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == here.bytes());
    let back = Memory::new(here.len());
    initiator.transfer(peer, &[back.read_from(there.addr())]).unwrap();
    assert!(back.bytes() == here.bytes());
}

#[test]
fn the_own_segment_is_a_peer_too() {
    let engine = engine(true);
    let there = Memory::new(9 << 20);
    engine.register(&[there.range()], "*").unwrap();
    let me = engine.open(engine.name()).unwrap();
    assert_eq!(me, PeerId::SELF);
    let here = Memory::filled(9 << 20, 4);
    engine.transfer(me, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == here.bytes());
    let outside = engine.transfer(me, &[here.read_from(there.addr() + 1)]);
    assert!(matches!(outside, Err(EngineError::NotRegistered { .. })));
}

#[test]
fn a_batch_leaves_its_message_whichever_of_its_requests_end_last() {
    let (initiator, target, peer, there) = pair(true, 4096);
    let second = engine(true);
    second.register(&[there.range()], "*").unwrap();
    let other = initiator.open(second.name()).unwrap();
    let here = Memory::filled(1, 1);
    for round in 0..20_000 {
        let batch = initiator.allocate(2);
        let both = vec![(peer, here.write_to(there.addr())), (other, here.write_to(there.addr() + 1))];
        let notify = Notify { name: "prefill".into(), message: round.to_string() };
        initiator.submit(batch, both, Some((PeerId::SELF, notify))).unwrap();
        assert_eq!(initiator.wait(batch, Duration::from_secs(10)).unwrap(), Status::Completed);
        let left: Vec<_> = initiator.take_notifies().into_iter().map(|notify| notify.message).collect();
        assert_eq!(left, [round.to_string()]);
        initiator.free(batch).unwrap();
    }
    drop((target, second));
}

#[test]
fn a_batch_with_a_bad_request_fails_and_says_why() {
    let (initiator, _target, peer, there) = pair(true, 1 << 20);
    let here = Memory::filled(4096, 1);
    let batch = initiator.allocate(1);
    initiator.submit(batch, vec![(peer, here.write_to(there.addr() - 1))], None).unwrap();
    assert_eq!(initiator.wait(batch, Duration::from_secs(10)).unwrap(), Status::Failed);
    assert!(initiator.batch_error(batch).unwrap().unwrap().contains("not inside one buffer"));
    initiator.free(batch).unwrap();
}

#[test]
fn names_that_nobody_has_are_errors_in_time() {
    let engine = engine(true);
    for name in ["", "/", "nowhere.invalid:1", "127.0.0.1", "127.0.0.1:1"] {
        assert!(engine.open(name).is_err(), "{name:?}");
        assert!(engine.probe(name).is_err(), "{name:?}");
    }
    let other = engine_of_its_own();
    engine.probe(other.name()).unwrap();
    assert_eq!(engine.open(other.name()).unwrap(), engine.open(&format!("/{}", other.name())).unwrap());
    assert_eq!(engine.first_buffer(other.name()).unwrap(), None);
    let name = other.name().to_owned();
    other.close().unwrap();
    assert!(engine.probe(&name).is_err());
}

fn engine_of_its_own() -> Engine {
    engine(true)
}

#[test]
fn a_closed_engine_says_so() {
    let (initiator, target, peer, there) = pair(true, 4096);
    let here = Memory::filled(4096, 1);
    target.close().unwrap();
    assert!(initiator.transfer(peer, &[here.write_to(there.addr())]).is_err());
    initiator.close().unwrap();
    assert!(matches!(initiator.transfer(peer, &[here.write_to(there.addr())]), Err(EngineError::Closed)));
    assert!(matches!(initiator.register(&[here.range()], "*"), Err(EngineError::Closed)));
}
