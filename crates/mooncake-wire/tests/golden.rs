//! The bytes of the control protocol are what they were: prefaces, and each message in its frame, with all of its
//! fields and with none. Every message is written out in full, so that a new field comes with a changed line.

use bytes::Bytes;
use mooncake_test_support::{Golden, every};
use mooncake_wire::message::{self, *};
use mooncake_wire::{
    CONTROL_PREFACE, FEATURES, FRAME_BYTES_MAX, FrameReader, LANE_PREFACE, STILL_POPULATED, VERSION, encode_frame,
    pack_keys,
};
use prost::Message;

/// Each kind of body, with all of its fields and with none.
macro_rules! bodies {
    ($enum:ident { $($kind:ident($full:expr)),* $(,)? }) => {
        every!($enum { $($kind($full)),* }).into_iter().zip(every!($enum { $($kind(Default::default())),* }))
    };
}

/// A message in its frame, which is read as it was written.
fn frame<M: Message + Default + PartialEq + std::fmt::Debug>(
    golden: &mut Golden,
    name: impl Into<String>,
    message: &M,
) {
    let (mut bytes, name) = (Vec::new(), name.into());
    encode_frame(message, &mut bytes);
    let mut reader = FrameReader::default();
    reader.buffer_mut().extend_from_slice(&bytes);
    let body = reader.next_frame(FRAME_BYTES_MAX).unwrap().expect("a whole frame");
    assert_eq!(M::decode(body).as_ref(), Ok(message), "{name}");
    assert!(!reader.is_partial(), "{name}");
    golden.bytes(name, bytes);
}

fn uuid(first: u8) -> Bytes {
    (first..first + 16).collect::<Vec<u8>>().into()
}

fn position() -> Option<LogPosition> {
    Some(LogPosition { log_id: 0x0102_0304_0506_0708, epoch: 300, lsn: 1 << 40, epoch_id: 0x8000_0001 })
}

fn process() -> Option<ProcessIdentity> {
    let (pid_namespace, mark) = (4_026_531_836, 0x1112_1314_1516_1718);
    Some(ProcessIdentity { boot_id: uuid(1), pid: 70_000, start_time: 1 << 33, pid_namespace, mark })
}

fn refusal() -> Refusal {
    Refusal { kind: message::refusal::Kind::Token as i32, reason: "no".into() }
}

fn keys() -> Option<Keys> {
    Some(pack_keys(&["a", "key", "another"]))
}

fn extent() -> Extent {
    Extent { segment: 1025, offset: 1 << 34, length: 5000 }
}

fn replica() -> Replica {
    Replica { rid: 0x0001_0000_0000_0002, extents: vec![extent(), Extent { segment: 2, offset: 0, length: 1 }] }
}

fn object() -> Object {
    Object { size: 1 << 32, crc32c: 0xdead_beef, replicas: vec![replica()] }
}

fn segment() -> Segment {
    let endpoint = Endpoint {
        boot_id: uuid(0x41),
        unix_socket: "unix".into(),
        tcp: vec!["10.0.0.1:1".into(), "[::1]:2".into()],
        access_key: 0x2122_2324_2526_2728,
        process: process(),
    };
    let (uuid, name) = (uuid(0x51), "segment".into());
    let (session, endpoint, tier_file_blocks) = (1 << 32, Some(endpoint), 0);
    Segment { number: 1025, uuid, name, bytes: 1 << 36, session, endpoint, tier_file_blocks, file_system: Bytes::new() }
}

fn hello(role: hello::Role) -> Hello {
    let (features, software, token) = (FEATURES, "software".into(), Bytes::from_static(b"token"));
    let client = ClientInfo { host: "host".into(), user: "user".into(), pod: "pod".into(), program: "program".into() };
    let (highest, client) = (position(), Some(client));
    Hello { version_min: 1, version_max: 2, features, software, token, highest, role: Some(role), client }
}

#[test]
fn hellos_are_what_they_were() {
    use hello::Role;

    let mut golden = Golden::default();
    golden.bytes("preface.control", CONTROL_PREFACE);
    golden.bytes("preface.lane", LANE_PREFACE);
    golden.bytes("version", VERSION.to_le_bytes());
    golden.bytes("features", FEATURES.to_le_bytes());

    let resume = ResumeSession {
        session: 1 << 32,
        secret: 0x3132_3334_3536_3738,
        process: process(),
        host_name: "host:1".into(),
        segments: vec![uuid(0x61), uuid(0x62)],
        pins: vec![4, 6],
        epoch_taken: 300,
        settled_below: 200,
        unsettled: vec![7, 1 << 35],
        epochs: vec![299, 300],
        list: 5,
    };
    let all = bodies!(Role {
        Open(OpenSession { host_name: "host:1".into(), process: process(), claim: None }),
        Resume(resume),
        Attach(AttachCall { session: 1 << 32, secret: 0x3132_3334_3536_3738 }),
        Ask(AskIdentity {}),
    });
    for ((name, full), (_, empty)) in all {
        frame(&mut golden, format!("hello.{name}"), &hello(full));
        frame(&mut golden, format!("hello.{name}.empty"), &Hello { role: Some(empty), ..Hello::default() });
    }
    frame(&mut golden, "hello.empty", &Hello::default());
    let held = vec![Claimed { uuid: uuid(0x61), endpoint: segment().endpoint }];
    let claim = Some(Claim { secret: uuid(0x91), turn: 3 << 32 | 1, held, lost: vec![uuid(0x62)] });
    let heir = OpenSession { host_name: "host:1".into(), process: process(), claim };
    frame(&mut golden, "hello.Open.of_an_heir", &hello(Role::Open(heir)));

    let reply = HelloReply {
        version: 1,
        features: FEATURES,
        position: position(),
        instance: uuid(0x71),
        boot_id: uuid(1),
        unix_socket: "mooncake-master".into(),
        session: 1 << 32,
        secret: 0x3132_3334_3536_3738,
        lookup_protect_ms: 5000,
        gone_segments: vec![uuid(0x61)],
        pid_proof: 1,
        refusal: Some(refusal()),
        software: "software".into(),
        unknown_pins: vec![4, 0],
        storage: None,
        cluster_id: String::new(),
        no_tiers: false,
        pages: String::new(),
    };
    frame(&mut golden, "hello_reply", &reply);
    let (root, cluster_id) = ("/mnt/fs".into(), "cluster".into());
    let storage = Some(SharedStorage { root, cluster_id, quota_bytes: 1 << 40, evicts: true });
    frame(&mut golden, "hello_reply.storage", &HelloReply { storage, ..HelloReply::default() });
    let cluster_id = "cluster".into();
    frame(&mut golden, "hello_reply.cluster", &HelloReply { cluster_id, ..HelloReply::default() });
    let pages = "127.0.0.1:9003".into();
    frame(&mut golden, "hello_reply.pages", &HelloReply { pages, ..HelloReply::default() });
    frame(&mut golden, "hello_reply.no_tiers", &HelloReply { no_tiers: true, ..HelloReply::default() });
    frame(&mut golden, "hello_reply.empty", &HelloReply::default());
    golden.check("hellos.txt");
}

#[test]
fn anchors_are_what_they_were() {
    use anchor_down::Body as Down;
    use anchor_up::Body as Up;

    let mut golden = Golden::default();
    let populated = Populated { uuid: uuid(0x61), bytes: 1 << 33, failed: true };
    let beat =
        Beat { number: 300, moved: vec![2, 4], populated: vec![populated], unpin: vec![6, 8], unpin_sequence: 1 << 33 };
    let (rids, addresses, sealed) = (vec![2, 4], vec![0, 1 << 40], vec![7, 1 << 33]);
    let written = TierWritten { tier: uuid(0x81), rids, addresses, window: 16 << 20, sealed };
    let operations = |count| Some(TierOperations { count, micros: 1 << 33, failed: 3 });
    let stats = TierStats {
        tier: uuid(0x81),
        engine: tier_stats::Engine::Threads as i32,
        used_bytes: 1 << 36,
        reads: operations(300),
        writes: operations(301),
        syncs: operations(302),
        bad_records: 303,
        read_for_lanes: 304,
        read_for_promotions: 305,
        read_for_kept: 306,
        read_for_rechecks: 307,
        read_for_proofs: 308,
        written_ordered: 309,
        written_kept: 310,
        written_rest: 311,
        capacity_bytes: 0,
        lacks_room: false,
        unknown_folders: 0,
    };
    let found = TierStats { tier: uuid(0x81), lacks_room: true, unknown_folders: 312, ..TierStats::default() };
    let share = TierStats { tier: uuid(0x81), capacity_bytes: 1 << 37, ..TierStats::default() };
    let all = bodies!(Up {
        Beat(beat),
        FenceDone(FenceDone { uuid: uuid(0x61), rids: vec![2, 4] }),
        Rechecked(Rechecked { uuid: uuid(0x61), rid: 2, good: true }),
        EpochTaken(EpochTaken { epoch: 300, segments: vec![uuid(0x61), uuid(0x62)] }),
        PeerGone(PeerGone { uuid: uuid(0x61), process: None }),
        Goodbye(Goodbye {}),
        ReaderGone(ReaderGone { session: 1 << 32, uuid: uuid(0x61), mark: 0x1112_1314_1516_1718 }),
        TierWritten(written),
        TierPromoted(TierPromoted { good: vec![2, 4], bad: vec![6] }),
        Closing(Closing { within_ms: 5_000 }),
        TierStats(stats),
    });
    for ((name, full), (_, empty)) in all {
        frame(&mut golden, format!("up.{name}"), &AnchorUp { body: Some(full) });
        frame(&mut golden, format!("up.{name}.empty"), &AnchorUp { body: Some(empty) });
    }
    frame(&mut golden, "up.empty", &AnchorUp::default());
    frame(&mut golden, "up.TierStats.capacity", &AnchorUp { body: Some(Up::TierStats(share)) });
    frame(&mut golden, "up.TierStats.found", &AnchorUp { body: Some(Up::TierStats(found)) });
    let ended = PeerGone { uuid: uuid(0x61), process: process() };
    frame(&mut golden, "up.peer_gone.of_a_process", &AnchorUp { body: Some(anchor_up::Body::PeerGone(ended)) });

    let fence = Fence { uuid: uuid(0x61), rid: 2, offset: 1 << 34, length: 5000, writer: 1 << 32, writer_done: true };
    let (object_id, crc32c, source) = (2, 0xdead_beef, Some(replica()));
    let order = TierOrder { tier: uuid(0x81), rid: 6, key: "key".into(), object_id, crc32c, source };
    let (from, to) = (Some(replica()), Some(replica()));
    let promote = TierPromote { tier: uuid(0x81), key: "key".into(), crc32c, from, to };
    let all = bodies!(Down {
        Pong(Pong { number: 300, position: position(), unpin_sequence: 1 << 33 }),
        Fence(fence),
        Recheck(Recheck { uuid: uuid(0x61), rid: 2, offset: 1 << 34, length: 5000, crc32c: 0xdead_beef }),
        TakeEpoch(TakeEpoch { epoch: 300, epoch_id: 0x8000_0001 }),
        SegmentGone(SegmentGone { uuid: uuid(0x61), number: 1025, pinned: vec![extent()] }),
        SessionOver(SessionOver { reason: "over".into() }),
        ReaderGoneTaken(ReaderGoneTaken { session: 1 << 32, uuid: uuid(0x61) }),
        TierOrder(order),
        TierRetire(TierRetire { tier: uuid(0x81), epoch: 300, files: vec![7, 1 << 33], full: false }),
        TierRecheck(TierRecheck { tier: uuid(0x81), replica: Some(replica()), key: "key".into() }),
        TierPromote(promote),
        TierShared(TierShared { tier: uuid(0x81), writers: 300, left: uuid(0x82) }),
        TierAllOrdered(TierAllOrdered { tier: uuid(0x81) }),
    });
    for ((name, full), (_, empty)) in all {
        frame(&mut golden, format!("down.{name}"), &AnchorDown { body: Some(full) });
        frame(&mut golden, format!("down.{name}.empty"), &AnchorDown { body: Some(empty) });
    }
    let full = Down::TierRetire(TierRetire { tier: uuid(0x81), full: true, ..TierRetire::default() });
    frame(&mut golden, "down.TierRetire.full", &AnchorDown { body: Some(full) });
    frame(&mut golden, "down.empty", &AnchorDown::default());
    golden.check("anchors.txt");
}

#[test]
fn requests_are_what_they_were() {
    use request::Body;

    let mut golden = Golden::default();
    let config = PutConfig {
        replica_num: 2,
        preferred_segments: vec!["host:1".into(), "host:2".into()],
        hard_pin: true,
        soft_pin_ttl_ms: u64::MAX,
        prefer_local: true,
        replace: true,
        soft_pin_clear: true,
        first_rid: 0x0001_0000_0000_0002,
        comes_again: true,
    };
    let (sizes, groups) = (vec![1, 200, 1 << 33], Some(pack_keys(&["", "g", ""])));
    let replicas = vec![ReplicaOutcome { rid: 2, good: true }, ReplicaOutcome { rid: 4, good: false }];
    let mount = TierMount {
        tier: Some(Tier {
            uuid: uuid(0x81),
            secret: uuid(0x91),
            name: "host:1".into(),
            bytes: 1 << 40,
            file_blocks: 65_536,
            endpoint: segment().endpoint,
        }),
        is_new: true,
        head: 9,
        files: vec![7, 8],
        appended: vec![8],
        suspects: vec![7],
        proven: vec![2, 4],
        adopted: false,
        file_system: Bytes::new(),
        records_max: 0,
        turn: 0,
    };
    let announced = TierMount { file_system: uuid(0xa1), ..TierMount::default() };
    let adopted = TierMount { adopted: true, ..TierMount::default() };
    let limited = TierMount { records_max: 10_000_000, ..TierMount::default() };
    let turned = TierMount { turn: 300, ..TierMount::default() };
    let bad = |key: &'static str, more| BadReplica { key: key.into(), rid: 2, reason: "bad".into(), more };
    let all = bodies!(Body {
        Exists(Exists { keys: keys(), sizes: true }),
        Lookup(Lookup { keys: keys() }),
        PutStart(PutStart { keys: keys(), sizes, config: Some(config), wait: true, groups }),
        PutEnd(PutEnd { ended: vec![Ended { replicas, crc32c: 0xdead_beef, stays: false }] }),
        Abort(Abort { rids: vec![2, 4], writer_done: true }),
        Pin(Pin { keys: keys() }),
        Unpin(Unpin { rids: vec![2, 4] }),
        Remove(Remove { keys: keys(), force: true }),
        RemoveAll(RemoveAll { force: true }),
        Mount(Mount { segment: Some(segment()), populated: 1 << 33 }),
        Unmount(Unmount { uuid: uuid(0x61), grace_ms: 5000 }),
        BadReplica(bad("a", vec![bad("b", vec![])])),
        Segments(Segments { numbers: vec![1, 1025] }),
        Ping(Ping {}),
        CloseSession(CloseSession {}),
        RemoveByRegex(RemoveByRegex { pattern: "a.*".into(), force: true }),
        Describe(Describe { keys: keys() }),
        ClearReplicas(ClearReplicas { keys: keys(), segment: "host:1".into() }),
        TierMount(mount),
        TierLeave(TierLeave { uuid: uuid(0x81), empty: false, turn: 0 }),
        TierReclaim(TierReclaim {
            tier: uuid(0x81),
            file: 7,
            keys: keys(),
            rids: vec![2, 4, 6],
            last: true,
            into: Bytes::new(),
        }),
        Keep(Keep { ms: 60_000, secret: uuid(0x91), turn: 3 << 32 | 1 }),
    });
    let (answered_below, abandoned, settled_below, unsettled) = (299, vec![290, 291], 310, vec![301, 1 << 35]);
    for ((name, full), (_, empty)) in all {
        frame(&mut golden, format!("request.{name}"), &Request { body: Some(full), ..Request::default() });
        frame(&mut golden, format!("request.{name}.empty"), &Request { body: Some(empty), ..Request::default() });
    }
    frame(&mut golden, "request.empty", &Request::default());
    let of_adopted = [
        ("adopted", Body::TierMount(adopted)),
        ("announced", Body::TierMount(announced)),
        ("limited", Body::TierMount(limited)),
        ("in_turn", Body::TierMount(turned)),
        ("left_empty", Body::TierLeave(TierLeave { uuid: uuid(0x81), empty: true, turn: 0 })),
        ("left_in_turn", Body::TierLeave(TierLeave { uuid: uuid(0x81), empty: true, turn: 301 })),
        ("kept_elsewhere", Body::TierReclaim(TierReclaim { into: uuid(0x82), ..TierReclaim::default() })),
    ];
    for (name, body) in of_adopted {
        frame(&mut golden, format!("request.{name}"), &Request { body: Some(body), ..Request::default() });
    }
    let numbered =
        Request { id: 300, sequence: 1 << 33, answered_below, body: None, abandoned, settled_below, unsettled };
    frame(&mut golden, "request.numbered", &numbered);
    golden.check("requests.txt");
}

#[test]
fn replies_are_what_they_were() {
    use message::refusal::Kind as RefusalKind;
    use put_end_reply::Outcome as EndOutcome;
    use put_slot::Kind as SlotKind;
    use remove_reply::Outcome as RemoveOutcome;
    use reply::Body;

    let mut golden = Golden::default();
    let slots = vec![
        PutSlot { kind: SlotKind::Placed as i32, replicas: vec![replica()], reason: String::new() },
        PutSlot { kind: SlotKind::Full as i32, replicas: vec![], reason: "full".into() },
    ];
    let files = vec![TierFile { number: 7, records: 3, bytes: 1 << 33 }];
    let names = vec![SegmentName { number: 1025, name: "segment".into(), ..SegmentName::default() }];
    let all = bodies!(Body {
        Refusal(refusal()),
        Exists(ExistsReply { found: vec![0, 1].into(), sizes: vec![0, 1 << 33], away: true }),
        Lookup(LookupReply { objects: vec![object(), Object::default()], away: true }),
        PutStart(PutStartReply { slots }),
        PutEnd(PutEndReply { outcomes: vec![1, 2, 3] }),
        Done(Done {}),
        Remove(RemoveReply { outcomes: vec![1, 2, 3, 4] }),
        RemoveAll(RemoveAllReply { removed: 1 << 33 }),
        Mount(MountReply { number: 1025 }),
        Segments(SegmentsReply { segments: vec![segment(), Segment::default()] }),
        Describe(DescribeReply { objects: vec![object()], segments: names }),
        TierMount(TierMountReply { number: 1025, head: 9, files, unknown: "of another log".into(), adopted: false }),
        TierReclaim(TierReclaimReply { rids: vec![0, 8] }),
    });
    for ((name, full), (_, empty)) in all {
        frame(&mut golden, format!("reply.{name}"), &Reply { body: Some(full), ..Reply::default() });
        frame(&mut golden, format!("reply.{name}.empty"), &Reply { body: Some(empty), ..Reply::default() });
    }
    let tier = Segment { tier_file_blocks: 65_536, ..segment() };
    let segments = Some(Body::Segments(SegmentsReply { segments: vec![tier] }));
    frame(&mut golden, "reply.Segments.of_a_tier", &Reply { body: segments, ..Reply::default() });
    let tier = Segment { tier_file_blocks: 65_536, file_system: uuid(0xa1), ..segment() };
    let segments = Some(Body::Segments(SegmentsReply { segments: vec![tier] }));
    frame(&mut golden, "reply.Segments.of_a_shared_tier", &Reply { body: segments, ..Reply::default() });
    let (name, shared_folder) = ("segment".into(), "/mnt/fs/cluster/uuid".into());
    let segments = vec![SegmentName { number: 1025, name, tier: true, shared_folder, file_blocks: 65_536 }];
    let described = Some(Body::Describe(DescribeReply { objects: vec![object()], segments }));
    frame(&mut golden, "reply.Describe.of_a_shared_tier", &Reply { body: described, ..Reply::default() });
    let adopted = TierMountReply { adopted: true, ..TierMountReply::default() };
    let adopted = Some(Body::TierMount(adopted));
    frame(&mut golden, "reply.TierMount.adopted", &Reply { body: adopted, ..Reply::default() });
    frame(&mut golden, "reply.empty", &Reply::default());
    frame(&mut golden, "reply.numbered", &Reply { id: 300, position: position(), body: None });

    // A number stands for each of these in a reply.
    let kinds = every!(RefusalKind {
        Unspecified,
        Version,
        Token,
        UnknownSession,
        BadRequest,
        ReadOnly,
        Internal,
        Overloaded,
        NotKept,
        OldClaim
    });
    kinds.iter().for_each(|(name, kind)| golden.bytes(format!("refusal.{name}"), [*kind as u8]));
    let kinds = every!(SlotKind { Unspecified, Placed, Exists, Busy, Full, TooLarge, Refused });
    kinds.iter().for_each(|(name, kind)| golden.bytes(format!("slot.{name}"), [*kind as u8]));
    let outcomes = every!(EndOutcome { Unspecified, Committed, Superseded, Revoked, Hidden });
    outcomes.iter().for_each(|(name, outcome)| golden.bytes(format!("end.{name}"), [*outcome as u8]));
    let outcomes = every!(RemoveOutcome { Unspecified, Removed, Missing, Protected, Busy });
    outcomes.iter().for_each(|(name, outcome)| golden.bytes(format!("remove.{name}"), [*outcome as u8]));
    // A client knows by this beginning of a reason that room comes of itself.
    golden.text("reason.still_populated", STILL_POPULATED);
    golden.check("replies.txt");
}
