//! What a folder proves when its tier is mounted: which files are there, and which records of those that a loss of
//! power or a failing disk may have damaged are whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
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
    /// Its records; none before they were listed, and once all were looked at.
    entries: Option<Vec<Entry>>,
    whole: Vec<Rid>,
    looked_at: usize,
    /// Of the next one, which is large, so many bytes were good.
    good_bytes: u64,
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
            if so_far.is_to_be_listed() {
                let found = contents(medium, (superblock.tier, geometry), (file, bytes), slots, &counted);
                so_far.list(file, found.map(|found| found.entries))?;
            }
            while !so_far.is_through() {
                so_far.go_on(reader, superblock.tier, true, &mut time_left)?;
            }
            proven.extend(so_far.whole.iter().copied());
        }
        let files = files.iter().flat_map(numbers).collect();
        let appended = appended.into_iter().map(|file| file.0).collect();
        Some(Proof { is_new: false, head: superblock.next_file.0, files, appended, suspects, proven })
    }
}

impl ReadBack {
    /// All was looked at that the file has.
    pub fn is_through(&self) -> bool {
        self.is_through
    }

    pub fn is_to_be_listed(&self) -> bool {
        self.entries.is_none() && !self.is_through
    }

    /// What the file has; nothing if that cannot be read. None if the disk may say it later.
    pub fn list(&mut self, file: FileNumber, found: io::Result<Vec<Entry>>) -> Option<()> {
        let entries = match found {
            Err(error) if is_for_now(&error) => return None,
            found => found.unwrap_or_else(|error| {
                tracing::warn!(file = file.0, %error, "a file of the tier cannot be read; what it had is lost");
                Vec::new()
            }),
        };
        self.entries = Some(entries);
        Some(())
    }

    /// Looks at the next of its records, a few megabytes at most. Those that are not whole; none if the disk had no
    /// time, or failed to read one and it is not the last try.
    pub fn go_on<M: Medium>(
        &mut self,
        reader: &mut Reader<M>,
        tier: TierUuid,
        is_last: bool,
        time_left: impl FnMut() -> Duration,
    ) -> Option<Vec<Entry>> {
        let entries = self.entries.get_or_insert_default();
        let mut bytes = 0;
        let is_next = |entry: &&Entry| {
            bytes += entry.size;
            bytes <= STEP_BYTES
        };
        let ahead = &entries[self.looked_at..];
        let count = ahead.iter().take(STEP_RECORDS).take_while(is_next).count().max(1).min(ahead.len());
        let some = &ahead[..count];
        // One that is larger than a step takes several.
        let from = self.good_bytes;
        let mut sinks: Vec<_> = some.iter().map(|_| |_: u64, bytes: &[u8]| crc32c(bytes)).collect();
        let wants = some.iter().zip(&mut sinks).map(|(entry, sink)| Want {
            place: record_place(tier, entry),
            from,
            len: (entry.size - from).min(STEP_BYTES),
            crc: None,
            sink,
        });
        let mut wants: Vec<Want<'_>> = wants.collect();
        let results = reader.read(&mut wants, time_left);
        let may_be_read_later = |miss: &Miss| match miss {
            Miss::Late | Miss::NoSlot | Miss::Away => true,
            Miss::Failed(_) => !is_last,
            Miss::Gone | Miss::Wrong | Miss::NoSuchBytes => false,
        };
        if results.iter().any(|result| result.as_ref().is_err_and(may_be_read_later)) {
            return None;
        }
        let end = from + wants.first().map_or(0, |want| want.len);
        if let [entry] = some
            && results == [Ok(())]
            && end < entry.size
        {
            self.good_bytes = end;
            return Some(Vec::new());
        }
        let (mut bad, good_ones) = (Vec::new(), &mut self.whole);
        for (entry, result) in some.iter().zip(results) {
            match result {
                Ok(()) => good_ones.push(entry.rid),
                Err(_) => bad.push(entry.clone()),
            }
        }
        (self.looked_at, self.good_bytes) = (self.looked_at + count, 0);
        if self.looked_at == entries.len() {
            (self.entries, self.is_through) = (None, true);
        }
        Some(bad)
    }
}

/// Records, and bytes of them, that are read together.
const STEP_RECORDS: usize = 32;
const STEP_BYTES: u64 = 4 << 20;

/// Where an entry says that its record lies.
pub(crate) fn record_place(tier: TierUuid, entry: &Entry) -> RecordPlace {
    RecordPlace { tier, address: entry.address, rid: entry.rid, size: entry.size, key_bytes: entry.key.len() }
}
