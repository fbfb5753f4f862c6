//! The words that engines of one host say to each other, said by a test.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mooncake_memory::{AccessPage, AccessPageView, RevisionPage};
use mooncake_os::{recv_fds, send_fds};
use mooncake_transfer_engine::{Engine, EngineOptions, PeerId};

use crate::relay::{answering, document_of};

pub const DONE: [u8; 8] = [0; 8];

/// The text of a field of a document.
fn field<'a>(document: &'a str, name: &str) -> &'a str {
    let begin = format!("\"{name}\":\"");
    let from = document.find(&begin).unwrap() + begin.len();
    document[from..].split('"').next().unwrap()
}

/// Meets an engine as another engine of this process would.
pub fn meet(target: &Engine) -> UnixStream {
    meet_with_access_page(target).0
}

/// The same, with the page that both share.
pub fn meet_with_access_page(target: &Engine) -> (UnixStream, AccessPageView) {
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
    let page = AccessPageView::map(&fds[1]).unwrap();
    (stream, page)
}

/// A peer that stands still when it is asked for a copy: its name, and its ends of what it shares with its first
/// visitor. Later ones find their writes done.
pub fn that_stands_still(real: &Engine) -> (String, Receiver<(AccessPage, UnixStream)>) {
    let unix = format!("mooncake-test-{}-{}", std::process::id(), real.port());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&unix).unwrap()).unwrap();
    let document = document_of(real);
    let document = document.replace(field(&document, "unix"), &unix);
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let board = RevisionPage::new().unwrap();
        let secret: &'static [u8; 16] = Box::leak(Box::new([6; 16]));
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0; 64]).unwrap();
            let mut reply = [0; 40];
            reply[..8].copy_from_slice(b"MCRSHOST");
            reply[16..24].copy_from_slice(&(secret.as_ptr().expose_provenance() as u64).to_le_bytes());
            reply[24..40].copy_from_slice(secret);
            let (page, fd) = AccessPage::new().unwrap();
            send_fds(&stream, &reply, &[board.fd(), fd.as_fd()]).unwrap();
            match tell.send((page, stream.try_clone().unwrap())) {
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

/// The engine behind such a peer, one with that transfer timeout, which has opened it, and that peer.
pub fn before_one_that_stands_still(
    transfer_timeout: Duration,
) -> (Engine, Engine, PeerId, Receiver<(AccessPage, UnixStream)>) {
    let real = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let hurry = EngineOptions { transfer_timeout, ..EngineOptions::default() };
    let initiator = Engine::new("127.0.0.1", hurry).unwrap();
    let (name, pages) = that_stands_still(&real);
    let peer = initiator.open(&name).unwrap();
    (real, initiator, peer, pages)
}

/// Asks for pieces to be filled: where, from where, how many bytes.
pub fn ask(stream: &mut UnixStream, pieces: &[(u64, u64, u64)]) {
    let words = pieces.iter().flat_map(|(to, from, len)| [*to, *from, *len]);
    let words = std::iter::once(pieces.len() as u64).chain(words);
    stream.write_all(&words.flat_map(u64::to_le_bytes).collect::<Vec<_>>()).unwrap();
}

pub fn answer(stream: &mut UnixStream) -> [u8; 8] {
    let mut answer = [9; 8];
    stream.read_exact(&mut answer).unwrap();
    answer
}
