//! Names of segments.

use std::array::TryFromSliceError;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A segment's UUID: random per memory, stored in that memory too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentUuid(pub [u8; 16]);

/// As every message, page and method names it: two decimal numbers, as Mooncake writes them.
impl fmt::Display for SegmentUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.0);
        write!(f, "{}-{}", (number >> 64) as u64, number as u64)
    }
}

/// As messages carry it: 16 bytes, and no others.
impl TryFrom<&[u8]> for SegmentUuid {
    type Error = TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        bytes.try_into().map(SegmentUuid)
    }
}

/// A text that names no segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSegmentUuid;

impl FromStr for SegmentUuid {
    type Err = NotSegmentUuid;

    /// What [`fmt::Display`] writes; anything else names no segment.
    fn from_str(text: &str) -> Result<Self, NotSegmentUuid> {
        let half = |digits: &str| digits.parse::<u64>().map(u128::from).map_err(|_| NotSegmentUuid);
        let (high, low) = text.split_once('-').ok_or(NotSegmentUuid)?;
        let uuid = SegmentUuid((half(high)? << 64 | half(low)?).to_be_bytes());
        if uuid.to_string() == text { Ok(uuid) } else { Err(NotSegmentUuid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_two_decimal_numbers_and_nothing_else_is_one() {
        for number in [0, 1, u128::from(u64::MAX) + 1, u128::MAX, 0x0123_4567_89ab_cdef_0000_0000_0000_00ff] {
            let uuid = SegmentUuid(number.to_be_bytes());
            assert_eq!(uuid.to_string().parse(), Ok(uuid));
        }
        assert_eq!(SegmentUuid([0xff; 16]).to_string(), "18446744073709551615-18446744073709551615");
        for wrong in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "+1-2",
            "01-2",
            "1-2-3",
            "1-18446744073709551616",
            "a-b",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(wrong.parse::<SegmentUuid>(), Err(NotSegmentUuid), "{wrong}");
        }
    }
}
