//! Who operates a pool sees of each tier what its disk does: how much, for what, how long it takes, and what fails.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_memory::crc32c;
use mooncake_tier::address::{Address, BLOCK, FILES_MIN, FileNumber, Geometry};
use mooncake_tier::disk_times::DiskTimes;
use mooncake_tier::io_counts::{CountedReads, IoTotals, ReadFor};
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::owner::{Source, TierOwner, ToMaster};
use mooncake_tier::reader::ahead::{Part, ReadAhead};
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::Tier;

use crate::support::{TIER, new_tier, owner};

const FILE_BLOCKS: u64 = 512;
const FILE: u64 = FILE_BLOCKS * BLOCK;

struct Memory(u64);

impl Source for Memory {
    fn size(&self) -> u64 {
        self.0
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        let mut bytes = vec![0; len as usize];
        self.copy(at, &mut bytes).then(|| mooncake_memory::crc32c(&bytes))
    }

    fn copy(&self, _: u64, into: &mut [u8]) -> bool {
        into.fill(7);
        true
    }

    fn is_same(&self) -> bool {
        true
    }

    fn placement(&self) -> Rid {
        Rid(2)
    }
}

/// An owner, the master that keeps the first record of each file which is given up, and what was answered.
struct Owned {
    disk: FaultyDisk,
    tier: TierOwner<FaultyDisk>,
    answers: BTreeMap<u64, Option<Address>>,
    next: u64,
}

impl Owned {
    fn new() -> Owned {
        let (disk, geometry) = (FaultyDisk::new(1, Faults::default()), geometry());
        let capacity = FILES_MIN * geometry.file_bytes();
        let tier = Tier::create(disk.clone(), new_tier(capacity, geometry), owner(1), &Slots::new(2)).unwrap();
        let mut tier = TierOwner::new(tier, true, capacity).unwrap();
        tier.mounted(0);
        Owned { disk, tier, answers: BTreeMap::new(), next: 2 }
    }

    fn order(&mut self, size: u64) -> u64 {
        let rid = self.next;
        self.next += 2;
        self.tier.order(Rid(rid), Rid(rid), b"key".to_vec(), crc32c(&vec![7; size as usize]), Arc::new(Memory(size)));
        rid
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 10 {
            self.disk.pass(Duration::from_millis(10));
            for said in self.tier.poll(self.disk.now(), Duration::ZERO) {
                match said {
                    ToMaster::Written { written, .. } => {
                        self.answers.extend(written.into_iter().map(|(rid, address)| (rid.0, address)));
                    }
                    ToMaster::Reclaim { records, .. } => {
                        let mut judged = vec![Rid(0); records.len()];
                        judged[0] = Rid(self.next);
                        self.next += 2;
                        self.tier.judged(&judged);
                    }
                    ToMaster::Reclaimed { file, .. } => self.tier.retire(0, &[file.0]),
                    ToMaster::Damaged { .. } | ToMaster::Bad { .. } => panic!("nothing is"),
                }
            }
        }
    }

    fn totals(&self) -> IoTotals {
        self.tier.usage(TIER).unwrap().totals
    }

    fn read(&self, reader: &mut Reader<FaultyDisk>, rid: u64, size: u64) -> Result<(), Miss> {
        let address = self.answers[&rid].expect("it was written");
        let place = RecordPlace { tier: TIER, address, rid: Rid(rid), size, key_bytes: 3 };
        let mut sink = |_: u64, bytes: &[u8]| crc32c(bytes);
        let mut wants = [Want { place, from: 0, len: size, crc: None, sink: &mut sink }];
        reader.read(&mut wants, || Duration::from_secs(10)).pop().unwrap()
    }
}

fn geometry() -> Geometry {
    Geometry::of_file_blocks(FILE_BLOCKS).unwrap()
}

#[test]
fn every_byte_that_is_written_is_of_an_order_or_kept_or_the_rest() {
    const SIZE: u64 = 300_000;
    let mut owned = Owned::new();
    let orders: Vec<u64> = (0..4).map(|_| owned.order(SIZE)).collect();
    owned.pass(3_000);
    assert!(orders.iter().all(|rid| owned.answers[rid].is_some()));
    let totals = owned.totals();
    let [ordered, kept, rest] = totals.written_bytes;
    assert_eq!((ordered, kept), (4 * SIZE, 0));
    // A header and what fills the last block for each, and superblocks of a block each.
    assert!(
        (4 * (BLOCK - SIZE % BLOCK)..16 * BLOCK).contains(&rest) && (ordered + rest).is_multiple_of(BLOCK),
        "{rest}"
    );
    assert!(totals.writes.count > 0 && totals.syncs.count > 0, "{totals:?}");
    assert_eq!((totals.writes.failed, totals.syncs.failed, totals.reads.count), (0, 0, 0));
    assert_eq!(owned.tier.usage(TIER).unwrap().bytes, FILE, "bytes of its files");
    assert_eq!(owned.tier.usage(mooncake_ids::TierUuid([9; 16])), None);
    // Until it gives files up.
    for _ in 0..80 {
        owned.order(SIZE);
        owned.pass(200);
    }
    let [ordered, kept, rest] = owned.totals().written_bytes;
    assert!(kept >= SIZE && kept.is_multiple_of(SIZE) && ordered > 40 * SIZE, "{ordered} {kept}");
    assert!((ordered + kept + rest).is_multiple_of(BLOCK));
    let read = owned.totals().read_bytes;
    assert!(read[ReadFor::Kept as usize] >= kept, "what is kept was read, and footers: {read:?}");
    assert_eq!(read.iter().sum::<u64>(), read[ReadFor::Kept as usize]);
}

#[test]
fn a_disk_that_fails_writes_and_syncs_is_seen_to() {
    let mut owned = Owned::new();
    owned.order(100_000);
    owned.pass(2_000);
    let before = owned.totals();
    assert_eq!((before.writes.failed, before.syncs.failed), (0, 0));
    owned.disk.set_faults(Faults { failing: 1_000, ..Faults::default() });
    let lost = owned.order(100_000);
    owned.pass(3_000);
    assert_eq!(owned.answers[&lost], None);
    let after = owned.totals();
    assert!(after.writes.failed > 0 && after.syncs.failed > 0, "{after:?}");
    assert_eq!(after.written_bytes[0], before.written_bytes[0], "nothing of it was written");
}

/// An owner that counts objects and has written two of that size, and their orders.
fn two_objects(size: u64) -> (Owned, Arc<DiskTimes>, [u64; 2]) {
    let mut owned = Owned::new();
    let objects: Arc<DiskTimes> = Arc::default();
    owned.tier.counts().count_objects(objects.clone());
    let orders = [owned.order(size), owned.order(size)];
    owned.pass(3_000);
    (owned, objects, orders)
}

#[test]
fn objects_count_once_however_many_parts_they_are_read_in_and_what_an_owner_reads_for_itself_does_not() {
    const SIZE: u64 = 40_000;
    let (owned, objects, orders) = two_objects(SIZE);
    let written = objects.totals().writes;
    assert_eq!((written.latency.count(), written.bytes), (2, 2 * SIZE));
    let mut reader = Reader::new(owned.disk.clone(), geometry(), Slots::new(4)).unwrap();
    for (by, counts) in [(ReadFor::Recheck, 0), (ReadFor::Lane, 1), (ReadFor::Promotion, 2)] {
        reader.counts(CountedReads { counts: owned.tier.counts().clone(), by });
        assert_eq!(owned.read(&mut reader, orders[0], SIZE), Ok(()));
        let read = objects.totals().reads;
        assert_eq!((read.latency.count(), read.bytes), (counts, counts * SIZE), "{by:?}");
    }
    let (address, rid) = (owned.answers[&orders[1]].expect("it was written"), Rid(orders[1]));
    let place = RecordPlace { tier: TIER, address, rid, size: SIZE, key_bytes: 3 };
    let (mut ahead, len) = (ReadAhead::new(reader), SIZE / 4);
    let mut read = |parts: std::ops::Range<u64>, is_good: bool| {
        for nth in parts {
            let part = Part { is_first: nth == 0, is_last: nth == 3 };
            ahead.ask(place, nth * len, vec![0; len as usize], 0..len as usize, part);
        }
        let results: Vec<_> = std::iter::from_fn(|| ahead.next(|| Duration::from_secs(1))).collect();
        assert_eq!(results.iter().all(|(_, result)| result.is_ok()), is_good);
        let totals = objects.totals();
        assert_eq!((totals.both().latency.count(), totals.both().bytes), {
            let reads = (totals.reads.latency.count(), totals.reads.bytes);
            (reads.0 + 2, reads.1 + 2 * SIZE)
        });
        (totals.reads.latency.count(), totals.reads.bytes)
    };
    assert_eq!(read(0..4, true), (3, 3 * SIZE), "four parts are one object");
    // A request that is given up has no last part, and the next one does not go on with it.
    assert_eq!(read(0..2, true), (3, 3 * SIZE));
    assert_eq!(read(0..4, true), (4, 4 * SIZE));
    // What has a bad part was not read, though its last part was.
    let byte = address.0 % FILE_BLOCKS * BLOCK + 2 * BLOCK;
    assert!(owned.disk.flip(&FileNumber(0).name(), byte * 8));
    assert_eq!(read(0..4, false), (4, 4 * SIZE));
}

#[test]
fn an_object_takes_as_long_as_itself_and_not_as_what_is_read_at_once_with_it() {
    const SIZE: u64 = 40_000;
    let (owned, objects, orders) = two_objects(SIZE);
    let within = |time: Duration, count: usize| {
        let all = objects.totals().reads.latency;
        let buckets = all.bounds.iter().zip(&all.counts);
        let fast: u64 =
            buckets.filter(|(bound, _)| u128::from(**bound) <= time.as_nanos()).map(|(_, count)| count).sum();
        assert_eq!((fast, all.count()), (count as u64, count as u64 + u64::from(count == 3)), "{all:?}");
    };
    let counted = || CountedReads { counts: owned.tier.counts().clone(), by: ReadFor::Lane };
    let place = |rid: u64| {
        let address = owned.answers[&rid].expect("it was written");
        RecordPlace { tier: TIER, address, rid: Rid(rid), size: SIZE, key_bytes: 3 }
    };
    let mut reader = Reader::new(owned.disk.clone(), geometry(), Slots::new(4)).unwrap();
    reader.counts(counted());
    let mut ahead = ReadAhead::new(reader);
    ahead.ask(place(orders[0]), 0, vec![0; SIZE as usize], 0..SIZE as usize, Part::ALL);
    ahead.ask(place(orders[1]), 0, vec![0; SIZE as usize], 0..SIZE as usize, Part::ALL);
    assert!(ahead.next(|| Duration::from_secs(1)).is_some_and(|(_, result)| result.is_ok()));
    // A peer takes its bytes slowly.
    std::thread::sleep(Duration::from_millis(60));
    assert!(ahead.next(|| Duration::from_secs(1)).is_some_and(|(_, result)| result.is_ok()));
    within(Duration::from_millis(50), 2);
    // Two of one call, of which the one that ends last takes long.
    let mut reader = Reader::new(owned.disk.clone(), geometry(), Slots::new(4)).unwrap();
    reader.counts(counted());
    let left = Cell::new(2 * SIZE);
    let sum = |_: u64, bytes: &[u8]| {
        left.set(left.get() - bytes.len() as u64);
        if left.get() == 0 {
            std::thread::sleep(Duration::from_millis(60));
        }
        mooncake_memory::crc32c(bytes)
    };
    let (mut one, mut other) = (sum, sum);
    let mut wants = [
        Want { place: place(orders[0]), from: 0, len: SIZE, crc: None, sink: &mut one },
        Want { place: place(orders[1]), from: 0, len: SIZE, crc: None, sink: &mut other },
    ];
    assert_eq!(reader.read(&mut wants, || Duration::from_secs(1)), [Ok(()), Ok(())]);
    within(Duration::from_millis(50), 3);
}

#[test]
fn a_read_counts_for_what_it_is_and_one_that_fails_or_finds_another_record_as_that() {
    const SIZE: u64 = 40_000;
    let mut owned = Owned::new();
    let orders = [owned.order(SIZE), owned.order(SIZE), owned.order(SIZE)];
    owned.pass(3_000);
    let mut reader = Reader::new(owned.disk.clone(), geometry(), Slots::new(4)).unwrap();
    assert_eq!(owned.read(&mut reader, orders[0], SIZE), Ok(()));
    assert_eq!(owned.totals().reads.count, 0, "another one's reads are no matter of this tier's owner");
    for by in [ReadFor::Lane, ReadFor::Promotion, ReadFor::Recheck] {
        reader.counts(CountedReads { counts: owned.tier.counts().clone(), by });
        let before = owned.totals();
        assert_eq!(owned.read(&mut reader, orders[0], SIZE), Ok(()));
        let after = owned.totals();
        let read = after.read_bytes[by as usize] - before.read_bytes[by as usize];
        assert!((SIZE..SIZE + 3 * BLOCK).contains(&read), "{by:?}: {read}");
        assert_eq!(after.read_bytes.iter().sum::<u64>() - before.read_bytes.iter().sum::<u64>(), read);
        assert!(after.reads.count > before.reads.count);
    }
    let name = FileNumber(0).name();
    let block = |rid: u64| owned.answers[&rid].unwrap().0 % FILE_BLOCKS;
    owned.disk.break_sector(&name, block(orders[1]));
    assert!(matches!(owned.read(&mut reader, orders[1], SIZE), Err(Miss::Failed(_))));
    assert_eq!((owned.totals().reads.failed, owned.totals().bad_records), (1, 0));
    assert!(owned.disk.flip(&name, (block(orders[2]) * BLOCK + 5_000) * 8));
    assert_eq!(owned.read(&mut reader, orders[2], SIZE), Err(Miss::Wrong));
    assert_eq!((owned.totals().reads.failed, owned.totals().bad_records), (1, 1));
}
