//! A connection is cut at any byte of either direction, or goes on drop by drop: success is never said of bytes that
//! are not there, and every call ends by its deadline.

use std::time::{Duration, Instant};

use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, Request, Status};

use crate::memory::Memory;
use crate::relay::{Fate, behind};

/// With the connection's name.
const HELLO: usize = 48;
const HEADER: usize = 24;
const STATUS: usize = 8;

/// Longest that a call takes here, and what a busy machine adds.
const DEADLINE: Duration = Duration::from_millis(400);
const GRACE: Duration = Duration::from_millis(2_500);

fn engine(deadline: Duration) -> Engine {
    let options = EngineOptions {
        same_host: false,
        stripes: 1,
        transfer_timeout: deadline,
        connect_timeout: deadline,
        ..EngineOptions::default()
    };
    Engine::new("127.0.0.1", options).unwrap()
}

/// Moves pieces of one length over a link with this fate, and looks at the bytes; whether it succeeded.
fn try_it(
    target: &Engine,
    opcode: Opcode,
    len: usize,
    pieces: usize,
    fates: [Fate; 2],
    seed: u64,
    deadline: Duration,
) -> bool {
    let ([there, back], initiator, total) = (fates, engine(deadline), len * pieces);
    // Both differ from each other in every try, so that bytes of another one do not pass for these.
    let (lent, local) = (Memory::filled(total, 2 * seed + 1), Memory::filled(total, 2 * seed + 2));
    let wanted = if opcode == Opcode::Write { local.bytes().to_vec() } else { lent.bytes().to_vec() };
    target.register(&[lent.range()], "*").unwrap();
    let peer = initiator.open(&behind(target, there, back)).unwrap();
    let request = |nth: usize| Request {
        opcode,
        local: local.range().part(nth * len, len),
        remote: lent.addr() + (nth * len) as u64,
    };
    let requests: Vec<_> = (0..pieces).map(request).collect();
    let began = Instant::now();
    let said = if seed.is_multiple_of(2) {
        initiator.transfer(peer, &requests).map_err(|error| error.to_string())
    } else {
        let batch = initiator.allocate(pieces);
        initiator.submit(batch, requests.iter().map(|request| (peer, *request)).collect(), None).unwrap();
        match initiator.wait(batch, deadline + GRACE).unwrap() {
            Status::Completed => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    let took = began.elapsed();
    assert!(took < deadline + GRACE, "{opcode:?} of {len} with {there:?} and {back:?}: {took:?}");
    if said.is_ok() {
        let arrived = if opcode == Opcode::Write { lent.bytes() } else { local.bytes() };
        assert!(arrived == wanted, "{opcode:?} of {pieces} x {len} with {there:?} and {back:?}: other bytes");
    }
    // What did not arrive will not arrive later in memory that is used for something else.
    target.unregister(lent.range().addr()).unwrap();
    said.is_ok()
}

/// All cuts of both directions, several at a time.
fn cuts(opcode: Opcode, len: usize, pieces: usize, positions: &[usize], sent: usize, received: usize) {
    let target = engine(DEADLINE);
    let kinds: [fn(usize) -> Fate; 3] = [Fate::End, Fate::Reset, Fate::Hush];
    let mut tries = Vec::new();
    for at in positions {
        for kind in kinds {
            if *at <= sent {
                tries.push((kind(*at), Fate::Pass, *at == sent));
            }
            if *at <= received {
                tries.push((Fate::Pass, kind(*at), *at == received));
            }
        }
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let run = || {
        while let Some((there, back, whole)) = tries.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            let seed = (there, back);
            let seed = format!("{seed:?}").bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
            let done = try_it(&target, opcode, len, pieces, [*there, *back], seed >> 2, DEADLINE);
            // Where the cut comes after everything, it may have been quicker than the answer to something else.
            assert!(!done || *whole, "{opcode:?} with {there:?} and {back:?} cannot have been done");
        }
    };
    std::thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(run))));
}

#[test]
fn a_write_that_is_cut_at_any_byte_is_a_success_only_if_it_arrived() {
    let (sent, received) = (HELLO + HEADER + 40, 2 * STATUS);
    cuts(Opcode::Write, 40, 1, &(0..=sent).collect::<Vec<_>>(), sent, received);
}

#[test]
fn a_read_that_is_cut_at_any_byte_is_a_success_only_if_it_arrived() {
    let (sent, received) = (HELLO + HEADER, 2 * STATUS + 40);
    cuts(Opcode::Read, 40, 1, &(0..=received).collect::<Vec<_>>(), sent, received);
}

#[test]
fn lists_that_are_cut_around_the_edges_of_frames_and_steps_are_successes_only_if_they_arrived() {
    let len = (1 << 20) + 100;
    let edges = |frame: usize, before: usize| {
        let starts = (0..=3).map(move |nth| before + nth * frame);
        let steps = (0..3).map(move |nth| before + nth * frame + (frame - len) + (1 << 20));
        starts.chain(steps).flat_map(|edge| [edge - 1, edge, edge + 1]).collect::<Vec<_>>()
    };
    let whole = |frame: usize, before: usize| before + 3 * frame;
    let sent = whole(HEADER + len, HELLO);
    cuts(Opcode::Write, len, 3, &edges(HEADER + len, HELLO), sent, whole(STATUS, STATUS));
    let received = whole(STATUS + len, STATUS);
    cuts(Opcode::Read, len, 3, &edges(STATUS + len, STATUS), whole(HEADER, HELLO), received);
}

#[test]
fn what_comes_drop_by_drop_arrives_whole() {
    let target = engine(DEADLINE);
    std::thread::scope(|scope| {
        for drop in 1..=7 {
            let (target, fate) = (&target, Fate::Trickle(drop, Duration::from_micros(100)));
            scope.spawn(move || {
                for (opcode, seed) in [(Opcode::Write, 0), (Opcode::Read, 1)] {
                    let seed = seed + 10 * drop as u64;
                    // Drops take their time, and a busy machine adds to it.
                    assert!(
                        try_it(target, opcode, 61, 3, [fate; 2], seed, Duration::from_secs(20)),
                        "{opcode:?}, {drop}"
                    );
                }
            });
        }
    });
}
