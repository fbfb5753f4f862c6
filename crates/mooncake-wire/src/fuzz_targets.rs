//! All that reads the control protocol, as functions of bytes: for the fuzzers in `fuzz/` and for the test here.
//!
//! What is read must be the same when it was written and is read again. A message takes some tens of times its own
//! bytes in memory at most: parts that say nothing are short.

use bytes::Bytes;
use mooncake_test_support::FuzzTarget;
use prost::Message;

use crate::message::*;
use crate::{
    FRAME_BYTES_MAX, FrameReader, HELLO_FRAME_BYTES_MAX, RequestKind, encode_frame, pack_keys, unpack_groups,
    unpack_keys,
};

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 5] = [
    FuzzTarget { name: "control_frames", read: frames, seeds: frame_seeds },
    FuzzTarget { name: "control_hello", read: hello, seeds: hello_seeds },
    FuzzTarget { name: "control_request", read: request, seeds: request_seeds },
    FuzzTarget { name: "control_reply", read: reply, seeds: reply_seeds },
    FuzzTarget { name: "control_anchor", read: anchor, seeds: anchor_seeds },
];

/// The message, if it is one.
fn message<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let read = M::decode(Bytes::copy_from_slice(bytes)).ok()?;
    assert_eq!(M::decode(&*read.encode_to_vec()).as_ref(), Ok(&read));
    Some(read)
}

/// Bytes in two parts, cut where the first byte says.
fn frames(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    for limit in [HELLO_FRAME_BYTES_MAX, FRAME_BYTES_MAX] {
        let (mut reader, mut taken) = (FrameReader::default(), 0);
        let (one, two) = rest.split_at(rest.len().min(usize::from(*first)));
        for part in [one, two] {
            reader.buffer_mut().extend_from_slice(part);
            while let Ok(Some(frame)) = reader.next_frame(limit) {
                taken += 4 + frame.len();
                assert!(frame.len() <= limit);
            }
        }
        assert!(taken <= rest.len() && (taken < rest.len()) == reader.is_partial());
    }
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let mut both = vec![3];
    encode_frame(&Exists { keys: Some(pack_keys(&["a", "bc"])), sizes: true }, &mut both);
    encode_frame(&Ping {}, &mut both);
    vec![both, vec![0, 255, 255, 255, 255]]
}

fn hello(bytes: &[u8]) {
    let _ = (message::<Hello>(bytes), message::<HelloReply>(bytes));
}

fn hello_seeds() -> Vec<Vec<u8>> {
    let highest = Some(LogPosition { log_id: 7, epoch: 1, lsn: 9, epoch_id: 3 });
    let process =
        Some(ProcessIdentity { boot_id: vec![1; 16].into(), pid: 5, start_time: 6, pid_namespace: 7, mark: 8 });
    let open = OpenSession { host_name: "host:1".into(), process: process.clone(), claim: None };
    let resume = ResumeSession {
        session: 1,
        secret: 2,
        process,
        segments: vec![vec![3; 16].into()],
        pins: vec![4, 6],
        epoch_taken: 1,
        unsettled: vec![5],
        epochs: vec![1],
        ..ResumeSession::default()
    };
    let attach = AttachCall { session: 1, secret: 2 };
    let roles = [hello::Role::Open(open), hello::Role::Resume(resume), hello::Role::Attach(attach)];
    let hellos = roles.map(|role| {
        let hello = Hello { version_min: 1, version_max: 1, software: "test".into(), highest, ..Hello::default() };
        Hello { role: Some(role), ..hello }.encode_to_vec()
    });
    let refusal = Some(Refusal { kind: refusal::Kind::Token as i32, reason: "no".into() });
    let reply = HelloReply {
        version: 1,
        position: highest,
        instance: vec![1; 16].into(),
        refusal,
        unknown_pins: vec![4],
        ..HelloReply::default()
    };
    hellos.into_iter().chain([reply.encode_to_vec()]).collect()
}

fn request(bytes: &[u8]) {
    let Some(Request { body: Some(body), .. }) = message(bytes) else { return };
    assert!(RequestKind::ALL.contains(&RequestKind::of(&body)));
    use request::Body;
    let (keys, groups) = match body {
        Body::Exists(Exists { keys, .. }) | Body::Remove(Remove { keys, .. }) => (keys, None),
        Body::Lookup(Lookup { keys }) | Body::Pin(Pin { keys }) | Body::Describe(Describe { keys }) => (keys, None),
        Body::PutStart(PutStart { keys, groups, .. }) => (keys, groups),
        _ => return,
    };
    let Ok(read) = unpack_keys(&keys) else { return };
    let (count, total) = read.fold((0, 0), |(count, total), key| (count + 1, total + key.len()));
    assert_eq!(total, keys.map_or(0, |keys| keys.blob.len()));
    if let Ok(names) = unpack_groups(&groups, count) {
        assert!(names.is_empty() || names.len() == count);
    }
}

fn request_seeds() -> Vec<Vec<u8>> {
    use request::Body;
    let keys = || Some(pack_keys(&["a", "key", "another"]));
    let config = PutConfig { replica_num: 2, preferred_segments: vec!["host".into()], ..PutConfig::default() };
    let ended = Ended { replicas: vec![ReplicaOutcome { rid: 2, good: true }], crc32c: 5, stays: false };
    let endpoint = Endpoint { unix_socket: "u".into(), tcp: vec!["127.0.0.1:1".into()], ..Endpoint::default() };
    let segment =
        Segment { uuid: vec![1; 16].into(), name: "s".into(), endpoint: Some(endpoint), ..Segment::default() };
    let bodies = [
        Body::Exists(Exists { keys: keys(), sizes: true }),
        Body::Lookup(Lookup { keys: keys() }),
        Body::PutStart(PutStart {
            keys: keys(),
            sizes: vec![1, 2, 3],
            config: Some(config),
            wait: true,
            groups: keys(),
        }),
        Body::PutEnd(PutEnd { ended: vec![ended] }),
        Body::Abort(Abort { rids: vec![2, 4], writer_done: true }),
        Body::Unpin(Unpin { rids: vec![2] }),
        Body::Remove(Remove { keys: keys(), force: true }),
        Body::Mount(Mount { segment: Some(segment), populated: 9 }),
        Body::BadReplica(BadReplica {
            key: "k".into(),
            rid: 2,
            reason: "r".into(),
            more: vec![BadReplica { key: "l".into(), rid: 4, ..BadReplica::default() }],
        }),
        Body::Segments(Segments { numbers: vec![1, 2] }),
        Body::RemoveByRegex(RemoveByRegex { pattern: "a.*".into(), force: false }),
        Body::ClearReplicas(ClearReplicas { keys: keys(), segment: "a:1".into() }),
    ];
    let whole = |body| Request { id: 1, sequence: 2, abandoned: vec![3], body: Some(body), ..Request::default() };
    bodies.into_iter().map(|body| whole(body).encode_to_vec()).collect()
}

fn reply(bytes: &[u8]) {
    let _ = message::<Reply>(bytes);
}

fn reply_seeds() -> Vec<Vec<u8>> {
    use reply::Body;
    let replica = Replica { rid: 2, extents: vec![Extent { segment: 1, offset: 2, length: 3 }] };
    let object = Object { size: 3, crc32c: 4, replicas: vec![replica.clone()] };
    let slot = PutSlot { kind: put_slot::Kind::Placed as i32, replicas: vec![replica], reason: "r".into() };
    let segments = vec![SegmentName { number: 1, name: "s".into(), tier: true, ..SegmentName::default() }];
    let bodies = [
        Body::Exists(ExistsReply { found: vec![0, 1].into(), sizes: vec![0, 9], away: true }),
        Body::Lookup(LookupReply { objects: vec![object.clone()], away: true }),
        Body::Describe(DescribeReply { objects: vec![object], segments }),
        Body::PutStart(PutStartReply { slots: vec![slot] }),
        Body::PutEnd(PutEndReply { outcomes: vec![1, 2, 3, 99] }),
    ];
    bodies.into_iter().map(|body| Reply { id: 1, body: Some(body), ..Reply::default() }.encode_to_vec()).collect()
}

fn anchor(bytes: &[u8]) {
    let _ = (message::<AnchorUp>(bytes), message::<AnchorDown>(bytes));
}

fn anchor_seeds() -> Vec<Vec<u8>> {
    let uuid = || Bytes::from_static(&[1; 16]);
    let populated = vec![Populated { uuid: uuid(), bytes: 1, failed: true }];
    let beat = Beat { number: 1, moved: vec![2], populated, unpin: vec![4], unpin_sequence: 5 };
    let up = [
        anchor_up::Body::Beat(beat),
        anchor_up::Body::FenceDone(FenceDone { uuid: uuid(), rids: vec![2] }),
        anchor_up::Body::EpochTaken(EpochTaken { epoch: 2, segments: vec![uuid()] }),
        anchor_up::Body::ReaderGone(ReaderGone { session: 1, uuid: uuid(), mark: 2 }),
    ];
    let pinned = vec![Extent { segment: 1, offset: 2, length: 3 }];
    let down = [
        anchor_down::Body::Fence(Fence { uuid: uuid(), rid: 2, offset: 3, length: 4, writer: 5, writer_done: true }),
        anchor_down::Body::SegmentGone(SegmentGone { uuid: uuid(), number: 1, pinned }),
        anchor_down::Body::SessionOver(SessionOver { reason: "r".into() }),
    ];
    let up = up.map(|body| AnchorUp { body: Some(body) }.encode_to_vec());
    let down = down.map(|body| AnchorDown { body: Some(body) }.encode_to_vec());
    up.into_iter().chain(down).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_send_is_read_or_refused_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
