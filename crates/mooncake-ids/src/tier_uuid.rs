//! Names of tiers.

use std::array::TryFromSliceError;
use std::fmt;
use std::str::FromStr;

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

/// A text that names no tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotTierUuid;

impl FromStr for TierUuid {
    type Err = NotTierUuid;

    /// What [`fmt::Display`] writes; anything else names no tier.
    fn from_str(text: &str) -> Result<Self, NotTierUuid> {
        let number = u128::from_str_radix(text, 16).map_err(|_| NotTierUuid)?;
        let uuid = TierUuid(number.to_be_bytes());
        if uuid.to_string() == text { Ok(uuid) } else { Err(NotTierUuid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_32_hexadecimal_digits_and_nothing_else_is_one() {
        for number in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0000_0000_0000_00ff] {
            let uuid = TierUuid(number.to_be_bytes());
            assert_eq!(uuid.to_string().parse(), Ok(uuid));
        }
        for wrong in
            ["", "all", "1", "+0000000000000000000000000000001", "0x000000000000000000000000000001", &"F".repeat(32)]
        {
            assert_eq!(wrong.parse::<TierUuid>(), Err(NotTierUuid));
        }
    }
}
