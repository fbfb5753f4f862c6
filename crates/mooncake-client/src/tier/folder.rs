//! The folder of a tier: one that an earlier process has left below the path, or a new one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mooncake_ids::{TIER_OBJECT_PART, TierUuid};
use mooncake_os::{ProcessIdentity, random_bytes};
use mooncake_tier::address::{BLOCK, FILES_MIN, FileNumber, Geometry};
use mooncake_tier::medium::file_system::{file_size_limit_below, shared_file_system};
use mooncake_tier::medium::folder::{Folder, NameFile};
use mooncake_tier::medium::shared_limit::SharedLimit;
use mooncake_tier::medium::{Medium, Room};
use mooncake_tier::owner::TierOwner;
use mooncake_tier::slots::Slots;
use mooncake_tier::superblock::Superblock;
use mooncake_tier::tier::{FoundTier, NewTier, Owner, Tier, TierError};

use super::{mark, shared};
use crate::error::{Cause, StoreError};
use crate::options::TierOptions;
use crate::session::control::Control;

/// Of the file system, where no limit is given: nine of ten.
const SHARE: (u64, u64) = (9, 10);

const PREFIX: &str = "mooncake-";

/// A folder is deleted when it was unknown for so long.
const KEPT_UNKNOWN: Duration = Duration::from_secs(24 * 60 * 60);

/// One whose room is needed.
const KEPT_UNKNOWN_SHORT: Duration = Duration::from_secs(60 * 60);

/// Room is short if less than that part of the file system, or of what all tiers below the path may have, is free.
const SHORT_PART: u64 = 20;

/// Files of a tier that shares a file system are as large as if so many shared it.
const SHARED_BY: u64 = 8;

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
    /// Takes a free one of this pool and this log over, or makes one; none of those that are known to be of no use.
    pub fn take(options: &TierOptions, pool: PoolOf<'_>, useless: &[PathBuf]) -> Result<TierFolder, StoreError> {
        let taken = TierFolder::take_or_wait(options, pool, useless, false)?;
        Ok(taken.expect("where none is free, one is made"))
    }

    /// [`TierFolder::take`]; if `waits`, none while other processes have all that there are: one of them may be about
    /// to end.
    pub fn take_or_wait(
        options: &TierOptions,
        pool: PoolOf<'_>,
        useless: &[PathBuf],
        waits: bool,
    ) -> Result<Option<TierFolder>, StoreError> {
        let unusable = |reason: String| -> StoreError {
            Cause::Setup {
                what: "using the folder of the tier",
                reason: format!(
                    "{}: {reason} (ssd_offload_path, or MOONCAKE_OFFLOAD_FILE_STORAGE_PATH, names another one)",
                    options.path.display()
                ),
            }
            .into()
        };
        if options.shared.is_none() {
            fs::create_dir_all(&options.path).map_err(|error| unusable(error.to_string()))?;
            if let Some(kind) = shared_file_system(&options.path).map_err(|error| unusable(error.to_string()))? {
                return Err(unusable(format!(
                    "a tier of one store needs a file system on a disk of its host, and this is {kind}; a master's \
                     --root_fs_dir is for folders that hosts share"
                )));
            }
        }
        let owner = this_process().map_err(|error| unusable(error.to_string()))?;
        let slots = Slots::new(2);
        if options.shared.is_some() {
            // Never taken over: each process makes its own, and adopts what others have left.
            let made = make(options, pool, owner, useless, &slots);
            return made.map(Some).map_err(|error| unusable(error.to_string()));
        }
        let below = folders(options).map_err(|error| unusable(error.to_string()))?;
        let mut in_use = 0;
        for path in below.into_iter().filter(|path| !useless.contains(path)) {
            match take_over(&path, options, pool, &owner, &slots) {
                Ok(Some(taken)) => return Ok(Some(taken)),
                Ok(None) => {}
                Err(TierError::InUse) => in_use += 1,
                Err(error) => {
                    tracing::warn!(
                        path = %path.display(), %error,
                        "a folder of a tier cannot be used; it is left as it is"
                    );
                }
            }
        }
        if waits && in_use > 0 {
            return Ok(None);
        }
        make(options, pool, owner, useless, &slots).map(Some).map_err(|error| unusable(error.to_string()))
    }
}

/// Which pool a folder may be of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOf<'a> {
    pub cluster_id: &'a str,
    pub log_id: u64,
}

impl PoolOf<'_> {
    /// The one of this store's master.
    pub fn now(control: &Control) -> PoolOf<'_> {
        PoolOf { cluster_id: &control.cluster_id, log_id: control.position().log_id }
    }

    /// Whether a folder says that it is of this cluster. One without a name was made beside a master that told none.
    pub fn is_cluster(&self, superblock: &Superblock) -> bool {
        superblock.cluster_id.is_empty() || superblock.cluster_id == self.cluster_id
    }
}

/// As superblocks name it.
pub(super) fn this_process() -> std::io::Result<Owner> {
    let current = ProcessIdentity::current().map_err(std::io::Error::other)?;
    let ProcessIdentity { boot_id, pid, start_time, pid_namespace } = current;
    let numbers = [u64::from(pid), start_time, pid_namespace].map(u64::to_le_bytes).concat();
    Ok(Owner { boot_id: boot_id.to_vec(), process: [&boot_id[..], &numbers].concat() })
}

/// Those of tiers, the oldest names first.
pub(super) fn folders(options: &TierOptions) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(&options.path)? {
        let entry = entry?;
        let is_one = entry.file_name().to_str().is_some_and(|name| match options.shared {
            Some(_) => name.parse::<TierUuid>().is_ok(),
            None => name.starts_with(PREFIX),
        });
        if is_one && entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// None if it is of another cluster or log.
fn take_over(
    path: &Path,
    options: &TierOptions,
    pool: PoolOf<'_>,
    owner: &Owner,
    slots: &Slots,
) -> Result<Option<TierFolder>, TierError> {
    let log_id = pool.log_id;
    let disk = |what: &'static str| move |source: std::io::Error| TierError::Disk { what, source };
    let found = FoundTier::find(&Folder::to_look_at(path).map_err(disk("look at the folder"))?, slots)?;
    let Superblock { log_id: of_log, cluster_id: of_cluster, .. } = &found.superblock;
    if !pool.is_cluster(&found.superblock) {
        tracing::info!(
            path = %path.display(), cluster_id = of_cluster,
            "a tier of another cluster is left as it is: only a pool whose master has that --cluster_id uses it"
        );
        return Ok(None);
    }
    if ![0, log_id].contains(of_log) {
        return Ok(None);
    }
    if !is_itself(path, options, &found.superblock) {
        tracing::warn!(
            path = %path.display(), tier = %found.superblock.tier,
            "a copy of a tier's folder, or a renamed one, is left as it is: what it has may be of long ago. The name \
             of a folder says which tier it is"
        );
        return Ok(None);
    }
    // This log has forgotten it, and would say so again.
    if mark::is_of(path, log_id) {
        return Ok(None);
    }
    let of_log = *of_log;
    let folder = Folder::new(path, options.engine).map_err(disk("open the folder"))?.limited(shared_limit(options));
    let mut tier = found.take(folder.clone(), owner.clone(), slots)?;
    mark::remove(path);
    if of_log == 0 {
        tier.superblock.log_id = log_id;
        tier.write_superblock(slots)?;
    }
    let room = folder.room().map_err(disk("measure the file system"))?;
    let to_be_had = room.free + tier.files.values().sum::<u64>();
    into_folder(path, options, folder, tier, false, (capacity_of(options, room), to_be_had)).map(Some)
}

/// Whether a folder has the tier that its name says, and is no copy of that one's.
pub(super) fn is_itself(path: &Path, options: &TierOptions, superblock: &Superblock) -> bool {
    folder_of(options, superblock.tier) == path
}

/// Whether a folder of this cluster is of no log that this pool has. `useless` are those that the master does not know.
/// A copy may be somebody's backup.
fn is_unknown(
    path: &Path,
    options: &TierOptions,
    superblock: &Superblock,
    pool: PoolOf<'_>,
    useless: &[PathBuf],
) -> bool {
    let is_forgotten = useless.iter().any(|useless| useless == path) || mark::is_of(path, pool.log_id);
    let is_known = superblock.log_id == pool.log_id && !is_forgotten || superblock.log_id == 0;
    pool.is_cluster(superblock) && is_itself(path, options, superblock) && !is_known
}

/// Deletes folders that have been seen to be unknown for long enough (`docs/safety.md`, rule T11). `lacks_room`: this
/// store's tier finds none for its next file.
pub(super) fn delete_unknown(
    options: &TierOptions,
    pool: PoolOf<'_>,
    useless: &[PathBuf],
    lacks_room: bool,
) -> UnknownFolders {
    let mut found = UnknownFolders::default();
    for path in folders(options).into_iter().flatten() {
        match delete_if_unknown(&path, options, pool, useless, lacks_room) {
            Ok(Fate::NotUnknown) => {}
            Ok(Fate::Left) => found.left += 1,
            Ok(Fate::Deleted) => found.any_deleted = true,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "a folder that may be of no use is left as it is");
            }
        }
    }
    found
}

/// What became of folders that no log of this pool knows.
#[derive(Debug, Default)]
pub(super) struct UnknownFolders {
    /// There is more room now.
    pub any_deleted: bool,
    /// Those that are there still.
    pub left: u64,
}

/// What became of a folder that was looked at.
enum Fate {
    /// It is in use, known, or another cluster's.
    NotUnknown,
    Left,
    Deleted,
}

fn delete_if_unknown(
    path: &Path,
    options: &TierOptions,
    pool: PoolOf<'_>,
    useless: &[PathBuf],
    lacks_room: bool,
) -> Result<Fate, TierError> {
    let log_id = pool.log_id;
    let disk = |what: &'static str| move |source: std::io::Error| TierError::Disk { what, source };
    let folder = Folder::to_look_at(path).map_err(disk("look at the folder"))?;
    // Locked for as long as it is there: no process takes it over meanwhile.
    let found = match FoundTier::find(&folder, &Slots::new(1)) {
        Ok(found) => found,
        Err(TierError::InUse) => return Ok(Fate::NotUnknown),
        Err(error) => return Err(error),
    };
    if !is_unknown(path, options, &found.superblock, pool, useless) {
        if pool.is_cluster(&found.superblock) && found.superblock.log_id == log_id {
            mark::remove(path);
        }
        return Ok(Fate::NotUnknown);
    }
    let is_useless = useless.iter().any(|useless| useless == path);
    let Some(age) = mark::age(path).filter(|_| !is_useless || mark::is_of(path, log_id)) else {
        tracing::warn!(
            path = %path.display(),
            "this master's log does not know that folder: it is deleted in 24 hours, or in one where room is short. \
             Move it away if it is another pool's (each needs its own --cluster_id), or start the master that has its \
             log"
        );
        mark::make(path, log_id).map_err(disk("mark the folder"))?;
        return Ok(Fate::Left);
    };
    let folder = folder.limited(shared_limit(options));
    let room = folder.room().map_err(disk("measure the file system"))?;
    let least_left = options.bytes_below_path.map(|bytes| (bytes / SHORT_PART) as i64);
    // A tier leaves others a twentieth, and so lacks room before that is gone.
    let is_short = lacks_room || room.free < room.total / SHORT_PART || room.left < least_left;
    if age < if is_short { KEPT_UNKNOWN_SHORT } else { KEPT_UNKNOWN } {
        return Ok(Fate::Left);
    }
    tracing::warn!(path = %path.display(), "a folder that no log of this pool knows is deleted, as was said");
    delete(&folder).map_err(disk("delete the folder"))?;
    Ok(Fate::Deleted)
}

/// Bytes of folders that are unknown, and that no other process has: they are deleted one day.
fn unknown_bytes(options: &TierOptions, pool: PoolOf<'_>, useless: &[PathBuf], slots: &Slots) -> u64 {
    let bytes_of = |path: PathBuf| {
        let folder = Folder::to_look_at(&path).ok()?;
        // One that the master has just forgotten is locked by this process.
        let is_one = useless.contains(&path)
            || FoundTier::find(&folder, slots)
                .is_ok_and(|found| is_unknown(&path, options, &found.superblock, pool, useless));
        let files = folder.list().ok().filter(|_| is_one)?.into_iter();
        Some(
            files
                .filter(|file| FileNumber::of_name(&file.name).is_some())
                .map(|file| file.bytes.min(file.taken))
                .sum::<u64>(),
        )
    };
    folders(options).into_iter().flatten().filter_map(bytes_of).sum()
}

/// Deletes a folder that this process has locked, with all that a tier has.
pub(super) fn delete(folder: &Folder) -> std::io::Result<()> {
    // Whoever ends in between leaves a folder that says what it is, until nothing else is left.
    let records = folder.list()?.into_iter().map(|file| file.name);
    let records: Vec<String> = records.filter(|name| name.ends_with(".records")).collect();
    for name in records.iter().map(String::as_str).chain([mark::UNKNOWN, "super", "lock"]) {
        match folder.remove(name) {
            Err(error) if error.kind() == ErrorKind::NotFound && name == mark::UNKNOWN => {}
            removed => removed?,
        }
    }
    // It stays if there is anything else in it.
    fs::remove_dir(folder.path())
}

/// The folder of a tier below the path.
pub(super) fn folder_of(options: &TierOptions, uuid: TierUuid) -> PathBuf {
    match options.shared {
        Some(_) => options.path.join(uuid.to_string()),
        None => options.path.join(format!("{PREFIX}{uuid}")),
    }
}

fn make(
    options: &TierOptions,
    pool: PoolOf<'_>,
    owner: Owner,
    useless: &[PathBuf],
    slots: &Slots,
) -> Result<TierFolder, TierError> {
    let disk = |what: &'static str| move |source: std::io::Error| TierError::Disk { what, source };
    let (uuid, secret) = (random_bytes().map_err(disk("draw a UUID"))?, random_bytes().map_err(disk("draw a secret"))?);
    let uuid = TierUuid(uuid);
    let path = folder_of(options, uuid);
    let folder = Folder::new(&path, options.engine).map_err(disk("make the folder"))?.limited(shared_limit(options));
    let folder = folder.shared(name_file_of(options));
    let made = (|| {
        let room = folder.room().map_err(disk("measure the file system"))?;
        let (capacity, to_be_had) =
            (capacity_of(options, room), room.free + unknown_bytes(options, pool, useless, slots));
        // Where others have most of the file system, its files are as small as if that were smaller.
        let divided = capacity.min(to_be_had);
        let geometry = match options.file_bytes {
            Some(bytes) => Geometry::of_file_blocks(bytes / BLOCK).unwrap_or(Geometry::of_capacity(divided)),
            None if options.shared.is_some() => Geometry::of_capacity(divided / SHARED_BY),
            None => Geometry::of_capacity(divided),
        };
        let cluster_id = pool.cluster_id.to_owned();
        let new = NewTier { tier: uuid, secret, cluster_id, capacity: divided, geometry };
        let mut tier = Tier::create(folder.clone(), new, owner, slots)?;
        tier.superblock.log_id = pool.log_id;
        tier.write_superblock(slots)?;
        into_folder(&path, options, folder, tier, true, (capacity, to_be_had))
    })();
    if made.is_err() {
        // What was not used yet is nothing to keep.
        let _ = fs::remove_dir_all(&path);
    }
    made
}

/// A folder with what its tier may have, and what can be had of that as it begins.
fn into_folder(
    path: &Path,
    options: &TierOptions,
    folder: Folder,
    tier: Tier<Folder>,
    is_new: bool,
    (capacity, to_be_had): (u64, u64),
) -> Result<TierFolder, TierError> {
    let superblock = &tier.superblock;
    let (uuid, secret, geometry) = (superblock.tier, superblock.secret, superblock.geometry);
    let needed = FILES_MIN * geometry.file_bytes();
    if capacity.min(to_be_had) < needed {
        return Err(TierError::TooSmall { capacity: capacity.min(to_be_had), needed });
    }
    // The largest object gets a file for itself, whose last number it may not fill.
    let largest = capacity / TIER_OBJECT_PART + geometry.file_bytes();
    if let Some(limit) = file_size_limit_below(largest) {
        return Err(TierError::FilesTooLarge { limit, needed: largest });
    }
    let evicts = options.shared.is_none_or(|shared| shared.evicts);
    let tier = TierOwner::new(tier, is_new, capacity)?.evicting(evicts);
    Ok(TierFolder { path: path.to_owned(), folder, tier, uuid, secret, geometry, capacity })
}

/// Of the file system that clients share.
pub(super) fn name_file_of(options: &TierOptions) -> Option<NameFile> {
    options.shared.map(|shared| shared::name_file(shared.file_system, &options.path))
}

fn shared_limit(options: &TierOptions) -> Option<SharedLimit> {
    options.bytes_below_path.map(|bytes| SharedLimit { below: options.path.clone(), bytes })
}

/// What a tier below this path may have: the least of the limits given and nine tenths of the file system. How much of
/// that is free changes as others come and go, and the owner finds out with each file that it makes.
pub(super) fn capacity_of(options: &TierOptions, room: Room) -> u64 {
    let limits = [options.bytes, options.bytes_below_path].into_iter().flatten();
    limits.fold(room.total / SHARE.1 * SHARE.0, u64::min)
}

#[cfg(test)]
mod tests {
    use mooncake_tier::medium::folder::Engine;

    use super::*;

    const MIB: u64 = 1 << 20;
    const POOL: PoolOf<'static> = PoolOf { cluster_id: "c", log_id: 7 };
    const OTHER_LOG: PoolOf<'static> = PoolOf { log_id: 8, ..POOL };

    fn below(path: &Path) -> TierOptions {
        let (engine, bytes, file_bytes) = (Some(Engine::Threads), Some(64 * MIB), Some(MIB));
        TierOptions { engine, bytes, file_bytes, ..TierOptions::new(path) }
    }

    fn made(options: &TierOptions, pool: PoolOf<'_>) -> TierFolder {
        make(options, pool, this_process().unwrap(), &[], &Slots::new(2)).unwrap()
    }

    #[test]
    fn a_tier_may_have_what_its_limits_allow_however_little_is_free_as_it_begins() {
        let options = TierOptions::new("/tiers");
        let room = Room { free: 0, total: 1_000 * MIB, left: None };
        assert_eq!(capacity_of(&options, room), 900 * MIB);
        let with = |bytes, bytes_below_path| TierOptions { bytes, bytes_below_path, ..options.clone() };
        assert_eq!(capacity_of(&with(Some(500 * MIB), Some(700 * MIB)), room), 500 * MIB);
        assert_eq!(capacity_of(&with(Some(500 * MIB), Some(300 * MIB)), room), 300 * MIB);
        assert_eq!(capacity_of(&with(Some(2_000 * MIB), None), room), 900 * MIB);
    }

    #[test]
    fn what_an_unknown_folder_takes_is_room_of_the_next_one() {
        let place = tempfile::tempdir().unwrap();
        let (options, slots) = (below(place.path()), Slots::new(2));
        let known = made(&options, POOL);
        known.folder.create(&FileNumber(0).name(), MIB).unwrap();
        assert_eq!(known.capacity, 64 * MIB);
        let bytes = |pool, useless: &[PathBuf]| unknown_bytes(&options, pool, useless, &slots);
        assert_eq!(bytes(POOL, &[]), 0);
        assert_eq!(bytes(OTHER_LOG, &[]), 0, "it is in use");
        assert_eq!(bytes(POOL, std::slice::from_ref(&known.path)), MIB, "the master has forgotten it");
        drop(known.tier.into_lock());
        assert_eq!([bytes(POOL, &[]), bytes(OTHER_LOG, &[])], [0, MIB]);
        assert_eq!(bytes(PoolOf { cluster_id: "another", ..OTHER_LOG }, &[]), 0, "it is never deleted");
    }

    #[test]
    fn an_unknown_folder_goes_an_hour_after_it_was_marked_where_a_tier_lacks_room() {
        let place = tempfile::tempdir().unwrap();
        let options = below(place.path());
        let unknown = made(&options, POOL);
        let path = unknown.path.clone();
        drop(unknown.tier.into_lock());
        let is_deleted = |lacks_room| {
            let found = delete_unknown(&options, OTHER_LOG, &[], lacks_room);
            assert_eq!(found.left, u64::from(!found.any_deleted), "it is counted until it is gone");
            found.any_deleted
        };
        let marked = |ago| mark::make_older(&path, OTHER_LOG.log_id, ago);
        assert!(!is_deleted(true) && mark::age(&path).is_some(), "its operator has an hour to move it away");
        marked(Duration::from_secs(50 * 60));
        assert!(!is_deleted(true));
        marked(Duration::from_secs(70 * 60));
        assert!(!is_deleted(false) && path.exists(), "nobody needs its room");
        assert!(is_deleted(true) && !path.exists());
    }

    #[test]
    fn a_copy_of_a_folder_is_neither_taken_over_nor_deleted() {
        let place = tempfile::tempdir().unwrap();
        let options = below(place.path());
        let made = made(&options, POOL);
        let (uuid, path) = (made.uuid, made.path.clone());
        drop(made.tier.into_lock());
        // Its name comes first.
        let copy = place.path().join("mooncake-0-backup");
        fs::create_dir(&copy).unwrap();
        fs::set_permissions(&copy, fs::metadata(&path).unwrap().permissions()).unwrap();
        for file in fs::read_dir(&path).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        let take = || TierFolder::take(&options, POOL, &[]).unwrap();
        let taken = take();
        assert_eq!((taken.uuid, &taken.path), (uuid, &path));
        assert_ne!(take().uuid, uuid, "while that one is in use another is made");
        drop(taken.tier.into_lock());
        assert_eq!(delete_unknown(&options, OTHER_LOG, std::slice::from_ref(&copy), true).left, 2);
        assert!(mark::age(&copy).is_none() && mark::age(&path).is_some());
    }
}
