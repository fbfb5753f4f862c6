//! Small writes to a peer that is awake are asked for through the page that both share. They land, end and are given up
//! like all others; and a peer that is not awake, or of an earlier version, is asked by its socket.

mod host;
mod memory;
mod relay;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use host::{DONE, answer, ask, before_one_that_stands_still, meet_with_access_page};
use memory::Memory;
use mooncake_memory::{AccessPage, AccessPageView};
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Status};

const SOON: Duration = Duration::from_millis(300);

/// Of those who wait for nobody, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(4);

/// Longest that a test waits for two to be awake at the same time.
const LONG: Duration = Duration::from_secs(30);

fn engine() -> Engine {
    Engine::new("127.0.0.1", EngineOptions::default()).unwrap()
}

/// Whether an engine waits awake for requests here at all. If not, says that a test is skipped.
fn engines_wait_awake() -> bool {
    let waits = mooncake_net::busy_polls_max() > 0;
    if !waits {
        println!("skipped: there is no second processor, so that no engine waits awake");
    }
    waits
}

/// Not a test of its own.
#[test]
fn other() {
    match role().unwrap_or_default().as_str() {
        "lender" => lender(),
        "writer" => writer(),
        _ => {}
    }
}

/// Lends 64 KiB, and looks at them when it is told to.
fn lender() {
    let (engine, lent) = (engine(), Memory::new(64 << 10));
    engine.register(&[lent.range()], "*").unwrap();
    say(format_args!("{} {}", engine.name(), lent.addr()));
    loop {
        hear();
        say(u64::from_le_bytes(lent.bytes()[..8].try_into().unwrap()));
    }
}

/// Writes small ones without end.
fn writer() {
    let (engine, told) = (engine(), hear());
    let (name, addr) = told.split_once(' ').unwrap();
    let (peer, addr) = (engine.open(name).unwrap(), addr.parse().unwrap());
    let here = Memory::filled(4096, 3);
    engine.transfer(peer, &[here.write_to(addr)]).unwrap();
    say("writing");
    while engine.transfer(peer, &[here.write_to(addr)]).is_ok() {}
}

/// Waits for the answer there. Awake, and lets others have the processor: the engine may need it.
fn answer_there(view: &AccessPageView) -> u64 {
    let began = Instant::now();
    loop {
        if let Some(answer) = view.answer() {
            return answer;
        }
        assert!(began.elapsed() < LONG, "no answer");
        std::thread::yield_now();
    }
}

/// Hands a request to an engine through the access page. It looks there from before its answer to another one by the
/// socket until that has gone: so it is asked for nothing again and again until nobody takes its answers, however long
/// those two are not awake at the same time. Says how many answers are to be taken: it does nothing before.
fn ask_awake(stream: &mut UnixStream, view: &mut AccessPageView, buffer: u64, words: &[u64]) -> usize {
    let began = Instant::now();
    let mut nothing = 0;
    stream.set_nonblocking(true).unwrap();
    while !view.ask(words.iter().copied()) {
        match stream.write(&[1, buffer, buffer, 0].map(u64::to_le_bytes).concat()) {
            Ok(sent) => nothing += sent / 32,
            Err(_) => std::thread::yield_now(),
        }
        assert!(began.elapsed() < LONG, "it never looks");
    }
    stream.set_nonblocking(false).unwrap();
    nothing
}

fn take_answers(stream: &mut UnixStream, count: usize) {
    (0..count).for_each(|_| assert_eq!(answer(stream), DONE));
}

#[test]
fn an_engine_answers_there_to_who_is_awake_and_by_the_socket_to_who_sleeps() {
    if !engines_wait_awake() {
        return;
    }
    let (target, there) = (engine(), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    let (mut stream, mut view) = meet_with_access_page(&target);
    let (mut awake, mut asleep) = (0, 0);
    let began = Instant::now();
    for seed in 1.. {
        let here = Memory::filled(4096, seed);
        let others = ask_awake(&mut stream, &mut view, there.addr(), &[there.addr(), here.addr(), 4096]);
        if seed % 2 == 0 && view.fall_asleep() {
            take_answers(&mut stream, others + 1);
            asleep += 1;
        } else {
            take_answers(&mut stream, others);
            assert_eq!(answer_there(&view), 0);
            awake += 1;
        }
        assert!(there.bytes() == here.bytes(), "the bytes are not there");
        if awake >= 5 && asleep >= 3 {
            break;
        }
        assert!(began.elapsed() < LONG, "{awake} awake, {asleep} asleep");
    }
    // What is in no buffer is refused, and says which piece it was.
    let here = Memory::new(64);
    let others = ask_awake(&mut stream, &mut view, there.addr(), &[there.addr() + 4090, here.addr(), 64]);
    take_answers(&mut stream, others);
    assert_eq!(answer_there(&view) as u32, 1, "not registered");
}

#[test]
fn nothing_is_copied_that_was_taken_back() {
    if !engines_wait_awake() {
        return;
    }
    let (target, there) = (engine(), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    for _ in 0..5 {
        let (mut stream, mut view) = meet_with_access_page(&target);
        let here = Memory::filled(4096, 1);
        let others = ask_awake(&mut stream, &mut view, there.addr(), &[there.addr(), here.addr(), 0]);
        take_answers(&mut stream, others);
        answer_there(&view);
        view.withdraw();
        let asked = view.ask([there.addr(), here.addr(), 4096].into_iter());
        if !asked {
            ask(&mut stream, &[(there.addr(), here.addr(), 4096)]);
        }
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it hangs up");
        assert!(!view.is_copying() && there.bytes().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_is_no_request_ends_the_connection() {
    if !engines_wait_awake() {
        return;
    }
    let (target, there) = (engine(), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    for words in [&[][..], &[1], &[there.addr(), 8, 8, 1]] {
        let (mut stream, mut view) = meet_with_access_page(&target);
        ask_awake(&mut stream, &mut view, there.addr(), words);
        // Behind the answers. A reset, where it had not read all that it was asked for.
        match stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "it hangs up"),
        }
    }
}

/// Asks for nothing, and waits for the answer awake: the next request follows at once. Whether the engine was awake,
/// too.
fn ask_for_nothing(stream: &mut UnixStream, view: &mut AccessPageView, addr: u64) -> bool {
    let is_awake = view.is_looked_at();
    if view.ask([addr, addr, 0].into_iter()) {
        let began = Instant::now();
        while view.answer().is_none() {
            assert!(began.elapsed() < LONG, "no answer");
            std::hint::spin_loop();
        }
    } else {
        ask(stream, &[(addr, addr, 0)]);
        assert_eq!(answer(stream), DONE);
    }
    is_awake
}

#[test]
fn a_visitor_that_asks_again_at_once_does_not_keep_an_engine_from_the_others() {
    let options = EngineOptions { server_threads: 1, ..EngineOptions::default() };
    let (target, there) = (Engine::new("127.0.0.1", options).unwrap(), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    let addr = there.addr();
    let (mut other, _view) = meet_with_access_page(&target);
    let (mut stream, mut view) = meet_with_access_page(&target);
    other.set_nonblocking(true).unwrap();
    let (mut awake, began) = (0, Instant::now());
    // Where the engine is seldom awake there is nothing to be seen.
    while awake < 20_000 && began.elapsed() < Duration::from_secs(2) {
        awake += (0..100).filter(|_| ask_for_nothing(&mut stream, &mut view, addr)).count();
        ask(&mut other, &[(addr, addr, 0)]);
        let mut meanwhile = 0;
        while let Err(error) = other.read_exact(&mut [0; 8]) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            ask_for_nothing(&mut stream, &mut view, addr);
            meanwhile += 1;
            assert!(meanwhile <= 200, "one visitor is served {meanwhile} times, and the other waits");
        }
    }
}

/// One that looks, until it is asked.
fn is_asked(page: &AccessPage) -> Vec<u64> {
    let began = Instant::now();
    loop {
        if let Some(asked) = page.asked() {
            return asked;
        }
        assert!(began.elapsed() < LONG, "it is never asked through the access page");
        std::thread::yield_now();
    }
}

#[test]
fn an_engine_asks_a_peer_that_looks_there_and_is_told_there_or_by_the_socket() {
    let (_real, initiator, peer, pages) = before_one_that_stands_still(LONG);
    let here = Memory::new(4096);
    let many = vec![here.write_to(4096); 65];
    std::thread::scope(|scope| {
        let first = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        let (page, mut door) = pages.recv().unwrap();
        drop(pages);
        door.read_exact(&mut [0; 32]).unwrap();
        page.look();
        door.write_all(&DONE).unwrap();
        first.join().unwrap().unwrap();
        for pause in [Duration::ZERO, Duration::from_millis(20)] {
            let next = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
            assert_eq!(is_asked(&page), [4096, here.addr(), 4096]);
            std::thread::sleep(pause);
            assert!(!next.is_finished(), "it is not answered");
            if !page.answer(0) {
                door.write_all(&DONE).unwrap();
            }
            next.join().unwrap().unwrap();
        }
        // More than there is room for goes by the socket.
        let next = scope.spawn(|| initiator.transfer(peer, &many));
        door.read_exact(&mut [0; 8 + 65 * 24]).unwrap();
        door.write_all(&DONE).unwrap();
        next.join().unwrap().unwrap();
        // And so does all else once it looks no more.
        assert!(page.look_away());
        let next = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        door.read_exact(&mut [0; 32]).unwrap();
        door.write_all(&DONE).unwrap();
        next.join().unwrap().unwrap();
    });
}

/// The first write of an engine to a peer that looks, and what becomes of the second.
fn second_write(timeout: Duration, ends: impl FnOnce(&AccessPage, UnixStream) + Send) -> Result<(), EngineError> {
    let (_real, initiator, peer, pages) = before_one_that_stands_still(timeout);
    let here = Memory::new(4096);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        let (page, mut door) = pages.recv().unwrap();
        door.read_exact(&mut [0; 32]).unwrap();
        page.look();
        door.write_all(&DONE).unwrap();
        first.join().unwrap().unwrap();
        let second = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        is_asked(&page);
        ends(&page, door);
        second.join().unwrap()
    })
}

#[test]
fn a_write_that_times_out_ends_and_is_not_begun_later() {
    let late = second_write(SOON, |page, door| {
        let began = Instant::now();
        let copying = page.copy().unwrap();
        while copying.is_wanted() {
            assert!(began.elapsed() < AT_ONCE, "it is not given up");
            std::thread::yield_now();
        }
        drop(copying);
        assert!(page.copy().is_none());
        drop(door);
    });
    assert!(matches!(late, Err(EngineError::Timeout { .. })), "{late:?}");
}

#[test]
fn a_peer_that_hangs_up_before_its_answer_has_not_copied() {
    let failed = second_write(LONG, |_, door| door.shutdown(std::net::Shutdown::Both).unwrap());
    assert!(failed.is_err(), "{failed:?}");
}

#[test]
fn a_buffer_that_is_given_up_takes_in_no_small_write_any_more() {
    let (target, initiator, there) = (engine(), engine(), Memory::new(4096));
    let peer = initiator.open(target.name()).unwrap();
    let until = Instant::now() + Duration::from_millis(1_500);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let (here, mut written) = (Memory::filled(4096, 1), 0);
            while Instant::now() < until {
                written += u64::from(initiator.transfer(peer, &[here.write_to(there.addr())]).is_ok());
            }
            written
        });
        let whole = there.range();
        while Instant::now() < until {
            target.register(&[whole], "*").unwrap();
            std::thread::sleep(Duration::from_millis(3));
            target.unregister(whole.addr()).unwrap();
            whole.write_from(&[0xee; 4096]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            let mut seen = [0; 4096];
            whole.read_into(&mut seen).unwrap();
            assert!(seen == [0xee; 4096], "a small write landed in memory that was given up");
            rounds += 1;
        }
        assert!(writing.join().unwrap() > 0 && rounds > 10);
    });
}

/// Writes numbers until the call fails; the last number that was a success.
fn count(
    initiator: &Engine,
    peer: mooncake_transfer_engine::PeerId,
    addr: u64,
    here: &Memory,
    has_begun: &AtomicBool,
) -> u64 {
    for number in 1_u64.. {
        here.range().part(0, 8).write_from(&number.to_le_bytes()).unwrap();
        if initiator.transfer(peer, &[here.write_to(addr)]).is_err() {
            return number - 1;
        }
        has_begun.store(true, Ordering::Relaxed);
    }
    unreachable!("numbers end")
}

/// Waits so long, once the first write has come: on a busy machine that may take a while.
fn pause_amid(has_begun: &AtomicBool, pause: Duration) {
    let until = Instant::now() + Duration::from_secs(10);
    while !has_begun.load(Ordering::Relaxed) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(pause);
}

/// A process that lends, and where.
fn lending() -> (ChildProcess, String, u64) {
    let mut lender = ChildProcess::start("other", "lender");
    let told = lender.hear();
    let (name, addr) = told.split_once(' ').unwrap();
    (lender, name.to_owned(), addr.parse().unwrap())
}

#[test]
fn a_target_that_stands_still_amid_small_writes_takes_nothing_in_that_was_given_up() {
    let hurry = EngineOptions { transfer_timeout: SOON, connect_timeout: SOON, ..EngineOptions::default() };
    for pause in [5, 17, 40] {
        let (mut lender, name, addr) = lending();
        let (initiator, here) = (Engine::new("127.0.0.1", hurry.clone()).unwrap(), Memory::new(4096));
        let peer = initiator.open(&name).unwrap();
        let has_begun = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let counting = scope.spawn(|| count(&initiator, peer, addr, &here, &has_begun));
            pause_amid(&has_begun, Duration::from_millis(pause));
            lender.stop();
            counting.join().unwrap()
        });
        assert!(last > 0);
        // The caller's memory is its own again.
        here.range().part(0, 8).write_from(&u64::MAX.to_le_bytes()).unwrap();
        lender.go_on();
        std::thread::sleep(Duration::from_millis(20));
        lender.say("look");
        let found: u64 = lender.hear().parse().unwrap();
        assert!(found == last || found == last + 1, "{found} is there, {last} was a success");
    }
}

#[test]
fn a_target_that_is_killed_amid_small_writes_is_found_out() {
    let (lender, name, addr) = lending();
    let (initiator, here) = (engine(), Memory::new(4096));
    let peer = initiator.open(&name).unwrap();
    let has_begun = AtomicBool::new(false);
    let began = std::thread::scope(|scope| {
        let counting = scope.spawn(|| count(&initiator, peer, addr, &here, &has_begun));
        pause_amid(&has_begun, Duration::from_millis(20));
        let began = Instant::now();
        drop(lender);
        assert!(counting.join().unwrap() > 0);
        began
    });
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[test]
fn a_writer_that_is_killed_amid_small_writes_keeps_nobody() {
    let (target, there) = (engine(), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    for _ in 0..4 {
        let mut writer = ChildProcess::start("other", "writer");
        writer.say(format_args!("{} {}", target.name(), there.addr()));
        assert_eq!(writer.hear(), "writing");
        drop(writer);
        let began = Instant::now();
        target.unregister(there.range().addr()).unwrap();
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        target.register(&[there.range()], "*").unwrap();
    }
    // Nor the others.
    let (initiator, here) = (engine(), Memory::filled(4096, 9));
    let peer = initiator.open(target.name()).unwrap();
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == here.bytes());
    let batch = initiator.allocate(1);
    initiator.submit(batch, vec![(peer, here.write_to(there.addr()))], None).unwrap();
    assert_eq!(initiator.wait(batch, AT_ONCE).unwrap(), Status::Completed);
}
