//! The local end of a transfer that begins in registered memory ends in it, or nothing moves.

use std::time::Duration;

use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, PeerId, Request, Status};

use crate::memory::Memory;

const LEN: usize = 4096;

/// An engine with a peer that lends memory. It has registered the first page of its own memory, lent or not; behind
/// that the memory is another's.
fn initiator(same_host: bool, lent: bool) -> (Engine, Engine, PeerId, Memory, Memory) {
    let start = || Engine::new("127.0.0.1", EngineOptions { same_host, ..EngineOptions::default() }).unwrap();
    let (initiator, target) = (start(), start());
    let (there, here) = (Memory::filled(2 * LEN, 1), Memory::filled(3 * LEN, 2));
    target.register(&[there.range()], "*").unwrap();
    let first = [here.range().part(0, LEN)];
    match lent {
        true => initiator.register(&first, "*").unwrap(),
        false => initiator.register_local(&first, "*").unwrap(),
    }
    let peer = initiator.open(target.name()).unwrap();
    (initiator, target, peer, there, here)
}

fn request(opcode: Opcode, local: ForeignRange, remote: u64) -> Request {
    Request { opcode, local, remote }
}

#[test]
fn a_local_range_that_runs_out_of_registered_memory_is_refused_before_a_byte_moves() {
    for (same_host, lent) in [(true, true), (true, false), (false, true), (false, false)] {
        let (engine, _target, peer, there, here) = initiator(same_host, lent);
        let (good, bad) = (here.range().part(0, LEN), here.range().part(LEN - 100, 104));
        for to in [peer, PeerId::SELF] {
            for opcode in [Opcode::Read, Opcode::Write] {
                // The whole call, whichever of its requests it is.
                let requests = [request(opcode, good, there.addr()), request(opcode, bad, there.addr())];
                let refused = engine.transfer(to, &requests).unwrap_err();
                assert_eq!(refused.code(), -3, "{refused}");
                let (said, start) = (refused.to_string(), format!("{:#x}", here.addr()));
                for part in ["104 bytes", &format!("{:#x}", bad.addr()), "4096 bytes", &start] {
                    assert!(said.contains(part), "{said}");
                }
                let batch = engine.allocate(2);
                let refused = engine.submit(batch, requests.map(|request| (to, request)).to_vec(), None).unwrap_err();
                assert_eq!(refused.code(), -3, "{refused}");
                // Nothing of it was taken.
                assert_eq!(engine.status(batch).unwrap(), Status::Completed);
                engine.free(batch).unwrap();
            }
        }
        assert!(here.bytes() == Memory::filled(3 * LEN, 2).bytes(), "same host {same_host}, lent {lent}");
        assert!(there.bytes() == Memory::filled(2 * LEN, 1).bytes(), "same host {same_host}, lent {lent}");
    }
}

#[test]
fn local_ranges_over_several_that_touch_or_outside_of_all_are_moved() {
    let (engine, _target, peer, there, here) = initiator(true, true);
    // Two that touch; and memory that nobody has registered, up to the last byte before one that is.
    engine.register(&[here.range().part(LEN, LEN)], "*").unwrap();
    let free = Memory::new(LEN);
    for local in [here.range().part(100, 2 * LEN - 100), here.range().part(2 * LEN, LEN), free.range()] {
        let peers = request(Opcode::Read, local, there.addr());
        engine.transfer(peer, &[peers]).unwrap();
        let batch = engine.allocate(1);
        engine.submit(batch, vec![(peer, peers)], None).unwrap();
        assert_eq!(engine.wait(batch, Duration::from_secs(10)).unwrap(), Status::Completed);
        engine.free(batch).unwrap();
    }
    let over = request(Opcode::Read, here.range().part(100, 2 * LEN), there.addr());
    assert_eq!(engine.transfer(peer, &[over]).unwrap_err().code(), -3);
    // What was given up is memory as any other.
    engine.unregister(here.range().addr()).unwrap();
    engine.unregister(here.range().addr() + LEN).unwrap();
    engine.transfer(peer, &[over]).unwrap();
}
