//! Reads that are asked for one after another, of which several are under way while the oldest is waited for.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use mooncake_memory::copy_and_sum;

use super::runs::{RUN_BYTES, Run};
use super::{CHUNKS_MAX, Miss, Piece, Progress, Reader, RecordPlace, Want};
use crate::address::BLOCK;
use crate::medium::{Completion, Files};

/// One in so many slots is left to reads that callers wait for.
const SLOTS_LEFT: usize = 4;

/// Once so many bytes are at the disk no more reads begin, but for the oldest. A virtual disk may say that a read has
/// ended only once all others at it have, too: with few at it, what is asked for next is read while this is copied and
/// sent.
const BYTES_AT_DISK: u64 = 2 << 20;

/// A disk of which the next answer takes so long is far away, or slow, and has twice as much at a time, up to a most.
const LONG: Duration = Duration::from_millis(3);
const BYTES_AT_DISK_MAX: u64 = 8 << 20;

/// What is asked for is parted into so many reads, so that the disk goes on while bytes are copied, but into no small
/// ones.
const RUNS_MIN: u64 = 4;
const RUN_BYTES_MIN: u64 = 256 << 10;

/// Reads of one thread, which ends them in the order in which it asked for them.
pub struct ReadAhead<M: Files> {
    reader: Reader<M>,
    asked: VecDeque<Asked>,
    /// Number of the oldest.
    first: u64,
    /// Reads that have ended and were not looked at.
    came: VecDeque<(Completion, Read)>,
    /// Bytes that the disk has at a time.
    at_disk: u64,
    /// The object of which parts have come, and its last has not.
    object: Option<ReadObject>,
}

/// An object of which all parts that have come so far are good.
struct ReadObject {
    began: Instant,
    ended: Instant,
    bytes: u64,
}

/// Which part it is of what is read of an object. Its parts come right behind one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Nothing of it was asked for before.
    pub is_first: bool,
    /// Nothing of it is asked for behind.
    pub is_last: bool,
}

/// What the disk has read at once.
enum Read {
    /// Of the record that was asked for as which one.
    Piece(u64, Piece),
    /// Several, and their bytes.
    Run(Run, u64),
}

struct Asked {
    place: RecordPlace,
    from: u64,
    bytes: Vec<u8>,
    /// Where in them the object's go.
    into: Range<usize>,
    progress: Progress,
    /// All of it, while it is read with its neighbours.
    together: Option<Piece>,
    /// A read with its neighbours has failed: one of them may have spoiled it.
    is_alone: bool,
    part: Part,
    began: Instant,
}

impl Part {
    /// All that is read of an object.
    pub const ALL: Part = Part { is_first: true, is_last: true };
}

impl<M: Files> ReadAhead<M> {
    /// None yet.
    pub fn new(reader: Reader<M>) -> ReadAhead<M> {
        ReadAhead {
            reader,
            asked: VecDeque::new(),
            first: 0,
            came: VecDeque::new(),
            at_disk: BYTES_AT_DISK,
            object: None,
        }
    }

    /// Nothing is asked for that has not ended.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// For reads of another kind. What is under way is of no interest any more.
    pub fn into_reader(mut self) -> Reader<M> {
        self.reader.forget();
        self.reader
    }

    /// Asks for as many bytes of a record from one on as the range has, which lies in `bytes`. Records that lie
    /// behind one another, and are asked for in this order, are read at once: from the next [`ReadAhead::next`] on, or
    /// once there is much.
    pub fn ask(&mut self, place: RecordPlace, from: u64, bytes: Vec<u8>, into: Range<usize>, part: Part) {
        let len = into.len() as u64;
        let progress = Progress::new(&Want { place, from, len, crc: None, sink: &mut |_, _| 0 }, CHUNKS_MAX);
        let began = progress.ended;
        self.asked.push_back(Asked {
            place,
            from,
            bytes,
            into,
            progress,
            together: None,
            is_alone: false,
            part,
            began,
        });
        if self.bytes_to_begin() >= BYTES_AT_DISK {
            self.submit();
        }
    }

    /// The end of the oldest, with its bytes; none if nothing was asked for. `time_left` is asked how long the disk may
    /// take.
    pub fn next(&mut self, mut time_left: impl FnMut() -> Duration) -> Option<(Vec<u8>, Result<(), Miss>)> {
        loop {
            // The disk goes on before anything is copied.
            while let Some(ended) = self.reader.next_end(Duration::ZERO) {
                self.came(ended);
            }
            self.submit();
            let oldest = self.asked.front_mut()?;
            if oldest.progress.result.is_none() && self.came.is_empty() && !self.reader.has_reads() {
                oldest.progress.fail(Miss::NoSlot);
            }
            if let Some(result) = oldest.progress.result {
                let oldest = self.asked.pop_front().expect("it was looked at");
                self.first += 1;
                let object = self.object_read_with(&oldest, result.is_ok());
                self.reader.count(result, object);
                return Some((oldest.bytes, result));
            }
            if let Some((ended, read)) = self.came.pop_front() {
                self.take(ended, read);
                continue;
            }
            let left = time_left();
            match self.reader.next_end(left) {
                Some(ended) => {
                    if left.saturating_sub(time_left()) >= LONG {
                        self.at_disk = (2 * self.at_disk).min(BYTES_AT_DISK_MAX);
                    }
                    self.came(ended);
                }
                None if left.is_zero() => self.are_late(),
                None => {}
            }
        }
    }

    /// Bytes of an object, and how long they took, if all parts of it are good and this is the last one.
    fn object_read_with(&mut self, asked: &Asked, is_good: bool) -> Option<(u64, Duration)> {
        let (len, ended) = (asked.into.len() as u64, asked.progress.ended);
        let before = self.object.take();
        let object = match asked.part.is_first {
            true => ReadObject { began: asked.began, ended, bytes: len },
            // None: one before it was not.
            false => before.map(|it| ReadObject { bytes: it.bytes + len, ended: it.ended.max(ended), ..it })?,
        };
        match asked.part.is_last {
            _ if !is_good => None,
            true => Some((object.bytes, object.ended.saturating_duration_since(object.began))),
            false => {
                self.object = Some(object);
                None
            }
        }
    }

    /// Begins what there is room for, in their order.
    fn submit(&mut self) {
        let most = (self.bytes_to_begin() / RUNS_MIN).clamp(RUN_BYTES_MIN, RUN_BYTES);
        let mut nth = 0;
        while let Some(asked) = self.asked.get_mut(nth) {
            if asked.progress.pieces.is_empty() {
                nth += 1;
                continue;
            }
            let slots = &self.reader.slots;
            let has_slot = slots.free() > slots.count() / SLOTS_LEFT && self.reader.bytes_under_way() < self.at_disk;
            if nth > 0 && !has_slot {
                return;
            }
            let (count, bytes) = self.run_from(nth, most);
            let begins = if count > 1 {
                self.submit_run(nth..nth + count, bytes)
            } else {
                let Asked { progress, place, .. } = &mut self.asked[nth];
                self.reader.submit_next(self.first + nth as u64, progress, place)
            };
            if !begins {
                return;
            }
        }
    }

    fn bytes_to_begin(&self) -> u64 {
        self.asked.iter().flat_map(|asked| &asked.progress.pieces).map(|piece| piece.len).sum()
    }

    /// How many from there on lie behind one another and are read at once, and their bytes.
    fn run_from(&self, nth: usize, most: u64) -> (usize, u64) {
        let (mut count, mut bytes, mut next) = (0, 0, self.asked[nth].place.address.0);
        for Asked { place, progress, is_alone, .. } in self.asked.range(nth..) {
            let [piece] = &progress.pieces[..] else { break };
            let goes_on = piece.has_header && !is_alone && place.address.0 == next && bytes + piece.len <= most;
            if !goes_on {
                break;
            }
            (count, bytes) = (count + 1, bytes + piece.len);
            next = next.saturating_add(piece.len / BLOCK);
        }
        (count, bytes)
    }

    /// Begins the read of several at once; false if it has to wait.
    fn submit_run(&mut self, run: Range<usize>, bytes: u64) -> bool {
        let numbers: Run = run.clone().map(|nth| self.first as usize + nth).collect();
        let begun = self.reader.submit_together(&numbers, &self.asked[run.start].place, bytes);
        for asked in self.asked.range_mut(run) {
            match begun {
                Ok(false) => {}
                Ok(true) => {
                    asked.together = asked.progress.pieces.pop();
                    asked.progress.left += 1;
                }
                Err(miss) => asked.progress.fail(miss),
            }
        }
        begun.unwrap_or(true)
    }

    fn came(&mut self, ended: Completion) {
        let read = match self.reader.under_way.remove(&ended.tag) {
            Some((number, piece)) => Read::Piece(number, piece),
            None => match self.reader.runs_under_way.remove(&ended.tag) {
                Some((run, bytes)) => Read::Run(run, bytes),
                // Of one that was late: its slot is free now.
                None => return,
            },
        };
        self.came.push_back((ended, read));
    }

    fn take(&mut self, ended: Completion, read: Read) {
        let (number, piece) = match read {
            Read::Run(run, bytes) => return self.take_run(ended, &run, bytes),
            Read::Piece(number, piece) => (number, piece),
        };
        // None of one that has failed.
        let nth = number.checked_sub(self.first).and_then(|nth| usize::try_from(nth).ok());
        let Some(asked) = nth.and_then(|nth| self.asked.get_mut(nth)) else { return };
        asked.with_want(|progress, want| self.reader.came(ended, piece, progress, want));
    }

    /// All of a run has come, or none of it.
    fn take_run(&mut self, ended: Completion, run: &Run, bytes: u64) {
        // The oldest stays until it has ended, and so do those behind it.
        let first = run[0] - self.first as usize;
        let whole = ended.slot.filter(|_| ended.result.is_ok_and(|read| read as u64 == bytes));
        let mut at = 0;
        for asked in self.asked.range_mut(first..first + run.len()) {
            let piece = asked.together.take().expect("it is being read");
            asked.progress.left -= 1;
            match &whole {
                Some(slot) => {
                    let bytes = &slot[at..at + piece.len as usize];
                    asked.with_want(|progress, want| progress.came_whole(piece, bytes, want));
                }
                None => {
                    asked.progress.pieces.push(piece);
                    asked.is_alone = true;
                }
            }
            at += piece.len as usize;
        }
    }

    /// The disk has not answered in time: neither the oldest nor what is under way behind it.
    fn are_late(&mut self) {
        self.reader.forget();
        for (nth, asked) in self.asked.iter_mut().enumerate() {
            if nth == 0 || asked.progress.left > 0 {
                asked.progress.fail(Miss::Late);
                asked.progress.left = 0;
                asked.together = None;
            }
        }
    }
}

impl Asked {
    /// Runs what takes bytes of it, which are copied to where they go.
    fn with_want(&mut self, take: impl FnOnce(&mut Progress, &mut Want<'_>)) {
        let Asked { place, from, ref mut bytes, ref into, ref mut progress, .. } = *self;
        let target = &mut bytes[into.clone()];
        let len = target.len() as u64;
        let mut sink = |at: u64, bytes: &[u8]| copy_and_sum(bytes, &mut target[(at - from) as usize..][..bytes.len()]);
        take(progress, &mut Want { place, from, len, crc: None, sink: &mut sink });
    }
}
