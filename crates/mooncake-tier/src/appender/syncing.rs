//! What was written is synced, in steps, and the superblock says how far; a file whose disk failed is written no more.

use std::time::Duration;

use mooncake_mutant::mutant;

use super::{Appender, Current, Sync, Write};
use crate::address::{Address, BLOCK, FileNumber};
use crate::medium::{Medium, Operation, Queue};
use crate::order::Event;
use crate::superblock::SUSPECTS_MAX;

/// Between two syncs, while anything is written.
const SYNC_EVERY: Duration = Duration::from_secs(1);

impl<M: Medium> Appender<M> {
    /// A file whose disk failed is written no more.
    pub(super) fn suspect(&mut self, file: FileNumber) {
        self.ending.remove(&file);
        for current in [&mut self.current, &mut self.aside].into_iter().flatten() {
            current.is_suspect |= current.number == file;
        }
        if self.superblock.suspects.contains(&file) {
            return;
        }
        match self.superblock.suspects.len() < SUSPECTS_MAX {
            true => self.superblock.suspects.push(file),
            // No list names it: nothing more counts as synced, so that its records are read after a loss of power.
            false => self.is_beyond_suspects = true,
        }
        self.events.push(Event::Suspect(file));
    }

    /// Syncs what was written, in three steps: files, the superblock, its file.
    pub(super) fn sync(&mut self, now: Duration) {
        match self.sync {
            Sync::None if !self.dirty.is_empty() && self.is_sync_due(now) && self.queue.has_room() => {
                self.last_sync = now;
                let (mut to, mut left) = (self.written_to(), 0);
                for (number, file) in std::mem::take(&mut self.dirty) {
                    if !self.queue.has_room() {
                        // The next sync is soon enough for it: until then nothing that it has counts as synced.
                        self.dirty.insert(number, file);
                        to = Address(0);
                        continue;
                    }
                    // Its footer may be written, and not have ended: then it was written behind this.
                    let is_sealed = !self.is_being_written(number) && self.ending.remove(&number);
                    if !is_sealed && self.ending.contains(&number) {
                        self.dirty.insert(number, file.clone());
                    }
                    left += 1;
                    self.held.begins(number);
                    self.begin(Write::SyncOf { file: number, is_sealed }, Operation::Sync { file });
                }
                self.sync = Sync::Files { left, to };
            }
            Sync::Due if self.queue.has_room() => {
                let Some(mut slot) = self.slots.take() else { return };
                self.sequence += 1;
                let block = self.superblock.encode(self.sequence);
                slot[..block.len()].copy_from_slice(&block);
                let (file, offset) = (self.super_file.clone(), self.sequence % 2 * BLOCK);
                self.sync = Sync::Superblock;
                self.begin(Write::Superblock, Operation::Write { file, offset, slot, len: block.len() });
            }
            _ => {}
        }
    }

    pub(super) fn is_sync_due(&self, now: Duration) -> bool {
        let is_sealed = self.ending.iter().any(|file| !self.is_being_written(*file));
        let is_through = self.syncs_at_once && self.unfinished.is_empty() && !self.is_writing();
        is_sealed || is_through || self.held.is_due(now) || now.saturating_sub(self.last_sync) >= SYNC_EVERY
    }

    pub(super) fn is_being_written(&self, number: FileNumber) -> bool {
        self.writes.values().any(|write| matches!(write, Write::Records { number: other, .. } if *other == number))
    }

    /// Everything below has been written.
    pub(super) fn written_to(&self) -> Address {
        let geometry = self.superblock.geometry;
        let end = |current: &Current<M::File>| geometry.address(current.number, current.end);
        let ends = [&self.current, &self.aside].into_iter().flatten().filter_map(end);
        let next = geometry.address(self.superblock.next_file, 0);
        let unfinished = self.unfinished.first_key_value().map(|(address, _)| *address);
        let unfinished = unfinished.filter(|_| !mutant!(SyncedToIsTooHigh));
        ends.chain(next).chain(unfinished).min().unwrap_or(Address(0))
    }
}
