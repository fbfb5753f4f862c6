//! A call on a lane returns when its queue pairs touch none of its memory any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::crc32c;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_os::Deadline;
use mooncake_rdma::Reason;
use mooncake_test_support::FakeVerbs;
use mooncake_verbs::{Operation, Status};

use crate::support::{STALL, Side, bytes, lanes, within};

const MIB: usize = 1 << 20;

#[test]
fn a_written_object_is_there_when_the_call_returns_and_comes_back_whole() {
    let fake = FakeVerbs::start(2);
    // Long behind the completion, unless something is read.
    fake.tell("visible 500 all");
    let (here, there) = (Side::new(0, 8 * MIB), Side::new(1, 8 * MIB));
    let (mut own, _peer) = lanes(&here, &there);
    own.prove(&within(STALL)).unwrap();
    let pieces = [(1, 3), (100, 65_537), (70_000, 4_096), (100_000, MIB), (3 * MIB, 700_001), (5 * MIB, 1)];
    for round in 0..3 {
        for (nth, (at, len)) in pieces.into_iter().enumerate() {
            here.fill(at, &bytes(fake.seed() ^ (round * 100 + nth as u64), len));
        }
        let mut works = pieces.into_iter().map(|(at, len)| here.work(Operation::Write, at, len, &there, at));
        own.carry(&mut works, &within(STALL), STALL).unwrap();
        for (nth, (at, len)) in pieces.into_iter().enumerate() {
            let right = bytes(fake.seed() ^ (round * 100 + nth as u64), len);
            assert_eq!(there.crc(at, len), crc32c(&right), "{len} bytes at {at} are not there (seed {})", fake.seed());
            here.fill(at, &vec![0; len]);
        }
        let mut works = pieces.into_iter().map(|(at, len)| here.work(Operation::Read, at, len, &there, at));
        own.carry(&mut works, &within(STALL), STALL).unwrap();
        for (nth, (at, len)) in pieces.into_iter().enumerate() {
            let right = bytes(fake.seed() ^ (round * 100 + nth as u64), len);
            assert_eq!(here.crc(at, len), crc32c(&right), "{len} bytes came back otherwise (seed {})", fake.seed());
        }
    }
}

#[test]
fn many_small_requests_fill_the_queue_and_all_arrive() {
    let fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, 8 * MIB), Side::new(1, 8 * MIB));
    let (mut own, _peer) = lanes(&here, &there);
    let all = bytes(fake.seed(), 3_000 * 1_024);
    here.fill(0, &all);
    let mut works = (0..3_000).map(|nth| here.work(Operation::Write, nth * 1_024, 1_024, &there, nth * 1_024));
    own.carry(&mut works, &within(Duration::from_secs(20)), STALL).unwrap();
    assert_eq!(there.crc(0, all.len()), crc32c(&all));
    assert!(own.is_usable());
}

#[test]
fn memory_is_the_callers_when_a_call_returns_however_it_ends() {
    let fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, 8 * MIB), Side::new(1, 8 * MIB));
    let interrupted = AtomicBool::new(false);
    let hook = || interrupted.swap(true, Ordering::Relaxed);
    for (nth, end) in ["deadline", "interrupt", "stall", "error", "link"].into_iter().enumerate() {
        let (mut own, peer) = lanes(&here, &there);
        interrupted.store(false, Ordering::Relaxed);
        there.fill(0, &bytes(nth as u64, 4 * MIB));
        match end {
            "error" => drop(fake.tell(&format!("qp fake0 {} err", own.ends()[0].0))),
            "link" => drop(fake.tell("link fake1 down")),
            // Nothing completes any more, while bytes go on.
            _ => drop(fake.tell("hold fake0")),
        }
        let (deadline, stall) = match end {
            "interrupt" => (Deadline::after(Duration::from_secs(20), &hook), STALL),
            "stall" => (within(Duration::from_secs(20)), Duration::from_millis(200)),
            "deadline" => (within(Duration::from_millis(200)), STALL),
            _ => (within(Duration::from_secs(20)), STALL),
        };
        let began = Instant::now();
        let mut works =
            (0..16).map(|nth| here.work(Operation::Read, nth * (MIB / 4), MIB / 4, &there, nth * (MIB / 4)));
        let error = own.carry(&mut works, &deadline, stall).unwrap_err();
        // From this moment on it is the caller's.
        let mine = bytes(1_000 + nth as u64, 4 * MIB);
        here.fill(0, &mine);
        assert!(began.elapsed() < Duration::from_secs(3), "{end}: {:?}", began.elapsed());
        assert!(error.stuck.is_empty() && error.unsettled.is_empty(), "{end}: {error:?}");
        let is_right = match end {
            "interrupt" => matches!(error.reason, Reason::Interrupted),
            "stall" => matches!(error.reason, Reason::Stalled(_)),
            "deadline" => matches!(error.reason, Reason::Expired),
            "link" => matches!(error.reason, Reason::Failed(Status::RETRIES_EXCEEDED)),
            _ => matches!(error.reason, Reason::Failed(_) | Reason::Verbs(_)),
        };
        assert!(is_right, "{end}: {error}");
        assert!(!own.is_usable());
        fake.tell("release all");
        fake.tell("link fake1 up");
        drop(peer);
        fake.tell("quiet");
        assert_eq!(
            here.crc(0, mine.len()),
            crc32c(&mine),
            "{end}: the card wrote behind the return (seed {})",
            fake.seed()
        );
        here.nic.take_events();
        there.nic.take_events();
    }
}

#[test]
fn a_card_that_does_not_stop_is_told_within_its_time() {
    let fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, MIB), Side::new(1, MIB));
    let (mut own, _peer) = lanes(&here, &there);
    fake.tell("hold fake0");
    fake.tell("hang modify_qp.err");
    fake.tell("hang destroy_qp");
    let began = Instant::now();
    let mut works = std::iter::once(here.work(Operation::Write, 0, MIB, &there, 0));
    let error = own.carry(&mut works, &within(Duration::from_millis(100)), STALL).unwrap_err();
    assert!(error.stuck.len() == 1 && error.unsettled == [0], "{error:?}");
    assert!(began.elapsed() < Duration::from_millis(2_000), "{:?}", began.elapsed());
    fake.tell("unhang all");
    fake.tell("release all");
    let end = Instant::now() + Duration::from_secs(10);
    while !error.stuck[0].is_gone() {
        assert!(Instant::now() < end, "its memory is never free");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_that_unwinds_leaves_nothing_under_way_and_its_lane_is_not_used_again() {
    let fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, 4 * MIB), Side::new(1, 4 * MIB));
    let (mut own, _peer) = lanes(&here, &there);
    there.fill(0, &bytes(1, 4 * MIB));
    fake.tell("hold fake0");
    let mut count = 0;
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut works = (0..16).map(|nth| {
            count += 1;
            assert!(count < 10, "the caller's");
            here.work(Operation::Read, nth * (MIB / 4), MIB / 4, &there, nth * (MIB / 4))
        });
        own.carry(&mut works, &within(STALL), STALL)
    }));
    assert!(unwound.is_err() && !own.is_usable());
    drop(own);
    let mine = bytes(2, 4 * MIB);
    here.fill(0, &mine);
    fake.tell("release all");
    fake.tell("quiet");
    assert_eq!(here.crc(0, mine.len()), crc32c(&mine), "the card wrote behind the end (seed {})", fake.seed());
}

#[test]
fn late_packets_of_a_failed_write_land_until_the_peer_destroys_its_end_and_no_longer() {
    let fake = FakeVerbs::start(2);
    fake.tell("late all 300");
    let (here, there) = (Side::new(0, 4 * MIB), Side::new(1, 4 * MIB));
    let mut was_late = 0;
    for round in 0..10 {
        let (mut own, peer) = lanes(&here, &there);
        here.fill(0, &bytes(round, 2 * MIB));
        // Made before: behind the failure nothing may take as long as packets do.
        let mine = bytes(7_777 + round, 2 * MIB);
        fake.tell("hold fake0 acks stalls");
        let mut works =
            (0..8).map(|nth| here.work(Operation::Write, nth * (MIB / 4), MIB / 4, &there, nth * (MIB / 4)));
        let error = own.carry(&mut works, &within(Duration::from_millis(20)), STALL).unwrap_err();
        assert!(error.unsettled == [0] && error.stuck.is_empty(), "{error:?}");
        fake.tell("release all");
        if round % 2 == 0 {
            // Without the peer's word.
            there.fill(0, &mine);
            fake.tell("quiet");
            was_late += u32::from(there.crc(0, mine.len()) != crc32c(&mine));
            drop(peer);
        } else {
            drop(peer);
            there.fill(0, &mine);
            fake.tell("quiet");
            assert_eq!(there.crc(0, mine.len()), crc32c(&mine), "it landed behind the end (seed {})", fake.seed());
        }
    }
    assert!(was_late > 0, "the fake never sent anything late: this test shows nothing (seed {})", fake.seed());
}

#[test]
fn what_a_lane_does_not_do_is_noticed() {
    assert!(is_noticed_by(
        Mutant::WritesEndWithTheirCompletion,
        a_written_object_is_there_when_the_call_returns_and_comes_back_whole
    ));
    assert!(is_noticed_by(Mutant::DrainsStopNothing, memory_is_the_callers_when_a_call_returns_however_it_ends));
}
