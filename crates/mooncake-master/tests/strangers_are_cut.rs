//! Garbage, silence and floods on every port end within a second and disturb nobody.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mooncake_master::Settings;
use mooncake_wire::message::{
    AttachCall, Exists, Hello, LogPosition, OpenSession, ProcessIdentity, Request, ResumeSession, hello, request,
};
use mooncake_wire::{CONTROL_PREFACE, VERSION, pack_keys};

use crate::support;
use crate::support::{Client, Running, connect, read_frame, write_frame};

/// Sends bytes and returns how long the master kept the connection.
fn closed_after(address: SocketAddr, bytes: &[u8]) -> Duration {
    let mut stream = connect(address);
    let start = Instant::now();
    // The master may close before everything is sent.
    let _ = stream.write_all(bytes);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    start.elapsed()
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

#[test]
fn garbage_is_cut_within_a_second_on_every_port() {
    let master = Running::start(Settings::default());
    let limit = Duration::from_millis(1100);
    for seed in 0..40 {
        let bytes = noise(seed, 1 + (seed as usize * 37) % 900);
        assert!(closed_after(master.rpc, &bytes) < limit, "seed {seed}");
        let mut late = CONTROL_PREFACE.to_vec();
        late.extend(&bytes);
        assert!(closed_after(master.rpc, &late) < limit, "seed {seed} behind the preface");
    }
    for seed in 0..8 {
        assert!(closed_after(master.web, &noise(seed, 300)) < limit, "HTTP, seed {seed}");
    }
    assert!(closed_after(master.web, b"GET /metrics HTTP/1.1\r\nHost: slow") < limit);
    assert!(closed_after(master.rpc, b"") < limit, "silence");
    assert!(closed_after(master.rpc, &CONTROL_PREFACE[..5]) < limit, "half a preface");
    let mut client = Client::open(master.rpc);
    assert!(!client.exists("x"));
    master.stop();
}

#[test]
fn garbage_behind_a_hello_ends_that_connection_only() {
    let master = Running::start(Settings::default());
    let mut client = Client::open(master.rpc);
    let mut second = support::attach(master.rpc, client.session, client.secret);
    second.write_all(&[3, 0, 0, 0, 0xff, 0xff, 0xff]).unwrap();
    let start = Instant::now();
    assert_eq!(second.read(&mut [0; 16]).unwrap_or(0), 0);
    let mut third = support::attach(master.rpc, client.session, client.secret);
    third.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(third.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(!client.exists("x"));
    assert!(master.http("GET /metrics").1.contains("\nmooncake_peer_faults_total 2\n"));
    master.stop();
}

#[test]
fn batches_that_lie_about_their_keys_are_refused_not_obeyed() {
    let master = Running::start(Settings::default());
    let mut client = Client::open(master.rpc);
    let mut keys = pack_keys(&["abc", "d"]);
    keys.lengths[0] = 400;
    for body in [
        request::Body::Exists(Exists { keys: Some(keys.clone()), sizes: true }),
        request::Body::Lookup(mooncake_wire::message::Lookup { keys: Some(keys) }),
        request::Body::Exists(Exists { keys: None, sizes: false }),
    ] {
        let reply = client.call(body);
        assert!(matches!(reply, mooncake_wire::message::reply::Body::Refusal(_)), "{reply:?}");
    }
    let request = Request { id: 1, ..Request::default() };
    write_frame(&mut client.call, &request).unwrap();
    let reply: mooncake_wire::message::Reply = read_frame(&mut client.call, 1 << 20).unwrap();
    assert!(matches!(reply.body, Some(mooncake_wire::message::reply::Body::Refusal(_))));
    master.stop();
}

#[test]
fn five_hundred_half_open_connections_leave_the_pool_usable() {
    let master = Running::start(Settings::default());
    let mut client = Client::open(master.rpc);
    let half_open: Vec<TcpStream> = (0..500).map(|_| TcpStream::connect(master.rpc).unwrap()).collect();
    let start = Instant::now();
    for n in 0..100 {
        assert!(!client.exists(&format!("key {n}")));
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    Client::open(master.rpc);
    drop(half_open);
    master.stop();
}

#[test]
fn strangers_and_wrong_secrets_are_told_why() {
    let master = Running::start(Settings::default());
    let client = Client::open(master.rpc);
    for attach in [
        AttachCall { session: client.session, secret: client.secret ^ 1 },
        AttachCall { session: 4711, secret: client.secret },
    ] {
        let (_, reply) = support::greet(master.rpc, hello::Role::Attach(attach), None);
        let refusal = reply.refusal.expect("refused");
        assert_eq!(refusal.kind(), mooncake_wire::message::refusal::Kind::UnknownSession);
        assert!(!refusal.reason.is_empty());
    }
    let mut stream = connect(master.rpc);
    stream.write_all(&CONTROL_PREFACE).unwrap();
    write_frame(&mut stream, &Hello { version_min: VERSION + 1, version_max: VERSION + 3, ..Hello::default() })
        .unwrap();
    let reply: mooncake_wire::message::HelloReply = read_frame(&mut stream, 1 << 20).unwrap();
    assert_eq!(reply.refusal.unwrap().kind(), mooncake_wire::message::refusal::Kind::Version);
    let page = master.http("GET /metrics").1;
    for (kind, count) in [("unknown_session", 2), ("version", 1), ("bad_request", 0), ("overloaded", 0)] {
        let line = format!("mooncake_refusals_total{{kind=\"{kind}\"}} {count}");
        assert!(page.lines().any(|have| have == line), "{line} is not in\n{page}");
    }
    master.stop();
}

#[test]
fn what_a_stranger_claims_to_have_seen_changes_nothing() {
    let master = Running::start(Settings::default());
    let mut client = Client::open(master.rpc);
    let seen = client.hello.position.unwrap();
    let claims = [
        LogPosition { log_id: seen.log_id ^ 1, epoch: 64_511, ..seen },
        LogPosition { log_id: seen.log_id ^ 1, epoch: seen.epoch + 1, ..seen },
        LogPosition { lsn: seen.lsn + 1000, ..seen },
    ];
    for claim in claims {
        let attach = AttachCall { session: client.session, secret: client.secret ^ 1 };
        let resume = ResumeSession { session: 4711, secret: 1, ..ResumeSession::default() };
        for role in [hello::Role::Attach(attach), hello::Role::Resume(resume)] {
            let (_, reply) = support::greet(master.rpc, role, Some(claim));
            assert_eq!(reply.refusal.unwrap().kind(), mooncake_wire::message::refusal::Kind::UnknownSession);
            assert_eq!(reply.position.unwrap().epoch, seen.epoch, "{claim:?}");
        }
    }
    // Whoever may open a session is believed, but not everything.
    let open = OpenSession { host_name: "liar".to_owned(), process: None, claim: None };
    let (_, reply) = support::greet(master.rpc, hello::Role::Open(open), Some(claims[0]));
    assert!(reply.refusal.unwrap().reason.contains("not believed"));
    client.beat();
    assert_eq!(client.resume(master.rpc).position.unwrap().epoch, seen.epoch);
    Client::open(master.rpc);
    master.stop();
}

#[test]
fn an_identity_longer_than_one_can_be_is_refused() {
    let master = Running::start(Settings::default());
    let client = Client::open(master.rpc);
    let own = support::process();
    let long = ProcessIdentity { boot_id: vec![1; 900_000].into(), ..own.clone() };
    let cases = [
        ("x".to_owned(), long),
        ("x".to_owned(), ProcessIdentity { boot_id: vec![1; 15].into(), ..own.clone() }),
        ("x".repeat(5000), own),
    ];
    for (host_name, process) in cases {
        let open = OpenSession { host_name: host_name.clone(), process: Some(process.clone()), claim: None };
        let resume = ResumeSession {
            session: client.session,
            secret: client.secret,
            host_name,
            process: Some(process),
            ..ResumeSession::default()
        };
        for role in [hello::Role::Open(open), hello::Role::Resume(resume)] {
            let (_, reply) = support::greet(master.rpc, role, None);
            assert_eq!(reply.refusal.unwrap().kind(), mooncake_wire::message::refusal::Kind::BadRequest);
        }
    }
    master.stop();
}

#[test]
fn sessions_that_open_and_hang_up_leave_nothing_behind() {
    let master = Running::start(Settings::default());
    let _client = Client::open(master.rpc);
    for _ in 0..50 {
        let open = OpenSession { host_name: "stranger".to_owned(), process: None, claim: None };
        let (_, reply) = support::greet(master.rpc, hello::Role::Open(open), None);
        assert_eq!(reply.refusal, None);
    }
    support::eventually("only the one that stays", || {
        let page = master.http("GET /metrics").1;
        page.lines().any(|line| line == "mooncake_sessions 1")
            && page.lines().any(|line| line == "mooncake_sessions_away 0")
    });
    master.stop();
}
