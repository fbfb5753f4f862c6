//! Records that were written through the page cache, and count once it is synced: processes of other hosts read them
//! from the file system, and are to find them there though the writer's host has lost power.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use mooncake_ids::Rid;

use crate::address::{Address, FileNumber};

/// They are synced after so long, or once they are so many bytes.
const SYNC_AFTER: Duration = Duration::from_millis(50);
const SYNC_BYTES: u64 = 16 << 20;

type Records = BTreeMap<FileNumber, Vec<(Rid, Address)>>;

#[derive(Debug, Default)]
pub(crate) struct Held {
    since: Option<Duration>,
    bytes: u64,
    waiting: Records,
    /// Those that the sync under way is about.
    syncing: Records,
    /// Files of which a sync has failed. The kernel says so once, and takes what it could not write for written: a
    /// later sync that succeeds proves nothing of what was in the page cache by then.
    failed: BTreeMap<FileNumber, ErrorKind>,
}

impl Held {
    /// A record was written, and counts with the next sync of its file. An error: with none.
    pub fn hold(
        &mut self,
        now: Duration,
        file: FileNumber,
        record: (Rid, Address),
        bytes: u64,
    ) -> Result<(), ErrorKind> {
        if let Some(kind) = self.failed.get(&file) {
            return Err(*kind);
        }
        self.since.get_or_insert(now);
        self.bytes += bytes;
        self.waiting.entry(file).or_default().push(record);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.syncing.is_empty()
    }

    pub fn has(&self, file: FileNumber) -> bool {
        self.waiting.contains_key(&file) || self.syncing.contains_key(&file)
    }

    /// Whether they are to be synced now.
    pub fn is_due(&self, now: Duration) -> bool {
        self.bytes >= SYNC_BYTES || self.since.is_some_and(|since| now.saturating_sub(since) >= SYNC_AFTER)
    }

    /// A sync of what has been written to a file begins.
    pub fn begins(&mut self, file: FileNumber) {
        if let Some(records) = self.waiting.remove(&file) {
            self.syncing.entry(file).or_default().extend(records);
        }
        // What is left belongs to files that the next sync is for, soon.
        (self.since, self.bytes) = (self.since.filter(|_| !self.waiting.is_empty()), 0);
    }

    /// It has ended: the records of which that decides, and whether they count.
    pub fn ended(
        &mut self,
        file: FileNumber,
        synced: Result<(), ErrorKind>,
    ) -> (Vec<(Rid, Address)>, Option<ErrorKind>) {
        if let Err(kind) = synced {
            self.failed.entry(file).or_insert(kind);
        }
        let failed = self.failed.get(&file).copied();
        let mut records = self.syncing.remove(&file).unwrap_or_default();
        if failed.is_some() {
            records.extend(self.waiting.remove(&file).unwrap_or_default());
            self.since = self.since.filter(|_| !self.waiting.is_empty());
        }
        (records, failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_to_a_file_before_a_sync_of_it_failed_never_counts() {
        let (mut held, now) = (Held::default(), Duration::ZERO);
        let [good, bad] = [1, 2].map(FileNumber);
        let record = |number| (Rid(number), Address(number));
        held.hold(now, good, record(1), 1).unwrap();
        held.hold(now, bad, record(2), 1).unwrap();
        [good, bad].into_iter().for_each(|file| held.begins(file));
        // Its bytes are in the page cache while the sync fails.
        held.hold(now, bad, record(3), 1).unwrap();
        let failed = held.ended(bad, Err(ErrorKind::StorageFull));
        assert_eq!(failed, (vec![record(2), record(3)], Some(ErrorKind::StorageFull)));
        assert_eq!(held.ended(good, Ok(())), (vec![record(1)], None));
        assert!(held.is_empty() && !held.is_due(now + SYNC_AFTER));
        assert_eq!(held.hold(now, bad, record(4), 1), Err(ErrorKind::StorageFull));
        held.begins(bad);
        assert_eq!(held.ended(bad, Ok(())), (vec![], Some(ErrorKind::StorageFull)));
    }
}
