//! The units in which space is given out: in memory, where it is stamped too, and on tiers.

/// Unit of allocation and of stamps, bytes.
pub const GRANULE: u64 = 1024;

/// Unit in which the addresses of a tier count, bytes. Records begin at whole ones.
pub const TIER_BLOCK: u64 = 4 << 10;

/// Part of a tier that its largest object may have: one of so many. The master orders nothing larger, and its owner can
/// write a file for as much.
pub const TIER_OBJECT_PART: u64 = 8;

/// Granules that so many bytes take.
#[inline]
pub const fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE)
}
