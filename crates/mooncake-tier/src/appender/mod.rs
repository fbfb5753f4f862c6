//! Appends records to the files of one tier. Whoever owns the tier calls [`Appender::poll`] again and again; nothing
//! here waits for a disk unless it is told to.
//!
//! Records are gathered into writes of a megabyte while others are under way; the first goes at once. A file whose
//! records leave no room for the next one gets its footer, and the next file a higher number. Each second, and at each
//! footer, what was written is synced, and the superblock says up to which address.

mod room;
mod syncing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_memory::crc32c_combine;
use mooncake_mutant::mutant;

use crate::address::{Address, BLOCK, FileNumber};
use crate::filling::Filling;
use crate::footer::{Entries, Entry};
use crate::held::Held;
use crate::io_counts::{IoCounts, Op, Parts, WriteFor};
use crate::medium::{Completion, Medium, Operation, Queue};
use crate::record::{self, CHUNK, Layout, Record};
use crate::slots::{Slot, Slots};
use crate::superblock::Superblock;

pub use crate::filling::Value;
pub use crate::order::{Event, Loss, Order};

/// Bytes of one write.
const WRITE_BYTES: usize = 1 << 20;

/// Operations under way at a time. Writes are no more than the slots that the appender was given; the others are syncs,
/// which need none.
const OPERATIONS: usize = 20;

/// A disk that has had nothing to do for so long is asked for a block: whether it answers is known though nobody
/// writes.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// The files of one tier, as its owner writes them.
pub struct Appender<M: Medium> {
    medium: M,
    queue: M::Queue,
    slots: Slots,
    superblock: Superblock,
    super_file: M::File,
    /// Of the superblock's last copy.
    sequence: u64,
    /// Bytes that the tier's files may have.
    limit: u64,
    /// The same, where the file system has all that it may have.
    capacity: u64,
    /// Bytes of other folders that count to the limit, and can be given up as its own files can.
    beside: u64,
    /// Bytes of files by their first number.
    files: BTreeMap<FileNumber, u64>,
    /// Orders, and when they came.
    waiting: VecDeque<(Order, Duration)>,
    /// What is kept of a file that is given up.
    kept: VecDeque<Order>,
    /// The first order waits for a file to be given up.
    needs_room: bool,
    filling: Option<Filling>,
    current: Option<Current<M::File>>,
    /// The file of ordinary records while a large one gets a file of its own.
    aside: Option<Current<M::File>>,
    gathered: Option<Gathered>,
    next_tag: u64,
    writes: BTreeMap<u64, Write<M::File>>,
    /// When each of them began, by the driver's clock and by that of the host.
    begun: BTreeMap<u64, (Duration, Instant)>,
    /// Of the last look.
    now: Duration,
    /// When the disk answered last.
    answered: Duration,
    /// Records that are not written whole yet, by their addresses.
    unfinished: BTreeMap<Address, Unfinished>,
    held: Held,
    /// Files whose writes have ended since the last sync of them began.
    dirty: BTreeMap<FileNumber, M::File>,
    /// Those of them that have their footers.
    ending: BTreeSet<FileNumber>,
    /// What files have that are appended no more, until they are synced whole: of one that the disk failed to write,
    /// its owner reads that back.
    unproven: BTreeMap<FileNumber, Entries>,
    sync: Sync,
    last_sync: Duration,
    syncs_at_once: bool,
    /// The current file is left as soon as it has a record.
    leaves_current: bool,
    /// More files are suspect than the superblock has room for.
    is_beyond_suspects: bool,
    events: Vec<Event>,
    counts: Arc<IoCounts>,
}

struct Current<F> {
    number: FileNumber,
    file: F,
    bytes: u64,
    /// Where the next record begins.
    end: u64,
    entries: Entries,
    /// Its disk failed: nothing more goes there, and no footer.
    is_suspect: bool,
    /// What is written there counts once it is synced.
    is_held: bool,
}

/// A write that is not submitted yet.
struct Gathered {
    slot: Slot,
    offset: u64,
    len: usize,
    records: Vec<Address>,
    parts: Parts,
}

enum Write<F> {
    Records {
        number: FileNumber,
        file: F,
        records: Vec<Address>,
        len: usize,
        parts: Parts,
    },
    SyncOf {
        file: FileNumber,
        is_sealed: bool,
    },
    Superblock,
    SyncOfSuperblock,
    /// A read, to see whether the disk answers.
    Asked,
}

#[derive(Debug)]
struct Unfinished {
    rid: Rid,
    bytes: u64,
    /// It counts once it is synced.
    is_held: bool,
    writes: u32,
    is_filled: bool,
    loss: Option<Loss>,
}

/// How far the sync is that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    None,
    /// Files that are being synced, and the address up to which everything is there then.
    Files {
        left: usize,
        to: Address,
    },
    /// The superblock is to be written.
    Due,
    Superblock,
}

impl<M: Medium> Appender<M> {
    /// For a tier as its superblock says it is. `files` are those that are there, by their first numbers, with their
    /// bytes; `slots` are this writer's alone. Files that an earlier owner did not sync are synced with the first.
    pub fn new(
        medium: M,
        slots: Slots,
        (superblock, sequence): (Superblock, u64),
        super_file: M::File,
        limit: u64,
        files: BTreeMap<FileNumber, u64>,
    ) -> io::Result<Appender<M>> {
        let mut dirty = BTreeMap::new();
        for (number, bytes) in &files {
            // What an earlier owner wrote and did not sync any more.
            let end = number.0 + superblock.geometry.numbers_for(*bytes);
            let is_behind =
                superblock.geometry.address(FileNumber(end), 0).is_none_or(|end| end > superblock.synced_to);
            if is_behind && !mutant!(EarlierWritesAreNotSynced) {
                dirty.insert(*number, medium.open(&number.name(), true)?);
            }
        }
        Ok(Appender {
            queue: medium.queue(OPERATIONS)?,
            medium,
            slots,
            superblock,
            super_file,
            sequence,
            limit,
            capacity: limit,
            beside: 0,
            files,
            waiting: VecDeque::new(),
            kept: VecDeque::new(),
            needs_room: false,
            filling: None,
            current: None,
            aside: None,
            gathered: None,
            next_tag: 0,
            writes: BTreeMap::new(),
            begun: BTreeMap::new(),
            now: Duration::ZERO,
            answered: Duration::ZERO,
            unfinished: BTreeMap::new(),
            held: Held::default(),
            dirty,
            ending: BTreeSet::new(),
            unproven: BTreeMap::new(),
            sync: Sync::None,
            last_sync: Duration::ZERO,
            syncs_at_once: false,
            leaves_current: false,
            is_beyond_suspects: false,
            events: Vec::new(),
            counts: Arc::default(),
        })
    }

    /// Counts there from now on what its disk does.
    pub fn counted(self, counts: Arc<IoCounts>) -> Self {
        Appender { counts, ..self }
    }

    /// What the superblock says, or will say next.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Files that are there, by their first numbers, with their bytes.
    pub fn files(&self) -> &BTreeMap<FileNumber, u64> {
        &self.files
    }

    /// The file that records are appended to.
    pub fn current(&self) -> Option<FileNumber> {
        self.current.as_ref().map(|current| current.number)
    }

    /// Whether a file's records go on.
    pub fn is_appended(&self, file: FileNumber) -> bool {
        [&self.current, &self.aside].into_iter().flatten().any(|current| current.number == file)
    }

    /// Whether anything of a file is still to be written, or told.
    pub fn is_busy(&self, file: FileNumber) -> bool {
        let has_unfinished = self.unfinished.keys().any(|address| self.superblock.geometry.file_of(*address) == file);
        self.is_appended(file) || has_unfinished || self.is_being_written(file) || self.held.has(file)
    }

    /// The records that were begun in a file which the disk failed to write, once nothing of it is busy. None if an
    /// earlier owner has written it.
    pub fn take_entries(&mut self, file: FileNumber) -> Option<Vec<Entry>> {
        Some(self.unproven.remove(&file)?.decoded())
    }

    /// New files have this number at least.
    pub fn begin_above(&mut self, head: FileNumber) {
        self.superblock.next_file = self.superblock.next_file.max(head);
    }

    /// The tier is of that log. Where the superblock is being written just now, a later call says so.
    pub fn set_log_id(&mut self, log_id: u64) {
        if self.superblock.log_id != log_id && self.sync == Sync::None {
            self.superblock.log_id = log_id;
            self.sync = Sync::Due;
        }
    }

    /// The tier's files may have so many bytes from now on, together with those `beside` it in other folders; what is
    /// kept of a file that is given up, `capacity` without these.
    pub fn set_limit(&mut self, bytes: u64, capacity: u64, beside: u64) {
        (self.limit, self.capacity, self.beside) = (bytes, capacity, beside);
    }

    /// Takes an order. An event tells what becomes of it.
    pub fn append(&mut self, order: Order) {
        match order.is_kept {
            true => self.kept.push_back(order),
            false => self.waiting.push_back((order, self.now)),
        }
    }

    /// Ends the file that records are appended to: what comes is appended to another one. False if there is none, or
    /// one ends just now.
    pub fn leave_file(&mut self) -> bool {
        let is_ending =
            !self.ending.is_empty() || self.filling.as_ref().is_some_and(|filling| filling.address.is_none());
        self.leaves_current = !is_ending && self.current.as_ref().is_some_and(|current| current.end > 0);
        self.leaves_current
    }

    /// From now on what was written is synced as soon as nothing is being written, and not once a second.
    pub fn sync_at_once(&mut self) {
        self.syncs_at_once = true;
    }

    /// Whether everything that was ordered is done, and synced.
    pub fn is_idle(&self) -> bool {
        !self.has_orders()
            && self.filling.is_none()
            && self.gathered.is_none()
            && self.owes_nothing()
            && self.dirty.is_empty()
            && self.sync == Sync::None
    }

    /// Whether nothing is to be done before the next sync, and the disk has nothing to answer.
    pub fn is_resting(&self) -> bool {
        let has_orders = self.has_orders() && !self.needs_room;
        let has_work = has_orders || self.filling.is_some() || self.gathered.is_some();
        let owes_nothing = self.owes_nothing() && self.sync == Sync::None && self.held.is_empty();
        !has_work && owes_nothing && !self.syncs_at_once
    }

    /// Nothing is under way that has to end.
    fn owes_nothing(&self) -> bool {
        self.writes.values().all(|write| matches!(write, Write::Asked))
    }

    fn has_orders(&self) -> bool {
        !self.waiting.is_empty() || !self.kept.is_empty()
    }

    /// How long the disk has owed the answer that it owes longest.
    pub fn owed_for(&self, now: Duration) -> Duration {
        self.begun.first_key_value().map_or(Duration::ZERO, |(_, (began, _))| now.saturating_sub(*began))
    }

    /// Removes a file of which no record is live any more.
    pub fn retire(&mut self, file: FileNumber) -> io::Result<()> {
        debug_assert!(!self.is_appended(file));
        match self.medium.remove(&file.name()) {
            // Whoever removed it was there before.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed?,
        }
        self.files.remove(&file);
        self.unproven.remove(&file);
        self.superblock.suspects.retain(|suspect| *suspect != file);
        Ok(())
    }

    /// Goes on. Waits so long at most for a disk where nothing else is to be done; not at all where nothing is under
    /// way.
    pub fn poll(&mut self, now: Duration, wait: Duration) -> Vec<Event> {
        self.now = now;
        while let Some(ended) = self.queue.next(Duration::ZERO) {
            self.ended(ended);
        }
        self.go_on(now);
        if self.events.is_empty()
            && let Some(ended) = self.queue.next(wait)
        {
            self.ended(ended);
            self.go_on(now);
        }
        std::mem::take(&mut self.events)
    }

    fn go_on(&mut self, now: Duration) {
        while self.fill() {}
        self.sync(now);
        if self.writes.is_empty() && now.saturating_sub(self.answered) >= ASK_EVERY {
            self.ask();
        }
    }

    /// Readers of other processes tell nobody how long a disk lets them wait: it is asked where no write would show it.
    fn ask(&mut self) {
        if let Some(slot) = self.slots.take() {
            let file = self.super_file.clone();
            self.begin(Write::Asked, Operation::Read { file, offset: 0, slot, len: BLOCK as usize });
        }
    }

    /// One step: false if nothing can be done before an operation ends.
    fn fill(&mut self) -> bool {
        if self.filling.is_none() && !self.begin_next() {
            // Nothing gathers any more: what there is goes once no write is under way that it could wait for.
            return self.gathered.is_some() && !self.is_writing() && self.submit();
        }
        // A file may have to be finished first, and there may be no room for another one.
        let Some(filling) = &mut self.filling else { return true };
        let current = self.current.as_mut().expect("what is filled has its file");
        let gathered = match &mut self.gathered {
            Some(gathered) => gathered,
            None => {
                let Some(slot) = self.slots.take() else { return false };
                let offset = filling.offset_in(current.end, current.bytes) + filling.done;
                self.gathered.insert(Gathered { slot, offset, len: 0, records: Vec::new(), parts: Parts::default() })
            }
        };
        let part = (filling.bytes - filling.done).min((WRITE_BYTES - gathered.len) as u64) as usize;
        if part > 0 {
            let parts = filling.parts(part as u64);
            gathered.parts.iter_mut().zip(parts).for_each(|(all, more)| *all += more);
            filling.copy(&mut gathered.slot[gathered.len..gathered.len + part]);
            gathered.len += part;
            if let Some(address) = filling.address {
                gathered.records.push(address);
                self.unfinished.get_mut(&address).expect("its record is unfinished").writes += 1;
            }
        }
        let (is_filled, is_footer) = (filling.done == filling.bytes, filling.address.is_none());
        let is_due = gathered.len == WRITE_BYTES || is_filled && is_footer;
        if is_due && !self.submit() {
            return false;
        }
        if is_filled {
            self.filled();
        }
        true
    }

    /// All of a record, or of a footer, is on its way.
    fn filled(&mut self) {
        let filling = self.filling.take().expect("it was filled");
        match filling.address {
            Some(address) => {
                let record = self.unfinished.get_mut(&address).expect("its record is unfinished");
                record.is_filled = true;
                if filling.is_gone {
                    record.loss = Some(Loss::SourceGone);
                }
                self.finish(address);
            }
            None => {
                let sealed = std::mem::replace(&mut self.current, self.aside.take());
                self.ending.extend(sealed.iter().map(|sealed| sealed.number));
                self.unproven.extend(sealed.map(|sealed| (sealed.number, sealed.entries)));
            }
        }
    }

    fn is_writing(&self) -> bool {
        self.writes.values().any(|write| matches!(write, Write::Records { .. }))
    }

    /// Begins the next record, or the footer that is due before it; false if there is nothing to begin.
    fn begin_next(&mut self) -> bool {
        if let Some(current) = &self.current {
            // A file of several numbers has one record: every other would begin at an address of another number.
            let is_large = current.bytes > self.superblock.geometry.file_bytes() && !mutant!(RecordsBeginAnywhere);
            let is_full = current.end > 0 && (is_large || self.leaves_current);
            if is_full || current.is_suspect {
                return self.leave_current();
            }
        }
        self.needs_room = false;
        let Some(order) = self.kept.front().or(self.waiting.front().map(|(order, _)| order)) else { return false };
        let is_kept = order.is_kept;
        let layout = Layout::of(order.key.len(), order.value.size());
        let Some(layout) = layout.filter(|layout| layout.header_bytes <= WRITE_BYTES as u64) else {
            self.lose_next(Loss::TooLarge);
            return true;
        };
        let key_bytes = order.key.len();
        // While what is kept has the last file, nothing else is to use that up.
        if !is_kept && self.used() + self.beside + self.superblock.geometry.file_bytes() > self.limit {
            return self.wait_for_room();
        }
        if let Some(current) = &self.current {
            let needed = layout.record_bytes + current.entries.footer_bytes_with(key_bytes);
            if current.end + needed <= current.bytes {
                self.begin_record(layout);
                return true;
            }
        }
        let alone = layout.record_bytes + Entries::default().footer_bytes_with(key_bytes);
        let file_bytes = self.superblock.geometry.file_bytes();
        let is_large = alone > file_bytes;
        if self.current.is_some() && !is_large {
            return self.leave_current();
        }
        if self.gathered.is_some() && !self.submit() {
            return false;
        }
        // A file for a large record that came to nothing would hide the one that is set aside.
        if is_large && self.current.as_ref().is_some_and(|current| current.bytes > file_bytes) {
            return self.remove_current();
        }
        // Where others have filled the file system, what is kept takes of what is left to them.
        let (limit, beside) = if is_kept { (self.capacity, 0) } else { (self.limit, self.beside) };
        if self.used() + beside + self.bytes_of_file(alone) + self.reserved(is_kept) > limit {
            return match is_kept {
                true => self.lose_next(Loss::NoRoom),
                false => self.wait_for_room(),
            };
        }
        self.aside = self.current.take();
        if let Err(why) = self.create_file(alone, is_kept) {
            self.current = self.aside.take();
            if why == Loss::NoSpace && !is_kept {
                self.events.push(Event::Short);
                return self.wait_for_room();
            }
            if matches!(why, Loss::Failed(_)) {
                self.counts.failed(Op::Write);
            }
            if why == Loss::OverLimit {
                // Those behind it need not find out for themselves.
                self.limit = self.limit.min(self.used() + self.beside);
            }
            return self.lose_next(why);
        }
        true
    }

    /// Removes the file that is appended, in which no record came to be.
    fn remove_current(&mut self) -> bool {
        let Some(current) = self.current.take() else { return true };
        self.current = self.aside.take();
        self.dirty.remove(&current.number);
        if self.retire(current.number).is_err() {
            // It is closed, and nothing in it counts.
            self.suspect(current.number);
        }
        true
    }

    /// The next order comes to nothing. True: there may be another one.
    fn lose_next(&mut self, why: Loss) -> bool {
        let rid = self.next_order().rid;
        self.events.push(Event::Lost { rid, why });
        true
    }

    /// The next order, which was looked at.
    fn next_order(&mut self) -> Order {
        let kept = self.kept.pop_front();
        kept.or_else(|| Some(self.waiting.pop_front()?.0)).expect("it was looked at")
    }

    /// Bytes that files have.
    pub fn used(&self) -> u64 {
        self.files.values().sum()
    }

    /// Ends the current file: with its footer, unless its disk failed. False if that has to wait.
    fn leave_current(&mut self) -> bool {
        // What was gathered belongs in front of whatever comes now.
        if self.gathered.is_some() && !self.submit() {
            return false;
        }
        self.leaves_current = false;
        let current = self.current.as_ref().expect("there is one to leave");
        if current.is_suspect {
            let suspect = std::mem::replace(&mut self.current, self.aside.take());
            self.unproven.extend(suspect.map(|suspect| (suspect.number, suspect.entries)));
            return true;
        }
        let head = current.entries.encode(self.superblock.tier, current.number, current.bytes);
        let bytes = head.len() as u64;
        self.filling =
            Some(Filling { head, value: None, is_gone: false, done: 0, bytes, address: None, is: WriteFor::Rest });
        true
    }

    fn begin_record(&mut self, layout: Layout) {
        let order = self.next_order();
        let current = self.current.as_mut().expect("it has room for it");
        let address = self.superblock.geometry.address(current.number, current.end).expect("numbers do not run out");
        let size = order.value.size();
        let sums = match checked_sums(&order) {
            Ok(sums) => sums,
            Err(why) => return self.events.push(Event::Lost { rid: order.rid, why }),
        };
        let Order { rid, object_id, key, value, is_kept, .. } = order;
        let record = Record { tier: self.superblock.tier, address, rid, object_id, size, key: &key };
        let mut head = Vec::with_capacity(layout.header_bytes as usize);
        record::encode(&record, &sums, &mut head);
        current.entries.push(address, rid, size, &key);
        current.end += layout.record_bytes;
        let (is_held, bytes) = (current.is_held && !mutant!(UnsyncedRecordsCount), layout.record_bytes);
        self.unfinished.insert(address, Unfinished { rid, bytes, is_held, writes: 0, is_filled: false, loss: None });
        self.filling = Some(Filling {
            head,
            value: Some((value, layout.value_at)),
            is_gone: false,
            done: 0,
            bytes: layout.record_bytes,
            address: Some(address),
            is: if is_kept { WriteFor::Kept } else { WriteFor::Ordered },
        });
    }

    /// Submits what was gathered; false while as many operations are under way as may be.
    fn submit(&mut self) -> bool {
        if !self.queue.has_room() {
            return false;
        }
        let Gathered { slot, offset, len, records, parts } = self.gathered.take().expect("there is something");
        let current = self.current.as_ref().expect("what was gathered has its file");
        let (number, file) = (current.number, current.file.clone());
        let write = Write::Records { number, file: file.clone(), records, len, parts };
        self.begin(write, Operation::Write { file, offset, slot, len });
        true
    }

    fn begin(&mut self, write: Write<M::File>, operation: Operation<M::File>) {
        self.next_tag += 1;
        self.writes.insert(self.next_tag, write);
        self.begun.insert(self.next_tag, (self.now, Instant::now()));
        self.queue.submit(self.next_tag, operation);
    }

    fn ended(&mut self, Completion { tag, result, .. }: Completion) {
        let write = self.writes.remove(&tag).expect("an operation of this queue");
        self.answered = self.now;
        let op = match write {
            Write::Records { .. } | Write::Superblock => Op::Write,
            Write::SyncOf { .. } | Write::SyncOfSuperblock => Op::Sync,
            Write::Asked => Op::Read,
        };
        if let Some((_, began)) = self.begun.remove(&tag) {
            self.counts.took(op, began);
        }
        // Of records it counts below, as one that is short has failed, too.
        if result.is_err() && !matches!(write, Write::Records { .. }) {
            self.counts.failed(op);
        }
        match write {
            Write::Records { number, file, records, len, parts } => {
                // A sync that began before this end does not cover it.
                if !(mutant!(LateWritesCountAsSynced) && matches!(self.sync, Sync::Files { .. })) {
                    self.dirty.insert(number, file);
                }
                let result = result.and_then(|written| match written == len {
                    true => Ok(()),
                    false => Err(ErrorKind::WriteZero.into()),
                });
                match result {
                    Ok(()) => self.counts.wrote(parts),
                    Err(_) => self.counts.failed(Op::Write),
                }
                let loss = result.err().map(|error| Loss::Failed(error.kind()));
                if loss.is_some() {
                    self.suspect(number);
                }
                for address in records {
                    let record = self.unfinished.get_mut(&address).expect("its write was under way");
                    record.writes -= 1;
                    record.loss = record.loss.or(loss);
                    self.finish(address);
                }
            }
            Write::SyncOf { file, is_sealed } => {
                let synced = result.as_ref().map(|_| ()).map_err(|error| error.kind());
                let (records, failed) = self.held.ended(file, synced);
                for (rid, address) in records {
                    self.events.push(match failed {
                        None => Event::Written { rid, address },
                        Some(kind) => Event::Lost { rid, why: Loss::Failed(kind) },
                    });
                }
                match result {
                    Ok(_) if is_sealed => {
                        self.unproven.remove(&file);
                        self.events.push(Event::Sealed(file));
                    }
                    Ok(_) => {}
                    Err(_) => self.suspect(file),
                }
                if let Sync::Files { left, to } = self.sync {
                    self.sync = match left {
                        1 => {
                            if !self.is_beyond_suspects {
                                self.superblock.synced_to = to.max(self.superblock.synced_to);
                            }
                            Sync::Due
                        }
                        _ => Sync::Files { left: left - 1, to },
                    };
                }
            }
            Write::Superblock if result.is_ok() && self.queue.has_room() => {
                self.counts.wrote([0, 0, BLOCK]);
                let file = self.super_file.clone();
                self.begin(Write::SyncOfSuperblock, Operation::Sync { file });
            }
            // The other copy is whole; the next sync writes this one again.
            Write::Superblock | Write::SyncOfSuperblock => self.sync = Sync::None,
            // That it has ended is what was asked.
            Write::Asked => {}
        }
    }

    /// A record is over once all of it was filled and written.
    fn finish(&mut self, address: Address) {
        let record = &self.unfinished[&address];
        if record.is_filled && record.writes == 0 {
            let record = self.unfinished.remove(&address).expect("looked at above");
            let Unfinished { rid, mut loss, bytes, is_held, .. } = record;
            if is_held && loss.is_none() {
                let file = self.superblock.geometry.file_of(address);
                match self.held.hold(self.now, file, (rid, address), bytes) {
                    Ok(()) => return,
                    Err(kind) => loss = Some(Loss::Failed(kind)),
                }
            }
            self.events.push(match loss {
                None => Event::Written { rid, address },
                Some(why) => Event::Lost { rid, why },
            });
        }
    }
}

/// Sums of the chunks of what was ordered, which together are the sum that it must have.
fn checked_sums(order: &Order) -> Result<Vec<u32>, Loss> {
    let (size, mut whole) = (order.value.size(), 0);
    let sum = |at: u64| {
        let len = (size - at).min(CHUNK);
        let sum = order.value.sum(at, len).ok_or(Loss::SourceGone)?;
        whole = crc32c_combine(whole, sum, len);
        Ok(sum)
    };
    let sums = (0..size).step_by(CHUNK as usize).map(sum).collect::<Result<_, _>>()?;
    if order.crc32c.is_some_and(|right| right != whole) { Err(Loss::WrongSum) } else { Ok(sums) }
}
