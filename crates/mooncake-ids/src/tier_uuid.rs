//! Names of tiers.

use std::array::TryFromSliceError;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A tier's UUID: random per folder, in each of its records too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TierUuid(pub [u8; 16]);

/// As its folder is named: 32 hexadecimal digits.
impl fmt::Display for TierUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// As messages carry it: 16 bytes, and no others.
impl TryFrom<&[u8]> for TierUuid {
    type Error = TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        bytes.try_into().map(TierUuid)
    }
}
