//! Replies and pushes follow the log: what a client is told of a change is in the log by then. Here the log is a pipe
//! that takes nothing until it is read.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_core::{
    Config, Core, Effects, Ended, Origin, PutConfig, PutStarted, SegmentSpec, SessionSpec, StartOutcome, Time,
};
use mooncake_ids::{Rid, SegmentUuid, SessionId};
use mooncake_wire::message::{
    Abort, AnchorDown, AnchorUp, Beat, FenceDone, Hello, HelloReply, OpenSession, Pong, PutStart, RemoveAll,
    RemoveByRegex, Reply, Request, ResumeSession, Segments, anchor_down, anchor_up, hello, reply, request,
};
use mooncake_wire::{FRAME_BYTES_MAX, FrameReader, VERSION, encode_frame, pack_keys};
use prost::Message;
use rustix::fs::{OFlags, fcntl_setfl};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::connections::Idle;
use crate::control::anchor::{self, Registered};
use crate::control::call;
use crate::control::connection::{self, Connection};
use crate::control::hello::answer;
use crate::log::{Folder, Log, Sink};
use crate::machine::anchors::AnchorTable;
use crate::process_watch::Via;
use crate::routes::AnchorQueue;
use crate::shared::Shared;

/// For what is sent too early to come.
const QUIET: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(10);

/// A master with one client, which owns memory.
struct Master {
    shared: Arc<Shared>,
    session: SessionId,
    anchor: Arc<AnchorQueue>,
    sequence: u64,
    _root: TempDir,
}

impl Master {
    fn new(fsync: bool) -> Master {
        let root = tempfile::tempdir().unwrap();
        let sink = Sink::open(Folder::open(root.path()).unwrap(), 1, 0, [7; 16], None).unwrap();
        let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, Some(sink), fsync))));
        let (session, anchor) = (SessionId(0), Arc::new(AnchorQueue::default()));
        let mut master = Master { shared, session, anchor, sequence: 0, _root: root };
        let (uuid, name) = (SegmentUuid([3; 16]), "o:1".to_owned());
        let spec = SessionSpec { secret: 1, name: name.clone(), boot_id: vec![7; 16], process: Vec::new() };
        let memory = SegmentSpec { uuid, name, bytes: 1 << 20, endpoint: Vec::new() };
        master.session = master.core(|core, now, effects| {
            core.begin(now, None, effects);
            core.open_session(now, spec, effects).unwrap()
        });
        (&master.shared.routes).with_anchors(|anchors| anchors.set(master.session, master.anchor.clone()));
        let origin = master.origin();
        master.core(|core, now, effects| core.mount(now, origin, memory, 1 << 20, effects).unwrap());
        master
    }

    fn core<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> R {
        self.shared.apply(operation).unwrap()
    }

    fn origin(&mut self) -> Origin {
        self.sequence += 1;
        Origin { session: self.session, sequence: self.sequence, answered_below: 0 }
    }

    fn reserve(&mut self) -> Rid {
        self.reserve_bytes(9)
    }

    fn reserve_bytes(&mut self, bytes: u64) -> Rid {
        let origin = self.origin();
        let config = PutConfig::default();
        let started =
            self.core(|core, now, effects| core.put_start(now, origin, &[(b"k", bytes)], &config, false, effects));
        let Ok(PutStarted::Now(outcomes)) = started else { panic!("{started:?}") };
        let [StartOutcome::Placed(replicas)] = &outcomes[..] else { panic!("{outcomes:?}") };
        replicas[0].rid
    }

    /// Stores an object, and takes a view of it.
    fn view(&mut self) -> Rid {
        let rid = self.reserve();
        let (end, pin) = (self.origin(), self.origin());
        let ended = Ended { replicas: [(rid, true)].into_iter().collect(), crc32c: 1, stays: false };
        self.core(|core, now, effects| {
            core.put_end(now, end, &[ended], effects).unwrap();
            assert!(core.pin(now, pin, &[b"k"], effects).unwrap()[0].is_ok());
        });
        rid
    }

    /// From now on the log takes nothing, until what is given is released.
    fn block(&self) -> Blocked {
        let (stuffing, end) = std::io::pipe().unwrap();
        let mut file = File::from(OwnedFd::from(end));
        fcntl_setfl(&file, OFlags::NONBLOCK).unwrap();
        let stuffed = std::iter::from_fn(|| file.write(&[0; 1024]).ok()).sum();
        fcntl_setfl(&file, OFlags::empty()).unwrap();
        self.shared.log.write_to(file);
        Blocked { stuffing, stuffed, writes: self.shared.log.stats().writes }
    }
}

/// A log whose file is a full pipe.
struct Blocked {
    stuffing: PipeReader,
    stuffed: usize,
    writes: u64,
}

impl Blocked {
    /// Returns when a change waits for its append.
    async fn is_awaited(&self, master: &Master) {
        let append = async {
            while master.shared.log.stats().writes == self.writes {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, append).await.expect("nothing is appended");
    }

    /// The log takes what waits for it. One that waits for the disk finds then that a pipe has none: it is renamed
    /// away, and what waits is told all the same.
    fn release(&mut self) {
        self.stuffing.read_exact(&mut vec![0; self.stuffed]).unwrap();
    }
}

/// Runs what waits for the log in a thread of its own, as it holds that up.
fn elsewhere<T: Send + 'static>(task: impl AsyncFnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::spawn(move || runtime.block_on(task()))
}

/// Serves the session's anchor in a thread of its own: the client's end, and how it ended.
fn serve_anchor(master: &Master) -> (UnixStream, JoinHandle<Result<(), connection::WhyClosed>>) {
    let (near, far) = pair();
    let registered =
        Registered { shared: master.shared.clone(), session: master.session, queue: master.anchor.clone() };
    let serve = async move || anchor::serve(registered, Connection::new(UnixStream::from_std(near).unwrap())).await;
    (far, elsewhere(serve))
}

/// Both ends of a connection; the first one is for another thread.
fn pair() -> (std::os::unix::net::UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    (near.into_std().unwrap(), far)
}

/// Nothing comes on a connection.
async fn is_silent(stream: &mut UnixStream) -> bool {
    timeout(QUIET, stream.read_u8()).await.is_err()
}

async fn next_pong(stream: &mut UnixStream) -> Pong {
    let down: AnchorDown = next_frame(stream).await;
    let Some(anchor_down::Body::Pong(pong)) = down.body else { panic!("{down:?}") };
    pong
}

/// The next frame of a connection.
async fn next_frame<M: Message + Default>(stream: &mut UnixStream) -> M {
    let mut reader = FrameReader::default();
    let read = async {
        loop {
            if let Some(frame) = reader.next_frame(FRAME_BYTES_MAX).unwrap() {
                return M::decode(frame).unwrap();
            }
            assert!(stream.read_buf(reader.buffer_mut()).await.unwrap() > 0, "closed");
        }
    };
    timeout(SOON, read).await.expect("nothing comes")
}

async fn send(stream: &mut UnixStream, message: &impl Message) {
    let mut bytes = Vec::new();
    encode_frame(message, &mut bytes);
    stream.write_all(&bytes).await.unwrap();
}

#[tokio::test]
async fn neither_the_reply_to_a_change_nor_a_push_that_tells_of_it_leaves_before_it_is_in_the_log() {
    for fsync in [false, true] {
        let mut master = Master::new(fsync);
        let rid = master.reserve();
        let mut blocked = master.block();
        let (near, mut far) = pair();
        let (shared, session) = (master.shared.clone(), master.session);
        let calls = elsewhere(async move || {
            let mut connection = Connection::new(UnixStream::from_std(near).unwrap());
            call::serve(&shared, session, &Idle::of_one(), &mut connection).await
        });
        let body = Some(request::Body::Abort(Abort { rids: vec![rid.0], writer_done: true }));
        send(&mut far, &Request { id: 1, sequence: master.origin().sequence, body, ..Request::default() }).await;
        blocked.is_awaited(&master).await;
        assert!(is_silent(&mut far).await, "a reply");
        assert!(timeout(QUIET, master.anchor.next()).await.is_err(), "a fence");
        blocked.release();
        let reply: Reply = next_frame(&mut far).await;
        assert!(matches!(reply.body, Some(reply::Body::Done(_))), "{reply:?}");
        assert!(timeout(SOON, master.anchor.next()).await.is_ok_and(|bytes| bytes.is_some()), "no fence");
        drop(far);
        assert!(calls.join().unwrap().is_err(), "it ends with its connection");
    }
}

#[tokio::test]
async fn a_change_that_is_said_again_is_not_answered_before_it_is_in_the_log_and_keeps_nobody_waiting() {
    for fsync in [false, true] {
        let said_again = async |name, change: fn(Rid) -> request::Body, is_answer: fn(&reply::Body) -> bool| {
            let mut master = Master::new(fsync);
            let rid = master.reserve();
            let mut blocked = master.block();
            let (first, mut first_far) = pair();
            let (again, mut far) = pair();
            let (other, mut other_far) = pair();
            let serve = |near: std::os::unix::net::UnixStream| {
                let (shared, session) = (master.shared.clone(), master.session);
                async move {
                    let mut connection = Connection::new(UnixStream::from_std(near).unwrap());
                    call::serve(&shared, session, &Idle::of_one(), &mut connection).await
                }
            };
            let stands = elsewhere({
                let first = serve(first);
                async || first.await
            });
            // Both are one thread's.
            let goes_on = elsewhere({
                let both = (serve(again), serve(other));
                async || tokio::join!(both.0, both.1)
            });
            let sequence = master.origin().sequence;
            let asked = Request { id: 1, sequence, body: Some(change(rid)), ..Request::default() };
            send(&mut first_far, &asked).await;
            blocked.is_awaited(&master).await;
            send(&mut far, &asked).await;
            assert!(is_silent(&mut far).await, "a reply to {name}");
            let body = Some(request::Body::Segments(Segments::default()));
            send(&mut other_far, &Request { id: 2, body, ..Request::default() }).await;
            let reply: Reply = next_frame(&mut other_far).await;
            assert!(matches!(reply.body, Some(reply::Body::Segments(_))), "{reply:?}");
            blocked.release();
            for far in [&mut first_far, &mut far] {
                let reply: Reply = next_frame(far).await;
                assert!(reply.body.as_ref().is_some_and(is_answer), "{reply:?}");
            }
            drop((first_far, far, other_far));
            assert!(stands.join().unwrap().is_err(), "it ends with its connection");
            let (again, other) = goes_on.join().unwrap();
            assert!(again.is_err() && other.is_err());
        };
        let abort = |rid: Rid| request::Body::Abort(Abort { rids: vec![rid.0], writer_done: true });
        said_again("abort", abort, |told| matches!(told, reply::Body::Done(_))).await;
        // Nothing is there to be removed: that nothing was is all that waits for the log.
        let is_none = |told: &reply::Body| matches!(told, reply::Body::RemoveAll(told) if told.removed == 0);
        said_again("all", |_| request::Body::RemoveAll(RemoveAll { force: true }), is_none).await;
        let matching = |_| request::Body::RemoveByRegex(RemoveByRegex { pattern: "^gone".to_owned(), force: true });
        said_again("matching", matching, is_none).await;
    }
}

#[tokio::test]
async fn a_put_that_is_given_up_in_line_keeps_no_other_call_waiting_while_the_log_takes_nothing() {
    for fsync in [false, true] {
        let mut master = Master::new(fsync);
        master.reserve_bytes(512 << 10);
        let spec = SessionSpec { secret: 1, name: "w:1".to_owned(), boot_id: vec![7; 16], process: Vec::new() };
        let waits = master.core(|core, now, effects| core.open_session(now, spec, effects).unwrap());
        let ((large, mut large_far), (small, mut small_far), (other, mut other_far)) = (pair(), pair(), pair());
        let serve = |near: std::os::unix::net::UnixStream| {
            let (shared, session) = (master.shared.clone(), waits);
            async move {
                let mut connection = Connection::new(UnixStream::from_std(near).unwrap());
                call::serve(&shared, session, &Idle::of_one(), &mut connection).await
            }
        };
        let calls = elsewhere({
            let all = (serve(large), serve(small), serve(other));
            async || _ = tokio::join!(all.0, all.1, all.2)
        });
        for (far, key, size, in_line) in
            [(&mut large_far, "large", 768 << 10, 1), (&mut small_far, "small", 1 << 10, 2)]
        {
            let keys = Some(pack_keys(&[key]));
            let body =
                Some(request::Body::PutStart(PutStart { keys, sizes: vec![size], wait: true, ..PutStart::default() }));
            send(far, &Request { id: 1, sequence: master.origin().sequence, body, ..Request::default() }).await;
            let waits = async {
                while master.shared.routes.parked() != in_line {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(SOON, waits).await.expect("it does not wait for room");
        }
        let mut blocked = master.block();
        // It makes way for the one behind it, whose room goes to the log.
        drop(large_far);
        blocked.is_awaited(&master).await;
        let body = Some(request::Body::Segments(Segments::default()));
        send(&mut other_far, &Request { id: 2, body, ..Request::default() }).await;
        let reply: Reply = next_frame(&mut other_far).await;
        assert!(matches!(reply.body, Some(reply::Body::Segments(_))), "{reply:?}");
        assert!(is_silent(&mut small_far).await, "it is told of room that the log does not know");
        blocked.release();
        let reply: Reply = next_frame(&mut small_far).await;
        assert!(matches!(reply.body, Some(reply::Body::PutStart(_))), "{reply:?}");
        drop((small_far, other_far));
        calls.join().unwrap();
    }
}

#[tokio::test]
async fn a_beat_that_changes_something_is_confirmed_once_that_is_in_the_log_and_answered_meanwhile() {
    for fsync in [false, true] {
        let mut master = Master::new(fsync);
        let rid = master.view();
        let mut blocked = master.block();
        let (mut far, anchor) = serve_anchor(&master);
        let unpin_sequence = master.origin().sequence;
        let beat = |number, unpins| {
            let (unpin, unpin_sequence) = if unpins { (vec![rid.0], unpin_sequence) } else { Default::default() };
            AnchorUp { body: Some(anchor_up::Body::Beat(Beat { number, unpin, unpin_sequence, ..Beat::default() })) }
        };
        // The next one says it again, the one behind that does not.
        for (number, unpins) in [(8, true), (9, true), (10, false)] {
            send(&mut far, &beat(number, unpins)).await;
            blocked.is_awaited(&master).await;
            let pong = next_pong(&mut far).await;
            assert_eq!((pong.number, pong.unpin_sequence, pong.position), (0, 0, None), "of {number}");
        }
        let held = Arc::strong_count(&master.shared);
        for number in 11..60 {
            send(&mut far, &beat(number, true)).await;
            next_pong(&mut far).await;
        }
        assert_eq!(Arc::strong_count(&master.shared), held, "one commit is under way, and no more are in line");
        blocked.release();
        let confirmed = async {
            for number in 60.. {
                send(&mut far, &beat(number, true)).await;
                let pong = next_pong(&mut far).await;
                if pong.number > 0 {
                    return (pong.number == number, pong.unpin_sequence, pong.position.is_some());
                }
            }
            unreachable!("it says so until it is heard")
        };
        assert_eq!(timeout(SOON, confirmed).await.expect("it never is"), (true, unpin_sequence, true));
        drop(far);
        assert!(anchor.join().unwrap().is_err(), "it ends with its connection");
    }
}

#[tokio::test]
async fn a_client_that_has_said_more_than_the_log_takes_is_neither_read_nor_away_until_the_log_goes_on() {
    let mut master = Master::new(false);
    let rid = master.reserve();
    let given_up = master.origin();
    master.core(|core, now, effects| core.abort(now, given_up, &[rid], true, effects).unwrap());
    timeout(SOON, master.anchor.next()).await.expect("a fence");
    let mut blocked = master.block();
    let (mut far, anchor) = serve_anchor(&master);
    let done = FenceDone { uuid: vec![3; 16].into(), rids: vec![rid.0; (1 << 17) + 1] };
    send(&mut far, &AnchorUp { body: Some(anchor_up::Body::FenceDone(done)) }).await;
    let beat = Beat { number: 8, ..Beat::default() };
    send(&mut far, &AnchorUp { body: Some(anchor_up::Body::Beat(beat)) }).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2 * Config::default().away_ms) {
        assert_eq!(next_pong(&mut far).await.number, 0, "the beat lies unread");
        let away = master.shared.read(|core, now| {
            core.tick(now, &mut Effects::default());
            core.stats().sessions_away
        });
        assert_eq!(away, 0, "it is there, and was not listened to");
    }
    blocked.release();
    let read = async { while next_pong(&mut far).await.number != 8 {} };
    timeout(SOON, read).await.expect("it is never read");
    drop(far);
    assert!(anchor.join().unwrap().is_err(), "it ends with its connection");
}

#[tokio::test]
async fn while_the_log_takes_nothing_every_client_is_answered_and_owners_are_asked_for_fences_later() {
    let mut master = Master::new(false);
    let rid = master.reserve();
    let mut blocked = master.block();
    let (near, mut owner) = pair();
    let (shared, session, queue) = (master.shared.clone(), master.session, master.anchor.clone());
    let given_up = master.origin();
    let serving = elsewhere(async move || {
        let stream = UnixStream::from_std(near).unwrap();
        let registered = Registered { shared: shared.clone(), session, queue };
        let (_, commit) =
            shared.apply_aside(|core, now, effects| core.abort(now, given_up, &[rid], true, effects)).unwrap();
        let served = anchor::serve(registered, Connection::new(stream)).await;
        commit.expect("it is logged").done().await.unwrap();
        served
    });
    blocked.is_awaited(&master).await;
    for number in 1..=20 {
        send(&mut owner, &AnchorUp { body: Some(anchor_up::Body::Beat(Beat { number, ..Beat::default() })) }).await;
        assert_eq!(next_pong(&mut owner).await.number, number, "nothing that it said is on its way to the log");
    }
    blocked.release();
    let down: AnchorDown = next_frame(&mut owner).await;
    assert!(matches!(down.body, Some(anchor_down::Body::Fence(_))), "{down:?}");
    drop(owner);
    assert!(serving.join().unwrap().is_err(), "it ends with its connection");
}

/// Answers a hello in a thread of its own.
fn greet(master: &Master, role: hello::Role) -> (std::sync::mpsc::Receiver<HelloReply>, JoinHandle<()>) {
    let shared = master.shared.clone();
    let hello = Hello { version_min: VERSION, version_max: VERSION, role: Some(role), ..Hello::default() };
    let (tell, told) = std::sync::mpsc::channel();
    let answering = elsewhere(async move || {
        let (reply, _role) = answer(&shared, hello, Via::Tcp).await.unwrap();
        let mut reader = FrameReader::default();
        reader.buffer_mut().extend_from_slice(&reply);
        let reply = HelloReply::decode(reader.next_frame(FRAME_BYTES_MAX).unwrap().unwrap()).unwrap();
        tell.send(reply).unwrap();
    });
    (told, answering)
}

#[tokio::test]
async fn a_session_is_told_its_id_once_it_is_in_the_log() {
    for fsync in [false, true] {
        let master = Master::new(fsync);
        let mut blocked = master.block();
        let open = OpenSession { host_name: "h:1".to_owned(), process: None, claim: None };
        let (told, answering) = greet(&master, hello::Role::Open(open));
        blocked.is_awaited(&master).await;
        assert!(told.recv_timeout(QUIET).is_err());
        blocked.release();
        let reply = told.recv_timeout(SOON).expect("no answer");
        answering.join().unwrap();
        assert!(reply.session > master.session.0 && reply.refusal.is_none(), "{reply:?}");
    }
}

#[tokio::test]
async fn a_client_that_comes_back_twice_is_told_nothing_before_what_its_first_return_changed_is_in_the_log() {
    for fsync in [false, true] {
        let mut master = Master::new(fsync);
        master.view();
        let mut blocked = master.block();
        // Its view is given up by not being listed. There is nothing left to change when it comes again.
        let resume = |secret| {
            let resume = ResumeSession {
                session: master.session.0,
                secret,
                host_name: "o:1".to_owned(),
                segments: vec![vec![3; 16].into()],
                settled_below: master.sequence + 1,
                ..ResumeSession::default()
            };
            greet(&master, hello::Role::Resume(resume))
        };
        let (first, first_answering) = resume(1);
        blocked.is_awaited(&master).await;
        let (again, again_answering) = resume(1);
        let (stranger, stranger_answering) = resume(2);
        assert!(first.recv_timeout(QUIET).is_err());
        assert!(again.recv_timeout(QUIET).is_err(), "its return changes nothing, and tells of what did");
        assert!(stranger.recv_timeout(QUIET).is_err(), "what a session is refused by may not be in the log yet");
        blocked.release();
        for (told, is_refused) in [(first, false), (again, false), (stranger, true)] {
            let reply = told.recv_timeout(SOON).expect("no answer");
            assert_eq!(reply.refusal.is_some(), is_refused, "{reply:?}");
        }
        for answering in [first_answering, again_answering, stranger_answering] {
            answering.join().unwrap();
        }
    }
}
