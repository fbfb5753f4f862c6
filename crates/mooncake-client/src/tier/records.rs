//! Reads of this store's tier, for the lanes of others.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::copy_and_sum;
use mooncake_segment::{RecordAddress, RecordError, RecordPart, RecordReads, Records};
use mooncake_tier::address::{Address, BLOCK, FileNumber, Geometry};
use mooncake_tier::io_counts::{CountedReads, IoCounts, ReadFor};
use mooncake_tier::medium::Files;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::reader::ahead::{Part, ReadAhead};
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use parking_lot::Mutex;

/// Buffers of all readers together, each of a megabyte and a little.
const SLOTS: usize = 32;

/// Readers that are kept while no lane needs them.
const IDLE_MAX: usize = 16;

/// Time that the disk has for a read.
const LIMIT: Duration = Duration::from_secs(3);

/// So many records that cannot be read, within a minute, are more than a few bad ones.
const FAILURES: usize = 16;
const COUNTED_FOR: Duration = Duration::from_secs(60);

/// The records of one folder.
pub(super) struct FolderRecords {
    folder: Folder,
    uuid: TierUuid,
    geometry: Geometry,
    slots: Slots,
    counts: Arc<IoCounts>,
    idle: Mutex<Vec<Reader<Folder>>>,
    /// When the minute began in which records are counted that could not be read, and which these are. One is read
    /// again by whoever wants it, and by its owner, who is to look.
    failed: Mutex<(Instant, BTreeSet<Rid>)>,
}

impl FolderRecords {
    pub fn new(folder: Folder, uuid: TierUuid, geometry: Geometry, counts: Arc<IoCounts>) -> FolderRecords {
        FolderRecords {
            folder,
            uuid,
            geometry,
            slots: Slots::new(SLOTS),
            counts,
            idle: Mutex::default(),
            failed: Mutex::new((Instant::now(), BTreeSet::new())),
        }
    }

    /// Whether so many records could not be read within a minute that the disk, or what it gives, is not to be trusted.
    pub fn is_failing(&self) -> bool {
        let (since, records) = &*self.failed.lock();
        records.len() >= FAILURES && since.elapsed() < COUNTED_FOR
    }

    pub fn uuid(&self) -> TierUuid {
        self.uuid
    }

    /// Whether the folder is there.
    pub fn is_there(&self) -> bool {
        self.folder.is_there()
    }

    /// One for a caller that reads much, with buffers of its own.
    pub fn new_reader(&self, slots: Slots, by: ReadFor) -> io::Result<Reader<Folder>> {
        let mut reader = Reader::new(self.folder.clone(), self.geometry, slots)?;
        reader.counts(CountedReads { counts: self.counts.clone(), by });
        Ok(reader)
    }

    /// A read of that record has failed.
    pub fn has_failed(&self, rid: Rid) {
        let mut failed = self.failed.lock();
        if failed.0.elapsed() >= COUNTED_FOR {
            *failed = (Instant::now(), BTreeSet::new());
        }
        if failed.1.len() < FAILURES {
            failed.1.insert(rid);
        }
    }

    /// Fills all of `into` with bytes of a record that is looked at again, from one on. What it gives has proven
    /// itself.
    pub fn read_again(&self, record: &RecordAddress, from: u64, into: &mut [u8]) -> Result<(), RecordError> {
        let place = self.place(record);
        let mut reader = self.reader(ReadFor::Recheck).map_err(|error| {
            tracing::warn!(%error, "the tier cannot be read");
            RecordError::Failed
        })?;
        let len = into.len() as u64;
        let mut sink = |at: u64, bytes: &[u8]| copy_and_sum(bytes, &mut into[(at - from) as usize..][..bytes.len()]);
        let until = Instant::now() + LIMIT;
        let time_left = || until.saturating_duration_since(Instant::now());
        let read = reader.read(&mut [Want { place, from, len, crc: None, sink: &mut sink }], time_left).pop();
        let read = read.unwrap_or(Err(Miss::Late));
        self.keep(reader);
        self.came(record.rid, read)
    }

    fn place(&self, record: &RecordAddress) -> RecordPlace {
        let RecordAddress { rid, offset, size, key_bytes } = *record;
        // No record begins within a block, and none is as large as that.
        let size = if offset.is_multiple_of(BLOCK) { size } else { u64::MAX };
        RecordPlace { tier: self.uuid, address: Address(offset / BLOCK), rid, size, key_bytes: key_bytes as usize }
    }

    /// What a read came to, which is counted where the disk is to blame.
    fn came(&self, rid: Rid, read: Result<(), Miss>) -> Result<(), RecordError> {
        if matches!(read, Err(Miss::Wrong | Miss::Failed(_))) {
            self.has_failed(rid);
        }
        read.map_err(|miss| match miss {
            Miss::Gone => RecordError::Gone,
            Miss::Wrong | Miss::NoSuchBytes => RecordError::Wrong,
            Miss::NoSlot | Miss::Late | Miss::Away => RecordError::Busy,
            Miss::Failed(_) => RecordError::Failed,
        })
    }

    fn reader(&self, by: ReadFor) -> io::Result<Reader<Folder>> {
        let Some(mut reader) = self.idle.lock().pop() else { return self.new_reader(self.slots.clone(), by) };
        reader.counts(CountedReads { counts: self.counts.clone(), by });
        Ok(reader)
    }

    /// For another lane. One that the disk owes an answer gives its slots back as it goes.
    fn keep(&self, reader: Reader<Folder>) {
        let mut idle = self.idle.lock();
        if !reader.is_owed() && idle.len() < IDLE_MAX {
            idle.push(reader);
        }
    }
}

/// Reads for one lane.
struct FolderReads {
    records: Arc<FolderRecords>,
    /// Only while there is something to be read.
    reads: Option<ReadAhead<Folder>>,
    /// Of which records, the oldest first.
    asked: VecDeque<Rid>,
    /// Buffers of reads for which there was no reader.
    unread: VecDeque<Vec<u8>>,
}

impl RecordReads for FolderReads {
    fn ask(&mut self, record: &RecordAddress, from: u64, bytes: Vec<u8>, into: Range<usize>, part: RecordPart) {
        if self.reads.is_none() && self.unread.is_empty() {
            let reader = self.records.reader(ReadFor::Lane);
            let reader = reader.inspect_err(|error| tracing::warn!(%error, "the tier cannot be read"));
            self.reads = reader.ok().map(ReadAhead::new);
        }
        match &mut self.reads {
            Some(reads) => {
                self.asked.push_back(record.rid);
                let part = Part { is_first: part.is_first, is_last: part.is_last };
                reads.ask(self.records.place(record), from, bytes, into, part);
            }
            None => self.unread.push_back(bytes),
        }
    }

    fn next(&mut self) -> Option<(Vec<u8>, Result<(), RecordError>)> {
        let Some(reads) = &mut self.reads else { return Some((self.unread.pop_front()?, Err(RecordError::Failed))) };
        let until = Instant::now() + LIMIT;
        let (bytes, read) = reads.next(|| until.saturating_duration_since(Instant::now()))?;
        let rid = self.asked.pop_front()?;
        if let Some(reads) = self.reads.take_if(|reads| reads.is_idle()) {
            self.records.keep(reads.into_reader());
        }
        Some((bytes, self.records.came(rid, read)))
    }
}

impl Records for FolderRecords {
    fn reads(self: Arc<Self>) -> Box<dyn RecordReads> {
        Box::new(FolderReads { records: self, reads: None, asked: VecDeque::new(), unread: VecDeque::new() })
    }

    fn file(&self, number: u64) -> Result<OwnedFd, RecordError> {
        match self.folder.open_file(FileNumber(number)) {
            Ok(file) => Arc::into_inner(file).map(OwnedFd::from).ok_or(RecordError::Failed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(RecordError::Gone),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Err(RecordError::Busy),
            Err(error) => {
                tracing::warn!(%error, file = number, "a file of the tier cannot be opened");
                Err(RecordError::Failed)
            }
        }
    }
}

impl fmt::Debug for FolderRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderRecords").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use mooncake_tier::medium::folder::Engine;

    use super::*;

    #[test]
    fn a_bad_record_is_no_bad_disk_however_often_it_is_read() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::with_engine(place.path().join("tier"), Engine::Threads).unwrap();
        let records = FolderRecords::new(folder, TierUuid([1; 16]), Geometry::of_capacity(1 << 30), Arc::default());
        let fails = |rid: u64| _ = records.came(Rid(rid), Err(Miss::Wrong));
        (0..100).for_each(|_| fails(2));
        (4..FAILURES as u64 + 2).for_each(fails);
        assert!(!records.is_failing(), "{} of {FAILURES} records", FAILURES - 1);
        assert_eq!(records.came(Rid(500), Err(Miss::Late)), Err(RecordError::Busy));
        assert!(!records.is_failing(), "a disk that has no time says nothing of a record");
        fails(600);
        assert!(records.is_failing());
    }
}
