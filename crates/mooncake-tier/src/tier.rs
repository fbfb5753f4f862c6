//! A tier's folder: who has it, what its superblock says, and which files there are.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::TierUuid;
use mooncake_mutant::mutant;

use crate::address::{Address, BLOCK, FILES_MIN, FileNumber, Geometry};
use crate::io_counts::IoCounts;
use crate::medium::{Completion, Medium, Operation, Queue};
use crate::slots::{Slot, Slots};
use crate::superblock::{NotASuperblock, SUSPECTS_MAX, Superblock};

const SUPER: &str = "super";
const LOCK: &str = "lock";

/// How long a disk has for the superblock.
const LIMIT: Duration = Duration::from_secs(30);

/// Numbers that an owner may have used since it wrote the superblock, as it does with each sync; more than any does.
const NUMBERS_AHEAD: u64 = 1 << 20;

/// Whose a tier is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The boot in which it runs.
    pub boot_id: Vec<u8>,
    /// Its process, as its session names it.
    pub process: Vec<u8>,
}

/// What a new tier is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTier {
    /// Its UUID.
    pub tier: TierUuid,
    /// By which another session takes it over.
    pub secret: [u8; 16],
    /// The cluster that it belongs to.
    pub cluster_id: String,
    /// Bytes that its files may have.
    pub capacity: u64,
    /// How they are divided: [`Geometry::of_capacity`].
    pub geometry: Geometry,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// Another process has it.
    #[error("another process has the folder")]
    InUse,
    /// There is no superblock.
    #[error(transparent)]
    NotASuperblock(#[from] NotASuperblock),
    /// Less room than a tier needs.
    #[error("{capacity} bytes are too few for a tier: give it {needed} at least")]
    TooSmall {
        /// What was given.
        capacity: u64,
        /// What it needs.
        needed: u64,
    },
    /// The process may not write files that are as large as the tier's.
    #[error("RLIMIT_FSIZE (ulimit -f) lets a file have {limit} bytes at most, and one of this tier may have {needed}")]
    FilesTooLarge {
        /// What it may write.
        limit: u64,
        /// What the largest file of the tier may have.
        needed: u64,
    },
    /// The file system says no.
    #[error("{what}: {source}")]
    Disk {
        /// What was tried.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
}

fn disk(what: &'static str) -> impl FnOnce(io::Error) -> TierError {
    move |source| TierError::Disk { what, source }
}

/// A folder that this process has, as long as this lives.
#[derive(Debug)]
pub struct Tier<M: Medium> {
    /// Where it lies.
    pub medium: M,
    /// What its superblock says.
    pub superblock: Superblock,
    /// Of the superblock's last copy.
    pub sequence: u64,
    /// The superblock's file.
    pub super_file: M::File,
    /// The files that are there, by their first numbers, with their bytes.
    pub files: BTreeMap<FileNumber, u64>,
    /// Of what its disk does from now on.
    pub counts: Arc<IoCounts>,
    lock: M::Lock,
}

/// A folder that is locked, and in which nothing was changed.
#[derive(Debug)]
pub struct FoundTier<M: Medium> {
    /// What its superblock says.
    pub superblock: Superblock,
    sequence: u64,
    super_file: M::File,
    lock: M::Lock,
}

impl<M: Medium> FoundTier<M> {
    /// Locks a folder, and reads what it is. In one that is no tier it leaves nothing, and no lock either.
    pub fn find(medium: &M, slots: &Slots) -> Result<FoundTier<M>, TierError> {
        let super_file = medium.open(SUPER, true).map_err(disk("open the superblock"))?;
        read_superblock(medium, &super_file, slots)?;
        let lock = medium.lock(LOCK).map_err(disk("lock the folder"))?.ok_or(TierError::InUse)?;
        // Its last owner may have written it since.
        let (superblock, sequence) = read_superblock(medium, &super_file, slots)?;
        Ok(FoundTier { superblock, sequence, super_file, lock })
    }

    /// Takes it over, with the medium that it is to be used by.
    pub fn take(self, medium: M, owner: Owner, slots: &Slots) -> Result<Tier<M>, TierError> {
        let FoundTier { superblock: before, sequence, super_file, lock } = self;
        let files = files_of(&medium, &before).map_err(disk("list the folder"))?;
        let above = |(number, bytes): (&FileNumber, &u64)| number.0 + before.geometry.numbers_for(*bytes);
        let mut next_file = files.iter().map(above).max().unwrap_or(0).max(before.next_file.0);
        if mutant!(FileNumbersAreUsedAgain) {
            next_file = (0..).find(|number| !files.contains_key(&FileNumber(*number))).expect("one is free");
        }
        let has_lost_power = owner.boot_id != before.boot_id && !mutant!(LostWritesAreTrusted);
        let mut superblock =
            Superblock { next_file: FileNumber(next_file), boot_id: owner.boot_id, process: owner.process, ..before };
        // Of those that are gone nothing is to be proven any more.
        superblock.suspects.retain(|file| files.contains_key(file));
        let mut tier = Tier { medium, superblock, sequence, super_file, files, counts: Arc::default(), lock };
        if has_lost_power {
            tier.suspect_unsynced().map_err(disk("remove a file that was not synced"))?;
        }
        tier.write_superblock(slots)?;
        Ok(tier)
    }
}

/// The superblock, and the sequence of its last copy.
fn read_superblock<M: Medium>(medium: &M, file: &M::File, slots: &Slots) -> Result<(Superblock, u64), TierError> {
    let slot = slots.take().ok_or_else(|| disk("take a buffer")(ErrorKind::OutOfMemory.into()))?;
    let read = Operation::Read { file: file.clone(), offset: 0, slot, len: 2 * BLOCK as usize };
    let (_, slot) = carry_out(medium, read).map_err(disk("read the superblock"))?;
    let slot = slot.expect("a read has a slot");
    let (one, two) = slot[..2 * BLOCK as usize].split_at(BLOCK as usize);
    Ok(Superblock::decode([one, two])?)
}

impl<M: Medium> Tier<M> {
    /// Makes one in an empty folder.
    pub fn create(medium: M, new: NewTier, owner: Owner, slots: &Slots) -> Result<Tier<M>, TierError> {
        let geometry = new.geometry;
        let needed = FILES_MIN * geometry.file_bytes();
        if new.capacity < needed {
            return Err(TierError::TooSmall { capacity: new.capacity, needed });
        }
        let lock = medium.lock(LOCK).map_err(disk("lock the folder"))?.ok_or(TierError::InUse)?;
        let super_file = medium.create(SUPER, 2 * BLOCK).map_err(disk("create the superblock"))?;
        let superblock = Superblock {
            tier: new.tier,
            secret: new.secret,
            log_id: 0,
            geometry,
            next_file: FileNumber(0),
            synced_to: Address(0),
            suspects: Vec::new(),
            cluster_id: new.cluster_id,
            boot_id: owner.boot_id,
            process: owner.process,
        };
        let (files, counts) = (BTreeMap::new(), Arc::default());
        let mut tier = Tier { medium, superblock, sequence: 0, super_file, files, counts, lock };
        tier.write_superblock(slots)?;
        tier.medium.sync_folder().map_err(disk("sync the folder"))?;
        Ok(tier)
    }

    /// Takes over the one that is in a folder, and says what its superblock said before.
    pub fn open(medium: M, owner: Owner, slots: &Slots) -> Result<(Tier<M>, Superblock), TierError> {
        let found = FoundTier::find(&medium, slots)?;
        let before = found.superblock.clone();
        Ok((found.take(medium, owner, slots)?, before))
    }

    /// The host has lost power since files were written that were not synced: what they have counts once it is read
    /// back, in this life of the tier and in every later one. Files that no list has room for are given up.
    fn suspect_unsynced(&mut self) -> io::Result<()> {
        let Superblock { geometry, synced_to, .. } = self.superblock;
        let is_behind = |(file, bytes): (&FileNumber, &u64)| {
            let end = geometry.address(FileNumber(file.0 + geometry.numbers_for(*bytes)), 0);
            end.is_none_or(|end| end > synced_to).then_some(*file)
        };
        let behind: Vec<FileNumber> = self.files.iter().filter_map(is_behind).collect();
        for file in behind {
            if self.superblock.suspects.contains(&file) {
                continue;
            }
            if self.superblock.suspects.len() < SUSPECTS_MAX {
                self.superblock.suspects.push(file);
                continue;
            }
            tracing::warn!(file = file.0, "a file of the tier was not synced when its host lost power; it is given up");
            self.medium.remove(&file.name())?;
            self.files.remove(&file);
        }
        Ok(())
    }

    /// Writes the superblock, and waits for the disk to have it.
    pub fn write_superblock(&mut self, slots: &Slots) -> Result<(), TierError> {
        let mut slot = slots.take().ok_or_else(|| disk("take a buffer")(ErrorKind::OutOfMemory.into()))?;
        self.sequence += 1;
        let block = self.superblock.encode(self.sequence);
        slot[..block.len()].copy_from_slice(&block);
        let (file, offset) = (self.super_file.clone(), self.sequence % 2 * BLOCK);
        let write = Operation::Write { file, offset, slot, len: block.len() };
        carry_out(&self.medium, write).map_err(disk("write the superblock"))?;
        let file = self.super_file.clone();
        carry_out(&self.medium, Operation::Sync { file }).map_err(disk("sync the superblock"))?;
        Ok(())
    }

    /// What has to live as long as anything is written to the folder.
    pub fn into_lock(self) -> M::Lock {
        self.lock
    }
}

/// Files of records, by their first numbers, with their bytes. What else lies there is not the tier's.
fn files_of(medium: &impl Medium, superblock: &Superblock) -> io::Result<BTreeMap<FileNumber, u64>> {
    let geometry = superblock.geometry;
    let files = medium.list()?.into_iter().filter_map(|listed| {
        let number = FileNumber::of_name(&listed.name)?;
        // No owner has made one with such a number, and numbers that go on above it would end soon.
        if number.0 > superblock.next_file.0.saturating_add(NUMBERS_AHEAD) {
            tracing::warn!(file = listed.name, "a file with a number that the tier has not come to is left as it is");
            return None;
        }
        let is_whole = listed.bytes > 0 && listed.bytes.is_multiple_of(geometry.file_bytes());
        // Its owner has set all of it aside, or has written it: a hole at the end is somebody else's. Counted, it
        // would be room that the tier's own files lack.
        let bytes = listed.bytes.min(geometry.numbers_for(listed.taken) * geometry.file_bytes());
        // Every place in it has an address.
        geometry.address(FileNumber(number.0.checked_add(geometry.numbers_for(bytes))?), 0)?;
        if !is_whole || bytes < listed.bytes {
            tracing::warn!(
                file = listed.name,
                bytes = listed.bytes,
                "a file of the tier has another length; it is left"
            );
        }
        Some((number, bytes))
    });
    Ok(files.collect())
}

/// One operation, waited for.
pub(crate) fn carry_out<M: Medium>(medium: &M, operation: Operation<M::File>) -> io::Result<(usize, Option<Slot>)> {
    let wanted = match &operation {
        Operation::Read { len, .. } | Operation::Write { len, .. } => *len,
        Operation::Sync { .. } => 0,
    };
    let mut queue = medium.queue(1)?;
    queue.submit(0, operation);
    let Some(Completion { result, slot, .. }) = queue.next(LIMIT) else { return Err(ErrorKind::TimedOut.into()) };
    match result? {
        moved if moved == wanted => Ok((moved, slot)),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::faulty::{Faults, FaultyDisk};

    fn owner(number: u8) -> Owner {
        Owner { boot_id: vec![number; 16], process: vec![number; 40] }
    }

    fn new_tier(capacity: u64) -> NewTier {
        NewTier {
            tier: TierUuid([3; 16]),
            secret: [4; 16],
            cluster_id: "cluster".to_owned(),
            capacity,
            geometry: Geometry::of_capacity(capacity),
        }
    }

    #[test]
    fn a_tier_is_one_owners_and_the_next_one_knows_whose_it_was() {
        let (disk, slots) = (FaultyDisk::new(1, Faults::default()), Slots::new(2));
        let made = Tier::create(disk.clone(), new_tier(1 << 30), owner(1), &slots).unwrap();
        assert!(matches!(Tier::open(disk.clone(), owner(2), &slots), Err(TierError::InUse)));
        let superblock = made.superblock.clone();
        drop(made.into_lock());
        let (opened, before) = Tier::open(disk.clone(), owner(2), &slots).unwrap();
        assert_eq!(before, superblock);
        assert_eq!((opened.superblock.process.clone(), opened.superblock.tier), (vec![2; 40], TierUuid([3; 16])));
        drop(opened);
        disk.lose_power();
        assert_eq!(Tier::open(disk, owner(3), &slots).unwrap().1.process, vec![2; 40]);
    }

    #[test]
    fn numbers_go_on_above_every_file_that_is_there() {
        let (disk, slots) = (FaultyDisk::new(1, Faults::default()), Slots::new(2));
        drop(Tier::create(disk.clone(), new_tier(1 << 30), owner(1), &slots).unwrap());
        // Made by an owner whose superblock was not written any more: one of them has three numbers.
        disk.create(&FileNumber(7).name(), 3 * (16 << 20)).unwrap();
        disk.create(&FileNumber(2).name(), 16 << 20).unwrap();
        disk.create("notes.txt", 5).unwrap();
        let (opened, _) = Tier::open(disk, owner(2), &slots).unwrap();
        assert_eq!(opened.superblock.next_file, FileNumber(10));
        assert_eq!(opened.files.keys().map(|file| file.0).collect::<Vec<_>>(), [2, 7]);
    }

    #[test]
    fn files_that_no_owner_can_have_made_take_no_room_and_no_numbers() {
        let (disk, slots) = (FaultyDisk::new(1, Faults::default()), Slots::new(2));
        drop(Tier::create(disk.clone(), new_tier(1 << 30), owner(1), &slots).unwrap());
        let file_bytes = 16 << 20;
        disk.create(&FileNumber(3).name(), 2 * file_bytes).unwrap();
        for (number, bytes) in [(4, u64::MAX >> 1), (5, 16 << 40)] {
            disk.create(&FileNumber(number).name(), file_bytes).unwrap();
            disk.lengthen(&FileNumber(number).name(), bytes);
        }
        for number in [NUMBERS_AHEAD + 1, 1 << 52, u64::MAX >> 8, u64::MAX - 15, u64::MAX] {
            disk.create(&FileNumber(number).name(), file_bytes).unwrap();
        }
        let (opened, _) = Tier::open(disk, owner(2), &slots).unwrap();
        let files = opened.files.iter().map(|(file, bytes)| (file.0, *bytes)).collect::<Vec<_>>();
        assert_eq!(files, [(3, 2 * file_bytes), (4, file_bytes), (5, file_bytes)]);
        assert_eq!(opened.superblock.next_file, FileNumber(6));
        // A superblock that has come to such a number makes none of them addressable.
        let mut opened = opened;
        opened.superblock.next_file = FileNumber(u64::MAX >> 8);
        opened.write_superblock(&slots).unwrap();
        let disk = opened.medium.clone();
        drop(opened);
        let (opened, _) = Tier::open(disk, owner(3), &slots).unwrap();
        assert!(opened.files.keys().all(|file| file.0 < 1 << 52), "{:?}", opened.files);
    }

    #[test]
    fn suspects_whose_file_is_gone_take_the_place_of_no_other() {
        let (disk, slots) = (FaultyDisk::new(1, Faults::default()), Slots::new(2));
        let mut made = Tier::create(disk.clone(), new_tier(1 << 30), owner(1), &slots).unwrap();
        made.superblock.suspects = (0..SUSPECTS_MAX as u64).map(FileNumber).collect();
        made.write_superblock(&slots).unwrap();
        drop(made);
        disk.create(&FileNumber(3).name(), 16 << 20).unwrap();
        disk.create(&FileNumber(90).name(), 16 << 20).unwrap();
        disk.sync_folder().unwrap();
        disk.lose_power();
        let (opened, _) = Tier::open(disk, owner(2), &slots).unwrap();
        assert_eq!(opened.superblock.suspects, [3, 90].map(FileNumber));
        assert_eq!(opened.files.len(), 2);
    }

    #[test]
    fn a_folder_that_is_none_is_named() {
        let (disk, slots) = (FaultyDisk::new(1, Faults::default()), Slots::new(2));
        let few = Tier::create(disk.clone(), new_tier(100 << 20), owner(1), &slots).unwrap_err();
        assert!(few.to_string().contains("134217728 at least"), "{few}");
        assert!(matches!(Tier::open(disk.clone(), owner(1), &slots), Err(TierError::Disk { .. })));
        disk.create(SUPER, 2 * BLOCK).unwrap();
        assert!(matches!(Tier::open(disk, owner(1), &slots), Err(TierError::NotASuperblock(_))));
    }
}
