//! What a tier says of itself: the file `super`, two blocks that are written in turn, each with a sequence number and
//! a checksum. Of two that are whole the later one counts; one that was being written when its host lost power is
//! passed over.
//!
//! ```text
//! 0   u32  magic "MTS1"
//! 4   u32  version, 1
//! 8   u64  sequence
//! 16  [16] UUID of the tier
//! 32  [16] secret, by which another session takes it over
//! 48  u64  id of the log that knows it; 0 as long as none does
//! 56  u64  blocks of a file
//! 64  u64  next number of a file: all files that there were have lower ones
//! 72  u64  address up to which everything was synced
//! 80  u32  suspect files; u64 each, 16 at most
//!     u32  bytes of the cluster's id, and the id; the same of the owner's boot id and of its process
//! 4092 u32 CRC-32C of all before it, in every version
//! ```

use mooncake_ids::TierUuid;
use mooncake_memory::crc32c;

use crate::address::{Address, BLOCK, FileNumber, Geometry};

/// Most files that are listed as suspect. With one more, `synced_to` stays where it is.
pub const SUSPECTS_MAX: usize = 16;

/// Longest cluster id, boot id and process identity.
pub const TEXT_BYTES_MAX: usize = 255;

const MAGIC: u32 = u32::from_le_bytes(*b"MTS1");
const VERSION: u32 = 1;

/// Bytes of a block that its checksum covers.
const COVERED: usize = BLOCK as usize - 4;

/// What the file `super` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The tier's UUID.
    pub tier: TierUuid,
    /// Whoever knows it may take the tier over.
    pub secret: [u8; 16],
    /// The log that knows the tier; 0 as long as none does.
    pub log_id: u64,
    /// How addresses are divided.
    pub geometry: Geometry,
    /// Above all numbers that files ever had.
    pub next_file: FileNumber,
    /// Everything below was synced: after a loss of power only what lies above may be missing.
    pub synced_to: Address,
    /// Files of which a write or a sync failed: their records are read before they count.
    pub suspects: Vec<FileNumber>,
    /// The cluster that the tier belongs to.
    pub cluster_id: String,
    /// The boot in which the owner ran.
    pub boot_id: Vec<u8>,
    /// The owner's process, as its session names it.
    pub process: Vec<u8>,
}

/// Why there is no superblock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotASuperblock {
    /// Neither copy is whole.
    #[error("neither copy of the superblock is whole: the folder is no tier, or both copies are damaged")]
    Neither,
    /// A later version wrote it.
    #[error("the folder has version {0} of the format, and this program reads version {VERSION}; run a later one")]
    Later(u32),
}

impl Superblock {
    /// One copy, a block.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK as usize);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&self.tier.0);
        out.extend_from_slice(&self.secret);
        let numbers = [self.log_id, self.geometry.file_blocks(), self.next_file.0, self.synced_to.0];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        debug_assert!(self.suspects.len() <= SUSPECTS_MAX);
        out.extend_from_slice(&(self.suspects.len() as u32).to_le_bytes());
        self.suspects.iter().for_each(|file| out.extend_from_slice(&file.0.to_le_bytes()));
        for text in [self.cluster_id.as_bytes(), &self.boot_id, &self.process] {
            debug_assert!(text.len() <= TEXT_BYTES_MAX);
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text);
        }
        out.resize(COVERED, 0);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// The later one of two copies, with its sequence.
    pub fn decode(copies: [&[u8]; 2]) -> Result<(Superblock, u64), NotASuperblock> {
        let read = copies.map(decode_one);
        if let Some(Err(error)) = read.iter().flatten().find(|copy| copy.is_err()) {
            return Err(error.clone());
        }
        let whole = read.into_iter().flatten().flatten();
        whole.max_by_key(|(_, sequence)| *sequence).ok_or(NotASuperblock::Neither)
    }
}

/// None if the copy is not whole.
fn decode_one(block: &[u8]) -> Option<Result<(Superblock, u64), NotASuperblock>> {
    let (covered, crc) = block.split_last_chunk()?;
    if covered.len() != COVERED || crc32c(covered) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut rest = Rest(covered);
    if rest.u32()? != MAGIC {
        return None;
    }
    let version = rest.u32()?;
    if version > VERSION {
        return Some(Err(NotASuperblock::Later(version)));
    }
    let sequence = rest.u64()?;
    let (tier, secret) = (TierUuid(*rest.array()?), *rest.array()?);
    let (log_id, file_blocks, next_file, synced_to) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
    let suspects = rest.u32()? as usize;
    if suspects > SUSPECTS_MAX {
        return None;
    }
    let suspects = (0..suspects).map(|_| rest.u64().map(FileNumber)).collect::<Option<_>>()?;
    let [cluster_id, boot_id, process] = [rest.text()?, rest.text()?, rest.text()?];
    let superblock = Superblock {
        tier,
        secret,
        log_id,
        geometry: Geometry::of_file_blocks(file_blocks)?,
        next_file: FileNumber(next_file),
        synced_to: Address(synced_to),
        suspects,
        cluster_id: String::from_utf8(cluster_id).ok()?,
        boot_id,
        process,
    };
    Some(Ok((superblock, sequence)))
}

/// What has not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let len = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(len).filter(|_| len <= TEXT_BYTES_MAX)?;
        self.0 = rest;
        Some(text.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            tier: TierUuid([1; 16]),
            secret: [2; 16],
            log_id: 3,
            geometry: Geometry::of_file_blocks(4096).unwrap(),
            next_file: FileNumber(12),
            synced_to: Address(45_000),
            suspects: vec![FileNumber(4), FileNumber(9)],
            cluster_id: "mooncake_cluster".to_owned(),
            boot_id: vec![5; 16],
            process: vec![6; 40],
        }
    }

    #[test]
    fn the_later_of_two_whole_copies_counts() {
        let (one, two) = (superblock(), Superblock { next_file: FileNumber(13), ..superblock() });
        let (first, second) = (one.encode(7), two.encode(8));
        assert_eq!((first.len(), second.len()), (4096, 4096));
        assert_eq!(Superblock::decode([&first, &second]), Ok((two.clone(), 8)));
        assert_eq!(Superblock::decode([&second, &first]), Ok((two, 8)));
        let torn = [&second[..100], &first[100..]].concat();
        assert_eq!(Superblock::decode([&first, &torn]), Ok((one, 7)));
        assert_eq!(Superblock::decode([&torn, &[0; 4096]]), Err(NotASuperblock::Neither));
    }

    #[test]
    fn a_flipped_bit_of_a_copy_is_found_wherever_it_is() {
        let block = superblock().encode(7);
        for bit in 0..block.len() * 8 {
            let mut other = block.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode([&other, &[]]), Err(NotASuperblock::Neither), "bit {bit}");
        }
    }

    #[test]
    fn the_largest_superblock_fits_a_block() {
        let most = Superblock {
            suspects: vec![FileNumber(u64::MAX); SUSPECTS_MAX],
            cluster_id: "x".repeat(TEXT_BYTES_MAX),
            boot_id: vec![1; TEXT_BYTES_MAX],
            process: vec![2; TEXT_BYTES_MAX],
            ..superblock()
        };
        let block = most.encode(u64::MAX);
        assert_eq!(block.len(), 4096);
        assert_eq!(Superblock::decode([&block, &[]]), Ok((most, u64::MAX)));
    }

    #[test]
    fn a_later_version_is_named() {
        let mut block = superblock().encode(7);
        block[4] = 2;
        assert_eq!(Superblock::decode([&block, &[]]), Err(NotASuperblock::Neither), "not whole");
        let crc = crc32c(&block[..COVERED]);
        block[COVERED..].copy_from_slice(&crc.to_le_bytes());
        let error = Superblock::decode([&block, &[]]).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
    }
}
