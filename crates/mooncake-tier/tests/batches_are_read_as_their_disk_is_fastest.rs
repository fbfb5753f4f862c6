//! How much of a batch is at the disk at a time is what the disk has shown to be fastest, to whichever of its readers.

use std::cell::Cell;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_memory::crc32c;
use mooncake_tier::address::{FILES_MIN, Geometry};
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::reader::at_disk::AtDisk;
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;

use crate::support::TIER;
use crate::support::owned::{FILE_BLOCKS, Owned, SECOND};

const MIB: u64 = 1 << 20;

/// Records of a mebibyte that are read together.
struct Batch {
    owned: Owned,
    records: Vec<u64>,
}

impl Batch {
    fn new() -> Batch {
        let mut owned = Owned::new(Faults::default(), 4 * FILES_MIN);
        let mut records: Vec<u64> = (0..24).map(|_| owned.order(MIB)).collect();
        owned.pass(5 * SECOND);
        records.retain(|nth| owned.is_written(*nth));
        assert!(records.len() >= 16);
        Batch { owned, records }
    }

    fn reader(&self, at_disk: &AtDisk) -> Reader<FaultyDisk> {
        let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
        let mut reader = Reader::new(self.owned.disk.clone(), geometry, Slots::new(32)).unwrap();
        reader.knows(at_disk.clone());
        reader
    }

    /// What each record came to, of a caller that waits so long; and the most bytes at the disk as one of them came.
    fn read(&self, reader: &mut Reader<FaultyDisk>, wait: Duration) -> (Vec<Result<(), Miss>>, u64) {
        let most = Cell::new(0);
        let sink = |_: u64, bytes: &[u8]| {
            most.set(self.owned.disk.bytes_being_read().max(most.get()));
            crc32c(bytes)
        };
        let mut sinks = vec![sink; self.records.len()];
        let wants = self.records.iter().zip(&mut sinks).map(|(nth, sink)| {
            let (address, key_bytes) = (self.owned.answers[nth].unwrap(), nth.to_string().len());
            let place = RecordPlace { tier: TIER, address, rid: Rid(2 * nth), size: MIB, key_bytes };
            Want { place, from: 0, len: MIB, crc: None, sink }
        });
        let results = reader.read(&mut wants.collect::<Vec<Want<'_>>>(), || wait);
        (results, most.get())
    }

    /// Reads all of it; whether all of it was at the disk, or a quarter at a time.
    fn is_read_at_once(&self, reader: &mut Reader<FaultyDisk>) -> bool {
        let (results, most) = self.read(reader, SECOND);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let all = self.records.len() as u64 * MIB;
        assert!(most <= all / 4 + MIB || most > all / 2, "{most} of {all} bytes were at the disk");
        most > all / 2
    }
}

#[test]
fn readers_of_one_disk_try_each_way_twice_between_them() {
    let (batch, at_disk) = (Batch::new(), AtDisk::default());
    let mut readers = [batch.reader(&at_disk), batch.reader(&at_disk)];
    let at_once = [0, 1, 0, 1].map(|nth| batch.is_read_at_once(&mut readers[nth]));
    assert_eq!(at_once, [true, false, false, true]);
}

#[test]
fn a_batch_that_its_caller_gave_up_does_not_count_as_read_fast() {
    let (batch, at_disk) = (Batch::new(), AtDisk::default());
    let given_up = || {
        let (results, _) = batch.read(&mut batch.reader(&at_disk), Duration::ZERO);
        assert!(results.iter().all(|result| *result == Err(Miss::Late)), "{results:?}");
    };
    given_up();
    let mut reader = batch.reader(&at_disk);
    assert!(!batch.is_read_at_once(&mut reader) && !batch.is_read_at_once(&mut reader));
    given_up();
    assert!(!batch.is_read_at_once(&mut reader), "what is known to come in time");
}
