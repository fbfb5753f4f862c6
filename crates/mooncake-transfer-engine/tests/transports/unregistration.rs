//! Once memory is unregistered nothing lands there, and no success has what its user puts there next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::ForeignRange;
use mooncake_transfer_engine::Engine;

use crate::memory::Memory;
use crate::row::Row;

/// What the user of the memory has at its end while it is lent, and puts there when it has it back. Copies come there
/// last.
static LENT: [u8; 64 << 10] = [0x11; 64 << 10];
static MINE: [u8; 64 << 10] = [0xee; 64 << 10];

const ROUNDS: usize = 20;

fn end_of(memory: &Memory) -> ForeignRange {
    memory.range().part(memory.len() - MINE.len(), MINE.len())
}

/// Lends memory and takes it back, again and again; it is lent before the first time, and each time until one more call
/// has `succeeded`. `looks` is called when the user has had it back for a while.
fn lend_and_take_back(target: &Engine, memory: &Memory, succeeded: &AtomicU64, mut looks: impl FnMut()) {
    for round in 0..ROUNDS {
        if round > 0 {
            end_of(memory).write_from(&LENT).unwrap();
            target.register(&[memory.range()], "*").unwrap();
        }
        let (before, until) = (succeeded.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
        while succeeded.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < until, "no call succeeds in round {round}");
            std::thread::sleep(Duration::from_millis(1));
        }
        target.unregister(memory.range().addr()).unwrap();
        end_of(memory).write_from(&MINE).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        looks();
    }
}

pub fn nothing_lands_in_memory_that_is_unregistered(row: &Row) {
    let (initiator, target, peer, there) = row.pair(4 << 20);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
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
        lend_and_take_back(&target, &there, &written, || {
            let mut end = MINE;
            end_of(&there).read_into(&mut end).unwrap();
            touched += u32::from(end != MINE);
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(touched, 0, "of {ROUNDS} times");
    assert!(written.into_inner() > 0);
    assert!(row.has_moved_bytes(&initiator), "{:?}", initiator.links());
}

pub fn no_read_that_is_a_success_has_bytes_of_later(row: &Row) {
    let (initiator, target, peer, there) = row.pair(16 << 20);
    end_of(&there).write_from(&LENT).unwrap();
    let stop = AtomicBool::new(false);
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
        lend_and_take_back(&target, &there, &read, || ());
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong.into_inner(), 0);
    assert!(read.into_inner() > 0);
    assert!(row.has_moved_bytes(&initiator), "{:?}", initiator.links());
}
