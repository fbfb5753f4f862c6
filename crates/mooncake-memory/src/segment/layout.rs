//! The control memory: a header page, then one stamp per granule.

use mooncake_ids::{GRANULE, SegmentUuid};

use crate::file::mapped_file::PAGE;

/// Where the stamps begin.
pub(crate) const STAMPS_AT: u64 = PAGE;

/// Bytes of one stamp.
pub(crate) const STAMP: u64 = 8;

const MAGIC: [u8; 8] = *b"KVSEGCTL";
const VERSION: u32 = 1;

/// Length of the encoded header.
pub(crate) const HEADER_LEN: usize = 40;

/// Where the control memory says that the data memory has been given back: an
/// aligned word that is 0 until then. It outlives the stamps, whose pages go too.
pub(crate) const GIVEN_BACK_AT: u64 = 64;

/// What the control memory says about its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Name of the memory.
    pub uuid: SegmentUuid,
    /// Size of the data memory.
    pub bytes: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(GRANULE as u32).to_le_bytes());
        out[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        out[24..40].copy_from_slice(&self.uuid.0);
        out
    }

    pub fn decode(raw: &[u8; HEADER_LEN]) -> Result<Header, String> {
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        if raw[0..8] != MAGIC {
            return Err(format!("it begins with {:02x?}", &raw[0..8]));
        }
        if word(8) != VERSION {
            return Err(format!("its version is {}, this program's is {VERSION}", word(8)));
        }
        if u64::from(word(12)) != GRANULE {
            return Err(format!("its granule has {} bytes, this program's {GRANULE}", word(12)));
        }
        let bytes = u64::from(word(16)) | u64::from(word(20)) << 32;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[24..40]);
        Ok(Header { uuid: SegmentUuid(uuid), bytes })
    }
}

/// Size of the control memory of a segment.
pub(crate) const fn control_bytes(bytes: u64) -> u64 {
    (STAMPS_AT + bytes.div_ceil(GRANULE) * STAMP).next_multiple_of(PAGE)
}

/// Granules `first..end` that bytes `offset..offset + len` touch.
pub(crate) const fn granules(offset: u64, len: u64) -> (usize, usize) {
    if len == 0 {
        return (0, 0);
    }
    ((offset / GRANULE) as usize, (offset + len).div_ceil(GRANULE) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_a_foreign_one_is_refused() {
        let header = Header { uuid: SegmentUuid([7; 16]), bytes: 1 << 40 };
        let raw = header.encode();
        assert_eq!(Header::decode(&raw), Ok(header));
        for at in [0, 8, 12] {
            let mut other = raw;
            other[at] ^= 1;
            assert!(Header::decode(&other).is_err());
        }
    }

    #[test]
    fn granules_touched_are_counted_to_the_last_byte() {
        assert_eq!(granules(0, 1), (0, 1));
        assert_eq!(granules(1024, 1024), (1, 2));
        assert_eq!(granules(1023, 2), (0, 2));
        assert_eq!(granules(5000, 0), (0, 0));
        assert_eq!(control_bytes(1 << 20), 4096 + 8192);
    }
}
