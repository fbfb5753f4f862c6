//! The end of a sealed file: its records in their order, so that reclaiming it reads no header.
//!
//! ```text
//! entries: u64 address, u64 rid, u64 bytes of the value, u32 bytes of the key, the key; zeros up to a block
//! the last block of the file:
//! 0   u32  magic "MTF1"
//! 4   u32  entries
//! 8   u64  number of the file
//! 16  [16] UUID of the tier
//! 32  u64  blocks from the start of the file to the entries
//! 40  u64  bytes of the entries
//! 48  u32  CRC-32C of the entries
//! 52  u32  CRC-32C of the 52 bytes before
//! ```

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::crc32c;

use crate::address::{Address, BLOCK, FileNumber};
use crate::record::KEY_BYTES_MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"MTF1");
const ENTRY_FIXED: usize = 28;
const TAIL: usize = 56;

/// One record of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it lies.
    pub address: Address,
    /// The placement that it is.
    pub rid: Rid,
    /// Bytes of the value.
    pub size: u64,
    /// The object's key.
    pub key: Vec<u8>,
}

/// Entries of a file while it is written, encoded.
#[derive(Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    count: u32,
}

impl Entries {
    /// Appends one.
    pub fn push(&mut self, address: Address, rid: Rid, size: u64, key: &[u8]) {
        for number in [address.0, rid.0, size] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.count += 1;
    }

    /// Bytes of the footer with one more entry of such a key, whole blocks.
    pub fn footer_bytes_with(&self, key_bytes: usize) -> u64 {
        footer_bytes((self.bytes.len() + ENTRY_FIXED + key_bytes) as u64)
    }

    /// Bytes of the footer, whole blocks.
    pub fn footer_bytes(&self) -> u64 {
        footer_bytes(self.bytes.len() as u64)
    }

    /// The same, one by one.
    pub fn decoded(&self) -> Vec<Entry> {
        decode(&self.bytes).unwrap_or_default()
    }

    /// The footer, which ends with the file of that many bytes.
    pub fn encode(&self, tier: TierUuid, file: FileNumber, file_bytes: u64) -> Vec<u8> {
        let mut out = self.bytes.clone();
        let crc = crc32c(&out);
        out.resize((self.footer_bytes() - BLOCK) as usize, 0);
        let tail = out.len();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&file.0.to_le_bytes());
        out.extend_from_slice(&tier.0);
        out.extend_from_slice(&((file_bytes - self.footer_bytes()) / BLOCK).to_le_bytes());
        out.extend_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        let crc = crc32c(&out[tail..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(tail + BLOCK as usize, 0);
        out
    }
}

fn footer_bytes(entries: u64) -> u64 {
    entries.next_multiple_of(BLOCK) + BLOCK
}

/// What the last block of a sealed file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Where the entries begin, bytes from the start of the file.
    pub entries_at: u64,
    /// Bytes of the entries.
    pub entries_bytes: u64,
    count: u32,
    crc: u32,
}

impl Tail {
    /// None if the block is no end of that file: it is not sealed, or its end is damaged.
    pub fn decode(block: &[u8], tier: TierUuid, file: FileNumber, file_bytes: u64) -> Option<Tail> {
        let tail: &[u8; TAIL] = block.first_chunk()?;
        let u32_at = |at: usize| u32::from_le_bytes(tail[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(tail[at..at + 8].try_into().expect("8 bytes"));
        let is_its = (u32_at(0), u64_at(8), &tail[16..32]) == (MAGIC, file.0, &tier.0[..]);
        if !is_its || crc32c(&tail[..52]) != u32_at(52) {
            return None;
        }
        let (at, bytes) = (u64_at(32).checked_mul(BLOCK)?, u64_at(40));
        let is_whole = at.checked_add(bytes)?.checked_next_multiple_of(BLOCK)?.checked_add(BLOCK)? == file_bytes;
        is_whole.then_some(Tail { entries_at: at, entries_bytes: bytes, count: u32_at(4), crc: u32_at(48) })
    }

    /// The entries, if these bytes are them.
    pub fn entries(&self, bytes: &[u8]) -> Option<Vec<Entry>> {
        if bytes.len() as u64 != self.entries_bytes || crc32c(bytes) != self.crc {
            return None;
        }
        decode(bytes).filter(|entries| entries.len() as u64 == u64::from(self.count))
    }
}

/// None if these bytes are no entries.
fn decode(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (fixed, behind) = rest.split_first_chunk::<ENTRY_FIXED>()?;
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        let key_bytes = u32::from_le_bytes(fixed[24..28].try_into().expect("4 bytes")) as usize;
        if key_bytes > KEY_BYTES_MAX {
            return None;
        }
        let (key, behind) = behind.split_at_checked(key_bytes)?;
        let (address, rid) = (Address(u64_at(0)), Rid(u64_at(8)));
        entries.push(Entry { address, rid, size: u64_at(16), key: key.to_vec() });
        rest = behind;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIER: TierUuid = TierUuid([9; 16]);
    const FILE_BYTES: u64 = 16 << 20;

    fn read(footer: &[u8], file: FileNumber, file_bytes: u64) -> Option<Vec<Entry>> {
        let tail = Tail::decode(&footer[footer.len() - BLOCK as usize..], TIER, file, file_bytes)?;
        assert_eq!(tail.entries_at, FILE_BYTES - footer.len() as u64);
        tail.entries(&footer[..tail.entries_bytes as usize])
    }

    fn entries(all: &[(u64, u64, u64, Vec<u8>)]) -> (Entries, Vec<Entry>) {
        let mut encoded = Entries::default();
        let mut plain = Vec::new();
        for (address, rid, size, key) in all {
            encoded.push(Address(*address), Rid(*rid), *size, key);
            plain.push(Entry { address: Address(*address), rid: Rid(*rid), size: *size, key: key.clone() });
        }
        (encoded, plain)
    }

    #[test]
    fn a_footer_of_another_file_or_with_a_flipped_bit_is_none() {
        let (encoded, plain) = entries(&[(1, 2, 3, b"key".to_vec()), (4, 6, 0, vec![])]);
        let footer = encoded.encode(TIER, FileNumber(5), FILE_BYTES);
        assert_eq!(encoded.decoded(), plain);
        assert_eq!(read(&footer, FileNumber(5), FILE_BYTES), Some(plain));
        assert_eq!(read(&footer, FileNumber(6), FILE_BYTES), None);
        assert_eq!(read(&footer, FileNumber(5), 2 * FILE_BYTES), None);
        let (entries, tail) = (2 * ENTRY_FIXED + 3, BLOCK as usize + TAIL);
        for at in (0..entries).chain(BLOCK as usize..tail) {
            let mut other = footer.clone();
            other[at] ^= 1 << (at % 8);
            assert_eq!(read(&other, FileNumber(5), FILE_BYTES), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_again(
            all in prop::collection::vec((any::<[u64; 3]>(), prop::collection::vec(any::<u8>(), 0..90)), 0..200)
        ) {
            let all: Vec<_> = all.into_iter().map(|([address, rid, size], key)| (address, rid, size, key)).collect();
            let (encoded, plain) = entries(&all);
            let footer = encoded.encode(TIER, FileNumber(5), FILE_BYTES);
            prop_assert_eq!(footer.len() as u64, encoded.footer_bytes());
            prop_assert!(encoded.footer_bytes_with(90) >= encoded.footer_bytes());
            prop_assert_eq!(read(&footer, FileNumber(5), FILE_BYTES), Some(plain));
        }
    }
}
