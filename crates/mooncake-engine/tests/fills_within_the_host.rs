//! What a peer of this host asks to be copied out of its memory, in the words of the protocol.

mod memory;
mod relay;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use memory::Memory;
use mooncake_engine::{Engine, EngineError, EngineOptions, PeerId};
use mooncake_memory::{Board, Passage, PassageView, recv_fds, send_fds};
use relay::{answering, document_of};

const DONE: [u8; 8] = [0; 8];

const SOON: Duration = Duration::from_millis(300);

/// The text of a field of a document.
fn field<'a>(document: &'a str, name: &str) -> &'a str {
    let begin = format!("\"{name}\":\"");
    let from = document.find(&begin).unwrap() + begin.len();
    document[from..].split('"').next().unwrap()
}

/// Meets an engine as another engine of this process would.
fn meet(target: &Engine) -> UnixStream {
    meet_with_passage(target).0
}

/// The same, with the page that both share.
fn meet_with_passage(target: &Engine) -> (UnixStream, PassageView) {
    let document = document_of(target);
    let address = SocketAddr::from_abstract_name(field(&document, "unix")).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let id = field(&document, "id");
    let mine: &'static [u8; 16] = Box::leak(Box::new([5; 16]));
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"MCRSHOST");
    hello[8] = 3;
    for (at, byte) in hello[16..32].iter_mut().enumerate() {
        *byte = u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap();
    }
    hello[32..40].copy_from_slice(&(mine.as_ptr().expose_provenance() as u64).to_le_bytes());
    hello[40..56].copy_from_slice(mine);
    stream.write_all(&hello).unwrap();
    let (mut reply, mut fds) = ([9; 40], Vec::new());
    assert_eq!(recv_fds(&stream, &mut reply, &mut fds).unwrap(), reply.len());
    assert_eq!(reply[8], 0, "it can copy from here");
    let passage = PassageView::map(&fds[1]).unwrap();
    (stream, passage)
}

/// A peer that stands still when it is asked for a copy: its name, and its ends of what it shares with its first visitor.
/// Later ones find their writes done.
fn that_stands_still(real: &Engine) -> (String, Receiver<(Passage, UnixStream)>) {
    let unix = format!("mooncake-test-{}-{}", std::process::id(), real.port());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&unix).unwrap()).unwrap();
    let document = document_of(real);
    let document = document.replace(field(&document, "unix"), &unix);
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let board = Board::new().unwrap();
        let secret: &'static [u8; 16] = Box::leak(Box::new([6; 16]));
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0; 64]).unwrap();
            let mut reply = [0; 40];
            reply[..8].copy_from_slice(b"MCRSHOST");
            reply[16..24].copy_from_slice(&(secret.as_ptr().expose_provenance() as u64).to_le_bytes());
            reply[24..40].copy_from_slice(secret);
            let (passage, fd) = Passage::new().unwrap();
            send_fds(&stream, &reply, &[board.fd(), fd.as_fd()]).unwrap();
            match tell.send((passage, stream.try_clone().unwrap())) {
                // It has said all that it says.
                Ok(()) => {}
                Err(_) => drop(std::thread::spawn(move || {
                    while stream.read_exact(&mut [0; 32]).is_ok() {
                        stream.write_all(&DONE).unwrap();
                    }
                })),
            }
        }
    });
    (answering(document), told)
}

/// The engine behind such a peer, one that has so much patience and has opened it, and that peer.
fn before_one_that_stands_still(
    transfer_timeout: Duration,
) -> (Engine, Engine, PeerId, Receiver<(Passage, UnixStream)>) {
    let real = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let hurry = EngineOptions { transfer_timeout, ..EngineOptions::default() };
    let initiator = Engine::new("127.0.0.1", hurry).unwrap();
    let (name, passages) = that_stands_still(&real);
    let peer = initiator.open(&name).unwrap();
    (real, initiator, peer, passages)
}

/// Asks for pieces to be filled: where, from where, how many bytes.
fn ask(stream: &mut UnixStream, pieces: &[(u64, u64, u64)]) {
    let words = pieces.iter().flat_map(|(to, from, len)| [*to, *from, *len]);
    let words = std::iter::once(pieces.len() as u64).chain(words);
    stream.write_all(&words.flat_map(u64::to_le_bytes).collect::<Vec<_>>()).unwrap();
}

fn answer(stream: &mut UnixStream) -> [u8; 8] {
    let mut answer = [9; 8];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn nothing_is_copied_that_was_taken_back() {
    let target = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let (there, here) = (Memory::new(4096), Memory::filled(4096, 1));
    target.register(&[there.range()], "*").unwrap();
    let (mut stream, passage) = meet_with_passage(&target);
    passage.withdraw();
    ask(&mut stream, &[(there.addr(), here.addr(), 4096)]);
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it hangs up");
    assert!(!passage.is_copying() && there.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_write_that_times_out_ends_at_once_where_the_peer_is_at_no_copy_and_it_begins_none() {
    let (_real, initiator, peer, passages) = before_one_that_stands_still(SOON);
    let here = Memory::new(4096);
    let began = Instant::now();
    let late = initiator.transfer(peer, &[here.write_to(4096)]);
    assert!(matches!(late, Err(EngineError::Timeout { .. })), "{late:?}");
    assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
    assert!(passages.recv().unwrap().0.copy().is_none());
}

#[test]
fn nothing_else_goes_to_a_peer_that_stands_still_in_the_midst_of_a_copy_that_was_given_up() {
    let (_real, initiator, peer, passages) = before_one_that_stands_still(SOON);
    let here = Memory::new(4096);
    let passage = std::thread::scope(|scope| {
        let write = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        let (passage, _door) = passages.recv().unwrap();
        drop(passages);
        let copying = passage.copy().unwrap();
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
        passage
    });
    assert!(passage.copy().is_none());
    initiator.close().unwrap();
}

#[test]
fn neither_does_it_by_tcp_where_its_connection_ends_meanwhile() {
    let (real, initiator, peer, passages) = before_one_that_stands_still(Duration::from_secs(3));
    let (here, there) = (Memory::filled(4096, 1), Memory::new(4096));
    real.register(&[there.range()], "*").unwrap();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| initiator.transfer(peer, &[here.write_to(there.addr())]));
        let (passage, mut door) = passages.recv().unwrap();
        drop(passages);
        door.read_exact(&mut [0; 32]).unwrap();
        let copying = passage.copy().unwrap();
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
    let (_real, initiator, peer, passages) = before_one_that_stands_still(SOON);
    let here = Memory::new(4096);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| initiator.transfer(peer, &[here.write_to(4096)]));
        let (passage, _door) = passages.recv().unwrap();
        drop(passages);
        let copying = passage.copy().unwrap();
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
