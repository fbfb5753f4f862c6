//! Processes that share memory stop, close and make way for other programs in the midst of a copy: success is never
//! said of bytes that nobody has, and nobody waits for who is not there or is somewhere else.

use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_memory::{ForeignRange, allocate_shared, free_host_memory};
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_test_support::mapped_range;
use mooncake_test_support::test_name;
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Request};

use crate::memory::Memory;

/// Bytes that are copied in one go.
const VISIT: usize = 4 << 20;

/// Of those who wait for nobody, on a busy machine.
const SOON: Duration = Duration::from_secs(4);

/// Not a test of its own.
#[test]
fn other() {
    match role().unwrap_or_default().as_str() {
        "owner" => owner(),
        "writer" => writer(),
        "counter" => counter(),
        _ => {}
    }
}

fn engine() -> Engine {
    Engine::new("127.0.0.1", EngineOptions::default()).unwrap()
}

/// Memory that peers map.
fn shared(len: usize) -> ForeignRange {
    let addr = allocate_shared(len as u64).unwrap();
    // SAFETY: mapped, and only used through engines and by fault-safe copies.
    unsafe { ForeignRange::new(addr, len) }
}

fn become_another_program() -> ! {
    panic!("{}", Command::new("sleep").arg("100").exec());
}

/// Lends memory of both kinds, and makes way for another program.
fn owner() {
    let (engine, own, other) = (engine(), shared(2 * VISIT), Memory::new(2 * VISIT));
    engine.register(&[own, other.range()], "*").unwrap();
    say(format_args!("{} {} {}", engine.name(), own.addr(), other.addr()));
    hear();
    become_another_program();
}

/// Writes without end, in several threads, and makes way for another program.
fn writer() {
    let (engine, told) = (engine(), hear());
    let (name, addr) = told.split_once(' ').unwrap();
    let (peer, addr) = (engine.open(name).unwrap(), addr.parse().unwrap());
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let engine = &engine;
            scope.spawn(move || {
                let here = Memory::filled(VISIT, seed);
                while engine.transfer(peer, &[here.write_to(addr)]).is_ok() {}
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        say("writing");
        hear();
        become_another_program();
    });
}

/// Writes a visit that ends in 1, then one that ends in 2, and so on; says the last that was a success.
fn counter() {
    let (engine, told) = (engine(), hear());
    let (name, addr) = told.split_once(' ').unwrap();
    let (peer, addr) = (engine.open(name).unwrap(), addr.parse().unwrap());
    let here = Memory::new(VISIT);
    say("counting");
    let mut last = 0_u64;
    for number in 1_u64.. {
        here.range().part(VISIT - 8, 8).write_from(&number.to_le_bytes()).unwrap();
        match engine.transfer(peer, &[here.write_to(addr)]) {
            Ok(()) => last = number,
            Err(EngineError::NotRegistered { .. }) => {}
            Err(_) => break,
        }
    }
    say(last);
}

/// One of `requests` after the other, while the owner makes way for another program after the first step.
fn transfer_while_it_goes(request: fn(&Memory, u64) -> Request, of_its_own: bool) {
    let mut owner = ChildProcess::start(&test_name!("other"), "owner");
    let told = owner.hear();
    let told: Vec<&str> = told.split(' ').collect();
    let initiator = engine();
    let peer = initiator.open(told[0]).unwrap();
    let remote: u64 = told[if of_its_own { 1 } else { 2 }].parse().unwrap();
    let here = Memory::filled(2 * VISIT, 5);
    initiator.transfer(peer, &[request(&here, remote)]).unwrap();
    assert_eq!(initiator.links()[0].reason.starts_with("1 blocks"), of_its_own);

    let (owner, gone) = (Mutex::new(owner), AtomicBool::new(false));
    let go = || {
        if !gone.swap(true, Ordering::SeqCst) {
            let mut owner = owner.lock().unwrap();
            owner.say("go");
            owner.wait_until_it_is("sleep");
        }
        false
    };
    // Long enough for the caller to be asked how it is meanwhile.
    let all = [request(&here, remote); 300];
    let moved = initiator.transfer_with(peer, &all, &go);
    assert!(moved.is_err() && gone.load(Ordering::SeqCst), "{moved:?}");
    // Nor does anybody keep the memory.
    assert!(initiator.transfer(peer, &all[..1]).is_err());
    assert_eq!(initiator.links()[0].reason, "copies between processes");
}

#[test]
fn what_is_written_to_a_program_that_made_way_for_another_is_no_success() {
    transfer_while_it_goes(Memory::write_to, true);
}

#[test]
fn what_is_read_of_a_program_that_made_way_for_another_is_no_success() {
    transfer_while_it_goes(Memory::read_from, true);
    transfer_while_it_goes(Memory::read_from, false);
}

#[test]
fn nobody_waits_for_a_program_that_made_way_for_another_inside() {
    let (target, own) = (engine(), shared(VISIT));
    for round in 0..6 {
        target.register(&[own], "*").unwrap();
        let mut writer = ChildProcess::start(&test_name!("other"), "writer");
        writer.say(format_args!("{} {}", target.name(), own.addr()));
        assert_eq!(writer.hear(), "writing");
        writer.say("go");
        writer.wait_until_it_is("sleep");
        let began = Instant::now();
        target.unregister(own.addr()).unwrap();
        assert!(began.elapsed() < SOON, "round {round}: {:?}", began.elapsed());
    }
}

/// Stops the counter while it is inside of a buffer, which this thread gives up meanwhile.
fn stop_inside(target: &Arc<Engine>, own: ForeignRange, counter: &ChildProcess) -> JoinHandle<Result<(), EngineError>> {
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(20));
        counter.stop();
        let lender = target.clone();
        let giving_up = std::thread::spawn(move || lender.unregister(own.addr()));
        let until = Instant::now() + Duration::from_secs(2);
        while !giving_up.is_finished() {
            if Instant::now() > until {
                return giving_up;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        giving_up.join().unwrap().unwrap();
        counter.go_on();
        target.register(&[own], "*").unwrap();
    }
    panic!("it was never inside");
}

#[test]
fn a_peer_that_stands_still_inside_keeps_one_block_and_has_no_success_after_the_owners_end() {
    let (target, own, other) = (Arc::new(engine()), shared(VISIT), shared(4096));
    target.register(&[own, other], "*").unwrap();
    let mut counter = ChildProcess::start(&test_name!("other"), "counter");
    counter.say(format_args!("{} {}", target.name(), own.addr()));
    assert_eq!(counter.hear(), "counting");
    let giving_up = stop_inside(&target, own, &counter);

    let began = Instant::now();
    target.unregister(other.addr()).unwrap();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());

    let (closes, port) = (target.clone(), target.port());
    let closing = std::thread::spawn(move || closes.close());
    while TcpStream::connect(("127.0.0.1", port)).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    counter.go_on();
    let last: u64 = counter.hear().parse().unwrap();
    // Whether they waited in vain is another test's.
    assert!(giving_up.join().is_ok() && closing.join().is_ok());
    let mut found = [0; 8];
    own.part(VISIT - 8, 8).read_into(&mut found).unwrap();
    // What it was at when it was stopped came after that.
    assert!(u64::from_le_bytes(found) > last, "{last} was a success of an engine that had ended");
}

/// A block is freed of which a part is still lent, to a peer that has learned of the part or only of the block.
fn write_to_what_was_freed(is_known: bool) {
    let (target, initiator, own) = (engine(), engine(), shared(64 << 10));
    let peer = initiator.open(target.name()).unwrap();
    let here = Memory::filled(4096, 9);
    let write = here.write_to(own.addr() as u64 + 8192);
    target.register(&[own], "*").unwrap();
    initiator.transfer(peer, &[write]).unwrap();
    assert!(initiator.links()[0].reason.starts_with("1 blocks"), "{}", initiator.links()[0].reason);
    target.unregister(own.addr()).unwrap();
    target.register(&[own.part(8192, 4096)], "*").unwrap();
    if is_known {
        initiator.transfer(peer, &[write]).unwrap();
    }
    // SAFETY: only the engine has it, by copies that the kernel checks.
    assert!(unsafe { free_host_memory(own.addr()) });
    assert_eq!(mapped_range(own.addr() + 8192).map(|range| range.access).as_deref(), Some("---"));
    let written = initiator.transfer(peer, &[write]);
    assert!(written.is_err(), "{written:?}");
    target.unregister(own.addr() + 8192).unwrap();
    // The last connection that had it may be closing yet.
    let is_free = || mapped_range(own.addr()).is_none_or(|range| range.start != own.addr() || range.access != "---");
    let until = Instant::now() + SOON;
    while !is_free() {
        assert!(Instant::now() < until, "its addresses are free again");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_block_that_was_freed_while_a_part_was_lent_is_nobodys() {
    write_to_what_was_freed(false);
    write_to_what_was_freed(true);
}
