//! UUIDs of file systems that several hosts may have mounted.

use std::array::TryFromSliceError;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// UUID of a file system below whose folder shared tiers lie: hosts that find the same one have the same files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileSystemUuid(pub [u8; 16]);

/// As its file has it: 32 hexadecimal digits.
impl fmt::Display for FileSystemUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// As messages carry it: 16 bytes, and no others.
impl TryFrom<&[u8]> for FileSystemUuid {
    type Error = TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        bytes.try_into().map(FileSystemUuid)
    }
}

/// A text that names no file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFileSystemUuid;

impl FromStr for FileSystemUuid {
    type Err = NotFileSystemUuid;

    /// What [`fmt::Display`] writes; anything else names no file system.
    fn from_str(text: &str) -> Result<Self, NotFileSystemUuid> {
        let number = u128::from_str_radix(text, 16).map_err(|_| NotFileSystemUuid)?;
        let uuid = FileSystemUuid(number.to_be_bytes());
        if uuid.to_string() == text { Ok(uuid) } else { Err(NotFileSystemUuid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_32_hexadecimal_digits_and_nothing_else_is_one() {
        for number in [0, 1, u128::MAX] {
            let uuid = FileSystemUuid(number.to_be_bytes());
            assert_eq!(uuid.to_string().parse(), Ok(uuid));
        }
        for wrong in ["", "1", "garbage", &"F".repeat(32), &"0".repeat(33)] {
            assert_eq!(wrong.parse::<FileSystemUuid>(), Err(NotFileSystemUuid));
        }
    }
}
