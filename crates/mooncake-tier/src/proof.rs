//! What a folder proves when its tier is mounted: which files are there, and which records of those that a loss of
//! power or a failing disk may have damaged are whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::crc32c;

use crate::address::{FileNumber, Geometry};
use crate::contents::{contents, is_for_now};
use crate::footer::Entry;
use crate::io_counts::{CountedReads, IoCounts, ReadFor};
use crate::medium::Medium;
use crate::reader::{Miss, Reader, RecordPlace, Want};
use crate::slots::Slots;
use crate::superblock::Superblock;

/// What the folder proves when the tier is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// Nothing was ever written there.
    pub is_new: bool,
    /// Above the numbers of all files that it had.
    pub head: u64,
    /// The files that are there: all numbers of each.
    pub files: BTreeSet<u64>,
    /// Those that go on.
    pub appended: BTreeSet<u64>,
    /// What lies in these is there only if it is among the proven.
    pub suspects: BTreeSet<u64>,
    /// Records that were read back and are whole.
    pub proven: BTreeSet<Rid>,
}

/// What it takes to prove what a folder has.
pub(crate) struct Proving<'a, M: Medium> {
    pub medium: &'a M,
    pub superblock: &'a Superblock,
    pub reader: &'a mut Reader<M>,
    pub slots: &'a Slots,
    /// What was read back of files that are suspect.
    pub read_back: &'a mut BTreeMap<FileNumber, ReadBack>,
    pub counts: &'a Arc<IoCounts>,
}

/// What was read back so far of a file that is suspect and has all its records: a slow disk goes on where it was left.
#[derive(Debug, Default)]
pub(crate) struct ReadBack {
    whole: Vec<Rid>,
    looked_at: usize,
    is_through: bool,
}

impl<M: Medium> Proving<'_, M> {
    /// Of these files with their bytes. `busy` are those that may have more records later. None if the disk had no
    /// time.
    pub fn prove(
        self,
        files: &[(FileNumber, u64)],
        appended: BTreeSet<FileNumber>,
        busy: &BTreeSet<FileNumber>,
        mut time_left: impl FnMut() -> Duration,
    ) -> Option<Proof> {
        let Proving { medium, superblock, reader, slots, read_back: known, counts } = self;
        let counted = CountedReads { counts: counts.clone(), by: ReadFor::Proof };
        reader.counts(counted.clone());
        let geometry: Geometry = superblock.geometry;
        let numbers = |(file, bytes): &(FileNumber, u64)| file.0..file.0 + geometry.numbers_for(*bytes);
        let suspects: BTreeSet<u64> = superblock.suspects.iter().map(|file| file.0).collect();
        let mut proven = BTreeSet::new();
        for (file, bytes) in files.iter().copied().filter(|(file, _)| suspects.contains(&file.0)) {
            // One that is being written has more of them later.
            let is_busy = busy.contains(&file);
            let mut of_busy = ReadBack::default();
            let so_far = if is_busy { &mut of_busy } else { known.entry(file).or_default() };
            if !so_far.is_through {
                match contents(medium, (superblock.tier, geometry), (file, bytes), slots, &counted) {
                    Ok(found) => so_far.go_on(reader, superblock.tier, &found.entries, &mut time_left)?,
                    Err(error) if is_for_now(&error) => return None,
                    Err(error) => {
                        tracing::warn!(file = file.0, %error, "a file of the tier cannot be read; what it had is lost");
                    }
                }
                so_far.is_through = true;
            }
            proven.extend(so_far.whole.iter().copied());
        }
        let files = files.iter().flat_map(numbers).collect();
        let appended = appended.into_iter().map(|file| file.0).collect();
        Some(Proof { is_new: false, head: superblock.next_file.0, files, appended, suspects, proven })
    }
}

impl ReadBack {
    /// Looks at those of the file's entries that it has not; none if the disk had no time for all.
    fn go_on<M: Medium>(
        &mut self,
        reader: &mut Reader<M>,
        tier: TierUuid,
        entries: &[Entry],
        time_left: &mut impl FnMut() -> Duration,
    ) -> Option<()> {
        for some in entries.get(self.looked_at..).unwrap_or_default().chunks(READ_AT_ONCE) {
            let mut sinks: Vec<_> = some.iter().map(|_| |_: u64, bytes: &[u8]| crc32c(bytes)).collect();
            let wants = some.iter().zip(&mut sinks).map(|(entry, sink)| Want {
                place: record_place(tier, entry),
                from: 0,
                len: entry.size,
                crc: None,
                sink,
            });
            let mut wants: Vec<Want<'_>> = wants.collect();
            let results = reader.read(&mut wants, &mut *time_left);
            if results.iter().any(|result| matches!(result, Err(Miss::Late | Miss::NoSlot | Miss::Away))) {
                return None;
            }
            let good = some.iter().zip(results).filter(|(_, result)| result.is_ok());
            self.whole.extend(good.map(|(entry, _)| entry.rid));
            self.looked_at += some.len();
        }
        Some(())
    }
}

/// Records that are read together.
const READ_AT_ONCE: usize = 32;

/// Where an entry says that its record lies.
pub(crate) fn record_place(tier: TierUuid, entry: &Entry) -> RecordPlace {
    RecordPlace { tier, address: entry.address, rid: entry.rid, size: entry.size, key_bytes: entry.key.len() }
}
