//! All of the master that reads bytes of files and of others, as functions of bytes: for the fuzzers in `fuzz/` and for
//! the test here. The control protocol's messages are in `mooncake-wire`.
//!
//! What a frame announces is read as far as the file goes, 512 MiB at most; nothing is reserved before.

use mooncake_core::{Extent, PinKind, Record, RecordRef, Replica, SegmentNo, SegmentSpec, SessionSpec};
use mooncake_ids::{Rid, SegmentUuid, SessionId};
use mooncake_memory::crc32c;
use mooncake_test_support::FuzzTarget;
use mooncake_wire::message;
use prost::Message;

use crate::http::query;
use crate::log::frame::{self, Decoded, HEADER};
use crate::log::{FileHeader, FileKind, read_snapshot};
use crate::machine::convert;
use crate::machine::pattern::Pattern;

const LOG_ID: u64 = 5;

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 6] = [
    FuzzTarget { name: "log_frame", read: log_frame, seeds: log_frame_seeds },
    FuzzTarget { name: "log_records", read: log_records, seeds: log_record_seeds },
    FuzzTarget { name: "log_header", read: log_header, seeds: log_header_seeds },
    FuzzTarget { name: "snapshot", read: snapshot, seeds: snapshot_seeds },
    FuzzTarget { name: "segment_spec", read: segment_spec, seeds: segment_spec_seeds },
    FuzzTarget { name: "query", read: query, seeds: query_seeds },
];

fn log_frame(bytes: &[u8]) {
    match frame::decode(bytes, LOG_ID) {
        Decoded::Frame { lsn, payload, size } => {
            assert!(lsn > 0 && size == HEADER + payload.len() && size <= bytes.len());
            log_records(payload);
        }
        Decoded::Short(size) => assert!(size > bytes.len() && size <= HEADER + frame::PAYLOAD_BYTES_MAX),
        Decoded::Bad => {}
    }
    if let Some(lsn) = frame::find_later(bytes, LOG_ID, 1..=u64::MAX) {
        assert!(lsn > 0);
    }
}

fn log_frame_seeds() -> Vec<Vec<u8>> {
    let mut two = framed(&samples(), 1);
    two.extend(framed(&samples()[..1], 2));
    vec![two, framed(&[], 3)]
}

/// Records without a checksum before them.
fn log_records(bytes: &[u8]) {
    let read: Vec<Record> = frame::records(bytes).map_while(Result::ok).collect();
    assert!(read.len() <= bytes.len());
    let mut again = Vec::new();
    read.iter().for_each(|record| frame::put_record(record, &mut again));
    let back: Vec<Record> = frame::records(&again).map(|record| record.expect("it was read before")).collect();
    assert_eq!(back, read);
}

fn log_record_seeds() -> Vec<Vec<u8>> {
    vec![framed(&samples(), 1)[HEADER..].to_vec()]
}

fn log_header(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    if let Some((head, crc)) = sealed.get_mut(..64).and_then(|raw| raw.split_at_mut_checked(60)) {
        crc.copy_from_slice(&crc32c(head).to_le_bytes());
    }
    for raw in [bytes, &sealed] {
        if let Some(header) = FileHeader::decode(raw) {
            assert_eq!(FileHeader::decode(&header.encode()), Some(header));
        }
    }
}

fn log_header_seeds() -> Vec<Vec<u8>> {
    let header = |kind| FileHeader { kind, log_id: LOG_ID, lsn: 9, boot_id: [7; 16] };
    [FileKind::Log, FileKind::Snapshot].map(|kind| header(kind).encode().to_vec()).to_vec()
}

fn snapshot(bytes: &[u8]) {
    let path = std::env::temp_dir().join(format!("mooncake-decoders-{}.snap", std::process::id()));
    std::fs::write(&path, bytes).expect("a file");
    let mut records = 0;
    let read = read_snapshot(&path, 0, &mut |_: RecordRef<'_>| {
        records += 1;
        Ok(())
    });
    std::fs::remove_file(&path).expect("the same");
    assert!(records <= bytes.len());
    drop(read);
}

fn snapshot_seeds() -> Vec<Vec<u8>> {
    let header = FileHeader { kind: FileKind::Snapshot, log_id: LOG_ID, lsn: 9, boot_id: [7; 16] };
    vec![[&header.encode()[..], &framed(&samples(), 1), &framed(&[], 2)].concat()]
}

fn segment_spec(bytes: &[u8]) {
    let Ok(segment) = message::Segment::decode(bytes) else { return };
    if let Ok(spec) = convert::segment_spec(Some(segment)) {
        assert!(!spec.name.is_empty() && spec.endpoint.len() <= bytes.len() + 64);
        message::Endpoint::decode(&*spec.endpoint).expect("it was one before");
    }
}

fn segment_spec_seeds() -> Vec<Vec<u8>> {
    let endpoint = message::Endpoint { tcp: vec!["127.0.0.1:1".into()], ..message::Endpoint::default() };
    let segment = message::Segment {
        uuid: vec![1; 16].into(),
        name: "s".into(),
        bytes: 1 << 30,
        endpoint: Some(endpoint),
        ..message::Segment::default()
    };
    vec![segment.encode_to_vec()]
}

/// What stands in an address of the HTTP pages, and patterns that keys are removed by.
fn query(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(value) = query::parameter(Some(text), "key") {
        assert!(query::decode(value).len() <= value.len());
    }
    if let Ok(pattern) = Pattern::new(text) {
        let _ = pattern.is_in(bytes);
    }
}

fn query_seeds() -> Vec<Vec<u8>> {
    ["key=a%20b&other=%zz", "^(a|b{2,5})+[[:alpha:]]$", "(?i)x{1000}{1000}"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

fn samples() -> Vec<Record> {
    let extent = Extent { segment: SegmentNo(1), offset: 4096, length: 100 };
    let spec = SegmentSpec { uuid: SegmentUuid([1; 16]), name: "s".into(), bytes: 1 << 30, endpoint: vec![1, 2] };
    let client = SessionSpec { secret: 1, name: "c".into(), boot_id: vec![1; 16], process: vec![2] };
    let (session, key): (_, Box<[u8]>) = (SessionId(3), (*b"key").into());
    let replicas = [Replica { rid: Rid(8), extent }].into_iter().collect();
    vec![
        Record::Epoch(7),
        Record::SessionOpened { session, spec: client },
        Record::SegmentMounted { number: SegmentNo(1), session, spec, epoch: 7 },
        Record::Reserved { session, key: key.clone(), size: 100, pin: PinKind::Hard, replicas },
        Record::Committed { reservation: Rid(8), good: [Rid(8)].into_iter().collect(), crc32c: 5 },
        Record::Pinned { session, rid: Rid(8), extent, key: Some(key.clone()) },
        Record::Removed { key, rid: Rid(8) },
        Record::SessionOver(session),
    ]
}

fn framed(records: &[Record], lsn: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let start = frame::begin(&mut out);
    records.iter().for_each(|record| frame::put_record(record, &mut out));
    frame::finish(&mut out, start, LOG_ID, lsn);
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_send_is_read_or_refused_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
