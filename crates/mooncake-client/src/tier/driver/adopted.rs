//! Folders of earlier processes, and of other writers, that it looks after beside its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::TierUuid;
use mooncake_segment::Records;
use mooncake_tier::address::FILES_MIN;
use mooncake_tier::medium::Medium;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::tier::Tier;
use mooncake_wire::message::{TierMount, TierShared};

use super::{Driver, RETRY_PAUSE, count_disk, segment_uuid};
use crate::error::ErrorKind;
use crate::tier::adoption::Adopted;
use crate::tier::folder::{PoolOf, capacity_of, delete, folder_of};

/// Of one that is adopted: what is read back stays known, and the rest waits for the next try.
const ADOPTED_PROOF_LIMIT: Duration = Duration::from_secs(5);

impl Driver<'_> {
    /// Adopts what is free, mounts it, and deletes what has nothing any more.
    pub(super) fn look_after_adopted(&mut self, pool: PoolOf<'_>) {
        let mut found = Vec::new();
        if self.adoption.is_to_look(&self.options) {
            let others = self.adoption.adopted.iter().map(|adopted| &adopted.path);
            let useless = self.useless_in(pool.log_id);
            let taken: Vec<PathBuf> = [&self.folder.path].into_iter().chain(&useless).chain(others).cloned().collect();
            found = self.adoption.take_free(&self.options, pool, &taken);
        }
        found.into_iter().for_each(|(path, folder, tier)| self.adopt(&path, folder, tier));
        if self.adoption.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        let unmounted = self.adoption.adopted.iter().find(|adopted| !adopted.is_mounted).map(|adopted| adopted.uuid);
        if let Some(uuid) = unmounted {
            self.mount_adopted(uuid);
        }
        if let Some(uuid) = self.folder.tier.empty_adopted() {
            match self.say_left(uuid, true) {
                true => self.delete_adopted(uuid),
                false => self.adoption.retry_at = Some(Instant::now() + RETRY_PAUSE),
            }
        }
    }

    pub(super) fn adopt(&mut self, path: &Path, folder: Folder, tier: Tier<Folder>) {
        let adopted = Adopted::new(path, folder, &tier);
        count_disk(&tier.counts, &self.surroundings.control);
        if let Err(error) = self.folder.tier.adopt(tier) {
            tracing::warn!(path = %path.display(), %error, "a folder of an earlier process cannot be adopted");
            return;
        }
        let served: Arc<dyn Records> = adopted.records.clone();
        let server = self.surroundings.owner.server();
        server.add_tier(segment_uuid(adopted.uuid), adopted.bytes, adopted.access_key, served);
        self.adoption.adopted.push(adopted);
        self.has_adopted();
    }

    /// What its master says of a file system that clients share.
    pub(super) fn shares(&mut self, word: &TierShared) {
        if word.writers > 0
            && let Ok(room) = self.folder.folder.room()
        {
            let share = capacity_of(&self.options, room) / u64::from(word.writers);
            let least = FILES_MIN * self.folder.geometry.file_bytes();
            self.folder.capacity = share.max(least);
            self.folder.tier.set_capacity(self.folder.capacity);
        }
        let Ok(left) = TierUuid::try_from(&word.left[..]) else { return };
        if self.adoption.find(left).is_some() || left == self.folder.uuid {
            return;
        }
        let path = folder_of(&self.options, left);
        let pool = self.pool(self.log_id);
        match self.adoption.take_left(&path, &self.options, pool) {
            Ok(Some((folder, tier))) => self.adopt(&path, folder, tier),
            Ok(None) => tracing::debug!(path = %path.display(), "a folder that is to be adopted is of another log"),
            Err(error) => tracing::debug!(path = %path.display(), %error, "a folder is not adopted yet"),
        }
    }

    pub(super) fn has_adopted(&self) {
        self.tier.has_adopted(self.adoption.adopted.iter().map(|adopted| adopted.uuid).collect());
    }

    pub(super) fn mount_adopted(&mut self, uuid: TierUuid) {
        let until = Instant::now() + ADOPTED_PROOF_LIMIT;
        let time_left = || until.saturating_duration_since(Instant::now());
        let proof = self.folder.tier.adopted_proof(uuid, time_left);
        let (Some(proof), Some(adopted)) = (proof, self.adoption.find(uuid)) else {
            self.adoption.retry_at = Some(Instant::now() + RETRY_PAUSE);
            return;
        };
        let spec = self.spec(uuid, adopted.secret, adopted.bytes, adopted.file_blocks, adopted.access_key);
        let path = adopted.path.clone();
        match self.ask_to_mount(TierMount { adopted: true, ..self.mount_of(spec, proof) }) {
            Ok((mounted, _)) if mounted.unknown.is_empty() => {
                let records: u64 = mounted.files.iter().map(|file| u64::from(file.records)).sum();
                tracing::info!(path = %path.display(), records, "the folder of an earlier process is read again");
                self.folder.tier.adopted_is_mounted(uuid, true);
                self.figures.forget(uuid);
                self.to_be_left.remove(&uuid);
                self.adoption.adopted.iter_mut().filter(|one| one.uuid == uuid).for_each(|one| one.is_mounted = true);
            }
            // It is marked, and deleted in a day.
            Ok((_, log_id)) => self.let_go_of(uuid, log_id),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "a folder that is adopted is not mounted yet");
                self.adoption.retry_at = Some(Instant::now() + RETRY_PAUSE);
                match error.kind() {
                    ErrorKind::Unsupported => {
                        self.adoption.is_refused = true;
                        self.give_back(uuid);
                    }
                    // Another session has it by now: what was listed of it is not what it is.
                    ErrorKind::Refused => _ = self.give_back(uuid),
                    // It may have been done all the same.
                    _ => self.is_to_leave(uuid),
                }
            }
        }
    }

    pub(super) fn leave_adopted(&mut self, uuid: TierUuid) {
        if self.adoption.find(uuid).is_some_and(|adopted| adopted.is_mounted) {
            self.say_left(uuid, false);
        }
        self.give_back(uuid);
    }

    /// Those whose folders are not there are not read.
    pub(super) fn leave_adopted_that_are_away(&mut self) {
        let away = self.adoption.adopted.iter().filter(|adopted| !adopted.records.is_there());
        let away: Vec<_> = away.map(|adopted| (adopted.uuid, adopted.path.clone())).collect();
        for (uuid, path) in away {
            tracing::warn!(path = %path.display(), "the folder of an earlier process is not there any more");
            self.leave_adopted(uuid);
        }
    }

    /// That log knows nothing of one that was adopted, or lies beside, or nothing more.
    pub(super) fn let_go_of(&mut self, uuid: TierUuid, log_id: u64) {
        if let Some(path) = self.give_back(uuid).or_else(|| self.lies_beside(uuid, log_id)) {
            self.useless.retain(|(path, _)| path.is_dir());
            self.useless.push((path, log_id));
            self.looked_at = None;
        }
    }

    /// The folder of another writer's tier, where clients share the file system.
    fn lies_beside(&self, uuid: TierUuid, log_id: u64) -> Option<PathBuf> {
        let path = folder_of(&self.options, uuid);
        (self.options.shared.is_some() && path.is_dir() && !self.useless_in(log_id).contains(&path)).then_some(path)
    }

    /// Whoever comes next may have one that was adopted: its path.
    pub(super) fn give_back(&mut self, uuid: TierUuid) -> Option<PathBuf> {
        let adopted = self.adoption.remove(uuid)?;
        self.figures.forget(uuid);
        self.surroundings.owner.server().remove_tier(segment_uuid(uuid));
        drop(self.folder.tier.let_go(uuid));
        self.has_adopted();
        Some(adopted.path)
    }

    /// Nothing is left of one that was adopted, and no log needs it.
    pub(super) fn delete_adopted(&mut self, uuid: TierUuid) {
        let Some(adopted) = self.adoption.remove(uuid) else { return };
        self.figures.forget(uuid);
        self.surroundings.owner.server().remove_tier(segment_uuid(uuid));
        let lock = self.folder.tier.let_go(uuid);
        self.has_adopted();
        let deleted = Folder::to_look_at(&adopted.path).and_then(|folder| delete(&folder));
        drop(lock);
        let path = adopted.path.display();
        match deleted {
            Ok(()) => tracing::info!(%path, "nothing of the folder of an earlier process is needed: it is deleted"),
            Err(error) => tracing::warn!(%path, %error, "an empty folder of an earlier process cannot be deleted"),
        }
    }
}
