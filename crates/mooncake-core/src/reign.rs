//! Reigns over a log.

use crate::record::Record;

/// Ids of reigns have it, numbers of sessions that were given out one by one do not get so far.
pub(crate) const MARK: u32 = 1 << 31;

/// A reign over a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reign {
    /// Its epoch.
    pub epoch: u16,
    /// Random; 0 for the first epoch of a log, which begins once, and for an epoch that a version without reigns has
    /// begun.
    pub id: u32,
}

impl Reign {
    /// The reign of a log that goes on with this record. An epoch's id is in the first counters behind its beginning,
    /// or of a snapshot.
    pub fn after<K>(self, record: &Record<K>) -> Reign {
        match record {
            Record::Epoch(epoch) => Reign { epoch: *epoch, id: 0 },
            Record::Counters { epoch, session, .. } if (*epoch, 0) >= (self.epoch, self.id) => {
                let id = *session as u32;
                Reign { epoch: *epoch, id: if id & MARK != 0 { id } else { 0 } }
            }
            _ => self,
        }
    }
}
