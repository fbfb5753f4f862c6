//! A peer that does not answer costs one bounded timeout, once, and is avoided then; it is used again as soon as it
//! answers.

use std::time::{Duration, Instant};

use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_test_support::test_name;
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Notify, PeerId, Status};

use crate::memory::Memory;
use crate::relay::{Fate, behind};

const LEN: usize = 64 << 10;

/// Of a call to a peer that says nothing.
const TIMEOUT: Duration = Duration::from_millis(1_500);

/// Until it is known that the peer says nothing at all.
const FOUND_OUT: Duration = Duration::from_secs(2);

/// What a call costs that is not tried, on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(500);

fn options(same_host: bool) -> EngineOptions {
    EngineOptions { same_host, transfer_timeout: TIMEOUT, connect_timeout: TIMEOUT, ..EngineOptions::default() }
}

fn engine(same_host: bool) -> Engine {
    Engine::new("127.0.0.1", options(same_host)).unwrap()
}

/// One whose handshakes are answered at this port, which is free.
fn engine_at(port: u16) -> Engine {
    let found = (1..1_000).find_map(|span| {
        let options = EngineOptions { ports: port..=port + 1 + span / 10, ..options(false) };
        Engine::new("127.0.0.1", options).ok().filter(|engine| engine.port() == port)
    });
    found.expect("the port is free")
}

/// What the other process of these tests is; nothing where nobody started it as something.
#[test]
fn other() {
    let Some(role) = role() else { return };
    let same_host = role == "lender true";
    let engine = match hear().parse::<u16>().unwrap() {
        0 => engine(same_host),
        port => engine_at(port),
    };
    let lent = Memory::new(LEN);
    engine.register(&[lent.range()], "*").unwrap();
    say(engine.name());
    say(lent.addr());
    hear();
}

struct Lender {
    process: ChildProcess,
    name: String,
    addr: u64,
}

/// Another process, at this port; at any if it is 0.
fn lender(same_host: bool, port: u16) -> Lender {
    let mut process = ChildProcess::start(&test_name!("other"), &format!("lender {same_host}"));
    process.say(port);
    let (name, addr) = (process.hear(), process.hear().parse().unwrap());
    Lender { process, name, addr }
}

/// How it ended, and after what time.
fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = call();
    (result, began.elapsed())
}

/// The first call runs into its deadline, the next finds out at most, and all others fail at once.
fn costs_one_timeout(engine: &Engine, peer: PeerId, name: &str, write: mooncake_transfer_engine::Request) {
    let (first, took) = timed(|| engine.transfer(peer, &[write]));
    assert!(matches!(first, Err(EngineError::Timeout { .. })), "{first:?}");
    assert!(took < TIMEOUT + FOUND_OUT, "{took:?}");
    let (second, took) = timed(|| engine.transfer(peer, &[write]));
    assert!(matches!(second, Err(EngineError::Unresponsive { .. })), "{second:?}");
    assert!(took < FOUND_OUT, "{took:?}");
    for _ in 0..20 {
        let message = Notify { name: "a".into(), message: "b".into() };
        let calls = [
            timed(|| engine.transfer(peer, &[write])),
            timed(|| engine.probe(name)),
            timed(|| engine.notify(peer, &message)),
            timed(|| engine.first_buffer(name).map(drop)),
        ];
        for (result, took) in calls {
            assert!(matches!(result, Err(EngineError::Unresponsive { .. })), "{result:?}");
            assert!(took < AT_ONCE, "{took:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Works again, and how long that took.
fn works_again(engine: &Engine, peer: PeerId, requests: impl Fn() -> mooncake_transfer_engine::Request) -> Duration {
    let began = Instant::now();
    loop {
        match engine.transfer(peer, &[requests()]) {
            Ok(()) => return began.elapsed(),
            Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_avoided_until_it_answers(same_host: bool) {
    let (lender, initiator, here) = (lender(same_host, 0), engine(same_host), Memory::filled(LEN, 7));
    let peer = initiator.open(&lender.name).unwrap();
    initiator.transfer(peer, &[here.write_to(lender.addr)]).unwrap();
    for _ in 0..2 {
        lender.process.stop();
        costs_one_timeout(&initiator, peer, &lender.name, here.write_to(lender.addr));
        // Others have nothing of it.
        let (other, there) = (engine(same_host), Memory::new(LEN));
        other.register(&[there.range()], "*").unwrap();
        let other =
            initiator.open(other.name()).and_then(|peer| initiator.transfer(peer, &[here.write_to(there.addr())]));
        other.unwrap();
        lender.process.go_on();
        let took = works_again(&initiator, peer, || here.write_to(lender.addr));
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}

#[test]
fn a_frozen_peer_costs_one_timeout_and_works_again_a_second_after_it_goes_on_by_tcp() {
    is_avoided_until_it_answers(false);
}

#[test]
fn a_frozen_peer_costs_one_timeout_and_works_again_a_second_after_it_goes_on_within_the_host() {
    is_avoided_until_it_answers(true);
}

#[test]
fn who_has_a_batch_carried_out_is_not_kept_by_a_peer_that_was_never_met() {
    let (lender, initiator, here) = (lender(false, 0), engine(false), Memory::filled(LEN, 7));
    lender.process.stop();
    let (peer, took) = timed(|| initiator.open_soon(&lender.name));
    assert!(took < AT_ONCE, "{took:?}");
    let peer = peer.unwrap();
    let (again, took) = timed(|| (0..100).all(|_| initiator.open_soon(&lender.name).unwrap() == peer));
    assert!(again && took < AT_ONCE, "{took:?}");
    let batch = initiator.allocate(2);
    let submit = || initiator.submit(batch, vec![(peer, here.write_to(lender.addr))], None).unwrap();
    let ((), took) = timed(submit);
    assert!(took < AT_ONCE, "{took:?}");
    let (status, took) = timed(|| initiator.wait(batch, Duration::from_secs(20)).unwrap());
    assert_eq!(status, Status::Timeout);
    assert!(took < TIMEOUT + FOUND_OUT, "{took:?}");
    assert!(initiator.links().is_empty(), "nobody has met it");
    // Found out now; nobody waits for it any more.
    let (result, took) = timed(|| initiator.open(&lender.name));
    assert!(matches!(result, Err(EngineError::Unresponsive { .. })), "{result:?}");
    assert!(took < FOUND_OUT, "{took:?}");
    submit();
    let (status, took) = timed(|| initiator.wait(batch, Duration::from_secs(20)).unwrap());
    assert_eq!(status, Status::Failed);
    assert!(took < AT_ONCE, "{took:?}");
    lender.process.go_on();
    let took = works_again(&initiator, peer, || here.write_to(lender.addr));
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(initiator.open(&lender.name).unwrap(), peer);
    assert_eq!(initiator.links().len(), 1);
}

#[test]
fn a_name_that_nobody_answers_to_is_refused_when_it_is_opened_soon_as_well() {
    let initiator = engine(false);
    let gone = engine(false);
    let name = gone.name().to_owned();
    drop(gone);
    assert!(matches!(initiator.open_soon(&name), Err(EngineError::Socket { .. })));
    assert!(matches!(initiator.open_soon(""), Err(EngineError::InvalidArgument(_))));
    assert_eq!(initiator.open_soon(initiator.name()).unwrap(), PeerId::SELF);
}

#[test]
fn a_frozen_peer_that_is_replaced_under_its_name_is_used_a_second_later() {
    let (initiator, here) = (engine(false), Memory::filled(LEN, 7));
    let first = lender(false, 0);
    let peer = initiator.open(&first.name).unwrap();
    initiator.transfer(peer, &[here.write_to(first.addr)]).unwrap();
    first.process.stop();
    costs_one_timeout(&initiator, peer, &first.name, here.write_to(first.addr));
    let port = first.name.rsplit(':').next().unwrap().parse().unwrap();
    drop(first);
    let again = lender(false, port);
    let took = works_again(&initiator, peer, || here.write_to(again.addr));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_link_that_is_too_slow_for_a_call_keeps_no_other_call() {
    let (target, initiator) = (engine(false), engine(false));
    let (there, here) = (Memory::new(64 << 20), Memory::filled(64 << 20, 7));
    target.register(&[there.range()], "*").unwrap();
    let slow = behind(&target, Fate::Trickle(64 << 10, Duration::from_millis(10)), Fate::Pass);
    let peer = initiator.open(&slow).unwrap();
    let part =
        |len| mooncake_transfer_engine::Request { local: here.range().part(0, len), ..here.write_to(there.addr()) };
    for _ in 0..3 {
        let long = initiator.transfer(peer, &[part(64 << 20)]);
        assert!(matches!(long, Err(EngineError::Timeout { .. })), "{long:?}");
        initiator.transfer(peer, &[part(64)]).unwrap();
    }
}
