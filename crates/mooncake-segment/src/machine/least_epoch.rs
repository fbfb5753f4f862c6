//! The lowest epoch whose placements a store still writes.

use std::sync::atomic::{AtomicU16, Ordering};

use mooncake_ids::Rid;

use super::Denied;

/// Only ever rises. A writer looks at it without a lock before it writes.
#[derive(Debug, Default)]
pub struct LeastEpoch(AtomicU16);

impl LeastEpoch {
    /// The epoch of the store's master was raised: older placements are written no more.
    pub fn raise(&self, epoch: u16) {
        self.0.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Whether a placement may be written.
    #[inline]
    pub fn check(&self, rid: Rid) -> Result<(), Denied> {
        let least = self.0.load(Ordering::Acquire);
        if rid.epoch() < least { Err(Denied::OldEpoch { least }) } else { Ok(()) }
    }
}
