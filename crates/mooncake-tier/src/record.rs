//! A record: the header and the value of one object. The header says of which tier, at which address and for which
//! placement it was written, so that bytes that lie elsewhere, or are of an earlier record, prove nothing.
//!
//! ```text
//! 0   u32  magic "MTR1"
//! 4   u32  version, 1
//! 8   u64  address, blocks
//! 16  [16] UUID of the tier
//! 32  u64  rid
//! 40  u64  object id
//! 48  u64  bytes of the value
//! 56  u32  bytes of the key
//! 60  u32  0
//! 64       key; a CRC-32C (u32) of each chunk of 64 KiB of the value; CRC-32C of the header before it
//! ```
//!
//! Integers are little-endian. The value begins at the next block, or right behind the header where both fit
//! [`TOGETHER_BYTES_MAX`]; zeros fill the last block.

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::{crc32c, crc32c_combine};

use crate::address::{Address, BLOCK};

/// Bytes of a value that have a checksum of their own.
pub const CHUNK: u64 = 64 << 10;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// Header and value up to so many bytes lie side by side.
pub const TOGETHER_BYTES_MAX: u64 = 32 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"MTR1");
const VERSION: u32 = 1;
const FIXED: usize = 64;

/// What a header says beside its checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The tier that it was written for.
    pub tier: TierUuid,
    /// Its own address.
    pub address: Address,
    /// The placement that it is.
    pub rid: Rid,
    /// The object's id: the lowest rid with which it was committed.
    pub object_id: Rid,
    /// Bytes of the value.
    pub size: u64,
    /// The object's key.
    pub key: &'a [u8],
}

/// Where the parts of a record lie, in bytes from its start. Length of the key and size decide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the header.
    pub header_bytes: u64,
    /// Where the value begins.
    pub value_at: u64,
    /// Bytes of the record, whole blocks.
    pub record_bytes: u64,
}

impl Layout {
    /// None for a key or a size that no record has.
    pub fn of(key_bytes: usize, size: u64) -> Option<Layout> {
        if key_bytes > KEY_BYTES_MAX {
            return None;
        }
        let sums = size.div_ceil(CHUNK).checked_mul(4)?;
        let header_bytes = sums.checked_add((FIXED + key_bytes + 4) as u64)?;
        let together = header_bytes.checked_add(size)?;
        let value_at = match together <= TOGETHER_BYTES_MAX {
            true => header_bytes,
            false => header_bytes.checked_next_multiple_of(BLOCK)?,
        };
        let record_bytes = value_at.checked_add(size)?.checked_next_multiple_of(BLOCK)?;
        Some(Layout { header_bytes, value_at, record_bytes })
    }
}

/// Checksums of the chunks of a value.
pub fn chunk_sums(value: &[u8]) -> Vec<u32> {
    value.chunks(CHUNK as usize).map(crc32c).collect()
}

/// Appends a header. `sums` are those of the value's chunks.
pub fn encode(record: &Record<'_>, sums: &[u32], out: &mut Vec<u8>) {
    debug_assert_eq!(sums.len() as u64, record.size.div_ceil(CHUNK));
    let start = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&record.address.0.to_le_bytes());
    out.extend_from_slice(&record.tier.0);
    out.extend_from_slice(&record.rid.0.to_le_bytes());
    out.extend_from_slice(&record.object_id.0.to_le_bytes());
    out.extend_from_slice(&record.size.to_le_bytes());
    out.extend_from_slice(&(record.key.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(record.key);
    sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
    let crc = crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAHeader {
    /// There may be one, of so many bytes.
    #[error("a header of {0} bytes is not there whole")]
    Short(u64),
    /// They are something else, or a header that was damaged.
    #[error("the bytes are no header of a record, or a damaged one")]
    Other,
}

/// A header that its own checksum proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// What it says.
    pub record: Record<'a>,
    sums: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the header that bytes begin with.
    pub fn decode(bytes: &'a [u8]) -> Result<Header<'a>, NotAHeader> {
        let fixed: &[u8; FIXED] = bytes.first_chunk().ok_or(NotAHeader::Short(FIXED as u64))?;
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        if (u32_at(0), u32_at(4), u32_at(60)) != (MAGIC, VERSION, 0) {
            return Err(NotAHeader::Other);
        }
        let (size, key_bytes) = (u64_at(48), u32_at(56) as usize);
        let layout = Layout::of(key_bytes, size).ok_or(NotAHeader::Other)?;
        let whole = usize::try_from(layout.header_bytes).ok().and_then(|len| bytes.get(..len));
        let whole = whole.ok_or(NotAHeader::Short(layout.header_bytes))?;
        let (covered, crc) = whole.split_last_chunk().expect("a header has its checksum");
        if crc32c(covered) != u32::from_le_bytes(*crc) {
            return Err(NotAHeader::Other);
        }
        let (key, sums) = covered[FIXED..].split_at(key_bytes);
        let record = Record {
            tier: TierUuid(fixed[16..32].try_into().expect("16 bytes")),
            address: Address(u64_at(8)),
            rid: Rid(u64_at(32)),
            object_id: Rid(u64_at(40)),
            size,
            key,
        };
        Ok(Header { record, sums })
    }

    /// Where the record's parts lie.
    pub fn layout(&self) -> Layout {
        Layout::of(self.record.key.len(), self.record.size).expect("it was decoded")
    }

    /// Checksum of the value, by those of its chunks.
    pub fn value_sum(&self) -> u32 {
        let size = self.record.size;
        (0..size.div_ceil(CHUNK)).fold(0, |whole, chunk| {
            let sum = self.sum(chunk).expect("it has one for each chunk");
            crc32c_combine(whole, sum, CHUNK.min(size - chunk * CHUNK))
        })
    }

    /// Checksum of a chunk of the value.
    pub fn sum(&self, chunk: u64) -> Option<u32> {
        let at = usize::try_from(chunk).ok()?.checked_mul(4)?;
        Some(u32::from_le_bytes(self.sums.get(at..at + 4)?.try_into().expect("4 bytes")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(key: &[u8], size: u64) -> Record<'_> {
        let (rid, object_id) = (Rid::new(3, 9), Rid::new(3, 4));
        Record { tier: TierUuid([7; 16]), address: Address(4711), rid, object_id, size, key }
    }

    #[test]
    fn small_values_lie_behind_their_headers_and_others_at_the_next_block() {
        let layout = |key, size| Layout::of(key, size).unwrap();
        assert_eq!(layout(8, 0), Layout { header_bytes: 76, value_at: 76, record_bytes: 4096 });
        assert_eq!(layout(8, 100), Layout { header_bytes: 80, value_at: 80, record_bytes: 4096 });
        assert_eq!(layout(8, 32_688), Layout { header_bytes: 80, value_at: 80, record_bytes: 32_768 });
        assert_eq!(layout(8, 32_689), Layout { header_bytes: 80, value_at: 4096, record_bytes: 36_864 });
        let large = layout(8, 1 << 20);
        assert_eq!(large, Layout { header_bytes: 64 + 8 + 16 * 4 + 4, value_at: 4096, record_bytes: 4096 + (1 << 20) });
        assert_eq!(Layout::of(KEY_BYTES_MAX + 1, 1), None);
        assert_eq!([u64::MAX, u64::MAX - 4096].map(|size| Layout::of(1, size)), [None; 2]);
    }

    #[test]
    fn a_flipped_bit_of_a_header_is_found_wherever_it_is() {
        let value = vec![5; 200_000];
        let mut bytes = Vec::new();
        encode(&record(b"a key", 200_000), &chunk_sums(&value), &mut bytes);
        assert!(Header::decode(&bytes).is_ok());
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&other).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(matches!(Header::decode(&bytes[..len]), Err(NotAHeader::Short(_))), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_again(key in prop::collection::vec(any::<u8>(), 0..300), size in 0_u64..400_000) {
            let value: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut bytes = vec![1, 2, 3];
            encode(&record(&key, size), &chunk_sums(&value), &mut bytes);
            let header = Header::decode(&bytes[3..]).unwrap();
            prop_assert_eq!(header.record, record(&key, size));
            prop_assert_eq!(header.layout().header_bytes, bytes.len() as u64 - 3);
            for (nth, chunk) in value.chunks(CHUNK as usize).enumerate() {
                prop_assert_eq!(header.sum(nth as u64), Some(crc32c(chunk)));
            }
            prop_assert_eq!(header.sum(size.div_ceil(CHUNK)), None);
            prop_assert_eq!(header.sum(u64::MAX), None);
            prop_assert_eq!(header.value_sum(), crc32c(&value));
        }
    }
}
