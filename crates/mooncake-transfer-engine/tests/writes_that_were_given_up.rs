//! A write whose call has failed: what the network still holds of it is not sent later, and lands over no newer bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mooncake_transfer_engine::{Engine, EngineError, EngineOptions};

use crate::memory::Memory;
use crate::relay::{answering, document_of};

/// What the target says to a hello, and to a write.
const STATUS: u64 = 8;

fn engine() -> Engine {
    let options = EngineOptions {
        same_host: false,
        stripes: 1,
        transfer_timeout: Duration::from_millis(600),
        ..EngineOptions::default()
    };
    Engine::new("127.0.0.1", options).unwrap()
}

/// The name of a peer that is `target` behind a link that goes down after so many bytes of the first connection: the
/// rest waits until it is released, and the target learns nothing of the other end. It says when the target is done
/// with that.
fn behind_a_link_that_goes_down(target: &Engine, after: usize) -> (String, Sender<()>, Receiver<()>) {
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = |port: u16| format!("\"tcp_data_port\":{port}");
    let there = data.local_addr().unwrap().port();
    let document = document_of(target).replace(&port(target.data_port()), &port(there));
    let (release, released) = channel::<()>();
    let (done, is_done) = channel();
    let to = target.data_port();
    std::thread::spawn(move || {
        let mut first = Some((released, done));
        for near in data.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
            let (back_from, back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            // Of the first connection until the write is acknowledged, or the target hangs up.
            let most = if first.is_some() { 2 * STATUS } else { u64::MAX };
            let back = std::thread::spawn(move || pass(back_from.take(most), back_to));
            match first.take() {
                None => drop(std::thread::spawn(move || pass(near, far))),
                Some((released, done)) => drop(std::thread::spawn(move || {
                    pass(near.try_clone().unwrap().take(after as u64), far.try_clone().unwrap());
                    let mut held = Vec::new();
                    let _ = (&near).read_to_end(&mut held);
                    let _ = released.recv();
                    let _ = (&far).write_all(&held);
                    back.join().unwrap();
                    let _ = done.send(());
                })),
            }
        }
    });
    (answering(document), release, is_done)
}

/// Passes on what comes until it ends; who does not want it any more stops nothing.
fn pass(mut from: impl Read, mut into: impl Write) {
    let mut some = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut some) {
        let _ = into.write_all(&some[..count]);
    }
}

#[test]
fn what_is_still_under_way_of_it_lands_over_no_newer_bytes() {
    let (target, initiator) = (engine(), engine());
    let size = 4 << 20;
    let (there, old, new) = (Memory::new(size), Memory::filled(size, 1), Memory::filled(size, 2));
    target.register(&[there.range()], "*").unwrap();
    let (name, release, done) = behind_a_link_that_goes_down(&target, size / 2);
    let peer = initiator.open(&name).unwrap();
    let failed = initiator.transfer(peer, &[old.write_to(there.addr())]);
    assert!(matches!(failed, Err(EngineError::Timeout { .. })), "{failed:?}");
    initiator.transfer(peer, &[new.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == new.bytes());
    release.send(()).unwrap();
    done.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(there.bytes() == new.bytes(), "bytes of the write that was given up lie over those of a newer one");
}

#[test]
fn a_read_that_follows_it_finds_memory_that_does_not_change_any_more() {
    let (target, initiator) = (engine(), engine());
    let size = 4 << 20;
    let (there, old, seen) = (Memory::new(size), Memory::filled(size, 1), Memory::new(size));
    target.register(&[there.range()], "*").unwrap();
    let (name, release, done) = behind_a_link_that_goes_down(&target, size / 2);
    let peer = initiator.open(&name).unwrap();
    assert!(initiator.transfer(peer, &[old.write_to(there.addr())]).is_err());
    initiator.transfer(peer, &[seen.read_from(there.addr())]).unwrap();
    release.send(()).unwrap();
    done.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(there.bytes() == seen.bytes());
}

#[test]
fn the_kernel_sends_no_more_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for version in [1, 2] {
        let document = format!(
            r#"{{"name":"x","protocol":"tcp","tcp_data_port":{port},"tcp_proto_version":{version},"buffers":[]}}"#
        );
        let (initiator, here) = (engine(), Memory::new(64 << 20));
        let peer = initiator.open(&answering(document)).unwrap();
        let failed = initiator.transfer(peer, &[here.write_to(4096)]);
        assert!(matches!(failed, Err(EngineError::Timeout { .. })), "{failed:?}");
        // Only now it reads again, as if it had been away.
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut some = vec![0; 1 << 20];
        let ended = loop {
            match stream.read(&mut some) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(ended, Some(ErrorKind::ConnectionReset), "what was in the socket was sent on");
    }
}
