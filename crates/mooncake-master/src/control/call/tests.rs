use mooncake_core::{Core, Effects, PutConfig, REMOVAL_SLOTS, SegmentSpec, SessionSpec, Sight};
use mooncake_ids::{Rid, SegmentUuid};
use mooncake_wire::message::put_slot;
use mooncake_wire::{FRAME_BYTES_MAX, FrameReader, pack_keys};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::*;
use crate::log::Log;
use crate::removal::SLICE_KEY_BYTES;

const SOON: Duration = Duration::from_secs(10);

/// A master in which no deadline passes, with a client, and 8 KiB, of which another one's unfinished put has half.
fn half_full() -> (Arc<Shared>, SessionId) {
    let (shared, session, _) = half_full_by();
    (shared, session)
}

/// And who frees it with what.
fn half_full_by() -> (Arc<Shared>, SessionId, (SessionId, Rid)) {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    let spec = |name: &str| SessionSpec { secret: 1, name: name.to_owned(), boot_id: vec![7; 16], process: Vec::new() };
    let memory =
        SegmentSpec { uuid: SegmentUuid([3; 16]), name: "o:1".to_owned(), bytes: 8 << 10, endpoint: Vec::new() };
    let session = shared.apply(|core, now, effects| {
        core.begin(now, None, effects);
        let owner = core.open_session(now, spec("o:1"), effects).unwrap();
        let origin = |sequence| Origin { session: owner, sequence, answered_below: 0 };
        core.mount(now, origin(1), memory, 8 << 10, effects).unwrap();
        let entries: [(&[u8], u64); 1] = [(b"stuff", 4 << 10)];
        let started = core.put_start(now, origin(2), &entries, &PutConfig::default(), false, effects).unwrap();
        let PutStarted::Now(outcomes) = started else { panic!("{started:?}") };
        let StartOutcome::Placed(placed) = &outcomes[0] else { panic!("{outcomes:?}") };
        (core.open_session(now, spec("w:1"), effects).unwrap(), (owner, placed[0].rid))
    });
    let (session, by) = session.unwrap();
    (shared, session, by)
}

/// A call connection that asks for a put and waits: its other end.
async fn waiting_put(shared: &Arc<Shared>, session: SessionId, sequence: u64, size: u64) -> UnixStream {
    waiting_put_of(&format!("k{sequence}"), shared, session, sequence, size).await
}

async fn waiting_put_of(key: &str, shared: &Arc<Shared>, session: SessionId, sequence: u64, size: u64) -> UnixStream {
    let (near, mut far) = UnixStream::pair().unwrap();
    let calls = shared.clone();
    tokio::spawn(async move { serve(&calls, session, &Idle::of_one(), &mut Connection::new(near)).await });
    let ask = message::PutStart {
        keys: Some(pack_keys(&[key])),
        sizes: vec![size],
        wait: true,
        ..message::PutStart::default()
    };
    let body = Some(message::request::Body::PutStart(ask));
    let mut bytes = Vec::new();
    encode_frame(&Request { id: sequence, sequence, body, ..Request::default() }, &mut bytes);
    far.write_all(&bytes).await.unwrap();
    far
}

async fn until_parked(shared: &Shared, wanted: u64) {
    let parked = async {
        while shared.read(|core, _| core.stats().tickets) != wanted || shared.routes.parked() != wanted as usize {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, parked).await.unwrap_or_else(|_| panic!("never {wanted}"));
}

#[tokio::test]
async fn a_put_whose_connection_closes_leaves_the_line_to_those_behind_it() {
    let (shared, session) = half_full();
    let large = waiting_put(&shared, session, 3, 6 << 10).await;
    until_parked(&shared, 1).await;
    let mut small = waiting_put(&shared, session, 4, 1 << 10).await;
    until_parked(&shared, 2).await;
    drop(large);
    let mut reader = FrameReader::default();
    let frame = loop {
        match reader.next_frame(FRAME_BYTES_MAX).unwrap() {
            Some(frame) => break frame,
            None => {
                let read = timeout(SOON, small.read_buf(reader.buffer_mut())).await;
                assert!(read.expect("it waits on").unwrap() > 0, "closed");
            }
        }
    };
    let reply = Reply::decode(frame).unwrap();
    let Some(reply::Body::PutStart(told)) = &reply.body else { panic!("{reply:?}") };
    assert_eq!((reply.id, told.slots[0].kind()), (4, put_slot::Kind::Placed));
    until_parked(&shared, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_is_woken_however_soon_behind_it_its_key_is_free() {
    for round in 0..200 {
        let (shared, session, (owner, rid)) = half_full_by();
        let other = shared.clone();
        // As soon as the core is free again with the put in line, so is the key that it waits for.
        let frees = std::thread::spawn(move || {
            let until = Instant::now() + SOON;
            let freed = |core: &mut Core, now, effects: &mut Effects| {
                let waits = core.stats().tickets == 1;
                if waits {
                    let origin = Origin { session: owner, sequence: 3, answered_below: 0 };
                    core.abort(now, origin, &[rid], true, effects).unwrap();
                }
                waits
            };
            while !other.apply(freed).unwrap() {
                assert!(Instant::now() < until, "it never waits");
            }
        });
        let mut far = waiting_put_of("stuff", &shared, session, 3, 1 << 10).await;
        let read = timeout(SOON, far.read(&mut [0; 512])).await;
        assert!(read.is_ok_and(|read| read.unwrap() > 0), "never woken, in round {round}");
        frees.join().unwrap();
    }
}

/// A call connection of a client.
struct Caller {
    far: UnixStream,
    reader: FrameReader,
}

impl Caller {
    fn new(shared: &Arc<Shared>, session: SessionId) -> Caller {
        let (near, far) = UnixStream::pair().unwrap();
        let calls = shared.clone();
        tokio::spawn(async move { serve(&calls, session, &Idle::of_one(), &mut Connection::new(near)).await });
        Caller { far, reader: FrameReader::default() }
    }

    async fn ask(&mut self, request: Request) -> Reply {
        let mut bytes = Vec::new();
        encode_frame(&request, &mut bytes);
        self.far.write_all(&bytes).await.unwrap();
        loop {
            if let Some(frame) = self.reader.next_frame(FRAME_BYTES_MAX).unwrap() {
                let reply = Reply::decode(frame).unwrap();
                assert_eq!(reply.id, request.id);
                return reply;
            }
            assert!(self.read().await > 0, "closed");
        }
    }

    async fn read(&mut self) -> usize {
        let read = timeout(SOON, self.far.read_buf(self.reader.buffer_mut())).await;
        read.expect("nothing comes").unwrap_or(0)
    }

    /// How many a removal says that it has taken.
    async fn remove(&mut self, sequence: u64, body: &message::request::Body) -> u64 {
        let request = Request { id: 100 + sequence, sequence, body: Some(body.clone()), ..Request::default() };
        match self.ask(request).await.body {
            Some(reply::Body::RemoveAll(told)) => told.removed,
            other => panic!("{other:?}"),
        }
    }
}

/// A master with the memory of one client.
fn with_memory(bytes: u64) -> (Arc<Shared>, SessionId) {
    let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
    let spec = SessionSpec { secret: 1, name: "o:1".to_owned(), boot_id: vec![7; 16], process: Vec::new() };
    let memory = SegmentSpec { uuid: SegmentUuid([3; 16]), name: "o:1".to_owned(), bytes, endpoint: Vec::new() };
    let session = shared.apply(|core, now, effects| {
        core.begin(now, None, effects);
        let owner = core.open_session(now, spec, effects).unwrap();
        core.mount(now, Origin { session: owner, sequence: 1, answered_below: 0 }, memory, bytes, effects).unwrap();
        owner
    });
    (shared, session.unwrap())
}

/// Stores objects without a number of their own.
fn store(shared: &Shared, session: SessionId, keys: impl IntoIterator<Item = String>) {
    let origin = Origin { session, sequence: 0, answered_below: 0 };
    for key in keys {
        shared
            .apply(|core, now, effects| {
                let entries = [(key.as_bytes(), 10)];
                let started = core.put_start(now, origin, &entries, &PutConfig::default(), false, effects).unwrap();
                let PutStarted::Now(outcomes) = started else { panic!("{started:?}") };
                let [StartOutcome::Placed(replicas)] = &outcomes[..] else { panic!("{outcomes:?}") };
                let ended = mooncake_core::Ended {
                    replicas: [(replicas[0].rid, true)].into_iter().collect(),
                    crc32c: 0,
                    stays: false,
                };
                core.put_end(now, origin, &[ended], effects).unwrap();
            })
            .unwrap();
    }
}

fn keys(shared: &Shared) -> u64 {
    shared.read(|core, _| core.stats().keys)
}

/// Both ways to remove everything.
fn removals() -> [message::request::Body; 2] {
    [
        message::request::Body::RemoveAll(message::RemoveAll { force: true }),
        message::request::Body::RemoveByRegex(message::RemoveByRegex { pattern: ".".to_owned(), force: true }),
    ]
}

#[tokio::test]
async fn a_removal_that_comes_again_is_told_the_same_and_takes_nothing_of_what_came_since_also_when_it_took_nothing() {
    for removal in removals() {
        for before in [0, 1, 3] {
            let (shared, session) = with_memory(1 << 20);
            store(&shared, session, (0..before).map(|n| format!("before-{n}")));
            let mut calls = Caller::new(&shared, session);
            assert_eq!(calls.remove(7, &removal).await, before, "{removal:?}");
            store(&shared, session, ["since".to_owned()]);
            // A copy that was late on another connection, and one on this one.
            let mut other = Caller::new(&shared, session);
            assert_eq!((other.remove(7, &removal).await, calls.remove(7, &removal).await), (before, before));
            assert_eq!(keys(&shared), 1, "{removal:?} behind {before}");
            assert_eq!(shared.read(|core, _| core.stats().counters.replies_repeated), 2);
            assert_eq!(calls.remove(8, &removal).await, 1, "the next one takes it");
        }
    }
}

#[tokio::test]
async fn a_removal_goes_through_all_of_very_many_objects() {
    let many = 4 * REMOVAL_SLOTS as u64 + 50;
    let (shared, session) = with_memory(4 << 20);
    let mut calls = Caller::new(&shared, session);
    for (sequence, removal) in (7..).zip(removals()) {
        store(&shared, session, (0..many).map(|n| format!("key-{n}")));
        assert_eq!((calls.remove(sequence, &removal).await, keys(&shared)), (many, 0), "{removal:?}");
    }
    // The keys of one look are more than fit in it.
    let long = "x".repeat(SLICE_KEY_BYTES / 4);
    store(&shared, session, (0..10).map(|n| format!("{n}{long}{n}")).chain((0..20).map(|n| format!("short-{n}"))));
    let pattern = "[13579]$".to_owned();
    let odd = message::request::Body::RemoveByRegex(message::RemoveByRegex { pattern, force: true });
    assert_eq!((calls.remove(20, &odd).await, keys(&shared)), (5 + 10, 15));
    let left = |key: String| shared.read(|core, _| core.peek(key.as_bytes()).is_some());
    for n in 0..10 {
        assert_eq!((left(format!("{n}{long}{n}")), left(format!("short-{n}"))), (n % 2 == 0, n % 2 == 0), "{n}");
    }
}

#[tokio::test]
async fn a_removal_spares_what_was_looked_up_a_moment_ago_unless_it_is_forced() {
    let (shared, session) = with_memory(1 << 20);
    store(&shared, session, ["a", "b"].map(str::to_owned));
    shared.read(|core, now| core.exists(now, Sight::Tiers, [&b"a"[..]].into_iter(), |_| ()));
    let mut calls = Caller::new(&shared, session);
    let [_, forced] = removals();
    let gentle = [
        message::request::Body::RemoveAll(message::RemoveAll { force: false }),
        message::request::Body::RemoveByRegex(message::RemoveByRegex { pattern: "a|b".to_owned(), force: false }),
    ];
    assert_eq!((calls.remove(7, &gentle[0]).await, calls.remove(8, &gentle[1]).await, keys(&shared)), (1, 0, 1));
    assert_eq!((calls.remove(9, &forced).await, keys(&shared)), (1, 0));
}

#[tokio::test]
async fn calls_of_a_session_that_is_over_are_told_so_and_closed() {
    let (shared, session) = with_memory(1 << 20);
    let mut calls = Caller::new(&shared, session);
    shared.apply(|core, now, effects| core.close_session(now, session, effects)).unwrap();
    let pin = message::Pin { keys: Some(pack_keys(&["k"])) };
    let body = Some(message::request::Body::Pin(pin));
    let reply = calls.ask(Request { id: 5, sequence: 9, body, ..Request::default() }).await;
    let Some(reply::Body::Refusal(refusal)) = &reply.body else { panic!("{reply:?}") };
    assert_eq!(refusal.kind(), message::refusal::Kind::UnknownSession);
    assert_eq!(calls.read().await, 0, "nothing more is answered there");
}

#[tokio::test]
async fn what_is_refused_otherwise_leaves_the_connection_as_it_was() {
    let (shared, session) = with_memory(1 << 20);
    let mut calls = Caller::new(&shared, session);
    for body in [None, Some(message::request::Body::Pin(message::Pin { keys: Some(pack_keys(&["k"])) }))] {
        let reply = calls.ask(Request { id: 5, body, ..Request::default() }).await;
        let Some(reply::Body::Refusal(refusal)) = &reply.body else { panic!("{reply:?}") };
        assert_eq!(refusal.kind(), message::refusal::Kind::BadRequest);
    }
    let body = Some(message::request::Body::Ping(message::Ping {}));
    let reply = calls.ask(Request { id: 6, body, ..Request::default() }).await;
    assert_eq!(reply.position, Some(shared.position()));
}

#[tokio::test]
async fn a_session_that_closes_itself_has_its_own_anchor_closed_and_no_other() {
    use crate::machine::anchors::AnchorTable;
    use crate::routes::AnchorQueue;

    let (shared, session) = with_memory(1 << 20);
    let spec = SessionSpec { secret: 1, name: "c:1".to_owned(), boot_id: vec![7; 16], process: Vec::new() };
    let other = shared.apply(|core, now, effects| core.open_session(now, spec, effects).unwrap()).unwrap();
    let queues = [session, other].map(|session| {
        let queue = Arc::new(AnchorQueue::default());
        (&shared.routes).with_anchors(|anchors| anchors.set(session, queue.clone()));
        queue
    });
    let mut calls = Caller::new(&shared, session);
    let body = Some(message::request::Body::CloseSession(message::CloseSession {}));
    let reply = calls.ask(Request { id: 6, body, ..Request::default() }).await;
    assert!(matches!(reply.body, Some(reply::Body::Done(_))), "{reply:?}");
    let drain = async |queue: &AnchorQueue| while queue.next().await.is_some() {};
    timeout(SOON, drain(&queues[0])).await.expect("it ends when all on it is sent");
    assert!(timeout(Duration::from_millis(20), drain(&queues[1])).await.is_err(), "the other one's goes on");
}
