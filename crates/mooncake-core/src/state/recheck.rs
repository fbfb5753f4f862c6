//! Replicas that readers found bad.

use crate::ids::{Replica, Time};

/// A replica that a reader found bad, until its owner has looked.
pub(crate) struct Recheck {
    pub key: Box<[u8]>,
    pub replica: Replica,
    pub crc32c: u32,
    /// When its owner was asked last.
    pub asked_at: Time,
}
