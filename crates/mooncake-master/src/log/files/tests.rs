use super::*;

#[test]
fn a_header_with_any_byte_changed_is_none() {
    for kind in [FileKind::Log, FileKind::Snapshot] {
        let header = FileHeader { kind, log_id: 5, lsn: 9, boot_id: [7; 16] };
        let bytes = header.encode();
        assert_eq!(FileHeader::decode(&bytes), Some(header));
        assert_eq!(FileHeader::decode(&[&bytes[..], b"frames"].concat()), Some(header));
        assert_eq!(FileHeader::decode(&bytes[..63]), None);
        for at in 0..FILE_HEADER {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert_eq!(FileHeader::decode(&bytes), None, "byte {at}");
        }
    }
}

#[test]
fn a_header_of_another_format_is_none_though_its_sum_is_right() {
    let mut bytes = FileHeader { kind: FileKind::Log, log_id: 5, lsn: 9, boot_id: [7; 16] }.encode();
    bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    let sum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(FileHeader::decode(&bytes), None);
}

#[test]
fn files_of_a_log_are_listed_in_the_order_of_their_numbers_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["log-0000000000000010.wal", "log-0000000000000009.wal", "log-000000000000000a.wal"];
    let others = ["log-0000000000000001.tmp", "log-1.lost", "log-x.wal", "snapshot-0000000000000002.snap", "note.wal"];
    for name in names.iter().chain(&others) {
        std::fs::write(folder.path().join(name), b"").unwrap();
    }
    let listed = |kind| list(folder.path(), kind).unwrap().into_iter().map(|(lsn, _)| lsn).collect::<Vec<u64>>();
    assert_eq!((listed(FileKind::Log), listed(FileKind::Snapshot)), (vec![9, 10, 16], vec![2]));
}
