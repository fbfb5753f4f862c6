//! What is asked for is read while others use what has come: records that lie side by side at once, each for itself.

use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_tier::address::{BLOCK, FILES_MIN, FileNumber, Geometry};
use mooncake_tier::io_counts::{CountedReads, IoCounts, ReadFor};
use mooncake_tier::medium::Medium;
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::reader::ahead::{Part, ReadAhead};
use mooncake_tier::reader::{Miss, Reader, RecordPlace};
use mooncake_tier::slots::Slots;

use crate::support::TIER;
use crate::support::owned::{FILE_BLOCKS, Owned, SECOND};

const MIB: u64 = 1 << 20;

/// A tier of records of one size.
struct Written {
    owned: Owned,
    size: u64,
    /// Those that are in its first file, side by side.
    first: Vec<u64>,
}

/// What a read came to.
type Outcome = (Vec<u8>, Result<(), Miss>);

impl Written {
    fn new(count: u64, size: u64, faults: Faults) -> Written {
        let mut owned = Owned::new(faults, 4 * FILES_MIN);
        let mut first: Vec<u64> = (0..count).map(|_| owned.order(size)).collect();
        owned.pass(5 * SECOND);
        first.retain(|nth| owned.answers[nth].unwrap().0 < FILE_BLOCKS);
        Written { owned, size, first }
    }

    fn reader(&self, slots: Slots) -> (Reader<FaultyDisk>, Arc<IoCounts>) {
        let geometry = Geometry::of_file_blocks(FILE_BLOCKS).unwrap();
        let mut reader = Reader::new(self.owned.disk.clone(), geometry, slots).unwrap();
        let counts: Arc<IoCounts> = Arc::default();
        reader.counts(CountedReads { counts: counts.clone(), by: ReadFor::Lane });
        (reader, counts)
    }

    /// All but the first five bytes and the last four, into buffers with room around them.
    fn ask(&self, ahead: &mut ReadAhead<FaultyDisk>, nth: u64) {
        let (address, rid) = (self.owned.answers[&nth].unwrap(), Rid(2 * nth));
        let place = RecordPlace { tier: TIER, address, rid, size: self.size, key_bytes: nth.to_string().len() };
        let len = (self.size - 9) as usize;
        ahead.ask(place, 5, vec![0; len + 7], 4..4 + len, Part::ALL);
    }

    fn read(&self, reader: Reader<FaultyDisk>) -> (Vec<Outcome>, Reader<FaultyDisk>) {
        let mut ahead = ReadAhead::new(reader);
        self.first.iter().for_each(|nth| self.ask(&mut ahead, *nth));
        let ended = self.first.iter().map(|_| ahead.next(|| SECOND).unwrap()).collect();
        assert!(ahead.is_idle() && ahead.next(|| SECOND).is_none());
        (ended, ahead.into_reader())
    }

    fn is_right(&self, (bytes, read): &Outcome) -> bool {
        let (around, value) = ([&bytes[..4], &bytes[bytes.len() - 3..]].concat(), &bytes[4..bytes.len() - 3]);
        assert_eq!(around, [0; 7], "what is not asked for stays as it was");
        read.is_ok() && (5..self.size - 4).map(|at| at as u8).eq(value.iter().copied())
    }

    /// What is wrong with one of them, all others being right.
    fn miss_of(&self, bad: u64, ended: &[Outcome]) -> Miss {
        let is_bad = |nth: &u64| *nth == bad;
        for (nth, outcome) in self.first.iter().zip(ended) {
            assert_eq!(self.is_right(outcome), !is_bad(nth), "{nth}: {:?}", outcome.1);
        }
        ended[self.first.iter().position(is_bad).unwrap()].1.unwrap_err()
    }
}

#[test]
fn records_side_by_side_are_read_at_once_and_a_bad_one_spoils_itself_alone() {
    let written = Written::new(200, BLOCK * 3, Faults::default());
    let bad = written.first[31];
    let block = written.owned.answers[&bad].unwrap().0;
    assert!(written.owned.disk.flip(&FileNumber(0).name(), ((block + 1) * BLOCK + 1_000) * 8), "in its value");
    for slots in [1, 2, 3, 32] {
        let (reader, counts) = written.reader(Slots::new(slots));
        let (ended, _) = written.read(reader);
        assert_eq!(written.miss_of(bad, &ended), Miss::Wrong);
        let reads = counts.totals().reads.count;
        assert!(reads * 10 < written.first.len() as u64, "{reads} reads of {} records", written.first.len());
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_its_own_record_alone() {
    let written = Written::new(200, BLOCK * 3, Faults::default());
    let bad = written.first[40];
    let block = written.owned.answers[&bad].unwrap().0;
    written.owned.disk.break_sector(&FileNumber(0).name(), block + 1);
    for slots in [1, 32] {
        let (reader, _) = written.reader(Slots::new(slots));
        assert!(matches!(written.miss_of(bad, &written.read(reader).0), Miss::Failed(_)));
    }
}

#[test]
fn of_a_file_that_was_retired_everything_is_gone_and_of_a_disk_that_fails_nothing_comes() {
    let written = Written::new(200, BLOCK * 3, Faults::default());
    let (reader, _) = written.reader(Slots::new(32));
    let (_, reader) = written.read(reader);
    written.owned.disk.set_faults(Faults { failing: 1000, ..Faults::default() });
    let (ended, mut reader) = written.read(reader);
    assert!(ended.iter().all(|(_, read)| matches!(read, Err(Miss::Failed(_)))), "{:?}", ended[0].1);
    written.owned.disk.set_faults(Faults::default());
    written.owned.disk.remove(&FileNumber(0).name()).unwrap();
    // The first time of the file that the reader has open.
    for _ in 0..2 {
        let (ended, again) = written.read(reader);
        assert!(ended.iter().all(|(_, read)| *read == Err(Miss::Gone)), "{:?}", ended[0].1);
        reader = again;
    }
}

#[test]
fn what_is_late_is_a_miss_and_what_is_asked_for_next_is_right_though_the_disk_answers_meanwhile() {
    let written = Written::new(200, BLOCK * 3, Faults::default());
    let slots = Slots::new(32);
    let (reader, _) = written.reader(slots.clone());
    let mut ahead = ReadAhead::new(reader);
    written.first.iter().for_each(|nth| written.ask(&mut ahead, *nth));
    let mut late = 0;
    while let Some((_, read)) = ahead.next(|| Duration::ZERO) {
        assert!(matches!(read, Err(Miss::Late | Miss::NoSlot)), "{read:?}");
        late += 1;
    }
    assert_eq!(late, written.first.len());
    let reader = ahead.into_reader();
    assert!(slots.free() < 32 && reader.is_owed(), "the disk has some");
    let (ended, reader) = written.read(reader);
    assert!(ended.iter().all(|outcome| written.is_right(outcome)));
    written.owned.disk.pass(SECOND);
    let (ended, reader) = written.read(reader);
    assert!(ended.iter().all(|outcome| written.is_right(outcome)));
    assert!(!reader.is_owed());
    assert_eq!(slots.free(), 32);
}

#[test]
fn lanes_that_share_slots_leave_one_to_each_other() {
    let written = Written::new(200, BLOCK * 3, Faults::default());
    // One in four is left to those that wait for their oldest.
    let slots = Slots::new(8);
    let mut lanes = [0; 3].map(|_| ReadAhead::new(written.reader(slots.clone()).0));
    for nth in &written.first {
        lanes.iter_mut().for_each(|lane| written.ask(lane, *nth));
    }
    for _ in &written.first {
        for lane in &mut lanes {
            let outcome = lane.next(|| SECOND).unwrap();
            assert!(written.is_right(&outcome), "{:?}", outcome.1);
        }
    }
    assert!(lanes.iter().all(ReadAhead::is_idle));
}

#[test]
fn the_disk_goes_on_while_what_has_come_is_used_and_has_few_megabytes_at_a_time_unless_it_is_far_away() {
    for (count, size) in [(96, MIB / 8), (24, MIB)] {
        for (slowest, most) in [(1, 3 * MIB), (200, 9 * MIB)] {
            let mut written = Written::new(count, size, Faults::default());
            let disk = written.owned.disk.clone();
            disk.set_faults(Faults { slowest: Duration::from_millis(slowest), ..Faults::default() });
            written.first = (1..=count).filter(|nth| written.owned.is_written(*nth)).collect();
            let (reader, counts) = written.reader(Slots::new(32));
            let mut ahead = ReadAhead::new(reader);
            written.first.iter().for_each(|nth| written.ask(&mut ahead, *nth));
            let (all, mut had) = (written.first.len() as u64 * (size + BLOCK), 0);
            assert!(all >= 6 * MIB);
            loop {
                let until = disk.now() + SECOND;
                let Some(outcome) = ahead.next(|| until.saturating_sub(disk.now())) else { break };
                assert!(written.is_right(&outcome));
                let at_disk = disk.bytes_being_read();
                assert!(at_disk <= most + (64 << 10), "{at_disk} bytes at the disk");
                let read: u64 = counts.totals().read_bytes.iter().sum();
                assert!(at_disk > 0 || read == all, "the disk does nothing, and has read {read} of {all} bytes");
                had = at_disk.max(had);
                // All of it comes, and nobody has asked for it yet.
                if slowest == 1 {
                    disk.pass(SECOND);
                }
            }
            assert!(had > most / 2, "{had} bytes at the disk at most");
        }
    }
}
