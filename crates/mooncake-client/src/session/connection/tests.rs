//! Connections to a peer that greets, and then does what a test wants.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use mooncake_wire::FRAME_BYTES_MAX;
use mooncake_wire::message::{AttachCall, Reply, Request, reply, request};

use super::*;
use crate::scripted_master::{frame, hello_reply};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, and the peer's end of it.
fn connected() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let opening = std::thread::spawn(move || {
        let deadline = Deadline::at(Instant::now() + TIMEOUT);
        let role = hello::Role::Attach(AttachCall { session: 7, secret: 7 });
        Connection::open(&address, role, LogPosition::default(), &deadline).unwrap().0
    });
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_nodelay(true).unwrap();
    peer.write_all(&frame(&hello_reply(7))).unwrap();
    (opening.join().unwrap(), peer)
}

fn reply(id: u64, bytes: usize) -> Reply {
    let refusal = mooncake_wire::message::Refusal { kind: 0, reason: "x".repeat(bytes) };
    Reply { id, body: Some(reply::Body::Refusal(refusal)), ..Reply::default() }
}

#[test]
fn a_peer_that_takes_or_says_nothing_is_waited_for_until_the_deadline() {
    let (ended, ends) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut connection, _peer) = connected();
        let deadline = || Deadline::at(Instant::now() + Duration::from_millis(100));
        let heard = connection.receive::<Reply>(FRAME_BYTES_MAX, &deadline());
        ended.send(heard.map(drop)).unwrap();
        let remove = mooncake_wire::message::RemoveByRegex { pattern: "x".repeat(32 << 20), force: true };
        let request = Request { body: Some(request::Body::RemoveByRegex(remove)), ..Request::default() };
        ended.send(connection.send(&request, &deadline())).unwrap();
    });
    for what in ["it says nothing", "it takes nothing"] {
        let outcome = ends.recv_timeout(TIMEOUT).expect(what);
        assert!(matches!(outcome, Err(ConnectionError::Deadline)), "{what}: {outcome:?}");
    }
}

#[test]
fn messages_are_whole_however_their_bytes_come_and_long_ones_keep_no_room() {
    let (mut connection, mut peer) = connected();
    let deadline = Deadline::at(Instant::now() + TIMEOUT);
    let sent: Vec<Reply> =
        [3, 0, 200_000, 5, 1 << 20, 7].into_iter().zip(0..).map(|(bytes, id)| reply(id, bytes)).collect();
    let bytes: Vec<u8> = sent.iter().flat_map(frame).collect();
    let sending = std::thread::spawn(move || {
        // One by one, then what comes first of the third one with what is before it, then the rest.
        let (single, rest) = bytes.split_at(20);
        single.iter().for_each(|byte| peer.write_all(&[*byte]).unwrap());
        let (some, rest) = rest.split_at(100_000);
        peer.write_all(some).unwrap();
        peer.write_all(rest).unwrap();
        peer
    });
    for expected in sent {
        let heard: Reply = connection.receive(FRAME_BYTES_MAX, &deadline).unwrap();
        assert_eq!(heard, expected);
    }
    assert_eq!((connection.taken, connection.input.len()), (0, 0), "nothing is left of them");
    assert!(connection.input.capacity() <= KEPT_BUFFER, "{}", connection.input.capacity());
    let mut peer = sending.join().unwrap();
    peer.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let heard = connection.receive::<Reply>(FRAME_BYTES_MAX, &deadline);
    assert!(matches!(heard, Err(ConnectionError::Frame(FrameError::TooLong { .. }))), "{heard:?}");
}
