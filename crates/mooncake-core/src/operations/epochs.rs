//! Epochs: which continuation of a log each belongs to.
//!
//! Two masters that continue one log from the same place, each without knowing of the other, both begin the epoch that
//! follows. Each draws an id for it and logs that before the first rid, in a record that versions without epoch ids
//! know, too.

use crate::core::Core;
use crate::epoch::EPOCH_ID_BIT;
use crate::record::Record;

/// Numbers of sessions and segments that each epoch has for itself, as bits.
const SESSIONS_OF_EPOCH: u32 = 32;
const SEGMENTS_OF_EPOCH: u32 = 10;
/// The rids of an epoch begin below this power of two, which leaves half of them.
const RID_STARTS: u32 = 46;

impl Core {
    /// Where the numbers of an epoch begin, so that it gives out none again that the lost end of the log gave out:
    /// sessions and segments above all that earlier epochs have, sessions and rids at random, because the lost end may
    /// have been in this very epoch.
    pub(crate) fn counters_to_begin(&mut self, number: u16) -> Record {
        let id = EPOCH_ID_BIT | self.epoch_random.bits() >> 1;
        let first = u64::from(number - 1).max((self.sessions.last >> SESSIONS_OF_EPOCH) + 1);
        let random = u64::from(self.epoch_random.bits()) << 32 | u64::from(self.epoch_random.bits());
        Record::Counters {
            epoch: number,
            rid: random >> (64 - RID_STARTS),
            session: first << SESSIONS_OF_EPOCH | u64::from(id),
            segment: self.segments.last().max(u32::from(number - 1) << SEGMENTS_OF_EPOCH),
        }
    }

    /// The counters as they are, behind those that say which epoch this is.
    pub(crate) fn snapshot_counters(&self) -> impl Iterator<Item = Record> {
        let (epoch, rid, segment) = (self.epoch.number, self.counter, self.segments.last());
        let counters = move |session| Record::Counters { epoch, rid, session, segment };
        let id = u64::from(self.epoch.id);
        (id != 0).then(|| counters(id)).into_iter().chain([counters(self.sessions.last)])
    }
}
