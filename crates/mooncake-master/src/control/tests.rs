//! Who is counted as a stranger, and for how long; whose a connection is once it has said so; who gets in where there
//! are too many.

use mooncake_wire::message::{AttachCall, Hello, HelloReply, OpenSession, ResumeSession, hello};
use mooncake_wire::{CONTROL_PREFACE, FEATURES, FRAME_BYTES_MAX, FrameReader, VERSION, encode_frame};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::connections::Limits;
use crate::log::Log;

const SOON: Duration = Duration::from_secs(10);

struct Master {
    shared: Arc<Shared>,
}

impl Master {
    fn new() -> Master {
        Master::with(Limits::default())
    }

    fn with(limits: Limits) -> Master {
        let shared = Arc::new(Shared::limited(Arc::new(Log::new(1, 0, None, false)), limits));
        shared.apply(|core, now, effects| core.begin(now, None, effects)).unwrap();
        Master { shared }
    }

    /// Somebody comes: the other end.
    fn accept(&self) -> UnixStream {
        let (near, far) = UnixStream::pair().unwrap();
        start(&self.shared, near, Peer::Process(1), Via::Tcp);
        far
    }

    async fn greet(&self, role: hello::Role) -> (UnixStream, HelloReply) {
        let mut far = self.accept();
        let (version_min, version_max) = (VERSION, VERSION);
        let hello = Hello { version_min, version_max, features: FEATURES, role: Some(role), ..Hello::default() };
        let mut bytes = CONTROL_PREFACE.to_vec();
        encode_frame(&hello, &mut bytes);
        far.write_all(&bytes).await.unwrap();
        let mut reader = FrameReader::default();
        loop {
            if let Some(frame) = reader.next_frame(FRAME_BYTES_MAX).unwrap() {
                return (far, HelloReply::decode(frame).unwrap());
            }
            assert!(timeout(SOON, far.read_buf(reader.buffer_mut())).await.expect("no answer").unwrap() > 0);
        }
    }

    async fn until(&self, strangers: usize, connections: usize) {
        let wanted = (strangers, connections);
        let are = || (self.shared.connections.strangers(), self.shared.connections.len());
        let reached = async {
            while are() != wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, reached).await.unwrap_or_else(|_| panic!("{:?}, never {wanted:?}", are()));
    }
}

async fn is_closed(far: &mut UnixStream) {
    let read = timeout(SOON, far.read(&mut [0; 64])).await.expect("it is still open");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

fn open() -> hello::Role {
    hello::Role::Open(OpenSession { host_name: "c:1".to_owned(), process: None, claim: None })
}

#[tokio::test]
async fn nobody_is_a_stranger_any_more_who_has_said_who_he_is_or_has_gone() {
    let master = Master::new();
    let mut far: Vec<UnixStream> = (0..3).map(|_| master.accept()).collect();
    master.until(3, 3).await;
    far[0].write_all(b"GET / HTTP/1.1").await.unwrap();
    is_closed(&mut far[0]).await;
    master.until(2, 2).await;
    drop(far);
    master.until(0, 0).await;
    let (anchor, opened) = master.greet(open()).await;
    assert_eq!(opened.refusal, None);
    master.until(0, 1).await;
    let (calls, attached) =
        master.greet(hello::Role::Attach(AttachCall { session: opened.session, secret: opened.secret })).await;
    assert_eq!(attached.refusal, None);
    master.until(0, 2).await;
    let (mut refused, reply) =
        master.greet(hello::Role::Attach(AttachCall { session: opened.session, secret: opened.secret ^ 1 })).await;
    assert!(reply.refusal.is_some());
    is_closed(&mut refused).await;
    master.until(0, 2).await;
    drop((anchor, calls));
    master.until(0, 0).await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_anchor_and_its_calls() {
    let master = Master::new();
    let (mut anchor, opened) = master.greet(open()).await;
    let attach = AttachCall { session: opened.session, secret: opened.secret };
    let (mut calls, _) = master.greet(hello::Role::Attach(attach)).await;
    let (mut other, _) = master.greet(open()).await;
    master.until(0, 3).await;
    // Anchors and calls say whose they are just behind their answer.
    let ended = async {
        while master.shared.connections.len() > 1 {
            master.shared.connections.end_where(|session| session == SessionId(opened.session));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, ended).await.expect("they end");
    is_closed(&mut anchor).await;
    is_closed(&mut calls).await;
    assert!(timeout(Duration::from_millis(20), other.read(&mut [0; 1])).await.is_err(), "another one's goes on");
}

#[tokio::test]
async fn a_flood_of_strangers_keeps_no_anchor_out_and_nothing_is_kept_of_those_who_go() {
    let master = Master::with(Limits { strangers: 4, calls: 4 });
    let mut flood: Vec<UnixStream> = (0..4).map(|_| master.accept()).collect();
    let (_anchor, opened) = master.greet(open()).await;
    assert_eq!(opened.refusal, None);
    is_closed(&mut flood[0]).await;
    let more = (0..40).map(|_| {
        let far = master.accept();
        assert!(master.shared.connections.strangers() <= 4);
        far
    });
    let more: Vec<UnixStream> = more.collect();
    for far in &mut flood[1..] {
        is_closed(far).await;
    }
    let (_anchor, resumed) = master.greet(resume(&opened)).await;
    assert_eq!(resumed.refusal, None);
    drop(more);
    master.until(0, 1).await;
}

#[tokio::test]
async fn an_anchor_that_breaks_comes_back_though_calls_fill_their_share() {
    let master = Master::with(Limits { strangers: 8, calls: 20 });
    // It breaks, which its client is the first to see.
    let (_broken, opened) = master.greet(open()).await;
    let (_other_anchor, other) = master.greet(open()).await;
    let mut calls = Vec::new();
    for _ in 0..20 {
        let (far, reply) = master.greet(attach(&other)).await;
        assert_eq!(reply.refusal, None);
        calls.push(far);
    }
    let (_anchor, resumed) = master.greet(resume(&opened)).await;
    assert_eq!(resumed.refusal, None);
    master.until(0, 22).await;
    // Its calls are heard too, in the place of one of those who have the most.
    let (_own_calls, attached) = master.greet(attach(&opened)).await;
    assert_eq!(attached.refusal, None);
    is_closed(&mut calls[0]).await;
    master.until(0, 22).await;
    let others = calls[1..].iter_mut().map(|far| far.try_read(&mut [0; 1]));
    assert!(others.map(Result::unwrap_err).all(|error| error.kind() == io::ErrorKind::WouldBlock), "they go on");
}

#[tokio::test]
async fn who_wants_to_call_waits_a_moment_for_a_place() {
    let master = Master::with(Limits { strangers: 8, calls: 1 });
    let (_anchor, opened) = master.greet(open()).await;
    let (mut first, _) = master.greet(attach(&opened)).await;
    // The first has begun too short a time ago to be idle.
    let (_second, attached) = master.greet(attach(&opened)).await;
    assert_eq!(attached.refusal, None);
    is_closed(&mut first).await;
}

fn attach(opened: &HelloReply) -> hello::Role {
    hello::Role::Attach(AttachCall { session: opened.session, secret: opened.secret })
}

fn resume(opened: &HelloReply) -> hello::Role {
    let HelloReply { session, secret, .. } = *opened;
    hello::Role::Resume(ResumeSession { session, secret, ..ResumeSession::default() })
}
