//! Room for the next file, and the file.

use std::io::{self, ErrorKind};
use std::time::Duration;

use mooncake_ids::TIER_OBJECT_PART;

use super::{Appender, Current};
use crate::address::{FileNumber, Geometry};
use crate::footer::Entries;
use crate::medium::Medium;
use crate::order::Loss;

/// How long an order waits for room, while a full tier gives up its oldest file.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Part of the file system that is left to others: one of so many.
const LEFT_FREE: u64 = 20;

/// Below a limit that tiers share, one of so many parts of a file is left for what the file system adds to files as
/// they are written.
const SPARE_PART: u64 = 64;

impl<M: Medium> Appender<M> {
    /// Has the first order wait while room is made, but not for long. True: it came to nothing.
    pub(super) fn wait_for_room(&mut self) -> bool {
        let since = self.waiting.front().expect("it was looked at").1;
        self.needs_room = self.now.saturating_sub(since) < ROOM_WAIT;
        !self.needs_room && self.lose_next(Loss::NoRoom)
    }

    /// Bytes of a file for a record and a footer that need so many.
    pub(super) fn bytes_of_file(&self, needed: u64) -> u64 {
        let geometry: Geometry = self.superblock.geometry;
        geometry.numbers_for(needed) * geometry.file_bytes()
    }

    /// One file is for what is kept alone: without it none could be given up.
    pub(super) fn reserved(&self, is_kept: bool) -> u64 {
        if is_kept { 0 } else { self.superblock.geometry.file_bytes() }
    }

    pub(super) fn create_file(&mut self, needed: u64, is_kept: bool) -> Result<(), Loss> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Loss::NoSpace,
            kind => Loss::Failed(kind),
        };
        let (bytes, file_bytes) = (self.bytes_of_file(needed), self.superblock.geometry.file_bytes());
        let room = self.medium.room().map_err(failed)?;
        // For an object that is larger than any may be of the room that there is, all others would have to go.
        let there_is = room.free.saturating_add(self.used() + self.beside);
        if bytes > there_is / TIER_OBJECT_PART + file_bytes {
            return Err(Loss::TooLarge);
        }
        let left_free = if is_kept { 0 } else { room.total / LEFT_FREE };
        if room.free < bytes + left_free {
            return Err(Loss::NoSpace);
        }
        let spare = (file_bytes / SPARE_PART) as i64;
        if let Some(left) = room.left.filter(|left| *left < bytes as i64 + spare) {
            // Giving all of its own up is of no use where the others have nearly all.
            let is_hopeless = left.saturating_add((self.used() + self.beside) as i64) < bytes as i64 + spare;
            return Err(if is_hopeless { Loss::OverLimit } else { Loss::NoSpace });
        }
        let number = self.superblock.next_file;
        let next = number.0.checked_add(bytes / file_bytes).map(FileNumber);
        // Only a number that was never in use is so high that there is none behind it.
        let next = next.filter(|next| self.superblock.geometry.address(*next, 0).is_some());
        let next = next.ok_or(Loss::Failed(ErrorKind::InvalidData))?;
        // No number is used twice, whatever became of its file.
        self.superblock.next_file = next;
        let file = self.medium.create(&number.name(), bytes).map_err(failed)?;
        let settled = match room.left.map(|_| self.medium.room()).transpose() {
            Err(error) => Err(failed(error)),
            // Another tier has begun a file at the same time.
            Ok(Some(room)) if room.left.is_some_and(|left| left < spare) => Err(Loss::NoSpace),
            // Before the first record: a file that a loss of power takes leaves no place behind that names it.
            Ok(_) => self.medium.sync_folder().map_err(failed),
        };
        if let Err(why) = settled {
            let _ = self.medium.remove(&number.name());
            return Err(why);
        }
        self.files.insert(number, bytes);
        self.dirty.insert(number, file.clone());
        let is_held = !self.medium.is_direct(&file);
        let entries = Entries::default();
        self.current = Some(Current { number, file, bytes, end: 0, entries, is_suspect: false, is_held });
        Ok(())
    }
}
