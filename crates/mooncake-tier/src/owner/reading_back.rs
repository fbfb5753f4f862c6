//! A file that the disk failed to write is read back while its tier goes on: what is bad there is named before anybody
//! wants it, and while memory may still have it.

use std::time::{Duration, Instant};

use mooncake_mutant::mutant;

use super::giving_up::READ_LIMIT;
use super::{TierOwner, ToMaster};
use crate::address::FileNumber;
use crate::contents::contents;
use crate::health::Fitness;
use crate::io_counts::{CountedReads, ReadFor};
use crate::medium::Medium;

/// From the last word about a file until it is looked at, so that the master has heard of all that it has; and until
/// the next look where the disk had no time for one.
const LOOKED_AT_AFTER: Duration = Duration::from_secs(5);

/// What a disk does not read that often, while it is fit otherwise, it will not read any more: for a minute.
const READ_TRIES: u32 = 12;

impl<M: Medium> TierOwner<M> {
    /// The disk failed to write a file, and nothing of it is under way any more.
    pub(super) fn is_to_be_read_back(&mut self, file: FileNumber) {
        // It may have been retired while its last sync was under way.
        if self.appender.files().contains_key(&file) && !mutant!(FailedFilesAreTrusted) {
            self.to_read_back.insert(file, (self.now + LOOKED_AT_AFTER, 0));
        }
    }

    /// Looks at a few records of such a file, if it is time to: those of them that are bad.
    pub(super) fn read_some_back(&mut self, now: Duration) -> Option<ToMaster> {
        if self.failed.is_empty() && self.to_read_back.is_empty() {
            self.lost.clear();
        }
        // What is not mounted is looked at before it is.
        if !self.is_mounted || self.fitness != Fitness::Good {
            return None;
        }
        let due = self.to_read_back.iter().find(|(_, (at, _))| *at <= now);
        let (file, tries) = due.map(|(file, (_, tries))| (*file, *tries))?;
        let bytes = self.appender.files().get(&file).copied()?;
        let so_far = self.read_back.entry(file).or_default();
        if so_far.is_through() {
            // It was looked at as the tier was mounted anew.
            self.to_read_back.remove(&file);
            return None;
        }
        let (tier, geometry) = (self.appender.superblock().tier, self.geometry);
        let counted = CountedReads { counts: self.counts.clone(), by: ReadFor::Proof };
        self.reader.counts(counted.clone());
        if so_far.is_to_be_listed() {
            // A header may be lost as well: the appender knows better than the disk what was written.
            let found = match self.appender.take_entries(file) {
                Some(entries) => Ok(entries),
                None => contents(&self.medium, (tier, geometry), (file, bytes), &self.slots, &counted)
                    .map(|found| found.entries),
            };
            if so_far.list(file, found).is_none() {
                self.to_read_back.insert(file, (now + LOOKED_AT_AFTER, tries));
                return None;
            }
        }
        let until = Instant::now() + READ_LIMIT;
        let time_left = || until.saturating_duration_since(Instant::now());
        let Some(bad) = so_far.go_on(&mut self.reader, tier, tries + 1 >= READ_TRIES, time_left) else {
            self.to_read_back.insert(file, (now + LOOKED_AT_AFTER, tries + 1));
            return None;
        };
        self.to_read_back.insert(file, (now, 0));
        if so_far.is_through() {
            self.to_read_back.remove(&file);
        }
        let bad = bad.into_iter().filter(|entry| !self.lost.contains(&entry.rid));
        let records: Vec<_> = bad.map(|entry| (entry.key, entry.rid)).collect();
        (!records.is_empty()).then_some(ToMaster::Bad { records })
    }
}
