//! Reads records for callers that have their places. A read is good if the header equals the place and the checksum of
//! every chunk that was touched is right; anything else is a miss, and no error of the caller's.

pub mod ahead;
pub mod at_disk;
mod runs;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::crc32c;
use mooncake_mutant::mutant;

use crate::address::{Address, BLOCK, FileNumber, Geometry};
use crate::io_counts::{CountedReads, Op};
use crate::medium::{Completion, Files, Operation, Queue};
use crate::record::{CHUNK, Header, Layout};
use crate::slots::{SLOT_BYTES, Slot, Slots};
use at_disk::AtDisk;
use runs::{Run, runs};

/// Reads under way at a time.
const DEPTH: usize = 32;

/// Most files that are kept open.
const OPEN_MAX: usize = 64;

/// Chunks of one read.
const CHUNKS_MAX: u64 = (1 << 20) / CHUNK;

/// Of few bytes: the disk reads some of them while others are copied.
const FEW_BYTES: u64 = 4 << 20;
const CHUNKS_OF_FEW: u64 = (256 << 10) / CHUNK;

/// Where the log says that an object lies on a tier: a record's address on a lane, with the tier and in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// In which tier.
    pub tier: TierUuid,
    /// At which address.
    pub address: Address,
    /// As which placement.
    pub rid: Rid,
    /// Bytes of the object.
    pub size: u64,
    /// Bytes of its key, which say where in the record the value begins.
    pub key_bytes: usize,
}

/// A part of an object to be read.
pub struct Want<'a> {
    /// Where the object lies.
    pub place: RecordPlace,
    /// The first byte of it that is wanted.
    pub from: u64,
    /// How many are.
    pub len: u64,
    /// CRC-32C that the object has by the log; none where nobody asks.
    pub crc: Option<u32>,
    /// Takes bytes, and where in the object they lie, in any order; answers with their CRC-32C, which costs least as
    /// they are copied. What it was given counts once the read is good.
    pub sink: &'a mut dyn FnMut(u64, &[u8]) -> u32,
}

/// Why there are no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Miss {
    /// The file was retired, or never had so many bytes.
    #[error("its file is not there any more")]
    Gone,
    /// What lies there is not what the log says: unless the place has changed meanwhile, the record is bad.
    #[error("what lies there is another record, or damaged")]
    Wrong,
    /// The disk failed.
    #[error("the disk failed: {0}")]
    Failed(ErrorKind),
    /// The disk did not answer in time.
    #[error("the disk did not answer in time")]
    Late,
    /// The folder is not there: what it has may come back with it.
    #[error("its folder is not there now")]
    Away,
    /// All slots are in use.
    #[error("all buffers for the disk are in use")]
    NoSlot,
    /// The place cannot be one, or the object has no such bytes.
    #[error("the object has no such bytes")]
    NoSuchBytes,
}

/// Reads of one thread.
pub struct Reader<M: Files> {
    medium: M,
    geometry: Geometry,
    queue: M::Queue,
    slots: Slots,
    open: BTreeMap<FileNumber, M::File>,
    next_tag: u64,
    /// Which want a read belongs to; those of calls that have ended are not among them.
    under_way: BTreeMap<u64, (u64, Piece)>,
    /// Reads of several wants at once, and their bytes.
    runs_under_way: BTreeMap<u64, (Run, u64)>,
    counted: Option<CountedReads>,
    /// When each read began, those of calls that have ended among them. Only where they are counted.
    begun: BTreeMap<u64, Instant>,
    /// Reads that the disk has not answered, whoever gave them up.
    owed: usize,
    at_disk: AtDisk,
}

/// Blocks of a record that are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// Bytes from the start of the record on.
    from: u64,
    len: u64,
    /// The header is in it.
    has_header: bool,
    /// Chunks of the value that are in it, whole.
    chunks: (u64, u64),
}

struct Progress {
    layout: Layout,
    /// The next ones first.
    pieces: Vec<Piece>,
    left: usize,
    header: Option<Vec<u8>>,
    /// Read, and not looked at: the header has not come.
    held: Vec<(Piece, Slot)>,
    result: Option<Result<(), Miss>>,
    /// When it came to that.
    ended: Instant,
}

impl<M: Files> Reader<M> {
    /// Reads of a tier with such files.
    pub fn new(medium: M, geometry: Geometry, slots: Slots) -> io::Result<Reader<M>> {
        let (queue, open, under_way) = (medium.queue(DEPTH)?, BTreeMap::new(), BTreeMap::new());
        let (runs_under_way, counted, begun) = (BTreeMap::new(), None, BTreeMap::new());
        Ok(Reader {
            medium,
            geometry,
            queue,
            slots,
            open,
            next_tag: 0,
            under_way,
            runs_under_way,
            counted,
            begun,
            owed: 0,
            at_disk: AtDisk::default(),
        })
    }

    /// From now on what it reads counts so.
    pub fn counts(&mut self, counted: CountedReads) {
        self.counted = Some(counted);
    }

    /// It reads a disk of which others know something already.
    pub fn knows(&mut self, at_disk: AtDisk) {
        self.at_disk = at_disk;
    }

    /// What comes next of the disk, waited for so long at most.
    fn next_end(&mut self, wait: Duration) -> Option<Completion> {
        let ended = self.queue.next(wait)?;
        self.owed -= 1;
        if let Some(counted) = &self.counted
            && let Some(began) = self.begun.remove(&ended.tag)
        {
            counted.ended(began, &ended.result);
        }
        Some(ended)
    }

    fn submit(&mut self, operation: Operation<M::File>) {
        if self.counted.is_some() {
            self.begun.insert(self.next_tag, Instant::now());
        }
        self.owed += 1;
        self.queue.submit(self.next_tag, operation);
    }

    /// A read has come to that. With it an object was read: so many bytes, in so long.
    fn count(&self, result: Result<(), Miss>, object: Option<(u64, Duration)>) {
        let Some(counted) = &self.counted else { return };
        match result {
            Ok(()) => object.into_iter().for_each(|(bytes, took)| counted.object(bytes, took)),
            Err(Miss::Wrong) => counted.counts.bad_record(),
            Err(Miss::Failed(_)) => counted.counts.failed(Op::Read),
            // These say nothing of the disk; what is late, its times say.
            Err(Miss::Gone | Miss::Away | Miss::Late | Miss::NoSlot | Miss::NoSuchBytes) => {}
        }
    }

    /// Whether the disk owes it an answer: it has slots until that comes, or until the reader goes.
    pub fn is_owed(&self) -> bool {
        self.owed > 0
    }

    /// Closes all files: each is opened anew for the next read of it.
    pub fn close_files(&mut self) {
        self.open.clear();
    }

    /// Reads all of them; what each came to, in their order. `time_left` is asked how long the disk may take.
    pub fn read(&mut self, wants: &mut [Want<'_>], mut time_left: impl FnMut() -> Duration) -> Vec<Result<(), Miss>> {
        let began = Instant::now();
        // Reads of earlier calls that were too late: their slots are free now.
        while self.next_end(Duration::ZERO).is_some() {}
        let bytes = wants.iter().fold(0_u64, |bytes, want| bytes.saturating_add(want.len));
        let way = self.at_disk.way(bytes, self.slots.count().min(DEPTH) as u64 * SLOT_BYTES as u64);
        let chunks = if bytes <= FEW_BYTES { CHUNKS_OF_FEW } else { CHUNKS_MAX };
        let mut all: Vec<Progress> = wants.iter().map(|want| Progress::new(want, chunks)).collect();
        let mut to_read = runs(&all, wants);
        loop {
            let left = time_left();
            if left.is_zero() {
                while let Some(ended) = self.next_end(Duration::ZERO) {
                    self.ended(ended, &mut all, wants, &mut to_read);
                }
                all.iter_mut().filter(|progress| progress.result.is_none()).for_each(|it| it.fail(Miss::Late));
                self.forget();
                break;
            }
            while let Some(run) = to_read.front()
                && (!self.has_reads() || self.bytes_under_way() < way.bytes(bytes))
                && self.submit_run(run, &mut all, wants)
            {
                if run.len() > 1 || all[run[0]].pieces.is_empty() {
                    to_read.pop_front();
                }
            }
            if !self.has_reads() {
                // Others have all slots, or late reads of this thread have its queue.
                match to_read.pop_front() {
                    Some(run) => run.into_iter().for_each(|nth| all[nth].fail(Miss::NoSlot)),
                    None => break,
                }
                continue;
            }
            if let Some(ended) = self.next_end(left) {
                self.ended(ended, &mut all, wants, &mut to_read);
            }
        }
        // What is not there says nothing of how fast bytes come.
        if all.iter().all(|progress| matches!(progress.result, Some(Ok(()) | Err(Miss::Late)))) {
            let is_late = all.iter().any(|progress| progress.result == Some(Err(Miss::Late)));
            self.at_disk.took(way, bytes, began.elapsed(), is_late);
        }
        let mut results = Vec::with_capacity(all.len());
        for (progress, want) in all.iter().zip(&*wants) {
            let result = progress.result.unwrap_or(Err(Miss::Late));
            self.count(result, Some((want.len, progress.ended.saturating_duration_since(began))));
            results.push(result);
        }
        results
    }

    /// Begins the read of a run, or the next one of a want that takes several; false if it has to wait.
    fn submit_run(&mut self, run: &Run, all: &mut [Progress], wants: &[Want<'_>]) -> bool {
        let (first, place) = (run[0], wants[run[0]].place);
        if run.len() == 1 {
            return self.submit_next(first as u64, &mut all[first], &place);
        }
        let len: u64 = run.iter().map(|nth| all[*nth].pieces[0].len).sum();
        self.submit_together(run, &place, len).unwrap_or_else(|miss| {
            run.iter().for_each(|nth| all[*nth].fail(miss));
            true
        })
    }

    /// Begins the read of a run of so many bytes, whose first record lies there; false if it has to wait.
    fn submit_together(&mut self, run: &Run, place: &RecordPlace, len: u64) -> Result<bool, Miss> {
        if !self.queue.has_room() {
            return Ok(false);
        }
        let file = self.file(self.geometry.file_of(place.address)).map_err(|error| why_not_opened(&error))?;
        let Some(slot) = self.slots.take() else { return Ok(false) };
        self.next_tag += 1;
        self.runs_under_way.insert(self.next_tag, (run.clone(), len));
        let offset = self.geometry.offset_of(place.address);
        self.submit(Operation::Read { file, offset, slot, len: len as usize });
        Ok(true)
    }

    /// Nobody waits for what is under way any more: its slots come back when the disk answers.
    fn forget(&mut self) {
        self.under_way.clear();
        self.runs_under_way.clear();
    }

    fn has_reads(&self) -> bool {
        !(self.under_way.is_empty() && self.runs_under_way.is_empty())
    }

    fn bytes_under_way(&self) -> u64 {
        let of_runs = self.runs_under_way.values().map(|(_, bytes)| bytes);
        self.under_way.values().map(|(_, piece)| &piece.len).chain(of_runs).sum()
    }

    /// Begins the next read of a want; false if it has to wait.
    fn submit_next(&mut self, nth: u64, progress: &mut Progress, place: &RecordPlace) -> bool {
        let Some(piece) = progress.pieces.last().copied() else { return true };
        if progress.result.is_some() {
            progress.pieces.clear();
            return true;
        }
        if !self.queue.has_room() {
            return false;
        }
        let file = match self.file(self.geometry.file_of(place.address)) {
            Ok(file) => file,
            Err(error) => {
                progress.fail(why_not_opened(&error));
                return true;
            }
        };
        let Some(slot) = self.slots.take() else { return false };
        progress.pieces.pop();
        progress.left += 1;
        self.next_tag += 1;
        self.under_way.insert(self.next_tag, (nth, piece));
        let offset = self.geometry.offset_of(place.address) + piece.from;
        self.submit(Operation::Read { file, offset, slot, len: piece.len as usize });
        true
    }

    fn file(&mut self, number: FileNumber) -> io::Result<M::File> {
        if let Some(file) = self.open.get(&number) {
            return Ok(file.clone());
        }
        let file = self.medium.open_file(number)?;
        if self.open.len() >= OPEN_MAX {
            self.open.pop_first();
        }
        self.open.insert(number, file.clone());
        Ok(file)
    }

    fn ended(&mut self, ended: Completion, all: &mut [Progress], wants: &mut [Want<'_>], to_read: &mut VecDeque<Run>) {
        if let Some((run, len)) = self.runs_under_way.remove(&ended.tag) {
            let whole = ended.slot.filter(|_| ended.result.is_ok_and(|read| read as u64 == len));
            let Some(slot) = whole else {
                // One of them may have spoiled it: each is read alone.
                return to_read.extend(run.into_iter().map(|nth| vec![nth]));
            };
            let mut at = 0;
            for nth in run {
                let piece = all[nth].pieces.pop().expect("it is read whole");
                all[nth].came_whole(piece, &slot[at..at + piece.len as usize], &mut wants[nth]);
                at += piece.len as usize;
            }
            return;
        }
        // Of a call that has ended: its slot is free now.
        let Some((nth, piece)) = self.under_way.remove(&ended.tag) else { return };
        self.came(ended, piece, &mut all[nth as usize], &mut wants[nth as usize]);
    }

    /// A read of a want has ended.
    fn came(&mut self, ended: Completion, piece: Piece, progress: &mut Progress, want: &mut Want<'_>) {
        progress.left -= 1;
        match ended.result {
            Ok(read) if read as u64 == piece.len => progress.came(piece, ended.slot.expect("a read has a slot"), want),
            Ok(_) => {
                // Another file of that number may be there one day: it is opened anew.
                self.open.remove(&self.geometry.file_of(want.place.address));
                progress.fail(Miss::Gone);
            }
            Err(error) => progress.fail(Miss::Failed(error.kind())),
        }
        if progress.left == 0 && progress.pieces.is_empty() {
            progress.ends(Ok(()));
        }
    }
}

impl Progress {
    /// A want that is read so many chunks at a time.
    fn new(want: &Want<'_>, chunks: u64) -> Progress {
        let layout = Layout::of(want.place.key_bytes, want.place.size);
        let is_inside = want.from.checked_add(want.len).is_some_and(|end| end <= want.place.size);
        let (layout, result) = match layout.filter(|layout| layout.header_bytes <= SLOT_BYTES as u64 && is_inside) {
            Some(layout) => (layout, None),
            None => (Layout { header_bytes: 0, value_at: 0, record_bytes: 0 }, Some(Err(Miss::NoSuchBytes))),
        };
        let mut pieces = match result {
            None => pieces(layout, want.place.size, (want.from, want.len), chunks),
            Some(_) => Vec::new(),
        };
        pieces.reverse();
        Progress { layout, pieces, left: 0, header: None, held: Vec::new(), result, ended: Instant::now() }
    }

    fn ends(&mut self, result: Result<(), Miss>) {
        if self.result.is_none() {
            (self.result, self.ended) = (Some(result), Instant::now());
        }
    }

    fn fail(&mut self, miss: Miss) {
        self.ends(Err(miss));
        self.pieces.clear();
        self.held.clear();
    }

    fn came(&mut self, piece: Piece, slot: Slot, want: &mut Want<'_>) {
        if self.result.is_some() {
            return;
        }
        if piece.has_header {
            let bytes = &slot[..self.layout.header_bytes as usize];
            if !is_header_of(bytes, &want.place, want.crc) {
                return self.fail(Miss::Wrong);
            }
            self.header = Some(bytes.to_vec());
        }
        self.held.push((piece, slot));
        let Some(header) = &self.header else { return };
        let header = Header::decode(header).expect("it was decoded when it came");
        for (piece, slot) in std::mem::take(&mut self.held) {
            if !take_chunks(&header, self.layout, piece, &slot, want) {
                return self.fail(Miss::Wrong);
            }
        }
    }

    /// All that it needs has come.
    fn came_whole(&mut self, piece: Piece, bytes: &[u8], want: &mut Want<'_>) {
        let header = &bytes[..self.layout.header_bytes as usize];
        let is_good = is_header_of(header, &want.place, want.crc)
            && Header::decode(header).is_ok_and(|header| take_chunks(&header, self.layout, piece, bytes, want));
        self.ends(if is_good { Ok(()) } else { Err(Miss::Wrong) });
    }
}

fn why_not_opened(error: &io::Error) -> Miss {
    match error.kind() {
        ErrorKind::NotFound => Miss::Gone,
        ErrorKind::NotConnected => Miss::Away,
        kind => Miss::Failed(kind),
    }
}

fn is_header_of(bytes: &[u8], place: &RecordPlace, crc: Option<u32>) -> bool {
    let Ok(header) = Header::decode(bytes) else { return false };
    let Header { record, .. } = header;
    if crc.is_some_and(|crc| crc != header.value_sum()) {
        return false;
    }
    let RecordPlace { tier, address, rid, size, key_bytes } = *place;
    if mutant!(RecordsAreNotCompared) {
        return (record.size, record.key.len()) == (size, key_bytes);
    }
    let has_lengths = (record.size, record.key.len()) == (size, key_bytes);
    has_lengths && (record.tier, record.address, record.rid) == (tier, address, rid)
}

/// Gives the sink what it wants of a piece; false if a chunk is not what was written.
fn take_chunks(header: &Header<'_>, layout: Layout, piece: Piece, slot: &[u8], want: &mut Want<'_>) -> bool {
    let end = want.from + want.len;
    for chunk in piece.chunks.0..piece.chunks.1 {
        let (at, until) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(want.place.size));
        let start = (layout.value_at + at - piece.from) as usize;
        let bytes = &slot[start..start + (until - at) as usize];
        let (first, last) = (want.from.max(at), end.min(until));
        let sum = match (first, last) == (at, until) {
            true => (want.sink)(at, bytes),
            false => {
                if first < last {
                    (want.sink)(first, &bytes[(first - at) as usize..(last - at) as usize]);
                }
                crc32c(bytes)
            }
        };
        if header.sum(chunk) != Some(sum) && !mutant!(ChunksAreNotSummed) {
            return false;
        }
    }
    true
}

/// What is to be read for a part of a value: the header first, then its chunks in their order.
fn pieces(layout: Layout, size: u64, (from, len): (u64, u64), chunks_max: u64) -> Vec<Piece> {
    let chunks = match len {
        0 => (0, 0),
        _ => (from / CHUNK, (from + len).div_ceil(CHUNK)),
    };
    if !layout.value_at.is_multiple_of(BLOCK) || size == 0 {
        // Header and value lie together.
        return vec![Piece { from: 0, len: layout.record_bytes, has_header: true, chunks }];
    }
    let mut pieces = Vec::new();
    let mut next = chunks.0;
    if next > 0 || next == chunks.1 || layout.value_at + chunks_max * CHUNK > SLOT_BYTES as u64 {
        pieces.push(Piece { from: 0, len: layout.value_at, has_header: true, chunks: (0, 0) });
    }
    while next < chunks.1 {
        let until = (next + chunks_max).min(chunks.1);
        let has_header = pieces.is_empty();
        let start = if has_header { 0 } else { layout.value_at + next * CHUNK };
        let end = (layout.value_at + (until * CHUNK).min(size)).next_multiple_of(BLOCK);
        pieces.push(Piece { from: start, len: end - start, has_header, chunks: (next, until) });
        next = until;
    }
    pieces
}
