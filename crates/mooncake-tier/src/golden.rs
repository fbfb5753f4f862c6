//! What lies on a disk keeps its form: record, footer, superblock, names of files.

use mooncake_ids::{Rid, TierUuid};
use mooncake_test_support::Golden;

use crate::address::{Address, FileNumber, Geometry};
use crate::footer::Entries;
use crate::record::{self, Record, chunk_sums};
use crate::superblock::Superblock;

#[test]
fn what_lies_on_a_disk_is_what_it_was() {
    let mut golden = Golden::default();
    let tier = TierUuid(*b"0123456789abcdef");
    let value: Vec<u8> = (0..70_000_u32).map(|at| at as u8).collect();
    let (address, rid, object_id) = (Address(0x0102_0304_0506_0708), Rid::new(0x1112, 0x1314), Rid::new(0x1112, 0x21));
    for (name, value) in [("empty", &value[..0]), ("small", &value[..100]), ("two_chunks", &value[..])] {
        let record = Record { tier, address, rid, object_id, size: value.len() as u64, key: b"a key" };
        let mut header = Vec::new();
        record::encode(&record, &chunk_sums(value), &mut header);
        golden.bytes(format!("record.{name}"), header);
        let layout = record::Layout::of(record.key.len(), record.size).unwrap();
        golden.text(
            format!("layout.{name}"),
            format!("header {} value_at {} record {}", layout.header_bytes, layout.value_at, layout.record_bytes),
        );
    }
    let mut entries = Entries::default();
    entries.push(address, rid, 70_000, b"a key");
    entries.push(Address(9), Rid::new(1, 2), 0, b"");
    let footer = entries.encode(tier, FileNumber(0x3132), 16 << 20);
    golden.bytes("footer.entries", &footer[..2 * 28 + 5]);
    golden.bytes("footer.end", &footer[4096..4096 + 56]);
    let superblock = Superblock {
        tier,
        secret: *b"secret of 16 by.",
        log_id: 0x4142_4344_4546_4748,
        geometry: Geometry::of_file_blocks(0x1000).unwrap(),
        next_file: FileNumber(0x5152),
        synced_to: Address(0x6162),
        suspects: vec![FileNumber(0x71), FileNumber(0x72)],
        cluster_id: "mooncake_cluster".to_owned(),
        boot_id: b"boot".to_vec(),
        process: b"process".to_vec(),
    };
    let block = superblock.encode(0x8182);
    let used = block[..4092].iter().rposition(|byte| *byte != 0).unwrap() + 1;
    golden.bytes("superblock", &block[..used]);
    golden.bytes("superblock.end", &block[4092..]);
    golden.text("file", FileNumber(0x91).name());
    golden.check("disk.txt");
}
