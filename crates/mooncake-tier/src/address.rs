//! Where a record lies in a tier. An address is written once, and names its file by itself.

/// Bytes of a block, in which addresses count and to which records are aligned.
pub const BLOCK: u64 = mooncake_ids::TIER_BLOCK;

/// Blocks since the tier's first file. Never used again, whatever becomes of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// Number of a file, which its name tells. Grows; a large object's file takes several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u64);

/// How addresses are divided among the files of one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    file_blocks: u64,
}

/// Smallest and largest file, bytes.
pub const FILE_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=256 << 20;

/// Files that a tier is divided into, as far as [`FILE_BYTES`] lets it.
const FILES: u64 = 64;

/// Fewest files of a tier: with less room than that for them it is refused.
pub const FILES_MIN: u64 = 8;

impl Geometry {
    /// For a tier of that many bytes.
    pub fn of_capacity(bytes: u64) -> Geometry {
        let file = (bytes / FILES).clamp(*FILE_BYTES.start(), *FILE_BYTES.end());
        Geometry { file_blocks: file.div_ceil(BLOCK) }
    }

    /// With files of that many blocks: what another version, or a test, has chosen. None if they would be larger than
    /// any.
    pub fn of_file_blocks(file_blocks: u64) -> Option<Geometry> {
        (1..=FILE_BYTES.end() / BLOCK).contains(&file_blocks).then_some(Geometry { file_blocks })
    }

    /// Blocks of a file of one number.
    pub fn file_blocks(self) -> u64 {
        self.file_blocks
    }

    /// Bytes of a file of one number.
    pub fn file_bytes(self) -> u64 {
        self.file_blocks * BLOCK
    }

    /// The number that an address has. Of a file of several numbers, every record begins in the first.
    pub fn file_of(self, address: Address) -> FileNumber {
        FileNumber(address.0 / self.file_blocks)
    }

    /// Bytes from the start of its file on.
    pub fn offset_of(self, address: Address) -> u64 {
        address.0 % self.file_blocks * BLOCK
    }

    /// The address at an offset, a whole number of blocks, of a file; none beyond the last there can be.
    pub fn address(self, file: FileNumber, offset: u64) -> Option<Address> {
        debug_assert_eq!(offset % BLOCK, 0);
        file.0.checked_mul(self.file_blocks)?.checked_add(offset / BLOCK).map(Address)
    }

    /// How many numbers a file of that many bytes takes.
    pub fn numbers_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.file_bytes()).max(1)
    }
}

impl FileNumber {
    /// The name of its file.
    pub fn name(self) -> String {
        format!("{:016x}.records", self.0)
    }

    /// The number whose file has that name.
    pub fn of_name(name: &str) -> Option<FileNumber> {
        let number = u64::from_str_radix(name.strip_suffix(".records")?, 16).ok()?;
        (FileNumber(number).name() == name).then_some(FileNumber(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_large_as_the_tier_asks_for() {
        let bytes = |capacity| Geometry::of_capacity(capacity).file_bytes();
        assert_eq!([bytes(0), bytes(1 << 30), bytes(2 << 30)], [16 << 20, 16 << 20, 32 << 20]);
        assert_eq!(bytes(1 << 50), 256 << 20);
        assert_eq!(bytes((2 << 30) + 64), (32 << 20) + BLOCK, "whole blocks");
        assert_eq!(Geometry::of_file_blocks(4096).map(Geometry::file_bytes), Some(16 << 20));
        assert_eq!([0, 65_537, u64::MAX].map(Geometry::of_file_blocks), [None; 3]);
    }

    #[test]
    fn an_address_tells_its_file_and_its_place() {
        let geometry = Geometry::of_file_blocks(4096).unwrap();
        let address = geometry.address(FileNumber(7), 8192).unwrap();
        assert_eq!((geometry.file_of(address), geometry.offset_of(address)), (FileNumber(7), 8192));
        assert_eq!(geometry.address(FileNumber(u64::MAX / 2), 0), None);
        assert_eq!([1, 16 << 20, (16 << 20) + 1].map(|bytes| geometry.numbers_for(bytes)), [1, 1, 2]);
    }

    #[test]
    fn a_file_is_known_by_its_name_alone() {
        for number in [0, 7, u64::MAX].map(FileNumber) {
            assert_eq!(FileNumber::of_name(&number.name()), Some(number));
        }
        for name in ["7.records", "000000000000000G.records", "+00000000000007.records", "0000000000000007", "super"] {
            assert_eq!(FileNumber::of_name(name), None, "{name}");
        }
    }
}
