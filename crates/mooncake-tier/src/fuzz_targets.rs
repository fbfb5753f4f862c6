//! All that reads what lies on a disk, as functions of bytes: for the fuzzers in `fuzz/` and for the test here.

use mooncake_ids::{Rid, TierUuid};
use mooncake_test_support::FuzzTarget;

use crate::address::{Address, BLOCK, FileNumber, Geometry};
use crate::footer::{Entries, Tail};
use crate::record::{self, Header, Record, chunk_sums};
use crate::superblock::Superblock;

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 3] = [
    FuzzTarget { name: "tier_record", read: read_record, seeds: record_seeds },
    FuzzTarget { name: "tier_footer", read: read_footer, seeds: footer_seeds },
    FuzzTarget { name: "tier_superblock", read: read_superblock, seeds: superblock_seeds },
];

const TIER: TierUuid = TierUuid([7; 16]);
const FILE: FileNumber = FileNumber(3);
const FILE_BYTES: u64 = 4 * BLOCK;

/// A header that is one is the same when it is written again.
fn read_record(bytes: &[u8]) {
    let Ok(header) = Header::decode(bytes) else { return };
    let sums: Vec<u32> = (0..).map_while(|chunk| header.sum(chunk)).collect();
    let mut again = Vec::new();
    record::encode(&header.record, &sums, &mut again);
    assert_eq!(again.len() as u64, header.layout().header_bytes);
    assert_eq!(again, bytes[..again.len()]);
}

fn record_seeds() -> Vec<Vec<u8>> {
    let seed = |key: &[u8], value: &[u8]| {
        let (rid, object_id) = (Rid::new(1, 9), Rid::new(1, 3));
        let record = Record { tier: TIER, address: Address(5), rid, object_id, size: value.len() as u64, key };
        let mut out = Vec::new();
        record::encode(&record, &chunk_sums(value), &mut out);
        out
    };
    vec![seed(b"key", b"value"), seed(b"", &vec![1; 200_000])]
}

/// A file of four blocks: what its end says is inside of it.
fn read_footer(bytes: &[u8]) {
    let mut file = vec![0; FILE_BYTES as usize];
    let len = bytes.len().min(file.len());
    file[FILE_BYTES as usize - len..].copy_from_slice(&bytes[bytes.len() - len..]);
    let Some(tail) = Tail::decode(&file[(FILE_BYTES - BLOCK) as usize..], TIER, FILE, FILE_BYTES) else { return };
    let entries = &file[tail.entries_at as usize..][..tail.entries_bytes as usize];
    if let Some(entries) = tail.entries(entries) {
        let mut again = Entries::default();
        entries.iter().for_each(|entry| again.push(entry.address, entry.rid, entry.size, &entry.key));
        assert!(again.footer_bytes() <= FILE_BYTES);
    }
}

fn footer_seeds() -> Vec<Vec<u8>> {
    let mut entries = Entries::default();
    let empty = entries.encode(TIER, FILE, FILE_BYTES);
    entries.push(Address(1), Rid::new(1, 2), 3, b"key");
    entries.push(Address(4), Rid::new(1, 5), 0, b"");
    vec![empty, entries.encode(TIER, FILE, FILE_BYTES)]
}

fn read_superblock(bytes: &[u8]) {
    let (one, two) = bytes.split_at(bytes.len().min(BLOCK as usize));
    let Ok((superblock, sequence)) = Superblock::decode([one, two]) else { return };
    assert_eq!(Superblock::decode([&superblock.encode(sequence), &[]]), Ok((superblock, sequence)));
}

fn superblock_seeds() -> Vec<Vec<u8>> {
    let superblock = Superblock {
        tier: TIER,
        secret: [8; 16],
        log_id: 9,
        geometry: Geometry::of_file_blocks(4096).expect("tiers have such files"),
        next_file: FileNumber(10),
        synced_to: Address(11),
        suspects: vec![FileNumber(12)],
        cluster_id: "cluster".to_owned(),
        boot_id: vec![13; 16],
        process: vec![14; 40],
    };
    vec![superblock.encode(1), [superblock.encode(2), superblock.encode(3)].concat()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_lies_on_a_disk_is_read_or_passed_over_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
