//! What a peer of this host asks to be copied out of its memory, in the words of the protocol.

mod memory;
mod relay;

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use memory::Memory;
use mooncake_engine::{Engine, EngineOptions};
use relay::document_of;

const DONE: [u8; 8] = [0; 8];

/// The text of a field of a document.
fn field<'a>(document: &'a str, name: &str) -> &'a str {
    let begin = format!("\"{name}\":\"");
    let from = document.find(&begin).unwrap() + begin.len();
    document[from..].split('"').next().unwrap()
}

/// Meets an engine as another engine of this process would.
fn meet(target: &Engine) -> UnixStream {
    let document = document_of(target);
    let address = SocketAddr::from_abstract_name(field(&document, "unix")).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let id = field(&document, "id");
    let mine: &'static [u8; 16] = Box::leak(Box::new([5; 16]));
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"MCRSHOST");
    hello[8] = 2;
    for (at, byte) in hello[16..32].iter_mut().enumerate() {
        *byte = u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap();
    }
    hello[32..40].copy_from_slice(&(mine.as_ptr().expose_provenance() as u64).to_le_bytes());
    hello[40..56].copy_from_slice(mine);
    stream.write_all(&hello).unwrap();
    let mut reply = [9; 40];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[8], 0, "it can copy from here");
    stream
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
