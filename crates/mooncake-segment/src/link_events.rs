//! What links tell their store by themselves, and what an owner asks it.

use std::fmt;
use std::sync::Weak;

use mooncake_ids::SegmentUuid;
use mooncake_os::ProcessIdentity;

use crate::epoch::Epoch;

/// What links report by themselves. Called on a thread of the links: hand over, do not block.
pub trait LinkEvents: Send + Sync {
    /// The process that owned a mapped segment is proven gone: this one, as its address had it.
    fn owner_gone(&self, uuid: SegmentUuid, process: Option<ProcessIdentity>);
    /// The owner of a mapped segment, or of one in this process, asks to obey an epoch. Confirm when the
    /// master of that epoch knows all of this store's pins and no write
    /// of an older placement is planned; drop the question to stay silent.
    fn take_epoch(&self, question: EpochQuestion);
}

/// An owner's wish that this process writes nothing older than an epoch. It keeps nothing mapped.
pub struct EpochQuestion {
    asked: Weak<dyn Asked>,
    uuid: SegmentUuid,
    epoch: Epoch,
}

/// The recipient of a question: what a store has mapped, or is inside of in its own process.
pub(crate) trait Asked: Send + Sync {
    /// The store obeys the epoch.
    fn confirm(&self, epoch: Epoch);
}

impl EpochQuestion {
    /// The question to a recipient that is asked only as long as it is there.
    pub(crate) fn new(asked: Weak<dyn Asked>, uuid: SegmentUuid, epoch: Epoch) -> EpochQuestion {
        EpochQuestion { asked, uuid, epoch }
    }

    /// Segment whose owner asks.
    pub fn uuid(&self) -> SegmentUuid {
        self.uuid
    }

    /// Whether another one asks the same of the same: one answer is enough.
    pub fn repeats(&self, other: &EpochQuestion) -> bool {
        self.is_asked_where(other) && self.epoch == other.epoch
    }

    /// Whether the answer to this one, at the same place, says all that the other one's would: it asks for a higher
    /// epoch.
    pub fn supersedes(&self, other: &EpochQuestion) -> bool {
        self.is_asked_where(other) && self.epoch.number > other.epoch.number
    }

    fn is_asked_where(&self, other: &EpochQuestion) -> bool {
        Weak::ptr_eq(&self.asked, &other.asked)
    }

    /// Whether nothing is mapped there any more: the owner has heard of that, or hears of it, and waits for no answer.
    pub fn is_moot(&self) -> bool {
        self.asked.strong_count() == 0
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// So it is. The owner hears of it as soon as the older writes that are
    /// still copying have ended; newer ones of that kind are refused already.
    pub fn confirm(self) {
        if let Some(asked) = self.asked.upgrade() {
            asked.confirm(self.epoch);
        }
    }
}

impl fmt::Debug for EpochQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochQuestion").field("uuid", &self.uuid).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}
