//! Reads that are asked for one after another, of which several are under way while the oldest is waited for.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use mooncake_memory::copy_and_sum;

use super::{CHUNKS_MAX, Miss, Progress, Reader, RecordPlace, Want};
use crate::medium::{Completion, Files};

/// One in so many slots is left to reads that callers wait for.
const SLOTS_LEFT: usize = 4;

/// Reads of one thread, which ends them in the order in which it asked for them.
pub struct ReadAhead<M: Files> {
    reader: Reader<M>,
    asked: VecDeque<Asked>,
    /// Number of the oldest.
    first: u64,
}

struct Asked {
    place: RecordPlace,
    from: u64,
    bytes: Vec<u8>,
    /// Where in them the object's go.
    into: Range<usize>,
    progress: Progress,
}

impl<M: Files> ReadAhead<M> {
    /// None yet.
    pub fn new(reader: Reader<M>) -> ReadAhead<M> {
        ReadAhead { reader, asked: VecDeque::new(), first: 0 }
    }

    /// Nothing is asked for that has not ended.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// For reads of another kind. What is under way is of no interest any more.
    pub fn into_reader(mut self) -> Reader<M> {
        self.reader.under_way.clear();
        self.reader
    }

    /// Asks for as many bytes of a record from one on as the range has, which lies in `bytes`.
    pub fn ask(&mut self, place: RecordPlace, from: u64, bytes: Vec<u8>, into: Range<usize>) {
        let len = into.len() as u64;
        let progress = Progress::new(&Want { place, from, len, crc: None, sink: &mut |_, _| 0 }, CHUNKS_MAX);
        self.asked.push_back(Asked { place, from, bytes, into, progress });
        self.submit();
    }

    /// The end of the oldest, with its bytes; none if nothing was asked for. `time_left` is asked how long the disk may
    /// take.
    pub fn next(&mut self, mut time_left: impl FnMut() -> Duration) -> Option<(Vec<u8>, Result<(), Miss>)> {
        loop {
            self.submit();
            let oldest = self.asked.front_mut()?;
            if oldest.progress.result.is_none() && self.reader.under_way.is_empty() {
                oldest.progress.fail(Miss::NoSlot);
            }
            if let Some(result) = oldest.progress.result {
                let oldest = self.asked.pop_front().expect("it was looked at");
                self.first += 1;
                self.reader.count(result);
                return Some((oldest.bytes, result));
            }
            let left = time_left();
            match self.reader.next_end(left) {
                Some(ended) => self.ended(ended),
                None if left.is_zero() => self.are_late(),
                None => {}
            }
        }
    }

    /// Begins what there is room for, in their order.
    fn submit(&mut self) {
        for (nth, asked) in self.asked.iter_mut().enumerate() {
            while !asked.progress.pieces.is_empty() {
                let slots = &self.reader.slots;
                let has_slot = nth == 0 || slots.free() > slots.count() / SLOTS_LEFT;
                if !has_slot || !self.reader.submit_next(self.first + nth as u64, &mut asked.progress, &asked.place) {
                    return;
                }
            }
        }
    }

    fn ended(&mut self, ended: Completion) {
        let Some((number, piece)) = self.reader.under_way.remove(&ended.tag) else { return };
        // Of one that has failed, its slot is free now.
        let nth = number.checked_sub(self.first).and_then(|nth| usize::try_from(nth).ok());
        let Some(asked) = nth.and_then(|nth| self.asked.get_mut(nth)) else { return };
        let Asked { place, from, bytes, into, progress } = asked;
        let (place, from) = (*place, *from);
        let target = &mut bytes[into.clone()];
        let len = target.len() as u64;
        let mut sink = |at: u64, bytes: &[u8]| copy_and_sum(bytes, &mut target[(at - from) as usize..][..bytes.len()]);
        self.reader.came(ended, piece, progress, &mut Want { place, from, len, crc: None, sink: &mut sink });
    }

    /// The disk has not answered in time: neither the oldest nor what is under way behind it.
    fn are_late(&mut self) {
        self.reader.under_way.clear();
        for (nth, asked) in self.asked.iter_mut().enumerate() {
            if nth == 0 || asked.progress.left > 0 {
                asked.progress.fail(Miss::Late);
                asked.progress.left = 0;
            }
        }
    }
}
