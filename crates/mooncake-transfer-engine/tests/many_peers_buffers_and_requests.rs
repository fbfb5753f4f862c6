//! 64 peers, 10,000 registered buffers, 100,000 requests in flight: little memory, few threads, all bytes in place.

mod memory;

use std::time::{Duration, Instant};

use memory::Memory;
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, Request, Status};

const PROCESSES: usize = 4;
const PEERS: usize = 64;
const BUFFERS: usize = 10_000;
const REQUESTS: usize = 100_000;
const LEN: usize = 512;
const ROUNDS: usize = 20;

/// The bytes that request `number` moves, by the buffer that it takes them from.
fn content(number: usize) -> [u8; LEN] {
    let seed = (number % BUFFERS) as u64;
    let mut out = [0; LEN];
    for (at, chunk) in out.chunks_mut(8).enumerate() {
        let word = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32) ^ at as u64;
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    out
}

fn options(same_host: bool) -> EngineOptions {
    EngineOptions { same_host, transfer_timeout: Duration::from_secs(50), ..EngineOptions::default() }
}

/// Not a test of its own.
#[test]
fn other() {
    let Some(role) = role() else { return };
    match role.split_once(' ').unwrap() {
        ("targets", same_host) => targets(same_host == "true"),
        ("initiator", same_host) => initiator(same_host == "true"),
        _ => panic!("no such role: {role}"),
    }
}

/// Engines that lend a buffer for each request that they will get, and others.
fn targets(same_host: bool) {
    let first: usize = hear().parse().unwrap();
    let engines: Vec<(Engine, Memory)> = (0..PEERS / PROCESSES)
        .map(|_| {
            let (engine, memory) = (Engine::new("127.0.0.1", options(same_host)).unwrap(), Memory::new(BUFFERS * LEN));
            let all: Vec<_> = (0..BUFFERS).map(|nth| memory.range().part(nth * LEN, LEN)).collect();
            engine.register(&all, "*").unwrap();
            (engine, memory)
        })
        .collect();
    let names: Vec<_> = engines.iter().map(|(engine, memory)| format!("{} {}", engine.name(), memory.addr())).collect();
    say(names.join(","));
    while hear() == "count" {
        let right = |(nth, (_, memory)): (usize, &(Engine, Memory))| {
            let arrived = memory.bytes().chunks(LEN).enumerate();
            arrived.filter(|(slot, bytes)| **bytes == content(slot * PEERS + first + nth)).count()
        };
        let of_mine = |(nth, one): (usize, &(Engine, Memory))| {
            let mine = (0..).take_while(|slot| slot * PEERS + first + nth < REQUESTS).count();
            if right((nth, one)) >= mine { mine } else { 0 }
        };
        say(engines.iter().enumerate().map(of_mine).sum::<usize>());
    }
}

/// Kilobytes in memory, and threads.
fn usage() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    (field("VmRSS:"), field("Threads:"))
}

/// Registers all, and says how long the first 1,000 took and how long the last. A machine that is busy with something
/// else for a moment is no trend: the best of some rounds.
fn registrations(engine: &Engine, memory: &Memory) -> (Duration, Duration) {
    let part = |nth: usize| memory.range().part(nth * LEN, LEN);
    let thousand = |from: usize| {
        let began = Instant::now();
        (from..from + 1_000).for_each(|nth| engine.register(&[part(nth)], "*").unwrap());
        began.elapsed()
    };
    let mut best = (Duration::MAX, Duration::MAX);
    for round in 0..ROUNDS {
        if round > 0 {
            (0..BUFFERS).for_each(|nth| engine.unregister(part(nth).addr()).unwrap());
        }
        let took: Vec<Duration> = (0..BUFFERS / 1_000).map(|nth| thousand(nth * 1_000)).collect();
        best = (best.0.min(took[0]), best.1.min(took[took.len() - 1]));
    }
    best
}

fn initiator(same_host: bool) {
    let names = hear();
    let memory = Memory::new(BUFFERS * LEN);
    for nth in 0..BUFFERS {
        memory.range().part(nth * LEN, LEN).write_from(&content(nth)).unwrap();
    }
    let (before, _) = usage();
    let engine = Engine::new("127.0.0.1", options(same_host)).unwrap();
    let (first, last) = registrations(&engine, &memory);
    let peers: Vec<_> = names
        .split(',')
        .map(|peer| {
            let (name, addr) = peer.split_once(' ').unwrap();
            (engine.open(name).unwrap(), addr.parse::<u64>().unwrap())
        })
        .collect();
    let request = |number: usize| {
        let (peer, addr) = peers[number % PEERS];
        let local = memory.range().part(number % BUFFERS * LEN, LEN);
        (peer, Request { opcode: Opcode::Write, local, remote: addr + (number / PEERS * LEN) as u64 })
    };
    // Each path is known before the peers stop.
    for number in 0..PEERS {
        let (peer, request) = request(number);
        engine.transfer(peer, &[request]).unwrap();
    }
    say("met");
    assert_eq!(hear(), "submit");
    let batch = engine.allocate(REQUESTS);
    let began = Instant::now();
    engine.submit(batch, (0..REQUESTS).map(request).collect(), None).unwrap();
    let submitting = began.elapsed();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(engine.status(batch).unwrap(), Status::Waiting);
    let (kilobytes, threads) = usage();
    say("submitted");
    assert_eq!(engine.wait(batch, Duration::from_secs(45)).unwrap(), Status::Completed);
    let took = began.elapsed();
    engine.free(batch).unwrap();
    let (after, threads_after) = usage();
    let links = engine.links();
    assert!(links.iter().all(|link| link.requests > 1_000 && link.failed == 0), "{links:?}");
    let paths: std::collections::BTreeSet<_> = links.iter().map(|link| link.path).collect();
    eprintln!(
        "path {paths:?}: {} MiB and {threads} threads in flight ({} MiB, {threads_after} after), registering {first:?} \
         first and {last:?} last, submitting {submitting:?}, all done in {took:?}",
        kilobytes.saturating_sub(before) >> 10,
        after.saturating_sub(before) >> 10,
    );
    let most = kilobytes.max(after).saturating_sub(before) >> 10;
    say(format_args!("{most} {} {} {}", threads.max(threads_after), first.as_nanos(), last.as_nanos()));
}

fn the_crowd_is_served(same_host: bool) {
    let mut processes: Vec<ChildProcess> =
        (0..PROCESSES).map(|_| ChildProcess::start("other", &format!("targets {same_host}"))).collect();
    for (nth, process) in processes.iter_mut().enumerate() {
        process.say(nth * PEERS / PROCESSES);
    }
    let names: Vec<String> = processes.iter_mut().map(ChildProcess::hear).collect();
    let mut initiator = ChildProcess::start("other", &format!("initiator {same_host}"));
    initiator.say(names.join(","));
    assert_eq!(initiator.hear(), "met");
    processes.iter().for_each(ChildProcess::stop);
    initiator.say("submit");
    assert_eq!(initiator.hear(), "submitted");
    processes.iter().for_each(ChildProcess::go_on);
    let said = initiator.hear();
    let figures: Vec<u64> = said.split(' ').map(|figure| figure.parse().unwrap()).collect();
    let arrived: usize = processes
        .iter_mut()
        .map(|process| {
            process.say("count");
            process.hear().parse::<usize>().unwrap()
        })
        .sum();
    assert_eq!(arrived, REQUESTS, "requests with all their bytes in place");
    let [mebibytes, threads, first, last] = figures[..] else { panic!("{said}") };
    assert!(mebibytes < 300, "{mebibytes} MiB beyond the buffers");
    assert!(threads < 64, "{threads} threads");
    assert!(last <= 2 * first, "the first 1,000 registrations took {first} ns, the last {last} ns");
}

#[test]
fn a_hundred_thousand_requests_to_64_peers_within_the_host_need_little() {
    the_crowd_is_served(true);
}

#[test]
fn a_hundred_thousand_requests_to_64_peers_by_tcp_need_little() {
    the_crowd_is_served(false);
}
