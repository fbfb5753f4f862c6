//! Transfers by RDMA, over fake cards whose network does whatever the specification allows.

use std::time::{Duration, Instant};

use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_test_support::{FakeCuda, FakeVerbs};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, LinkReport, Opcode, Protocol, Request, Topology};

use crate::memory::{Memory, nowhere};

const MIB: usize = 1 << 20;

fn options(nic: usize) -> EngineOptions {
    let matrix = format!(r#"{{"cpu:0": [["fake{nic}"], []]}}"#);
    EngineOptions {
        same_host: false,
        protocols: vec![Protocol::Rdma],
        topology: Some(Topology::parse(&matrix).unwrap()),
        ..EngineOptions::default()
    }
}

/// With two cards.
fn wide(first: usize, rail_pause: Duration) -> Engine {
    let matrix = format!(r#"{{"cpu:0": [["fake{first}", "fake{}"], []]}}"#, first + 1);
    let mut options = EngineOptions { topology: Some(Topology::parse(&matrix).unwrap()), ..options(first) };
    options.rdma.rail_pause = rail_pause;
    Engine::new("127.0.0.1", options).unwrap()
}

/// Bytes that a card has written by its own requests.
fn written(fake: &FakeVerbs, nic: usize) -> u64 {
    let line = fake.ask("bytes").into_iter().find(|line| line.starts_with(&format!("fake{nic} "))).unwrap();
    let written = line.split_whitespace().find_map(|word| word.strip_prefix("written=")).unwrap();
    written.parse().unwrap()
}

fn engine(nic: usize) -> Engine {
    Engine::new("127.0.0.1", options(nic)).unwrap()
}

fn link(engine: &Engine) -> LinkReport {
    engine.links().remove(0)
}

#[test]
fn bytes_of_every_size_go_both_ways_and_the_report_says_by_what() {
    let fake = FakeVerbs::start(2);
    fake.tell("visible 300");
    let (target, initiator) = (engine(1), engine(0));
    let (local, lent) = (Memory::filled(6 * MIB, fake.seed()), Memory::new(6 * MIB));
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.register_local(&[local.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let mut at = 3;
    for len in [1, 7, 64, 4_095, 4_097, 65_537, MIB, 3 * MIB + 5] {
        let (here, there) = (local.range().part(at, len), lent.addr() + at as u64);
        initiator.transfer(peer, &[Request { opcode: Opcode::Write, local: here, remote: there }]).unwrap();
        // Nobody asked for it behind the call.
        assert!(lent.bytes()[at..at + len] == local.bytes()[at..at + len], "{len} bytes (seed {})", fake.seed());
        at += len + 3;
    }
    let back = Memory::new(6 * MIB);
    initiator.register(&[back.range()], "cpu:0").unwrap();
    // Scattered, in one call.
    let pieces: Vec<Request> = (0..500)
        .map(|nth| {
            let (from, len) = (nth * 4_099, 4_000 + nth % 90);
            Request { opcode: Opcode::Read, local: back.range().part(from, len), remote: lent.addr() + from as u64 }
        })
        .collect();
    initiator.transfer(peer, &pieces).unwrap();
    for piece in &pieces {
        let from = piece.local.addr() - back.range().addr();
        let len = piece.local.len();
        assert!(back.bytes()[from..from + len] == lent.bytes()[from..from + len], "(seed {})", fake.seed());
    }
    let said = link(&initiator);
    assert_eq!((said.path, &*said.reason, said.failed), ("rdma", "turned off here; fake0 to fake1", 0));
    assert_eq!(said.by_path.len(), 1);
}

#[test]
fn memory_of_this_side_that_no_card_knows_is_copied_through_what_it_knows() {
    let fake = FakeVerbs::start(2);
    let (target, initiator) = (engine(1), engine(0));
    // More than goes at a time, and a part that is registered.
    let (local, lent, back) =
        (Memory::filled(21 * MIB + 7, fake.seed()), Memory::new(21 * MIB + 7), Memory::new(21 * MIB + 7));
    target.register(&[lent.range()], "cpu:0").unwrap();
    let half = 10 * MIB + 3;
    initiator.register_local(&[local.range().part(half, MIB)], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let write = |from: usize, len: usize| Request {
        opcode: Opcode::Write,
        local: local.range().part(from, len),
        remote: lent.addr() + from as u64,
    };
    initiator.transfer(peer, &[write(0, half), write(half, MIB), write(half + MIB, 11 * MIB + 4 - MIB)]).unwrap();
    assert!(lent.bytes() == local.bytes(), "(seed {})", fake.seed());
    initiator.transfer(peer, &[back.read_from(lent.addr())]).unwrap();
    assert!(back.bytes() == local.bytes(), "(seed {})", fake.seed());
    assert_eq!((link(&initiator).path, link(&initiator).by_path.len()), ("rdma", 1));
    let nobodys = Request { local: nowhere(MIB), ..write(0, MIB) };
    let wrong = initiator.transfer(peer, &[nobodys]);
    assert!(matches!(wrong, Err(EngineError::Memory(_))), "{wrong:?}");
    initiator.transfer(peer, &[write(0, 1)]).unwrap();
    assert_eq!(link(&initiator).path, "rdma", "a caller's fault is none of the rail");
}

#[test]
fn memory_of_a_device_is_copied_through_what_the_card_knows_and_a_peers_goes_by_tcp() {
    let fake = FakeVerbs::start(2);
    let cuda = FakeCuda::load();
    let (target, initiator) = (engine(1), engine(0));
    let (bytes, lent) = (Memory::filled(MIB, fake.seed()), Memory::new(MIB));
    let (device, lent_device) = (cuda.holding(0, bytes.bytes()), cuda.alloc(0, MIB));
    target.register(&[lent.range(), lent_device.range()], "*").unwrap();
    initiator.register(&[device.range()], "cuda:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let write = |remote| Request { opcode: Opcode::Write, local: device.range(), remote };
    initiator.transfer(peer, &[write(lent.addr())]).unwrap();
    assert!(lent.bytes() == bytes.bytes());
    assert_eq!(link(&initiator).path, "rdma");
    initiator.transfer(peer, &[write(lent_device.range().addr() as u64)]).unwrap();
    assert!(lent_device.read() == bytes.bytes());
    assert_eq!(link(&initiator).path, "tcp");
}

#[test]
fn memory_that_a_peers_card_does_not_know_goes_by_tcp_and_the_report_says_why() {
    let fake = FakeVerbs::start(2);
    let (target, initiator) = (engine(1), engine(0));
    let (known, lent, more) = (Memory::filled(MIB, 2), Memory::new(MIB), Memory::new(MIB));
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.register_local(&[known.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    initiator.transfer(peer, &[known.write_to(lent.addr())]).unwrap();
    assert_eq!(link(&initiator).path, "rdma");
    fake.tell("memlock 1");
    target.register(&[more.range()], "cpu:0").unwrap();
    fake.tell("memlock 0");
    initiator.transfer(peer, &[known.write_to(more.addr())]).unwrap();
    assert!(more.bytes() == known.bytes());
    let said = link(&initiator);
    assert_eq!((said.path, &*said.reason), ("tcp", "turned off here; the peer lends no memory for RDMA there"));
    let nobodys = initiator.transfer(peer, &[known.write_to(1 << 40)]);
    assert!(matches!(nobodys, Err(EngineError::NotRegistered { .. })), "{nobodys:?}");
}

#[test]
fn memory_that_a_peer_registers_later_or_anew_is_reached() {
    let _fake = FakeVerbs::start(2);
    let (target, initiator) = (engine(1), engine(0));
    let (local, lent, later) = (Memory::filled(MIB, 1), Memory::new(MIB), Memory::new(MIB));
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.register_local(&[local.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    initiator.transfer(peer, &[local.write_to(lent.addr())]).unwrap();
    target.register(&[later.range()], "cpu:0").unwrap();
    initiator.transfer(peer, &[local.write_to(later.addr())]).unwrap();
    assert!(later.bytes() == local.bytes());
    // By other keys.
    target.unregister(lent.range().addr()).unwrap();
    target.unregister(later.range().addr()).unwrap();
    let gone = initiator.transfer(peer, &[local.write_to(lent.addr())]);
    assert!(matches!(gone, Err(EngineError::NotRegistered { .. })), "{gone:?}");
    lent.range().write_from(&vec![0; MIB]).unwrap();
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.transfer(peer, &[local.write_to(lent.addr())]).unwrap();
    assert!(lent.bytes() == local.bytes());
    assert_eq!((link(&initiator).path, link(&initiator).by_path.len()), ("rdma", 1));
}

#[test]
fn a_failed_write_is_retired_before_it_is_repeated() {
    let fake = FakeVerbs::start(2);
    fake.tell("late all 1500");
    let target = engine(1);
    let initiator =
        Engine::new("127.0.0.1", EngineOptions { stall_timeout: Duration::from_millis(100), ..options(0) }).unwrap();
    let (old, new, lent) = (Memory::filled(2 * MIB, 1), Memory::filled(2 * MIB, 2), Memory::new(2 * MIB));
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.register_local(&[old.range(), new.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    initiator.transfer(peer, &[old.write_to(lent.addr())]).unwrap();
    assert_eq!(link(&initiator).path, "rdma");
    // Its bytes are on their way, and no completion ever comes.
    fake.tell("hold fake0 acks stalls");
    // No other lane takes the place of that one, which would end it.
    fake.tell("fail create_qp 12 0 fake0");
    initiator.transfer(peer, &[old.write_to(lent.addr())]).unwrap();
    assert_eq!(link(&initiator).path, "tcp");
    assert!(link(&initiator).reason.contains("ibv_create_qp on fake0 failed"), "{}", link(&initiator).reason);
    fake.tell("release all");
    initiator.transfer(peer, &[new.write_to(lent.addr())]).unwrap();
    fake.tell("quiet");
    assert!(lent.bytes() == new.bytes(), "a write that had failed landed over a later one (seed {})", fake.seed());
    assert_eq!(link(&initiator).failed, 0);
}

#[test]
fn a_rail_that_failed_is_used_again_after_its_pause() {
    let fake = FakeVerbs::start(2);
    let target = engine(1);
    let mut own = options(0);
    own.rdma.rail_pause = Duration::from_millis(1_500);
    let initiator = Engine::new("127.0.0.1", own).unwrap();
    let (local, lent) = (Memory::filled(MIB, 1), Memory::new(MIB));
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.register_local(&[local.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    let mut paths = Vec::new();
    for link_state in ["up", "down", "up"] {
        fake.tell(&format!("link fake1 {link_state}"));
        lent.range().write_from(&vec![0; MIB]).unwrap();
        initiator.transfer(peer, &[local.write_to(lent.addr())]).unwrap();
        assert!(lent.bytes() == local.bytes());
        paths.push(link(&initiator).path);
    }
    let end = Instant::now() + Duration::from_secs(20);
    while link(&initiator).path != "rdma" {
        assert!(Instant::now() < end, "{:?}", link(&initiator));
        std::thread::sleep(Duration::from_millis(20));
        initiator.transfer(peer, &[local.write_to(lent.addr())]).unwrap();
    }
    assert_eq!(paths, ["rdma", "tcp", "tcp"], "not tried again before its pause is over");
}

#[test]
fn giving_up_memory_waits_for_nothing_that_does_not_move_and_leaves_nothing_at_the_card() {
    let fake = FakeVerbs::start(2);
    let (target, initiator) = (engine(1), engine(0));
    let (local, lent, other) = (Memory::filled(4 * MIB, 1), Memory::new(4 * MIB), Memory::new(MIB));
    target.register(&[lent.range(), other.range()], "cpu:0").unwrap();
    initiator.register_local(&[local.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(20) {
                if let Err(error) = initiator.transfer(peer, &[local.write_to(lent.addr())]) {
                    return error;
                }
            }
            panic!("the memory was never given up");
        });
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        target.unregister(lent.range().addr()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        // It is its user's again.
        let mine = vec![0x5a; 4 * MIB];
        lent.range().write_from(&mine).unwrap();
        let error = traffic.join().unwrap();
        assert!(matches!(error, EngineError::NotRegistered { .. }), "{error}");
        fake.tell("quiet");
        assert!(lent.bytes() == mine, "a card wrote behind the end of its registration (seed {})", fake.seed());
    });
    let small = local.range().part(0, MIB);
    initiator.transfer(peer, &[Request { opcode: Opcode::Write, local: small, remote: other.addr() }]).unwrap();
    assert!(other.bytes() == &local.bytes()[..MIB]);
    initiator.close().unwrap();
    target.close().unwrap();
    drop((initiator, target));
    let end = Instant::now() + Duration::from_secs(10);
    let is_empty = |line: &String| line.split('=').skip(1).all(|count| count.starts_with('0'));
    while !fake.ask("count").iter().all(is_empty) {
        assert!(Instant::now() < end, "{:?}", fake.ask("count"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_engine_without_cards_and_one_with_reach_each_other_by_tcp() {
    let _fake = FakeVerbs::start(1);
    let with = engine(0);
    let without = Engine::new("127.0.0.1", EngineOptions { protocols: vec![Protocol::Tcp], ..options(0) }).unwrap();
    let (here, there) = (Memory::filled(MIB, 1), Memory::filled(MIB, 2));
    with.register(&[here.range()], "cpu:0").unwrap();
    without.register(&[there.range()], "cpu:0").unwrap();
    assert_eq!(without.first_buffer(with.name()).unwrap(), Some(here.addr()));
    for (initiator, target, local, remote) in [(&with, &without, &here, &there), (&without, &with, &there, &here)] {
        let peer = initiator.open(target.name()).unwrap();
        initiator.transfer(peer, &[local.write_to(remote.addr())]).unwrap();
        assert!(here.bytes() == there.bytes());
        assert_eq!(link(initiator).path, "tcp");
        there.range().write_from(&vec![7; MIB]).unwrap();
    }
}

#[test]
fn a_failed_write_that_is_not_retired_is_noticed() {
    assert!(is_noticed_by(Mutant::FailedWritesAreNotRetired, a_failed_write_is_retired_before_it_is_repeated));
}

#[test]
fn two_cards_share_a_large_request_by_what_each_carries() {
    let fake = FakeVerbs::start(4);
    for (rate_of_second, least, most) in [(200_000_000, 0.42, 0.58), (100_000_000, 0.26, 0.42)] {
        for nic in ["fake0", "fake2"] {
            fake.tell(&format!("rate {nic} 200000000"));
        }
        fake.tell(&format!("rate fake1 {rate_of_second}"));
        let (target, initiator) = (wide(2, Duration::from_secs(30)), wide(0, Duration::from_secs(30)));
        let (local, lent) = (Memory::filled(64 * MIB, fake.seed()), Memory::new(64 * MIB));
        target.register(&[lent.range()], "cpu:0").unwrap();
        initiator.register_local(&[local.range()], "cpu:0").unwrap();
        let peer = initiator.open(target.name()).unwrap();
        let before = [written(&fake, 0), written(&fake, 1)];
        initiator.transfer(peer, &[local.write_to(lent.addr())]).unwrap();
        assert!(lent.bytes() == local.bytes(), "(seed {})", fake.seed());
        let [first, second] = [written(&fake, 0) - before[0], written(&fake, 1) - before[1]];
        let share = second as f64 / (first + second) as f64;
        println!("the second card at {rate_of_second} B/s carried {share:.2}");
        assert!((least..most).contains(&share), "{share} of {} bytes", first + second);
        assert_eq!(link(&initiator).reason, "turned off here; fake0 to fake2, fake1 to fake3");
    }
}

#[test]
fn a_card_that_is_lost_in_mid_transfer_leaves_it_to_the_other_one() {
    let fake = FakeVerbs::start(4);
    for nic in ["fake0", "fake1"] {
        fake.tell(&format!("rate {nic} 100000000"));
    }
    let (target, initiator) = (wide(2, Duration::from_millis(200)), wide(0, Duration::from_millis(200)));
    let (local, lent) = (Memory::filled(32 * MIB, fake.seed()), Memory::new(32 * MIB));
    target.register(&[lent.range()], "cpu:0").unwrap();
    initiator.register_local(&[local.range()], "cpu:0").unwrap();
    let peer = initiator.open(target.name()).unwrap();
    std::thread::scope(|scope| {
        let transfer = scope.spawn(|| initiator.transfer(peer, &[local.write_to(lent.addr())]));
        std::thread::sleep(Duration::from_millis(60));
        fake.tell("link fake3 down");
        transfer.join().unwrap().unwrap();
    });
    assert!(lent.bytes() == local.bytes(), "(seed {})", fake.seed());
    assert_eq!((link(&initiator).path, link(&initiator).by_path.len()), ("rdma", 1));
    fake.tell("link fake3 up");
    let end = Instant::now() + Duration::from_secs(10);
    let before = written(&fake, 1);
    while written(&fake, 1) < before + MIB as u64 {
        assert!(Instant::now() < end, "the card is not used again");
        initiator.transfer(peer, &[local.write_to(lent.addr())]).unwrap();
    }
}
