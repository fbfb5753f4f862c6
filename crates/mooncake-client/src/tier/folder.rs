//! The folder of a tier: one that an earlier process has left below the path, or a new one.

use std::fs;
use std::path::{Path, PathBuf};

use mooncake_ids::TierUuid;
use mooncake_os::{ProcessIdentity, random_bytes};
use mooncake_tier::address::{BLOCK, FILES_MIN, Geometry};
use mooncake_tier::medium::Medium;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::owner::TierOwner;
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::{NewTier, Owner, Tier, TierError};

use crate::error::{Cause, StoreError};
use crate::options::TierOptions;
use crate::session::control::Control;

/// Of the file system, where no limit is given: nine of ten.
const SHARE: (u64, u64) = (9, 10);

const PREFIX: &str = "mooncake-";

/// A tier that this process has.
pub(crate) struct TierFolder {
    pub path: PathBuf,
    pub folder: Folder,
    pub tier: TierOwner<Folder>,
    pub uuid: TierUuid,
    pub secret: [u8; 16],
    pub geometry: Geometry,
    pub capacity: u64,
}

impl TierFolder {
    /// Takes a free one of this pool and this log over, or makes one.
    pub fn take(options: &TierOptions, control: &Control) -> Result<TierFolder, StoreError> {
        let unusable = |reason: String| -> StoreError {
            Cause::Setup {
                what: "using the folder of the tier",
                reason: format!("{}: {reason}", options.path.display()),
            }
            .into()
        };
        fs::create_dir_all(&options.path).map_err(|error| unusable(error.to_string()))?;
        let process = ProcessIdentity::current().map_err(|error| unusable(error.to_string()))?;
        let log_id = control.position().log_id;
        let owner = Owner { boot_id: process.boot_id.to_vec(), process: named(&process) };
        let slots = Slots::new(2);
        for path in folders(&options.path).map_err(|error| unusable(error.to_string()))? {
            match take_over(&path, options, log_id, &owner, &slots) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        path = %path.display(), %error,
                        "a folder of a tier cannot be used; it is left as it is"
                    );
                }
            }
        }
        make(options, log_id, owner, &slots).map_err(|error| unusable(error.to_string()))
    }
}

fn named(process: &ProcessIdentity) -> Vec<u8> {
    let ProcessIdentity { boot_id, pid, start_time, pid_namespace } = process;
    let numbers = [u64::from(*pid), *start_time, *pid_namespace].map(u64::to_le_bytes).concat();
    [&boot_id[..], &numbers].concat()
}

/// Those of tiers, the oldest names first.
fn folders(below: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below)? {
        let entry = entry?;
        let is_one = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_one && entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// None if another process has it, or if it is of another cluster or log.
fn take_over(
    path: &Path,
    options: &TierOptions,
    log_id: u64,
    owner: &Owner,
    slots: &Slots,
) -> Result<Option<TierFolder>, TierError> {
    let disk = |what: &'static str| move |source: std::io::Error| TierError::Disk { what, source };
    let folder = Folder::new(path).map_err(disk("open the folder"))?;
    let mut tier = match Tier::open(folder.clone(), owner.clone(), slots) {
        Ok((tier, _)) => tier,
        Err(TierError::InUse) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (of_log, of_cluster) = (tier.superblock.log_id, tier.superblock.cluster_id.clone());
    if of_cluster != options.cluster_id || of_log != log_id && of_log != 0 {
        tracing::info!(path = %path.display(), cluster_id = of_cluster, "a tier of another pool is left as it is");
        return Ok(None);
    }
    if of_log == 0 {
        tier.superblock.log_id = log_id;
        tier.write_superblock(slots)?;
    }
    let capacity = capacity_of(options, &folder, tier.files.values().sum()).map_err(disk("measure the file system"))?;
    into_folder(path, folder, tier, false, capacity).map(Some)
}

fn make(options: &TierOptions, log_id: u64, owner: Owner, slots: &Slots) -> Result<TierFolder, TierError> {
    let disk = |what: &'static str| move |source: std::io::Error| TierError::Disk { what, source };
    let (uuid, secret) = (random_bytes().map_err(disk("draw a UUID"))?, random_bytes().map_err(disk("draw a secret"))?);
    let uuid = TierUuid(uuid);
    let path = options.path.join(format!("{PREFIX}{uuid}"));
    let folder = Folder::new(&path).map_err(disk("make the folder"))?;
    let made = (|| {
        let capacity = capacity_of(options, &folder, 0).map_err(disk("measure the file system"))?;
        let geometry = match options.file_bytes {
            Some(bytes) => Geometry::of_file_blocks(bytes / BLOCK).unwrap_or(Geometry::of_capacity(capacity)),
            None => Geometry::of_capacity(capacity),
        };
        let cluster_id = options.cluster_id.clone();
        let new = NewTier { tier: uuid, secret, cluster_id, capacity, geometry };
        let mut tier = Tier::create(folder.clone(), new, owner, slots)?;
        tier.superblock.log_id = log_id;
        tier.write_superblock(slots)?;
        into_folder(&path, folder, tier, true, capacity)
    })();
    if made.is_err() {
        // What was not used yet is nothing to keep.
        let _ = fs::remove_dir_all(&path);
    }
    made
}

fn into_folder(
    path: &Path,
    folder: Folder,
    tier: Tier<Folder>,
    is_new: bool,
    capacity: u64,
) -> Result<TierFolder, TierError> {
    let superblock = &tier.superblock;
    let (uuid, secret, geometry) = (superblock.tier, superblock.secret, superblock.geometry);
    let needed = FILES_MIN * geometry.file_bytes();
    if capacity < needed {
        return Err(TierError::TooSmall { capacity, needed });
    }
    let tier = TierOwner::new(tier, is_new, capacity)?;
    Ok(TierFolder { path: path.to_owned(), folder, tier, uuid, secret, geometry, capacity })
}

/// The least of the limit given and nine tenths of what the file system has for it.
fn capacity_of(options: &TierOptions, folder: &Folder, used: u64) -> std::io::Result<u64> {
    let room = folder.room()?;
    let share = room.total / SHARE.1 * SHARE.0;
    Ok(options.bytes.unwrap_or(u64::MAX).min(share).min(room.free + used))
}
