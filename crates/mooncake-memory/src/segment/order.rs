//! The order of a writer and of a reader of one extent.
//!
//! A reader of bytes of a later placement also sees the stamp of that placement, or of a still later one: that alone
//! makes one-sided reads safe. Both orders are written down once, here, and a loom model runs these very functions.

/// A writer: all stamps; the barrier; the bytes; the barrier, before it tells that they are there.
pub fn write_in_order<T>(stamps: impl FnOnce(), barrier: impl Fn(), bytes: impl FnOnce() -> T) -> T {
    stamps();
    barrier();
    let result = bytes();
    barrier();
    result
}

/// A reader: the bytes; the barrier; the stamps of the granules that it copied.
pub fn read_in_order<T, S>(bytes: impl FnOnce() -> T, barrier: impl FnOnce(), stamps: impl FnOnce() -> S) -> (T, S) {
    let result = bytes();
    barrier();
    (result, stamps())
}
