//! Reads and writes of all sizes, by each path, one at a time and many together.

mod memory;

use std::time::Duration;

use memory::Memory;
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Notify, Opcode, PeerId, Request, Status};

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
fn sizes_from_a_byte_to_many_megabytes_go_both_ways() {
    for same_host in [true, false] {
        let (initiator, target, peer, there) = pair(same_host, 40 << 20);
        for size in [1, 2, 4095, 4096, 4097, 65_536, 1_000_003, (1 << 20) + 1, 40 << 20] {
            let (here, back) = (Memory::filled(size, size as u64), Memory::new(size));
            initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
            assert!(there.bytes()[..size] == *here.bytes(), "{size} written, same host {same_host}");
            initiator.transfer(peer, &[back.read_from(there.addr())]).unwrap();
            assert!(back.bytes() == here.bytes(), "{size} read, same host {same_host}");
        }
        let link = &initiator.links()[0];
        assert_eq!(link.path, if same_host { "same host" } else { "tcp" }, "{}", link.reason);
        assert_eq!((link.failed, &*link.peer), (0, target.name()));
    }
}

#[test]
fn a_list_of_many_pieces_is_moved_whole_and_in_both_directions_at_once() {
    for same_host in [true, false] {
        let (initiator, _target, peer, there) = pair(same_host, 8 << 20);
        let here = Memory::filled(4 << 20, 5);
        let back = Memory::new(4 << 20);
        // Odd cuts, an empty one among them.
        let cuts: Vec<usize> = (0..3000).map(|n| (n * 1398 + n % 7).min(4 << 20)).chain([4 << 20, 4 << 20]).collect();
        let mut requests = Vec::new();
        for cut in cuts.windows(2) {
            let local = here.range().part(cut[0], cut[1] - cut[0]);
            requests.push(Request { opcode: Opcode::Write, local, remote: there.addr() + cut[0] as u64 });
        }
        initiator.transfer(peer, &requests).unwrap();
        assert!(there.bytes()[..4 << 20] == *here.bytes(), "same host {same_host}");
        let mixed: Vec<Request> = requests
            .iter()
            .flat_map(|write| {
                let at = write.local.addr() - here.range().addr();
                let read = back.range().part(at, write.local.len());
                [
                    Request { remote: write.remote + (4 << 20), ..*write },
                    Request { opcode: Opcode::Read, local: read, remote: write.remote },
                ]
            })
            .collect();
        initiator.transfer(peer, &mixed).unwrap();
        assert!(back.bytes() == here.bytes() && there.bytes()[4 << 20..] == *here.bytes(), "same host {same_host}");
    }
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
fn memory_that_is_not_registered_is_refused_and_the_lane_goes_on() {
    for same_host in [true, false] {
        let (initiator, target, peer, there) = pair(same_host, 1 << 20);
        let here = Memory::filled(4096, 1);
        let end = there.addr() + there.len() as u64;
        for remote in [there.addr() - 1, end - 4095, end, 0, 4096, u64::MAX - 4096] {
            for request in [here.write_to(remote), here.read_from(remote)] {
                let refused = initiator.transfer(peer, &[request]);
                assert!(matches!(refused, Err(EngineError::NotRegistered { .. })), "{remote:#x}: {refused:?}");
            }
        }
        assert!(matches!(
            initiator.transfer(peer, &[here.write_to(u64::MAX - 10)]),
            Err(EngineError::InvalidArgument(_))
        ));
        initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
        target.unregister(there.range().addr()).unwrap();
        for request in [here.write_to(there.addr()), here.read_from(there.addr())] {
            let refused = initiator.transfer(peer, &[request]);
            assert!(matches!(refused, Err(EngineError::NotRegistered { .. })), "{refused:?}");
        }
        target.register(&[there.range()], "*").unwrap();
        initiator.transfer(peer, &[here.read_from(there.addr())]).unwrap();
    }
}

#[test]
fn local_memory_that_is_not_there_is_an_error_and_no_signal() {
    for same_host in [true, false] {
        let (initiator, _target, peer, there) = pair(same_host, 1 << 20);
        for opcode in [Opcode::Read, Opcode::Write] {
            let request = Request { opcode, local: memory::nowhere(4096), remote: there.addr() };
            let failed = initiator.transfer(peer, &[request]);
            assert!(matches!(failed, Err(EngineError::Memory(_))), "{opcode:?} {failed:?}");
        }
        let here = Memory::filled(4096, 1);
        initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    }
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
fn batches_end_with_all_their_bytes_in_place_and_their_message_before() {
    for same_host in [true, false] {
        let (initiator, target, peer, there) = pair(same_host, 16 << 20);
        let here = Memory::filled(16 << 20, 9);
        let batch = initiator.allocate(1000);
        let piece = |n: usize| {
            let local = here.range().part(n * 16_384, 16_384);
            (peer, Request { opcode: Opcode::Write, local, remote: there.addr() + n as u64 * 16_384 })
        };
        initiator.submit(batch, (0..500).map(piece).collect(), None).unwrap();
        let notify = Notify { name: "blocks".into(), message: "1000 of them".into() };
        initiator.submit(batch, (500..1000).map(piece).collect(), Some((peer, notify.clone()))).unwrap();
        let too_many = initiator.submit(batch, vec![piece(0)], None);
        assert!(matches!(too_many, Err(EngineError::TooManyRequests { capacity: 1000, queued: 1000, more: 1 })));
        assert_eq!(initiator.wait(batch, Duration::from_secs(30)).unwrap(), Status::Completed);
        assert!(there.bytes()[..1000 * 16_384] == here.bytes()[..1000 * 16_384]);
        assert_eq!(initiator.task_status(batch, 999).unwrap().transferred, 16_384);
        assert!(initiator.task_status(batch, 1000).is_err());
        assert_eq!(target.take_notifies(), [notify]);
        initiator.free(batch).unwrap();
        assert!(matches!(initiator.free(batch), Err(EngineError::NoSuchBatch(_))));
    }
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
