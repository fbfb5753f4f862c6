//! What the log's files have in them is what it was: each record, frames, headers and the witness.
//! `crates/mooncake-master/tests/logs` has whole logs.

use std::fs;
use std::path::Path;

use mooncake_core::{
    EndOutcome, Epoch, Extent, Found, PinKind, Record, RecordRef, Refused, Remembered, RemoveOutcome, Replica,
    SegmentNo, SegmentSpec, SessionSpec, StartOutcome, TierSpec, Verdict,
};
use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid, SessionId, TierUuid};
use mooncake_test_support::{Golden, every};

use super::files::{FileHeader, FileKind};
use super::frame;
use super::snapshot::SnapshotFile;
use super::witness::Witness;

const UUID: SegmentUuid = SegmentUuid(*b"0123456789abcdef");
const SESSION: SessionId = SessionId(1 << 32 | 1);
const SEGMENT: SegmentNo = SegmentNo(1025);
const RID: Rid = Rid::new(1, 1);
const OTHER: Rid = Rid::new(2, 1 << 40);
const EXTENT: Extent = Extent { segment: SEGMENT, offset: 1 << 34, length: 5000 };

/// As the log writes it. It is read as it was written, with keys of its own and where they lie.
fn record(golden: &mut Golden, name: impl Into<String>, record: &Record) {
    let mut bytes = Vec::new();
    frame::put_record(record, &mut bytes);
    let read: Vec<Record> = frame::records(&bytes).map(Result::unwrap).collect();
    assert_eq!(read, std::slice::from_ref(record));
    let read: Vec<RecordRef<'_>> = frame::records(&bytes).map(Result::unwrap).collect();
    assert_eq!(format!("{read:?}"), format!("[{record:?}]"));
    golden.bytes(name, bytes);
}

fn replica(rid: Rid) -> Replica {
    Replica { rid, extent: EXTENT }
}

fn key() -> Box<[u8]> {
    b"key".as_slice().into()
}

fn object(pin: PinKind) -> Record {
    Record::Object { key: key(), size: 5000, crc32c: 0xdead_beef, pin, replicas: vec![replica(RID)].into() }
}

fn replied(reply: Remembered) -> Record {
    Record::Replied { session: SESSION, sequence: 300, answered_below: 299, reply }
}

#[test]
fn records_are_what_they_were() {
    let mut golden = Golden::default();
    let (size, crc32c, pin) = (5000, 0xdead_beef, PinKind::Soft { ttl_ms: 600_000 });
    let replicas = || vec![replica(RID), replica(OTHER)].into();
    let group = || b"group".as_slice().into();
    let (name, boot_id, process) = (String::from("host:1"), vec![0x41; 16], vec![0x42; 3]);
    let spec = SessionSpec { secret: 0x3132_3334_3536_3738, name, boot_id, process };
    let (tier_name, endpoint) = (String::from("host:1"), vec![0x43; 3]);
    let (uuid, secret, bytes, file_blocks) = (TierUuid(UUID.0), [0x44; 16], 1 << 40, 65_536);
    let tier = TierSpec { uuid, secret, name: tier_name, bytes, file_blocks, endpoint };
    let shared_tier = tier.clone();
    let segment = SegmentSpec { uuid: UUID, name: "segment".into(), bytes: 1 << 36, endpoint: vec![0x43; 3] };
    for (name, one) in every!(Record {
        Epoch(300),
        SessionOpened { session: SESSION, spec: spec },
        SessionOver(SESSION),
        SegmentMounted { number: SEGMENT, session: SESSION, spec: segment, epoch: 300 },
        SegmentTookEpoch { number: SEGMENT, epoch: 300 },
        SegmentPopulated { number: SEGMENT, bytes: 1 << 33 },
        SegmentGone(SEGMENT),
        SegmentForgotten { uuid: UUID, number: SEGMENT },
        Reserved { session: SESSION, key: key(), size: size, pin: pin, replicas: replicas() },
        Committed { reservation: RID, good: vec![RID, OTHER].into(), crc32c: crc32c },
        Dropped(RID),
        Released(RID),
        Removed { key: key(), rid: RID },
        ReplicaDropped { key: key(), rid: RID },
        Pinned { session: SESSION, rid: RID, extent: EXTENT, key: Some(key()) },
        Unpinned { session: SESSION, rid: RID },
        Replied { session: SESSION, sequence: 300, answered_below: 299, reply: Remembered::Done },
        Object { key: key(), size: size, crc32c: crc32c, pin: pin, replicas: replicas() },
        Quarantined { replica: replica(RID), writer: SESSION, writer_done: true },
        Counters { epoch: 300, rid: 1 << 40, session: 1 << 33, segment: 1025 },
        WriterDone(RID),
        SegmentEnds { number: SEGMENT, bytes: 1 << 33 },
        ReservedWith {
            session: SESSION, key: key(), size: size, pin: pin, replicas: replicas(), group: group(), replaces: true
        },
        GroupedObject {
            key: key(), size: size, crc32c: crc32c, pin: pin, replicas: replicas(), group: group()
        },
        SegmentLeaves { number: SEGMENT, grace_ms: 5000 },
        CommittedBy { session: SESSION, rids: vec![RID, OTHER] },
        TierSeen { number: SEGMENT, session: SESSION, spec: tier, head: 9 },
        TierRids { from: RID, count: 4_096 },
        TierAdded { key: key(), object_id: RID, replica: replica(OTHER) },
        TieredObject {
            key: key(), size: size, crc32c: crc32c, pin: pin, replicas: replicas(), group: group(), object_id: RID,
            tier: Some(replica(OTHER))
        },
        Promoting { session: SESSION, key: key(), object_id: RID, size: size, replica: replica(OTHER) },
        ReplicaAdded { rid: OTHER },
        SessionKept { session: SESSION, ms: 60_000, secret: [0x44; 16], turn: 1 << 33 },
        SegmentMoved { number: SEGMENT, session: SESSION, endpoint: vec![0x43; 3] },
        SharedTierSeen {
            number: SEGMENT, session: SESSION, spec: shared_tier, head: 9, file_system: FileSystemUuid([0x45; 16])
        },
    }) {
        record(&mut golden, format!("record.{name}"), &one);
    }
    record(
        &mut golden,
        "pinned.without_key",
        &Record::Pinned { session: SESSION, rid: RID, extent: EXTENT, key: None },
    );
    record(&mut golden, "removed.of_a_long_key", &Record::Removed { key: vec![0x6b; 200].into(), rid: RID });
    for (name, pin) in every!(PinKind { None, Soft { ttl_ms: 600_000 }, Hard, Cleared }) {
        record(&mut golden, format!("pin.{name}"), &object(pin));
    }
    golden.check("records.txt");
}

#[test]
fn remembered_replies_are_what_they_were() {
    let mut golden = Golden::default();
    let found = Found { size: 5000, crc32c: 0xdead_beef, replicas: vec![replica(RID)].into() };
    for (name, reply) in every!(Remembered {
        PutStart(vec![StartOutcome::Exists, StartOutcome::Exists]),
        PutEnd(vec![EndOutcome::Committed, EndOutcome::Aborted]),
        Pin(vec![None, Some(found)]),
        Remove(vec![RemoveOutcome::Removed, RemoveOutcome::Busy]),
        RemoveAll(1 << 33),
        Mount(SEGMENT),
        Done,
        Refused(Refused::UnknownSession(1 << 33)),
        Reclaim(vec![Verdict::Dead, Verdict::Dropped, Verdict::Keep(RID)]),
    }) {
        record(&mut golden, format!("reply.{name}"), &replied(reply));
    }
    let why = || String::from("why");
    for (name, slot) in every!(StartOutcome {
        Placed(vec![replica(RID), replica(OTHER)].into()),
        Exists,
        Busy(why()),
        Full(why()),
        TooLarge(why()),
        Refused(why().into()),
    }) {
        record(&mut golden, format!("slot.{name}"), &replied(Remembered::PutStart(vec![slot])));
    }
    for (name, outcome) in every!(EndOutcome { Committed, Superseded, Aborted, Hidden }) {
        // The golden line keeps the name that it began with.
        let name = if outcome == EndOutcome::Aborted { "Revoked" } else { name };
        record(&mut golden, format!("end.{name}"), &replied(Remembered::PutEnd(vec![outcome])));
    }
    for (name, outcome) in every!(RemoveOutcome { Removed, Missing, Protected, Busy }) {
        record(&mut golden, format!("remove.{name}"), &replied(Remembered::Remove(vec![outcome])));
    }
    let refused = [
        Refused::UnknownSession(1 << 33),
        Refused::WrongSecret(1 << 33),
        Refused::SegmentGone(UUID.0),
        Refused::SegmentTaken(UUID.0, 1 << 33),
        Refused::SegmentSize(1 << 43),
        Refused::Forgotten { sequence: 300, answered_below: 301 },
        Refused::SequenceReused { session: 1 << 33, sequence: 300 },
        Refused::TooManyUnanswered(1 << 33, 1025, 1024),
        Refused::TooManySessions(1025),
        Refused::Abandoned { sequence: 300 },
        Refused::TierUnknown(TierUuid(UUID.0)),
        Refused::TierTaken(TierUuid(UUID.0), 1 << 33),
        Refused::TierSecret(TierUuid(UUID.0)),
        Refused::TierSize(TierUuid(UUID.0), 1 << 40, 0),
        Refused::TiersNotAllowed,
        Refused::NotKept,
        Refused::OldClaim(300, 1 << 33),
        Refused::TierAdopted(TierUuid(UUID.0)),
        Refused::TierTooLate(TierUuid(UUID.0)),
        Refused::SessionAway(1 << 33),
    ];
    // No match outside of the core is one without a wildcard: so there is no further one that could be read.
    let next = [&[refused.len() as u8][..], &[0; 64]].concat();
    assert!(postcard::take_from_bytes::<Refused>(&next).is_err(), "one more has no line here");
    for refused in refused {
        let name = format!("{refused:?}");
        let name = name.split([' ', '(']).next().expect("a variant's name");
        record(&mut golden, format!("refused.{name}"), &replied(Remembered::Refused(refused)));
    }
    golden.check("remembered_replies.txt");
}

/// Names and contents of the files in a folder.
fn files(golden: &mut Golden, what: &str, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        golden.text(format!("{what}.name"), entry.file_name().into_string().unwrap());
        golden.bytes(what, fs::read(entry.path()).unwrap());
    }
}

#[test]
fn files_are_what_they_were() {
    let mut golden = Golden::default();
    let (log_id, lsn, boot_id) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718, UUID.0);
    for (name, kind) in every!(FileKind { Log, Snapshot }) {
        // The golden lines keep the name that they began with.
        let name = if kind == FileKind::Log { "Segment" } else { name };
        let header = FileHeader { kind, log_id, lsn, boot_id };
        assert_eq!(FileHeader::decode(&header.encode()), Some(header));
        golden.text(format!("{name}.name"), header.file_name());
        golden.bytes(format!("{name}.header"), header.encode());
    }
    let mut bytes = Vec::new();
    let start = frame::begin(&mut bytes);
    frame::put_record(&Record::Epoch(300), &mut bytes);
    frame::put_record(&Record::Dropped(RID), &mut bytes);
    frame::finish(&mut bytes, start, log_id, lsn);
    let (payload, size) = (&bytes[frame::HEADER..], bytes.len());
    assert_eq!(frame::decode(&bytes, log_id), frame::Decoded::Frame { lsn, payload, size });
    golden.bytes("frame", &bytes);

    let scratch = tempfile::tempdir().unwrap();
    let header = FileHeader { kind: FileKind::Snapshot, log_id, lsn, boot_id };
    let mut snapshot = SnapshotFile::create(scratch.path(), &header).unwrap();
    snapshot.put_last(&Record::Dropped(RID));
    snapshot.put(&object(PinKind::None)).unwrap();
    snapshot.finish().unwrap();
    files(&mut golden, "snapshot", scratch.path());
    drop(scratch);

    let scratch = tempfile::tempdir().unwrap();
    let mut witness = Witness::anew(scratch.path(), log_id, None).unwrap();
    witness.store_raised(lsn, Epoch { number: 300, id: 0x8101_0203 }).unwrap();
    files(&mut golden, "witness", scratch.path());
    golden.check("files.txt");
}
