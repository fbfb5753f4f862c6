//! The unit in which space is given out and stamped.

/// Unit of allocation and of stamps, bytes.
pub const GRANULE: u64 = 1024;

/// Granules that so many bytes take.
#[inline]
pub const fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE)
}
