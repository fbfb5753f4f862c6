//! How slow a transfer may be.

/// A transfer slower than this has failed, however steadily it drips: bytes a second.
pub const RATE_MIN: u64 = 4 << 20;
