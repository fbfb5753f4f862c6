//! Folders that earlier processes have left below the path. This store has them beside its own, so that what they have
//! is read again; it appends nothing to them, and gives them up first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::TierUuid;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::slots::Slots;
use mooncake_tier::superblock::Superblock;
use mooncake_tier::tier::{FoundTier, Tier, TierError};

use super::folder::{PoolOf, folders, is_itself, name_file_of, this_process};
use super::mark;
use super::records::FolderRecords;
use crate::options::TierOptions;
use crate::segments::owner::random_key;

/// Most of them that one path's tier has.
const ADOPTED_MAX: usize = 16;

/// How often it is looked for them, or more often where they are adopted sooner.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(100);

/// One that this store has.
pub(super) struct Adopted {
    pub path: PathBuf,
    pub uuid: TierUuid,
    pub secret: [u8; 16],
    /// Of its files, as they were when it was adopted.
    pub bytes: u64,
    pub file_blocks: u64,
    pub access_key: u64,
    pub records: Arc<FolderRecords>,
    pub is_mounted: bool,
}

/// What its superblock said when no process had the folder, and since when that is so.
struct Free {
    superblock: Superblock,
    since: Instant,
}

/// What a store has adopted, and what it may adopt.
#[derive(Default)]
pub(super) struct Adoption {
    pub adopted: Vec<Adopted>,
    free: BTreeMap<PathBuf, Free>,
    looked_at: Option<Instant>,
    /// What the master did not do is not asked for again before.
    pub retry_at: Option<Instant>,
    /// The master is of before adoption; until the next session.
    pub is_refused: bool,
}

impl Adopted {
    pub fn new(path: &Path, folder: Folder, tier: &Tier<Folder>) -> Adopted {
        let Superblock { tier: uuid, secret, geometry, .. } = tier.superblock;
        Adopted {
            path: path.to_owned(),
            uuid,
            secret,
            bytes: tier.files.values().sum(),
            file_blocks: geometry.file_blocks(),
            access_key: random_key().unwrap_or(1),
            records: Arc::new(FolderRecords::new(folder, uuid, geometry, tier.counts.clone())),
            is_mounted: false,
        }
    }
}

impl Adoption {
    pub fn find(&self, uuid: TierUuid) -> Option<&Adopted> {
        self.adopted.iter().find(|adopted| adopted.uuid == uuid)
    }

    pub fn remove(&mut self, uuid: TierUuid) -> Option<Adopted> {
        let at = self.adopted.iter().position(|adopted| adopted.uuid == uuid)?;
        Some(self.adopted.remove(at))
    }

    /// Whether it is time to look for folders.
    pub fn is_to_look(&self, options: &TierOptions) -> bool {
        let look_every = LOOK_EVERY.min(options.adopt_after.max(LOOK_EVERY_MIN));
        // Who adopts what on a file system that clients share, their master says.
        let looks = !self.is_refused && options.shared.is_none();
        looks && self.looked_at.is_none_or(|at| at.elapsed() >= look_every)
    }

    /// Takes folders that no process has had for long enough; none of `taken`.
    pub fn take_free(
        &mut self,
        options: &TierOptions,
        pool: PoolOf<'_>,
        taken: &[PathBuf],
    ) -> Vec<(PathBuf, Folder, Tier<Folder>)> {
        self.looked_at = Some(Instant::now());
        let Ok(below) = folders(options) else { return Vec::new() };
        let mut before = std::mem::take(&mut self.free);
        let mut found = Vec::new();
        for path in below.into_iter().filter(|path| !taken.contains(path)) {
            let is_full = self.adopted.len() + found.len() >= ADOPTED_MAX;
            let free = before.remove(&path);
            match self.look(&path, options, pool, free.filter(|_| !is_full)) {
                Ok(one) => found.extend(one.map(|(folder, tier)| (path, folder, tier))),
                Err(TierError::InUse) => {}
                Err(error) => tracing::debug!(path = %path.display(), %error, "a folder of a tier is not adopted"),
            }
        }
        found
    }

    /// Takes one that the master says its writer has left.
    pub fn take_left(
        &mut self,
        path: &Path,
        options: &TierOptions,
        pool: PoolOf<'_>,
    ) -> Result<Option<(Folder, Tier<Folder>)>, TierError> {
        let slots = Slots::new(2);
        match found(path, options, pool, &slots)? {
            Some(found) => take(path, found, options, &slots).map(Some),
            None => Ok(None),
        }
    }

    /// Takes one that was free before, and for long enough; notes one that is free now.
    fn look(
        &mut self,
        path: &Path,
        options: &TierOptions,
        pool: PoolOf<'_>,
        free: Option<Free>,
    ) -> Result<Option<(Folder, Tier<Folder>)>, TierError> {
        let slots = Slots::new(2);
        let Some(found) = found(path, options, pool, &slots)? else { return Ok(None) };
        let superblock = &found.superblock;
        // Whoever had it meanwhile has said so there.
        let free = free.filter(|free| free.superblock == *superblock);
        let Some(free) = free else {
            self.free.insert(path.to_owned(), Free { superblock: superblock.clone(), since: Instant::now() });
            return Ok(None);
        };
        if free.since.elapsed() < options.adopt_after {
            self.free.insert(path.to_owned(), free);
            return Ok(None);
        }
        take(path, found, options, &slots).map(Some)
    }
}

/// A folder of this pool and this log that no process has, locked.
fn found(
    path: &Path,
    options: &TierOptions,
    pool: PoolOf<'_>,
    slots: &Slots,
) -> Result<Option<FoundTier<Folder>>, TierError> {
    let folder = Folder::to_look_at(path).map_err(disk("look at the folder"))?;
    let found = FoundTier::find(&folder.shared(name_file_of(options)), slots)?;
    let superblock = &found.superblock;
    let is_of_pool = pool.is_cluster(superblock) && superblock.log_id == pool.log_id;
    let is_one = is_itself(path, options, superblock) && is_of_pool && !mark::is_of(path, pool.log_id);
    Ok(is_one.then_some(found))
}

fn take(
    path: &Path,
    found: FoundTier<Folder>,
    options: &TierOptions,
    slots: &Slots,
) -> Result<(Folder, Tier<Folder>), TierError> {
    let owner = this_process().map_err(disk("name this process"))?;
    let folder = Folder::new(path, options.engine).map_err(disk("open the folder"))?.shared(name_file_of(options));
    let tier = found.take(folder.clone(), owner, slots)?;
    mark::remove(path);
    Ok((folder, tier))
}

fn disk(what: &'static str) -> impl FnOnce(std::io::Error) -> TierError {
    move |source| TierError::Disk { what, source }
}
