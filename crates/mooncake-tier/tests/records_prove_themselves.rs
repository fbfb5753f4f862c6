//! A tier on a disk that does what disks do: whatever is killed, lost or flipped, a read gives the bytes that were
//! written, or is a miss; and where nothing was lost, every record that was told as written is read.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_memory::crc32c;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_tier::address::{BLOCK, FileNumber, Geometry};
use mooncake_tier::contents::contents;
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::reader::ahead::{Part, ReadAhead};
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_tier::superblock::{SUSPECTS_MAX, Superblock};

use crate::support;
use crate::support::{Pattern, TIER, Writer, Written, read};

/// Bytes of a file, of the tier, and of the largest objects. Some of these need a file of several numbers.
#[derive(Debug, Clone, Copy)]
struct Scale {
    file: u64,
    capacity: u64,
    largest: u64,
}

/// As small as a tier's parts can be: a seed takes some milliseconds.
const SMALL: Scale = Scale { file: 256 << 10, capacity: 16 << 20, largest: 500 << 10 };
/// As users have them.
const LARGE: Scale = Scale { file: 16 << 20, capacity: 512 << 20, largest: 20 << 20 };
const LIVES: u8 = 4;

/// How many seeds: `MOONCAKE_TIER_SEEDS` says so for long runs.
fn seeds() -> u64 {
    std::env::var("MOONCAKE_TIER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(250)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// How a life of the owner ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    PowerLost,
}

struct World {
    scale: Scale,
    random: Random,
    disk: FaultyDisk,
    faults: Faults,
    geometry: Geometry,
    reader: Reader<FaultyDisk>,
    /// What was told as written, and whose file was not retired.
    written: BTreeMap<u64, Written>,
    next_rid: u64,
    power_was_lost: bool,
}

impl World {
    fn new(seed: u64, scale: Scale) -> World {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut chance = |most: u64| if random.one_in(2) { 0 } else { random.below(most) as u32 };
        let (failing, misdirected, flipped) = (chance(8), chance(4), chance(8));
        let slowest = Duration::from_micros(1 + random.below(20_000));
        let calm = Faults { slowest, capacity: 2 * scale.capacity, ..Faults::default() };
        let faults = Faults { failing, misdirected, flipped, ..calm };
        let disk = FaultyDisk::new(seed, calm);
        let geometry = Geometry::of_file_blocks(scale.file / BLOCK).unwrap();
        let reader = Reader::new(disk.clone(), geometry, Slots::new(1 + random.below(8) as usize)).unwrap();
        let written = BTreeMap::new();
        World { scale, random, disk, faults, geometry, reader, written, next_rid: 1, power_was_lost: false }
    }

    fn is_calm(&self) -> bool {
        (self.faults.failing, self.faults.misdirected, self.faults.flipped) == (0, 0, 0)
    }

    fn order(&mut self, writer: &mut Writer<FaultyDisk>) {
        let rid = Rid::new(1, self.next_rid);
        self.next_rid += 1;
        let size = match self.random.below(8) {
            0 => 0,
            1 | 2 => self.random.below(5_000),
            3 | 4 => self.random.below(self.scale.largest / 50),
            5 | 6 => self.random.below(self.scale.largest / 7),
            _ => self.random.below(self.scale.largest),
        };
        let key: Vec<u8> = (0..self.random.below(40)).map(|at| (rid.0 + at) as u8).collect();
        writer.order(rid, size, &key);
    }

    fn go_on(&mut self, writer: &mut Writer<FaultyDisk>) {
        let wait = Duration::from_micros(self.random.below(4_000));
        let (written, ..) = writer.poll(self.disk.now(), wait);
        self.written.extend(written.into_iter().map(|one| (one.rid.0, one)));
    }

    fn some_written(&mut self) -> Option<Written> {
        let count = self.written.len() as u64;
        let nth = if count == 0 { return None } else { self.random.below(count) as usize };
        self.written.values().nth(nth).cloned()
    }

    fn read_some(&mut self) {
        let Some(one) = self.some_written() else { return };
        let from = self.random.below(one.size + 1);
        let len = if self.random.one_in(2) { one.size - from } else { self.random.below(one.size - from + 1) };
        let result = read(&mut self.reader, &one, from, len);
        // Other threads' operations may have all slots and all the disk's time; nothing else is in the way.
        if self.is_calm() && !self.power_was_lost {
            assert_eq!(result, Ok(()), "{one:?}");
        }
    }

    /// Several, one behind the other, some of which are not there.
    fn read_ahead(&mut self) {
        let asked: Vec<Written> = (0..1 + self.random.below(12)).filter_map(|_| self.some_written()).collect();
        let fresh = Reader::new(self.disk.clone(), self.geometry, Slots::new(1)).unwrap();
        let mut reads = ReadAhead::new(std::mem::replace(&mut self.reader, fresh));
        let mut expected = VecDeque::new();
        for one in asked {
            let from = self.random.below(one.size + 1);
            let (len, head) = ((one.size - from) as usize, self.random.below(40) as usize);
            let mut place = one.place();
            place.rid.0 += u64::from(self.random.one_in(8)) * 2;
            let is_there = place.rid == one.rid;
            reads.ask(place, from, vec![0; head + len], head..head + len, Part::ALL);
            expected.push_back((one, from, head, is_there));
            if self.random.one_in(4) {
                self.end_of_a_read(&mut reads, &mut expected);
            }
        }
        while !expected.is_empty() {
            self.end_of_a_read(&mut reads, &mut expected);
        }
        assert!(reads.is_idle() && reads.next(|| Duration::ZERO).is_none());
        self.reader = reads.into_reader();
    }

    fn end_of_a_read(
        &mut self,
        reads: &mut ReadAhead<FaultyDisk>,
        expected: &mut VecDeque<(Written, u64, usize, bool)>,
    ) {
        let Some((one, from, head, is_there)) = expected.pop_front() else { return };
        let is_patient = self.is_calm() || !self.random.one_in(20);
        let limit = if is_patient { Duration::from_secs(10) } else { Duration::ZERO };
        let (bytes, result) = reads.next(|| limit).expect("it was asked for");
        assert!(is_there || result.is_err(), "{one:?} as another");
        if self.is_calm() && !self.power_was_lost && is_there {
            assert_eq!(result, Ok(()), "{one:?}");
        }
        if result.is_ok() {
            let mut wanted = vec![0; (one.size - from) as usize];
            Pattern { rid: one.rid, size: one.size }.fill(from, &mut wanted);
            assert!(bytes[head..] == wanted, "wrong bytes of {one:?} from {from}");
        }
    }

    /// A place that the log does not have: of another placement, key or size.
    fn read_what_is_not_there(&mut self) {
        let Some(one) = self.some_written() else { return };
        let mut place = one.place();
        match self.random.below(3) {
            0 => place.rid = Rid(one.rid.0 + 2),
            1 => place.key_bytes += 1,
            _ => place.size += 1,
        }
        let RecordPlace { size, .. } = place;
        let mut wants = [Want { place, from: 0, len: size, crc: None, sink: &mut |_, bytes| crc32c(bytes) }];
        assert_ne!(self.reader.read(&mut wants, || Duration::from_secs(10)), [Ok(())]);
    }

    fn retire_some(&mut self, writer: &mut Writer<FaultyDisk>) {
        let files: Vec<FileNumber> = writer.appender.files().keys().copied().collect();
        if files.len() < 3 {
            return;
        }
        let file = files[self.random.below(files.len() as u64 - 2) as usize];
        if writer.appender.current() == Some(file) || !writer.appender.is_idle() {
            return;
        }
        writer.appender.retire(file).unwrap();
        let geometry = self.geometry;
        let gone: Vec<Written> =
            self.written.extract_if(.., |_, one| one.file(geometry) == file).map(|(_, one)| one).collect();
        for one in gone.iter().take(5) {
            let result = read(&mut self.reader, one, 0, one.size);
            assert!(result.is_err(), "{one:?} of a retired file");
            assert!(result == Err(Miss::Gone) || !self.is_calm(), "{one:?}: {result:?}");
        }
    }

    fn end(&mut self, writer: Writer<FaultyDisk>) -> End {
        let end = if self.random.one_in(2) { End::PowerLost } else { End::Killed };
        // What it had under way goes on without it.
        let Writer { appender, lock, .. } = writer;
        drop(appender);
        match end {
            End::Killed => self.disk.kill_process(),
            End::PowerLost => {
                self.disk.lose_power();
                self.power_was_lost = true;
            }
        }
        drop(lock);
        if end == End::PowerLost || self.random.one_in(2) {
            self.reader = Reader::new(self.disk.clone(), self.geometry, Slots::new(4)).unwrap();
        }
        end
    }

    /// What an owner finds in the folder of one that was killed, or whose host lost power.
    fn check_restart(&mut self, end: End, before: &Superblock, writer: &Writer<FaultyDisk>) {
        if !self.is_calm() {
            return;
        }
        let slots = Slots::new(2);
        let mut by_file: BTreeMap<FileNumber, Vec<Written>> = BTreeMap::new();
        for one in self.written.values() {
            by_file.entry(one.file(self.geometry)).or_default().push(one.clone());
        }
        for (file, records) in by_file {
            let bytes = writer.appender.files().get(&file).copied();
            let bytes = bytes.unwrap_or_else(|| panic!("{file:?} is gone, and was not retired"));
            let found =
                contents(&self.disk, (TIER, self.geometry), (file, bytes), &slots, &support::uncounted()).unwrap();
            for one in records {
                let counts = end == End::Killed && !self.power_was_lost || one.address < before.synced_to;
                let is_listed = found.entries.iter().any(|entry| entry.address == one.address && entry.rid == one.rid);
                assert!(is_listed || !counts, "{one:?} is not among what {file:?} holds");
                let result = read(&mut self.reader, &one, 0, one.size);
                assert!(result == Ok(()) || !counts, "{one:?}: {result:?}");
                if result.is_err() {
                    self.written.remove(&one.rid.0);
                }
            }
        }
        self.power_was_lost = false;
    }

    fn live(&mut self) {
        let mut end = End::Killed;
        for life in 0..LIVES {
            // A folder is made and taken over in peace; faults come later.
            self.disk.set_faults(Faults { slowest: self.faults.slowest, ..calm(self.faults) });
            let (mut writer, before) = Writer::begin(self.disk.clone(), life, self.scale.capacity, self.geometry);
            self.check_restart(end, &before, &writer);
            self.disk.set_faults(self.faults);
            for _ in 0..30 + self.random.below(90) {
                match self.random.below(9) {
                    8 => self.read_ahead(),
                    0..4 => self.order(&mut writer),
                    4 | 5 => self.read_some(),
                    6 => self.read_what_is_not_there(),
                    _ => self.retire_some(&mut writer),
                }
                self.go_on(&mut writer);
                if self.random.one_in(12) {
                    self.disk.pass(Duration::from_millis(self.random.below(1_500)));
                }
            }
            if self.random.one_in(2) {
                self.settle(&mut writer);
            }
            end = self.end(writer);
        }
    }

    /// Until everything that was ordered is done.
    fn settle(&mut self, writer: &mut Writer<FaultyDisk>) {
        for _ in 0..20_000 {
            if writer.appender.is_idle() {
                if self.is_calm() {
                    let superblock = writer.appender.superblock();
                    // A file of its own lies above the one that goes on: only what is below that one counts as synced.
                    let ordinary = self.written.values().filter(|one| one.size < self.scale.file / 16 * 15);
                    let ends = ordinary.map(|one| one.address).max();
                    assert!(
                        ends.is_none_or(|address| address < superblock.synced_to),
                        "{ends:?} is not synced: {superblock:?}"
                    );
                }
                return;
            }
            self.go_on(writer);
            self.disk.pass(Duration::from_millis(2));
        }
        panic!("orders do not end");
    }
}

fn calm(faults: Faults) -> Faults {
    Faults { failing: 0, misdirected: 0, flipped: 0, ..faults }
}

#[test]
fn a_read_gives_the_bytes_that_were_written_or_is_a_miss() {
    run(SMALL, seeds());
}

#[test]
fn so_it_is_in_files_as_large_as_users_have_them() {
    run(LARGE, seeds() / 100);
}

#[test]
fn with_more_suspect_files_than_it_can_list_a_tier_counts_nothing_more_as_synced() {
    let mut world = World::new(1, SMALL);
    let (mut writer, _) = Writer::begin(world.disk.clone(), 0, SMALL.capacity, world.geometry);
    world.disk.set_faults(Faults { failing: 1_000, ..world.faults });
    let mut suspects = 0;
    for number in 1..200 {
        writer.order(Rid::new(9, number), 1_000, b"lost");
        for _ in 0..20 {
            suspects += writer.poll(world.disk.now(), Duration::from_millis(5)).2.len();
        }
        if suspects > SUSPECTS_MAX {
            break;
        }
    }
    assert!(suspects > SUSPECTS_MAX && writer.appender.superblock().suspects.len() == SUSPECTS_MAX);
    let synced_to = writer.appender.superblock().synced_to;
    world.disk.set_faults(calm(world.faults));
    for _ in 0..10 {
        world.order(&mut writer);
    }
    for _ in 0..2_000 {
        world.go_on(&mut writer);
        world.disk.pass(Duration::from_millis(2));
    }
    assert!(writer.appender.is_idle() && world.written.len() == 10, "{} are written", world.written.len());
    assert_eq!(writer.appender.superblock().synced_to, synced_to);
}

/// Each promise is kept by a part of the code: without it one of the first seeds goes wrong.
#[test]
fn each_mutant_is_noticed() {
    use Mutant::*;
    let all = [
        RecordsAreNotCompared,
        ChunksAreNotSummed,
        SyncedToIsTooHigh,
        LateWritesCountAsSynced,
        EarlierWritesAreNotSynced,
        FileNumbersAreUsedAgain,
        RecordsBeginAnywhere,
    ];
    std::panic::set_hook(Box::new(|_| {}));
    let noticed = all.map(|mutant| {
        let seed = (0..400).find(|seed| is_noticed_by(mutant, || World::new(*seed, SMALL).live()));
        println!("{mutant:?}: seed {seed:?}");
        (mutant, seed)
    });
    _ = std::panic::take_hook();
    assert!(noticed.iter().all(|(_, seed)| seed.is_some()), "{noticed:?}");
}

fn run(scale: Scale, seeds: u64) {
    let first = std::env::var("MOONCAKE_TIER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        World::new(seed, scale).live();
    }
    println!("{seeds} seeds of {LIVES} lives each, files of {} bytes", scale.file);
}
