//! Processes of other users on the same host: they get nothing but what the network gives.
//!
//! Where the user of the tests cannot become another one, nothing is tested.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mooncake_os::recv_fds;
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_test_support::test_name;
use mooncake_transfer_engine::{Engine, EngineOptions, SharedSegment};

use crate::memory::Memory;
use crate::relay::{answering, document_of};

const NOBODY: u32 = 65_534;

/// This thread, and those that it starts, are another user's from now on. False where that is forbidden.
fn become_nobody() -> bool {
    let nobody = rustix::process::Uid::from_raw(NOBODY);
    rustix::process::geteuid() != nobody && rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_ok()
}

fn engine() -> Engine {
    Engine::new("127.0.0.1", EngineOptions::default()).unwrap()
}

/// The text of a field of a document.
fn field<'a>(document: &'a str, name: &str) -> &'a str {
    let begin = format!("\"{name}\":\"");
    let from = document.find(&begin).unwrap() + begin.len();
    document[from..].split('"').next().unwrap()
}

/// A hello in order, but for its secret: the peer of another user would not find it anyway.
fn hello(id: &str) -> [u8; 64] {
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"MCRSHOST");
    hello[8] = 3;
    for (at, byte) in hello[16..32].iter_mut().enumerate() {
        *byte = u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap();
    }
    hello
}

/// What the first that connects to a socket of another user's says there.
fn what_nobody_hears(unix: &str) -> Option<Receiver<Vec<u8>>> {
    let (ready, is_ready) = channel();
    let (tell, told) = channel();
    let unix = unix.to_owned();
    std::thread::spawn(move || {
        if !become_nobody() {
            return;
        }
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&unix).unwrap()).unwrap();
        ready.send(()).unwrap();
        let mut heard = Vec::new();
        let _ = listener.accept().unwrap().0.read_to_end(&mut heard);
        tell.send(heard).unwrap();
    });
    if is_ready.recv().is_err() {
        eprintln!("no right to become another user: nothing is tested");
        return None;
    }
    Some(told)
}

#[test]
fn other() {
    match role().unwrap_or_default().as_str() {
        "a stranger" => stranger(),
        "an engine" => nobodys_engine(),
        _ => {}
    }
}

/// Is told of an engine, greets it, and tells what comes back.
fn stranger() {
    let (unix, id) = (hear(), hear());
    if !become_nobody() {
        return say("no right");
    }
    let address = SocketAddr::from_abstract_name(&unix).unwrap();
    for hello in [&hello(&id)[..], &[]] {
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // It may have hung up by then.
        let _ = stream.write_all(hello);
        let (mut bytes, mut fds) = ([0; 64], Vec::new());
        let heard = match recv_fds(&stream, &mut bytes, &mut fds) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            heard => heard.unwrap(),
        };
        say(format_args!("{heard} bytes and {} descriptors", fds.len()));
    }
}

/// Is told of a peer and an address, and writes what it reads there behind it.
fn nobodys_engine() {
    let (name, addr) = (hear(), hear().parse::<u64>().unwrap());
    if !become_nobody() {
        return say("no right");
    }
    let (engine, here) = (engine(), Memory::new(4096));
    let peer = engine.open(&name).unwrap();
    engine.transfer(peer, &[here.read_from(addr)]).unwrap();
    engine.transfer(peer, &[here.write_to(addr + 4096)]).unwrap();
    let link = &engine.links()[0];
    say(format_args!("{}: {}", link.path, link.reason));
}

#[test]
fn a_process_of_another_user_is_sent_nothing() {
    let target = engine();
    let document = document_of(&target);
    let mut stranger = ChildProcess::start(&test_name!("other"), "a stranger");
    stranger.say(field(&document, "unix"));
    stranger.say(field(&document, "id"));
    for _ in 0..2 {
        let heard = stranger.hear();
        if heard == "no right" {
            return eprintln!("no right to become another user: nothing is tested");
        }
        assert_eq!(heard, "0 bytes and 0 descriptors");
    }
}

#[test]
fn another_users_engine_is_a_peer_by_tcp() {
    let (target, there) = (engine(), Memory::filled(8192, 1));
    target.register(&[there.range()], "*").unwrap();
    let mut initiator = ChildProcess::start(&test_name!("other"), "an engine");
    initiator.say(target.name());
    initiator.say(there.addr());
    let path = initiator.hear();
    if path == "no right" {
        return eprintln!("no right to become another user: nothing is tested");
    }
    assert!(path.starts_with("tcp: ") && path.contains("another user's"), "{path}");
    assert!(there.bytes()[..4096] == there.bytes()[4096..]);
}

#[test]
fn an_engine_tells_another_users_socket_nothing() {
    let (target, there) = (engine(), Memory::new(4096));
    target.register(&[there.range()], "*").unwrap();
    let document = document_of(&target);
    let unix = format!("mooncake-test-{}-{}", std::process::id(), target.port());
    let Some(told) = what_nobody_hears(&unix) else { return };
    let (initiator, here) = (engine(), Memory::filled(4096, 1));
    let peer = initiator.open(&answering(document.replace(field(&document, "unix"), &unix))).unwrap();
    initiator.transfer(peer, &[here.write_to(there.addr())]).unwrap();
    assert!(there.bytes() == here.bytes());
    let heard = told.recv().unwrap();
    assert!(heard.is_empty(), "{heard:?}");
    let link = &initiator.links()[0];
    assert!(link.path == "tcp" && link.reason.contains("another user's"), "{link:?}");
}

#[test]
fn a_rank_takes_no_memory_from_another_user() {
    let (owner, owners) = SharedSegment::create("kv", 4096, 2, 0, 0).unwrap();
    let (rank, ranks) = SharedSegment::create("kv", 4096, 2, 1, 0).unwrap();
    // The owner has ended, and its name is free.
    drop(owner);
    let place: String = owners[24..40].iter().map(|byte| format!("{byte:02x}")).collect();
    let Some(told) = what_nobody_hears(&format!("mooncake-segment-{place}")) else { return };
    let failed = rank.complete(&[owners, ranks], &|| false).unwrap_err().to_string();
    let heard = told.recv().unwrap();
    assert!(heard.is_empty(), "{heard:?}");
    assert!(failed.contains("another user's") && rank.base() == 0, "{failed}");
}
