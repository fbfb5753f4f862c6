//! Memory that a target made to be shared: its peers map it, and touch it only while it is lent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{ForeignRange, allocate_shared, free_host_memory};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, PeerId, Request};

use crate::memory::Memory;

/// Memory of a block of its own.
struct Shared(ForeignRange);

impl Shared {
    fn new(len: usize) -> Shared {
        let addr = allocate_shared(len as u64).unwrap();
        // SAFETY: mapped, and only used through engines and by fault-safe copies.
        Shared(unsafe { ForeignRange::new(addr, len) })
    }

    fn addr(&self) -> u64 {
        self.0.addr() as u64
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.0.len()];
        self.0.read_into(&mut bytes).unwrap();
        bytes
    }

    fn free(self) {
        // SAFETY: unregistered, and its test does not use it any more.
        assert!(unsafe { free_host_memory(self.0.addr()) });
    }
}

fn engine() -> Engine {
    Engine::new("127.0.0.1", EngineOptions::default()).unwrap()
}

fn pair() -> (Engine, Engine, PeerId) {
    let (target, initiator) = (engine(), engine());
    let peer = initiator.open(target.name()).unwrap();
    (initiator, target, peer)
}

fn reason(engine: &Engine) -> String {
    engine.links()[0].reason.clone()
}

#[test]
fn own_memory_is_mapped_and_copied_both_ways_and_other_memory_is_not() {
    let (initiator, target, peer) = pair();
    let (own, other) = (Shared::new(10 << 20), Memory::new(1 << 20));
    target.register(&[other.range()], "*").unwrap();
    let here = Memory::filled(9 << 20, 3);
    let part = Request { local: here.range().part(0, 1 << 20), ..here.write_to(other.addr()) };
    initiator.transfer(peer, &[part]).unwrap();
    assert_eq!(reason(&initiator), "copies between processes");

    target.register(&[own.0], "cpu:0").unwrap();
    let to_both = [part, here.write_to(own.addr() + 4097), part];
    initiator.transfer(peer, &to_both).unwrap();
    assert!(own.bytes()[4097..][..9 << 20] == *here.bytes() && other.bytes() == &here.bytes()[..1 << 20]);
    let back = Memory::new(9 << 20);
    initiator.transfer(peer, &[back.read_from(own.addr() + 4097)]).unwrap();
    assert!(back.bytes() == here.bytes());
    assert_eq!(reason(&initiator), "1 blocks of its memory mapped, copies between processes otherwise");
    assert_eq!((initiator.links()[0].path, initiator.links()[0].failed), ("same host", 0));

    let outside = initiator.transfer(peer, &[here.write_to(own.addr() + (1 << 20) + 1)]);
    assert!(matches!(outside, Err(EngineError::NotRegistered { .. })), "{outside:?}");
    target.close().unwrap();
    own.free();
}

#[test]
fn only_the_part_of_a_block_that_is_lent_can_be_reached() {
    let (initiator, target, peer) = pair();
    let own = Shared::new(64 << 10);
    target.register(&[own.0.part(8192, 4096)], "*").unwrap();
    let here = Memory::filled(4096, 9);
    initiator.transfer(peer, &[here.write_to(own.addr() + 8192)]).unwrap();
    assert!(reason(&initiator).starts_with("1 blocks"), "{}", reason(&initiator));
    for wrong in [8191, 8193, 0, 60 << 10] {
        let written = initiator.transfer(peer, &[here.write_to(own.addr() + wrong)]);
        assert!(matches!(written, Err(EngineError::NotRegistered { .. })), "{wrong} {written:?}");
    }
    let bytes = own.bytes();
    assert!(bytes[8192..12_288] == *here.bytes());
    assert!(bytes[..8192].iter().chain(&bytes[12_288..]).all(|byte| *byte == 0));
    target.close().unwrap();
    own.free();
}

#[test]
fn when_memory_is_given_up_nobody_touches_it_any_more() {
    let (initiator, target, peer) = pair();
    let own = Shared::new(8 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|seed| {
                let (initiator, stop, addr) = (&initiator, &stop, own.addr());
                scope.spawn(move || {
                    let here = Memory::filled(8 << 20, seed + 1);
                    let (mut done, mut refused) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        match initiator.transfer(peer, &[here.write_to(addr)]) {
                            Ok(()) => done += 1,
                            Err(EngineError::NotRegistered { .. }) => refused += 1,
                            Err(other) => panic!("{other}"),
                        }
                    }
                    (done, refused)
                })
            })
            .collect();
        for _ in 0..30 {
            target.register(&[own.0], "*").unwrap();
            std::thread::sleep(Duration::from_millis(7));
            target.unregister(own.0.addr()).unwrap();
            let before = own.bytes();
            std::thread::sleep(Duration::from_millis(3));
            assert!(own.bytes() == before, "touched after it was given up");
        }
        stop.store(true, Ordering::Relaxed);
        let all: Vec<(u64, u64)> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(all.iter().any(|(done, _)| *done > 0) && all.iter().any(|(_, refused)| *refused > 0), "{all:?}");
    });
    target.close().unwrap();
    own.free();
}

#[test]
fn memory_that_is_freed_and_lent_anew_is_the_new_one() {
    let (initiator, target, peer) = pair();
    for round in 0..20 {
        let own = Shared::new(1 << 20);
        target.register(&[own.0], "*").unwrap();
        let here = Memory::filled(1 << 20, round);
        initiator.transfer(peer, &[here.write_to(own.addr())]).unwrap();
        assert!(own.bytes() == here.bytes(), "round {round}");
        target.unregister(own.0.addr()).unwrap();
        let refused = initiator.transfer(peer, &[here.write_to(own.addr())]);
        assert!(matches!(refused, Err(EngineError::NotRegistered { .. })), "{refused:?}");
        own.free();
    }
    // What was freed is let go of here as well, two changes later.
    assert!(!reason(&initiator).starts_with("20"), "{}", reason(&initiator));
}

#[test]
fn a_target_that_does_without_the_host_is_reached_by_tcp() {
    let (initiator, target) =
        (engine(), Engine::new("127.0.0.1", EngineOptions { same_host: false, ..Default::default() }));
    let target = target.unwrap();
    let own = Shared::new(1 << 20);
    target.register(&[own.0], "*").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let here = Memory::filled(1 << 20, 8);
    initiator.transfer(peer, &[here.write_to(own.addr())]).unwrap();
    assert!(own.bytes() == here.bytes());
    assert_eq!(initiator.links()[0].path, "tcp");
    target.close().unwrap();
    own.free();
}

#[test]
fn giving_up_waits_for_no_peer_that_is_outside() {
    let (initiator, target, peer) = pair();
    let own = Shared::new(1 << 20);
    let here = Memory::filled(1 << 20, 8);
    for _ in 0..100 {
        target.register(&[own.0], "*").unwrap();
        initiator.transfer(peer, &[here.write_to(own.addr())]).unwrap();
        let began = Instant::now();
        target.unregister(own.0.addr()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
    }
    target.close().unwrap();
    own.free();
}
