//! A disk in virtual time that does what disks do on their bad days: writes that were not synced are lost with the
//! power, in any part; operations take their time, fail, or land elsewhere; bits flip; there is no room. What it does
//! follows from its seed alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Completion, Files, Listed, Medium, Operation, Queue, Room};
use crate::address::FileNumber;
use crate::slots::Slot;

/// Bytes that are written or lost together.
const SECTOR: u64 = 4 << 10;

type Sector = Box<[u8; SECTOR as usize]>;

/// How often things go wrong, and how long they take.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Operations of a thousand that fail.
    pub failing: u32,
    /// Writes of a thousand that land at another place, and are told as done.
    pub misdirected: u32,
    /// Reads of a thousand in which a bit is flipped.
    pub flipped: u32,
    /// Longest time that an operation takes.
    pub slowest: Duration,
    /// Bytes that files may have together.
    pub capacity: u64,
    /// Bytes that all tiers may have that share a limit, if they do, and those that the others have.
    pub shared: Option<(u64, u64)>,
    /// Writes go through a page cache that other hosts do not see.
    pub buffered: bool,
}

impl Default for Faults {
    fn default() -> Self {
        let slowest = Duration::from_millis(5);
        Faults { failing: 0, misdirected: 0, flipped: 0, slowest, capacity: u64::MAX, shared: None, buffered: false }
    }
}

/// One disk, and the folder on it.
#[derive(Clone)]
pub struct FaultyDisk(Arc<Mutex<Disk>>);

impl fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyDisk")
    }
}

struct Disk {
    now: Duration,
    random: u64,
    faults: Faults,
    /// Files by their numbers; a name leads to a number.
    files: BTreeMap<u64, Content>,
    names: BTreeMap<String, u64>,
    /// Names as they are after a loss of power.
    synced_names: BTreeMap<String, u64>,
    next_file: u64,
    next_queue: u64,
    is_locked: bool,
    /// By the time at which they end; of those that end at once, in the order in which they were begun.
    under_way: BTreeMap<(Duration, u64), UnderWay>,
    next_operation: u64,
    /// Ends that no queue has taken yet.
    ended: BTreeMap<u64, Vec<Completion>>,
}

#[derive(Debug, Default)]
struct Content {
    bytes: u64,
    /// Of these, so many at the end have no room of the disk.
    hole: u64,
    synced: BTreeMap<u64, Sector>,
    /// Written and not synced.
    unsynced: BTreeMap<u64, Sector>,
    /// That cannot be read.
    broken: BTreeSet<u64>,
    /// The next sync fails, and one of so many sectors that it is for is lost.
    loses_at_sync: Option<u64>,
}

struct UnderWay {
    queue: u64,
    tag: u64,
    operation: Operation<u64>,
    fails: bool,
}

impl FaultyDisk {
    /// An empty disk.
    pub fn new(seed: u64, faults: Faults) -> FaultyDisk {
        let disk = Disk {
            now: Duration::ZERO,
            random: seed | 1,
            faults,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            next_file: 0,
            next_queue: 0,
            is_locked: false,
            under_way: BTreeMap::new(),
            next_operation: 0,
            ended: BTreeMap::new(),
        };
        FaultyDisk(Arc::new(Mutex::new(disk)))
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let mut disk = self.0.lock();
        let until = disk.now + time;
        disk.run_until(until);
    }

    /// Bytes that are being read.
    pub fn bytes_being_read(&self) -> u64 {
        let disk = self.0.lock();
        let len = |under_way: &UnderWay| match under_way.operation {
            Operation::Read { len, .. } => len as u64,
            _ => 0,
        };
        disk.under_way.values().map(len).sum()
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// The process that had the lock was killed, and its queues are gone with it: what it had begun still lands.
    pub fn kill_process(&self) {
        self.0.lock().is_locked = false;
    }

    /// The host loses power: of what was not synced, and of what is under way, any part is there.
    pub fn lose_power(&self) {
        let mut disk = self.0.lock();
        (disk.is_locked, disk.ended) = (false, BTreeMap::new());
        for (_, under_way) in std::mem::take(&mut disk.under_way) {
            if let Operation::Write { file, offset, slot, len } = under_way.operation {
                disk.write(file, offset, &slot[..len]);
            }
        }
        let Disk { files, random, .. } = &mut *disk;
        for content in files.values_mut() {
            for (at, sector) in std::mem::take(&mut content.unsynced) {
                if next(random).is_multiple_of(2) {
                    content.synced.insert(at, sector);
                }
            }
        }
        disk.names = disk.synced_names.clone();
    }

    /// A sector of a file cannot be read from now on.
    pub fn break_sector(&self, name: &str, sector: u64) {
        let mut disk = self.0.lock();
        let number = disk.names[name];
        disk.files.get_mut(&number).expect("a name leads to a file").broken.insert(sector);
    }

    /// The next sync of a file fails, and what was written since the last one is lost: one of so many sectors.
    pub fn lose_at_sync(&self, name: &str, one_of: u64) {
        let mut disk = self.0.lock();
        let number = disk.names[name];
        disk.files.get_mut(&number).expect("a name leads to a file").loses_at_sync = Some(one_of);
    }

    /// A file is so long from now on: a hole follows what it had.
    pub fn lengthen(&self, name: &str, bytes: u64) {
        let mut disk = self.0.lock();
        let number = disk.names[name];
        let content = disk.files.get_mut(&number).expect("a name leads to a file");
        (content.hole, content.bytes) = (content.hole + bytes - content.bytes, bytes);
    }

    /// Flips a bit of a file that was written; false if that place never was.
    pub fn flip(&self, name: &str, bit: u64) -> bool {
        let mut disk = self.0.lock();
        let Some(number) = disk.names.get(name).copied() else { return false };
        let content = disk.files.get_mut(&number).expect("a name leads to a file");
        let (sector, bit) = (bit / 8 / SECTOR, bit % (8 * SECTOR));
        let found = content.unsynced.get_mut(&sector).or_else(|| content.synced.get_mut(&sector));
        found.map(|sector| sector[bit as usize / 8] ^= 1 << (bit % 8)).is_some()
    }
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

impl Disk {
    fn chance(&mut self, of_thousand: u32) -> bool {
        next(&mut self.random) % 1_000 < u64::from(of_thousand)
    }

    fn write(&mut self, file: u64, offset: u64, bytes: &[u8]) {
        let Some(content) = self.files.get_mut(&file) else { return };
        for (nth, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            let mut whole = Box::new([0; SECTOR as usize]);
            whole[..sector.len()].copy_from_slice(sector);
            content.unsynced.insert(offset / SECTOR + nth as u64, whole);
        }
    }

    fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> usize {
        let Some(content) = self.files.get(&file) else { return 0 };
        let there = content.bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        for (nth, part) in into[..there].chunks_mut(SECTOR as usize).enumerate() {
            let at = offset / SECTOR + nth as u64;
            match content.unsynced.get(&at).or_else(|| content.synced.get(&at)) {
                Some(sector) => part.copy_from_slice(&sector[..part.len()]),
                None => part.fill(0),
            }
        }
        there
    }

    fn is_broken(&self, file: u64, offset: u64, len: u64) -> bool {
        let sectors = offset / SECTOR..(offset + len).div_ceil(SECTOR);
        self.files.get(&file).is_some_and(|content| content.broken.range(sectors).next().is_some())
    }

    /// Carries out what ends by then.
    fn run_until(&mut self, time: Duration) {
        while let Some(entry) = self.under_way.first_entry().filter(|entry| entry.key().0 <= time) {
            let ((at, _), under_way) = entry.remove_entry();
            self.now = at;
            self.end(under_way);
        }
        self.now = time;
    }

    fn end(&mut self, under_way: UnderWay) {
        let UnderWay { queue, tag, operation, fails } = under_way;
        let failed = || Err(io::Error::from_raw_os_error(libc::EIO));
        let (result, slot) = match operation {
            Operation::Read { slot, .. } if fails => (failed(), Some(slot)),
            Operation::Read { file, offset, slot, len } if self.is_broken(file, offset, len as u64) => {
                (failed(), Some(slot))
            }
            Operation::Read { file, offset, mut slot, len } => {
                let read = self.read(file, offset, &mut slot[..len]);
                if read > 0 && self.chance(self.faults.flipped) {
                    let bit = next(&mut self.random) as usize % (read * 8);
                    slot[bit / 8] ^= 1 << (bit % 8);
                }
                (Ok(read), Some(slot))
            }
            Operation::Write { file, offset, slot, len } => self.end_write(file, offset, slot, len, fails),
            Operation::Sync { .. } if fails => (failed(), None),
            Operation::Sync { file } => match self.end_sync(file) {
                true => (Ok(0), None),
                false => (failed(), None),
            },
        };
        if let Some(ended) = self.ended.get_mut(&queue) {
            ended.push(Completion { tag, result, slot });
        }
    }

    fn end_write(
        &mut self,
        file: u64,
        offset: u64,
        slot: Slot,
        len: usize,
        fails: bool,
    ) -> (io::Result<usize>, Option<Slot>) {
        let mut at = offset;
        if self.chance(self.faults.misdirected) {
            at = next(&mut self.random) % (offset / SECTOR + 16) * SECTOR;
        }
        if !fails {
            self.write(file, at, &slot[..len]);
            return (Ok(len), Some(slot));
        }
        // Some of it is there all the same.
        let part = next(&mut self.random) as usize % (len + 1) / SECTOR as usize * SECTOR as usize;
        self.write(file, at, &slot[..part]);
        (Err(io::Error::from_raw_os_error(libc::EIO)), Some(slot))
    }

    /// False if it fails.
    fn end_sync(&mut self, file: u64) -> bool {
        let Disk { files, random, .. } = self;
        let Some(content) = files.get_mut(&file) else { return true };
        let loses = content.loses_at_sync.take();
        if let Some(one_of) = loses {
            content.unsynced.retain(|_, _| !next(random).is_multiple_of(one_of));
        }
        content.synced.append(&mut content.unsynced);
        loses.is_none()
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|number| self.files.get(number))
            .map(|content| content.bytes - content.hole)
            .sum()
    }
}

/// As long as it lives, the disk is one process's; a process that is killed loses it.
#[derive(Debug)]
pub struct Lock(FaultyDisk);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.0.lock().is_locked = false;
    }
}

impl Files for FaultyDisk {
    type File = u64;
    type Queue = FaultyQueue;

    fn open_file(&self, number: FileNumber) -> io::Result<u64> {
        self.open(&number.name(), false)
    }

    fn queue(&self, depth: usize) -> io::Result<FaultyQueue> {
        let mut disk = self.0.lock();
        let number = disk.next_queue;
        disk.next_queue += 1;
        disk.ended.insert(number, Vec::new());
        Ok(FaultyQueue { disk: self.clone(), number, depth, under_way: 0 })
    }
}

impl Medium for FaultyDisk {
    type Lock = Lock;

    fn list(&self) -> io::Result<Vec<Listed>> {
        let disk = self.0.lock();
        let listed = |(name, number): (&String, &u64)| {
            let Content { bytes, hole, .. } = disk.files[number];
            Listed { name: name.clone(), bytes, taken: bytes - hole }
        };
        Ok(disk.names.iter().map(listed).collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<u64> {
        let mut disk = self.0.lock();
        if disk.names.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        if disk.used().saturating_add(bytes) > disk.faults.capacity {
            return Err(ErrorKind::StorageFull.into());
        }
        let number = disk.next_file;
        disk.next_file += 1;
        disk.files.insert(number, Content { bytes, ..Content::default() });
        disk.names.insert(name.to_owned(), number);
        Ok(number)
    }

    fn is_direct(&self, _: &u64) -> bool {
        !self.0.lock().faults.buffered
    }

    fn open(&self, name: &str, _: bool) -> io::Result<u64> {
        self.0.lock().names.get(name).copied().ok_or(ErrorKind::NotFound.into())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        let number = disk.names.remove(name).ok_or(ErrorKind::NotFound)?;
        let content = disk.files.get_mut(&number).expect("a name leads to a file");
        content.bytes = 0;
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.synced_names = disk.names.clone();
        Ok(())
    }

    fn room(&self) -> io::Result<Room> {
        let disk = self.0.lock();
        let total = disk.faults.capacity;
        let left = disk.faults.shared.map(|(limit, others)| limit as i64 - (disk.used() + others) as i64);
        Ok(Room { free: total.saturating_sub(disk.used()), total, left })
    }

    fn lock(&self, _: &str) -> io::Result<Option<Lock>> {
        let was_locked = std::mem::replace(&mut self.0.lock().is_locked, true);
        Ok((!was_locked).then(|| Lock(self.clone())))
    }
}

/// Operations of one user of the disk.
#[derive(Debug)]
pub struct FaultyQueue {
    disk: FaultyDisk,
    number: u64,
    depth: usize,
    under_way: usize,
}

impl Queue for FaultyQueue {
    type File = u64;

    fn has_room(&self) -> bool {
        self.under_way < self.depth
    }

    fn submit(&mut self, tag: u64, operation: Operation<u64>) {
        debug_assert!(self.has_room());
        self.under_way += 1;
        let mut disk = self.disk.0.lock();
        let Faults { failing, slowest, .. } = disk.faults;
        let slowest = slowest.as_nanos().max(1) as u64;
        let takes = Duration::from_nanos(next(&mut disk.random) % slowest);
        let fails = disk.chance(failing);
        let key = (disk.now + takes, disk.next_operation);
        disk.next_operation += 1;
        disk.under_way.insert(key, UnderWay { queue: self.number, tag, operation, fails });
    }

    /// Waiting lets time pass, to the next end of an operation of this queue at most.
    fn next(&mut self, wait: Duration) -> Option<Completion> {
        let mut disk = self.disk.0.lock();
        let until = disk.now + wait;
        loop {
            if let Some(ended) = disk.ended.get_mut(&self.number).filter(|ended| !ended.is_empty()) {
                self.under_way -= 1;
                return Some(ended.remove(0));
            }
            let first = disk.under_way.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= until);
            let Some(first) = first.filter(|_| self.under_way > 0) else { break };
            disk.run_until(first);
        }
        // Nothing of this queue ends in that time.
        if self.under_way > 0 {
            disk.run_until(until);
        }
        None
    }
}

impl Drop for FaultyQueue {
    fn drop(&mut self) {
        self.disk.0.lock().ended.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;

    fn write(disk: &FaultyDisk, queue: &mut FaultyQueue, slots: &Slots, file: u64, byte: u8) {
        let mut slot = slots.take().unwrap();
        slot[..1 << 20].fill(byte);
        queue.submit(0, Operation::Write { file, offset: 0, slot, len: 1 << 20 });
        assert_eq!(queue.next(Duration::from_secs(1)).unwrap().result.unwrap(), 1 << 20);
        assert!(disk.now() < Duration::from_secs(1));
    }

    fn read(queue: &mut FaultyQueue, slots: &Slots, file: u64) -> Vec<u8> {
        queue.submit(0, Operation::Read { file, offset: 0, slot: slots.take().unwrap(), len: 1 << 20 });
        let end = queue.next(Duration::from_secs(1)).unwrap();
        end.slot.unwrap()[..end.result.unwrap()].to_vec()
    }

    #[test]
    fn what_was_synced_outlives_a_loss_of_power_and_of_the_rest_any_part() {
        let (disk, slots) = (FaultyDisk::new(4711, Faults::default()), Slots::new(2));
        let (file, mut queue) = (disk.create("one", 1 << 20).unwrap(), disk.queue(2).unwrap());
        disk.sync_folder().unwrap();
        write(&disk, &mut queue, &slots, file, 7);
        queue.submit(1, Operation::Sync { file });
        queue.next(Duration::from_secs(1)).unwrap().result.unwrap();
        write(&disk, &mut queue, &slots, file, 8);
        disk.create("two", 1 << 20).unwrap();
        disk.lose_power();
        assert_eq!(disk.list().unwrap().len(), 1, "a file whose folder was not synced is not there");
        let mut queue = disk.queue(1).unwrap();
        let found = read(&mut queue, &slots, disk.open("one", false).unwrap());
        let count = |byte| found.chunks(4096).filter(|sector| sector.iter().all(|one| *one == byte)).count();
        assert_eq!(count(7) + count(8), 256);
        assert!(count(7) > 50 && count(8) > 50);
    }

    #[test]
    fn a_killed_processes_writes_still_land() {
        let (disk, slots) = (FaultyDisk::new(7, Faults::default()), Slots::new(2));
        let (file, mut queue) = (disk.create("one", 1 << 20).unwrap(), disk.queue(2).unwrap());
        let mut slot = slots.take().unwrap();
        slot[..8192].fill(9);
        queue.submit(0, Operation::Write { file, offset: 0, slot, len: 8192 });
        drop(queue);
        disk.kill_process();
        assert_eq!(slots.free(), 1, "its slot is in use until the write has ended");
        disk.pass(Duration::from_secs(1));
        assert_eq!(slots.free(), 2);
        assert_eq!(read(&mut disk.queue(1).unwrap(), &slots, file)[..8192], [9; 8192]);
    }

    #[test]
    fn a_full_disk_and_a_failing_one_say_so() {
        let (disk, slots) = (FaultyDisk::new(7, Faults { capacity: 2 << 20, ..Faults::default() }), Slots::new(2));
        let file = disk.create("one", 1 << 20).unwrap();
        assert_eq!(disk.create("two", 2 << 20).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(disk.room().unwrap(), Room { free: 1 << 20, total: 2 << 20, left: None });
        disk.set_faults(Faults { failing: 1_000, ..Faults::default() });
        let mut queue = disk.queue(1).unwrap();
        queue.submit(5, Operation::Read { file, offset: 0, slot: slots.take().unwrap(), len: 4096 });
        let end = queue.next(Duration::from_secs(1)).unwrap();
        assert!(end.tag == 5 && end.result.is_err() && end.slot.is_some());
    }
}
