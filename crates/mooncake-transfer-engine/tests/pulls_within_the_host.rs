//! What a peer of this host asks to be copied out of its memory, in the words of the protocol.

use std::io::Read;
use std::time::{Duration, Instant};

use mooncake_transfer_engine::{Engine, EngineError, EngineOptions};

use crate::host::{DONE, answer, ask, before_one_that_stands_still, meet, meet_with_access_page};
use crate::memory::Memory;

const SOON: Duration = Duration::from_millis(300);

#[test]
fn nothing_is_copied_that_was_taken_back() {
    let target = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let (there, here) = (Memory::new(4096), Memory::filled(4096, 1));
    target.register(&[there.range()], "*").unwrap();
    let (mut stream, page) = meet_with_access_page(&target);
    page.withdraw();
    ask(&mut stream, &[(there.addr(), here.addr(), 4096)]);
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it hangs up");
    assert!(!page.is_copying() && there.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_write_that_times_out_ends_at_once_where_the_peer_is_at_no_copy_and_it_begins_none() {
    let (_real, initiator, peer, pages) = before_one_that_stands_still(SOON);
    let here = Memory::new(4096);
    let began = Instant::now();
    let late = initiator.transfer(peer, &[here.write_to(4096)]);
    assert!(matches!(late, Err(EngineError::Timeout { .. })), "{late:?}");
    assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
    assert!(pages.recv().unwrap().0.copy().is_none());
}

#[test]
fn nothing_else_goes_to_a_peer_that_stands_still_in_the_midst_of_a_copy_that_was_given_up() {
    let (_real, initiator, peer, pages) = before_one_that_stands_still(SOON);
    let here = Memory::new(4096);
    let page = std::thread::scope(|scope| {
        let write = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        let (page, _door) = pages.recv().unwrap();
        drop(pages);
        let copying = page.copy().unwrap();
        let late = write.join().unwrap();
        assert!(matches!(late, Err(EngineError::Timeout { .. })), "{late:?}");
        // As long as it is at it.
        for _ in 0..2 {
            let late = initiator.transfer(peer, &[here.write_to(4096)]).unwrap_err();
            assert!(late.to_string().contains("given up"), "{late}");
        }
        let began = Instant::now();
        let enough = || began.elapsed() > Duration::from_millis(10);
        let closed = initiator.close_with(&enough);
        assert!(matches!(closed, Err(EngineError::CallsUnderWay { calls: 1, .. })), "{closed:?}");
        drop(copying);
        page
    });
    assert!(page.copy().is_none());
    initiator.close().unwrap();
}

#[test]
fn neither_does_it_by_tcp_where_its_connection_ends_meanwhile() {
    let (real, initiator, peer, pages) = before_one_that_stands_still(Duration::from_secs(3));
    let (here, there) = (Memory::filled(4096, 1), Memory::new(4096));
    real.register(&[there.range()], "*").unwrap();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| initiator.transfer(peer, &[here.write_to(there.addr())]));
        let (page, mut door) = pages.recv().unwrap();
        drop(pages);
        door.read_exact(&mut [0; 32]).unwrap();
        let copying = page.copy().unwrap();
        door.shutdown(std::net::Shutdown::Both).unwrap();
        let late = write.join().unwrap().unwrap_err();
        assert!(late.to_string().contains("given up"), "{late}");
        assert!(there.bytes().iter().all(|byte| *byte == 0));
        drop(copying);
        initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    });
}

#[test]
fn a_peer_that_has_come_out_of_the_copy_is_written_to_again() {
    let (_real, initiator, peer, pages) = before_one_that_stands_still(SOON);
    let here = Memory::new(4096);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        let (page, _door) = pages.recv().unwrap();
        drop(pages);
        let copying = page.copy().unwrap();
        assert!(write.join().unwrap().is_err());
        assert!(initiator.transfer(peer, &[here.write_to(4096)]).is_err());
        drop(copying);
        initiator.transfer(peer, &[here.write_to(4096)]).unwrap();
    });
}

#[test]
fn pieces_of_all_lengths_are_there_when_it_says_so() {
    let target = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    const MIB: u64 = 1 << 20;
    for lengths in [
        &[0, 9 * MIB][..],
        &[9 * MIB, 0, 1, 0, 40 * MIB + 1, 0],
        &[0],
        &[3 * MIB, 3 * MIB, 5 * MIB, 4 * MIB, 4 * MIB + 1],
    ] {
        let total: u64 = lengths.iter().sum();
        let (there, here) = (Memory::new(total as usize + 1), Memory::filled(total as usize + 1, total));
        target.register(&[there.range()], "*").unwrap();
        let mut at = 0;
        let piece = |len: &u64| {
            at += len;
            (there.addr() + at - len, here.addr() + at - len, *len)
        };
        let mut stream = meet(&target);
        ask(&mut stream, &lengths.iter().map(piece).collect::<Vec<_>>());
        assert_eq!(answer(&mut stream), DONE);
        assert!(there.bytes()[..total as usize] == here.bytes()[..total as usize], "{lengths:?}");
        assert_eq!(there.bytes()[total as usize], 0);
        target.unregister(there.range().addr()).unwrap();
    }
}

#[test]
fn one_that_takes_long_keeps_neither_other_peers_nor_the_engines_end_waiting() {
    let target = Engine::new("127.0.0.1", EngineOptions { server_threads: 1, ..EngineOptions::default() }).unwrap();
    let there = Memory::new(128 << 20);
    target.register(&[there.range()], "*").unwrap();
    let mut stream = meet(&target);
    // Onto itself: 128 GiB in all.
    ask(&mut stream, &vec![(there.addr(), there.addr(), 128 << 20); 1_024]);
    let (initiator, here) = (Engine::new("127.0.0.1", EngineOptions::default()).unwrap(), Memory::new(4096));
    let began = Instant::now();
    let peer = initiator.open(target.name()).unwrap();
    for _ in 0..3 {
        initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    stream.set_nonblocking(true).unwrap();
    let early = stream.read(&mut [0; 8]).map_err(|error| error.kind());
    assert_eq!(early, Err(std::io::ErrorKind::WouldBlock), "it is still at it");
    let began = Instant::now();
    target.close().unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
