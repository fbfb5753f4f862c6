//! The way back from a log: its records, repeated.

use crate::core::Core;
use crate::durable::error::ReplayError;
use crate::ids::Time;
use crate::record::Record;
use crate::work::Work;

impl Core {
    /// Repeats one record of a log or snapshot.
    pub fn replay<K: AsRef<[u8]>>(&mut self, record: Record<K>) -> Result<(), ReplayError> {
        self.apply(Time(0), &record)?;
        // No caller waits, so all of it is cleared away at once. The records that follow know nothing of what is left.
        if let Record::SegmentGone(_) = record {
            self.clear_gone(Time(0), &mut Work::operation());
            while self.segments.give_back() {}
        }
        Ok(())
    }

    /// So many objects will come with the records that are to be repeated.
    pub fn expect(&mut self, objects: usize) {
        self.objects.expect(objects);
    }

    /// Looks up the keys of records that are about to be repeated, one right after the other: what each of them waits
    /// for until it has come from memory, all wait for together. Changes nothing.
    pub fn foresee<K: AsRef<[u8]>>(&self, records: &[Record<K>]) {
        for record in records {
            let key = match record {
                Record::Object { key, .. }
                | Record::GroupedObject { key, .. }
                | Record::TieredObject { key, .. }
                | Record::TierAdded { key, .. }
                | Record::ReplicaDropped { key, .. }
                | Record::Removed { key, .. } => key.as_ref(),
                Record::Committed { reservation, .. } | Record::ReplicaAdded { rid: reservation } => {
                    match self.reservations.by_rid(*reservation) {
                        Some(slot) => self.reservations.get(slot).key.as_slice(),
                        None => continue,
                    }
                }
                _ => continue,
            };
            std::hint::black_box(self.objects.find(self.objects.hash(key), key));
        }
    }
}
