//! Records that were written through the page cache, and count once it is synced: processes of other hosts read them
//! from the file system, and are to find them there though the writer's host has lost power.

use std::collections::BTreeMap;
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
}

impl Held {
    pub fn hold(&mut self, now: Duration, file: FileNumber, record: (Rid, Address), bytes: u64) {
        self.since.get_or_insert(now);
        self.bytes += bytes;
        self.waiting.entry(file).or_default().push(record);
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

    /// It has ended: the records that it was about.
    pub fn ended(&mut self, file: FileNumber) -> Vec<(Rid, Address)> {
        self.syncing.remove(&file).unwrap_or_default()
    }
}
