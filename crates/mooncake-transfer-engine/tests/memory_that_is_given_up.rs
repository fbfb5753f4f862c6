//! Memory that peers copy to and from directly: once it is given up nobody lands bytes there, and nobody takes what its
//! user puts there next for what was lent.

mod memory;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memory::Memory;
use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::{Engine, EngineOptions, PeerId};

/// What the user of the memory has at its end while it is lent, and puts there when it has it back. Copies come there
/// last.
static LENT: [u8; 64 << 10] = [0x11; 64 << 10];
static MINE: [u8; 64 << 10] = [0xee; 64 << 10];

const ROUNDS: usize = 20;

fn pair() -> (Engine, Engine, PeerId) {
    let engine = || Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let (target, initiator) = (engine(), engine());
    let peer = initiator.open(target.name()).unwrap();
    (initiator, target, peer)
}

fn end_of(memory: &Memory) -> ForeignRange {
    memory.range().part(memory.len() - MINE.len(), MINE.len())
}

fn copied_directly(initiator: &Engine) -> bool {
    initiator.links()[0].by_path.iter().any(|(path, bytes)| *path == "same host" && *bytes > 0)
}

/// Lends memory and takes it back, again and again. `looks` is called when the user has had it back for a while.
fn lend_and_take_back(target: &Engine, memory: &Memory, mut looks: impl FnMut()) {
    for _ in 0..ROUNDS {
        end_of(memory).write_from(&LENT).unwrap();
        target.register(&[memory.range()], "*").unwrap();
        std::thread::sleep(Duration::from_millis(10));
        target.unregister(memory.range().addr()).unwrap();
        end_of(memory).write_from(&MINE).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        looks();
    }
}

#[test]
fn nothing_lands_in_it_any_more() {
    let (initiator, target, peer) = pair();
    let (there, stop, written) = (Memory::new(4 << 20), AtomicBool::new(false), AtomicU64::new(0));
    let mut touched = 0;
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (initiator, there, stop, written) = (&initiator, &there, &stop, &written);
            scope.spawn(move || {
                let here = Memory::filled(4 << 20, seed + 1);
                while !stop.load(Ordering::Relaxed) {
                    let done = initiator.transfer(peer, &[here.write_to(there.addr())]).is_ok();
                    written.fetch_add(u64::from(done), Ordering::Relaxed);
                }
            });
        }
        lend_and_take_back(&target, &there, || {
            let mut end = MINE;
            end_of(&there).read_into(&mut end).unwrap();
            touched += u32::from(end != MINE);
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(touched, 0, "of {ROUNDS} times");
    assert!(written.into_inner() > 0);
    assert!(copied_directly(&initiator));
}

#[test]
fn no_read_that_is_a_success_has_bytes_of_later() {
    let (initiator, target, peer) = pair();
    let (there, stop) = (Memory::new(16 << 20), AtomicBool::new(false));
    let (read, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let here = Memory::new(16 << 20);
            while !stop.load(Ordering::Relaxed) {
                // One that falls into the taking back fails in one way or another.
                if initiator.transfer(peer, &[here.read_from(there.addr())]).is_ok() {
                    read.fetch_add(1, Ordering::Relaxed);
                    let end = &here.bytes()[here.len() - MINE.len()..];
                    wrong.fetch_add(u64::from(end != LENT), Ordering::Relaxed);
                }
            }
        });
        lend_and_take_back(&target, &there, || ());
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong.into_inner(), 0);
    assert!(read.into_inner() > 0);
    assert!(copied_directly(&initiator));
}
