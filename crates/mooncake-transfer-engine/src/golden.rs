//! What engines say to each other, and of themselves, is what it was: Mooncake's frames, handshakes and documents, and
//! what two of ours say besides.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use mooncake_os::{hex, recv_fds};
use mooncake_test_support::{Golden, every};
use parking_lot::Mutex;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::metadata::{EngineDirectory, Metadata};
use crate::options::EngineOptions;
use crate::protocol::handshake::{Kind, LENGTH_LEN, Message, NotifyBody};
use crate::protocol::same_host::{
    self, Answer, BlockBounds, Bounds, Hello, HelloReply, Piece, REPLY_HELLO_LEN, REQUEST_LEN, Secret, Welcome, Wish,
};
use crate::protocol::segment_document::{BufferDescriptor, DeviceDescriptor, Ours, Protocols, SegmentDocument};
use crate::protocol::tcp::{Frame, Header, Status};
use crate::request::Opcode;
use crate::shared_segment::{SharedSegment, Ticket};

const NAME: [u8; 16] = *b"0123456789abcdef";
const SECRET: Secret = Secret { addr: 0x1112_1314_1516_1718, bytes: *b"fedcba9876543210" };

/// Lines of golden files keep the names that they began with, so that a renamed variant changes no line.
fn first_name(variant: &'static str) -> &'static str {
    match variant {
        "Hello" => "Greeting",
        "Pull" => "Fill",
        other => other,
    }
}

#[test]
fn frames_of_the_data_port_are_what_they_were() {
    let mut golden = Golden::default();
    let mut say = |name: &str, frame: Frame| {
        assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        golden.bytes(name, frame.encode());
    };
    let header = Header { size: 0x0102_0304_0506_0708, addr: 0x1112_1314_1516_1718, opcode: Opcode::Read, v2: true };
    for (name, opcode) in every!(Opcode { Read, Write }) {
        say(&format!("request.{name}"), Frame::Request(Header { opcode, ..header }));
        say(&format!("request.{name}.v1"), Frame::Request(Header { opcode, v2: false, ..header }));
    }
    for (name, frame) in every!(Frame { Request(header), Hello(NAME), Name(NAME), Sever(NAME) }) {
        say(&format!("frame.{}", first_name(name)), frame);
    }
    for (name, status) in every!(Status { Ok, Rejected }) {
        assert_eq!(Status::decode(&status.encode()), Some(status));
        golden.bytes(format!("status.{name}"), status.encode());
    }
    golden.check("data_port.txt");
}

#[test]
fn frames_within_the_host_are_what_they_were() {
    let mut golden = Golden::default();
    let hello = Hello { target: NAME, secret: SECRET };
    assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    golden.bytes("hello", hello.encode());
    for (name, welcome) in every!(Welcome { CanPull, CannotPull, Stranger }) {
        let reply = HelloReply { welcome, secret: SECRET };
        assert_eq!(HelloReply::decode(&reply.encode()), Some(reply));
        golden.bytes(format!("reply_hello.{name}"), reply.encode());
    }
    let asked = [
        Piece { to: 0x0102_0304_0506_0708, from: 0x1112_1314_1516_1718, len: 0x2122_2324_2526_2728 },
        Piece { to: 1, from: 2, len: 3 },
    ];
    for (name, wish) in every!(Wish { Pull, Look, Map }) {
        let raw = same_host::request(wish, &asked);
        assert_eq!(same_host::head(raw.first_chunk().unwrap()), Some((wish, 2)));
        assert_eq!(same_host::pieces(&raw[REQUEST_LEN..]), asked);
        golden.bytes(format!("request.{}", first_name(name)), raw);
    }
    let words: Vec<u64> = same_host::words(&asked).collect();
    assert_eq!(same_host::pieces_of(&words).as_deref(), Some(&asked[..]));
    golden.bytes("passage_words", words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let block = BlockBounds { id: 9, start: 0x0102_0304_0000_0000, len: 0x1_0000_0000 };
    for (name, block) in [("alone", None), ("in_a_block", Some(block))] {
        let bounds = Bounds { start: 0x0102_0304_0506_0708, len: 0x1112_1314, block };
        assert_eq!(Bounds::decode(&bounds.encode()), Some(bounds));
        golden.bytes(format!("bounds.{name}"), bounds.encode());
    }
    let at = 0x0102_0304;
    for (name, answer) in every!(Answer { Done, NotRegistered(at), Fault(at), Refused(at) }) {
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        golden.bytes(format!("answer.{name}"), answer.encode());
    }
    golden.check("within_the_host.txt");
}

#[test]
fn handshakes_and_documents_are_what_they_were() {
    let mut golden = Golden::default();
    let body = NotifyBody { name: "name".into(), notify_msg: "text".into() };
    let json = serde_json::to_string(&body).unwrap();
    let kinds = every!(Kind { Connection, Metadata, Notify, Probe });
    for (name, message) in kinds
        .into_iter()
        .map(|(name, kind)| (name, Message::new(kind, json.clone())))
        .chain([("of_old", Message { old: true, ..Message::new(Kind::Connection, json.clone()) })])
    {
        let raw = message.encode();
        assert_eq!(Message::decode(raw[LENGTH_LEN..].to_vec()).as_ref(), Some(&message));
        golden.bytes(format!("message.{name}"), raw);
    }
    golden.text("notify", json);

    let ours = Ours {
        id: "00112233445566778899aabbccddeeff".into(),
        boot: "boot".into(),
        unix: "unix".into(),
        ..Ours::default()
    };
    let buffers = (1..3)
        .map(|n| BufferDescriptor {
            name: "cpu:0".into(),
            addr: n << 40,
            length: n << 33,
            rkey: Vec::new(),
            lkey: Vec::new(),
        })
        .collect();
    let full = SegmentDocument {
        name: "10.0.0.1:15001".into(),
        protocol: Protocols::One("tcp".into()),
        tcp_data_host: "host".into(),
        tcp_data_port: 15_999,
        tcp_proto_version: 2,
        timestamp: "2026-01-01 00:00:00.000000".into(),
        buffers,
        devices: Vec::new(),
        priority_matrix: None,
        ours: Some(ours.clone()),
    };
    let device = |n: u16| DeviceDescriptor { name: format!("mlx5_{n}"), lid: n, gid: "00:".repeat(15) + "01" };
    let of_two_cards = BufferDescriptor {
        name: "cpu:0".into(),
        addr: 1 << 40,
        length: 4096,
        rkey: vec![1, u32::MAX],
        lkey: vec![0, 0],
    };
    let rdma = SegmentDocument {
        protocol: Protocols::One("rdma".into()),
        buffers: vec![of_two_cards],
        devices: vec![device(0), device(1)],
        priority_matrix: Some(serde_json::json!({ "cpu:0": [["mlx5_0"], ["mlx5_1"]] })),
        ours: Some(Ours { tcp: true, tcp_only: vec![(1 << 41, 64)], ..ours }),
        ..full.clone()
    };
    let several = Protocols::Several(vec!["tcp".into(), "rdma".into()]);
    let bare = SegmentDocument {
        name: "name".into(),
        protocol: Protocols::NONE,
        tcp_data_host: String::new(),
        tcp_data_port: 0,
        tcp_proto_version: 1,
        timestamp: String::new(),
        buffers: vec![],
        devices: Vec::new(),
        priority_matrix: None,
        ours: None,
    };
    let several = SegmentDocument { protocol: several, ..bare.clone() };
    let tcp_addresses = vec!["10.0.0.1:15999".into(), "[fd00::1]:15999".into()];
    let networks = SegmentDocument { ours: Some(Ours { tcp_addresses, ..Ours::default() }), ..bare.clone() };
    let documents = [("full", full), ("bare", bare), ("several", several), ("networks", networks), ("rdma", rdma)];
    for (name, document) in documents {
        let json = document.encode();
        assert_eq!(SegmentDocument::decode("a peer", json.as_bytes()).unwrap(), document);
        golden.text(format!("segment.{name}"), json);
    }
    golden.check("documents.txt");
}

#[test]
fn an_engine_answers_as_it_did() {
    let mut golden = Golden::default();
    let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let ask = |kind, json: &str| {
        let mut stream = TcpStream::connect(engine.name()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&Message::new(kind, json.into()).encode()).unwrap();
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw).unwrap();
        raw
    };
    golden.bytes("connection", ask(Kind::Connection, "{}"));
    golden.bytes("notify", ask(Kind::Notify, r#"{"name":"name","notify_msg":"text"}"#));
    golden.bytes("probe", ask(Kind::Probe, "{}"));

    // The document, but for what is another one in each life of an engine, or on each host.
    let raw = ask(Kind::Metadata, "{}");
    let json = &Message::decode(raw[LENGTH_LEN..].to_vec()).unwrap().json;
    let mut document = SegmentDocument::decode("the engine", json).unwrap();
    assert_eq!(json, format!("{}\n", document.encode()).as_bytes());
    let ours = document.ours.as_mut().unwrap();
    let (id, unix) = (ours.id.clone(), ours.unix.clone());
    ours.unix = unix.replace(&id, "<id>");
    (ours.id, ours.boot) = (format!("<{} digits>", id.len()), format!("<{} digits>", ours.boot.len()));
    assert!(document.name == engine.name() && document.tcp_data_port > 0);
    (document.name, document.tcp_data_port) = ("<name>".into(), 0);
    document.timestamp = document.timestamp.replace(|digit: char| digit.is_ascii_digit(), "0");
    golden.text("document", document.encode());

    // And to a process of its host.
    let target = std::array::from_fn(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap());
    let mine: &'static [u8; 16] = Box::leak(Box::new(SECRET.bytes));
    let secret = Secret { addr: mine.as_ptr().expose_provenance() as u64, bytes: *mine };
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&unix).unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&Hello { target, secret }.encode()).unwrap();
    let (mut reply, mut fds) = ([0; REPLY_HELLO_LEN], Vec::new());
    assert_eq!(recv_fds(&stream, &mut reply, &mut fds).unwrap(), REPLY_HELLO_LEN);
    golden.bytes("reply_hello", &reply[..16]);
    names(&mut golden, "reply_hello", &fds);
    golden.check("an_engine.txt");
}

fn names(golden: &mut Golden, what: &str, fds: &[OwnedFd]) {
    for (nth, fd) in fds.iter().enumerate() {
        let file = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        golden.text(format!("{what}.descriptor.{nth}"), file.to_str().unwrap());
    }
}

/// A service that keeps all that it is told.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<BTreeMap<String, String>>>);

impl Metadata for Shelf {
    fn get(&self, key: &str) -> Result<Option<String>, EngineError> {
        Ok(self.0.lock().get(key).cloned())
    }
    fn put(&self, key: &str, document: &str) -> Result<bool, EngineError> {
        self.0.lock().insert(key.to_owned(), document.to_owned());
        Ok(true)
    }
    fn remove(&self, key: &str) -> Result<(), EngineError> {
        self.0.lock().remove(key);
        Ok(())
    }
    fn own_address(&self) -> Result<IpAddr, EngineError> {
        Ok([127, 0, 0, 1].into())
    }
}

#[test]
fn a_metadata_service_is_told_what_it_was_by_the_same_keys() {
    let mut golden = Golden::default();
    for (cluster, name) in [("", "engine"), ("cluster", "10.0.0.1:15001"), ("", "kind/engine")] {
        let shelf = Shelf::default();
        let directory = EngineDirectory::new(Arc::new(shelf.clone()), cluster);
        directory.announce(name, "host", 15_001).unwrap();
        directory.publish(name, "{}").unwrap();
        for (key, document) in &*shelf.0.lock() {
            golden.text(key, document);
        }
    }
    golden.check("metadata_service.txt");
}

#[test]
fn ranks_of_a_shared_segment_tell_each_other_what_they_did() {
    let mut golden = Golden::default();
    let ticket = Ticket { fingerprint: 0x0102_0304_0506_0708, rank: 0x1112_1314, place: NAME, secret: SECRET.bytes };
    assert_eq!(Ticket::decode(&ticket.encode()), Some(ticket));
    golden.bytes("ticket", ticket.encode());

    let (_guest, raw) = SharedSegment::create("kv", 100_000, 2, 1, 0).unwrap();
    golden.bytes("ticket.of_a_guest", raw);
    let (_owner, raw) = SharedSegment::create("kv", 100_000, 2, 0, 0).unwrap();
    let owner = Ticket::decode(&raw).unwrap();
    let door = format!("mooncake-segment-{}", hex(&owner.place));
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(door).unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&[&owner.secret[..], &1_u32.to_le_bytes()].concat()).unwrap();
    let (mut answer, mut fds) = ([0; 1], Vec::new());
    assert_eq!(recv_fds(&stream, &mut answer, &mut fds).unwrap(), 1);
    golden.bytes("answer", answer);
    names(&mut golden, "answer", &fds);
    golden.check("shared_segment.txt");
}
