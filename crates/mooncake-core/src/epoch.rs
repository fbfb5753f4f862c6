//! Which epoch of a log a record belongs to (`operations/epochs.rs` begins them).

use crate::record::Record;

/// Set in every id of an epoch. In an epoch without an id, session numbers count up from a multiple of 2^32 and do not
/// reach this bit. In an epoch with one they begin at it: [`Epoch::after`] takes the first counters alone.
pub(crate) const EPOCH_ID_BIT: u32 = 1 << 31;

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
    /// The epoch of a log that goes on with this record. An epoch's id is the `session` of the first
    /// `Record::Counters` behind its `Record::Epoch`, or of a snapshot.
    pub fn after<K>(self, record: &Record<K>) -> Epoch {
        match record {
            Record::Epoch(epoch) => Epoch { number: *epoch, id: 0 },
            Record::Counters { epoch, session, .. } if (*epoch, 0) >= (self.number, self.id) => {
                let id = *session as u32;
                Epoch { number: *epoch, id: if id & EPOCH_ID_BIT != 0 { id } else { 0 } }
            }
            _ => self,
        }
    }
}
