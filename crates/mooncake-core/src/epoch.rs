//! Epochs of a log.

use crate::record::Record;

/// Ids of epochs have it, numbers of sessions that were given out one by one do not get so far.
pub(crate) const MARK: u32 = 1 << 31;

/// An epoch of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Epoch {
    /// Its number, which rids carry.
    pub number: u16,
    /// Random; 0 for the first epoch of a log, which begins once, and for an epoch that a version without epoch ids has
    /// begun.
    pub id: u32,
}

impl Epoch {
    /// The epoch of a log that goes on with this record. An epoch's id is in the first counters behind its beginning,
    /// or of a snapshot.
    pub fn after<K>(self, record: &Record<K>) -> Epoch {
        match record {
            Record::Epoch(epoch) => Epoch { number: *epoch, id: 0 },
            Record::Counters { epoch, session, .. } if (*epoch, 0) >= (self.number, self.id) => {
                let id = *session as u32;
                Epoch { number: *epoch, id: if id & MARK != 0 { id } else { 0 } }
            }
            _ => self,
        }
    }
}
