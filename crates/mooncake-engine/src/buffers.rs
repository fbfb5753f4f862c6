//! The memory that an engine lends: registered ranges, and who is at work in them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{Board, ForeignRange, MemoryError, Registry, SharedBlock, Source, Target, shared_block};
use parking_lot::RwLock;

use crate::error::EngineError;
use crate::visitors::Visitors;

/// Longest that giving a buffer up waits for those who copy. Each of them holds it for one system call at a time.
const PATIENCE: Duration = Duration::from_secs(10);

/// One registered range.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub range: ForeignRange,
    /// `cpu:0`, `cuda:1`, `*`.
    pub location: String,
    /// The memory of ours that it lies in, if peers can map it.
    pub block: Option<SharedBlock>,
    users: AtomicUsize,
    gone: AtomicBool,
}

impl Buffer {
    /// Keeps the memory from being given back while the answer lives; none if that has begun.
    pub fn enter(&self) -> Option<InUse<'_>> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let in_use = InUse(self);
        (!self.gone.load(Ordering::SeqCst)).then_some(in_use)
    }

    pub fn holds(&self, addr: u64, len: u64) -> bool {
        let (start, end) = (self.range.addr() as u64, (self.range.addr() + self.range.len()) as u64);
        addr >= start && addr.checked_add(len).is_some_and(|last| last <= end)
    }

    /// A part by its address. Panics if the buffer does not hold it.
    pub fn part(&self, addr: u64, len: u64) -> ForeignRange {
        self.range.part(addr as usize - self.range.addr(), len as usize)
    }
}

/// Somebody copies to or from the buffer.
pub(crate) struct InUse<'a>(&'a Buffer);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// All registered ranges of an engine; they do not overlap.
#[derive(Debug)]
pub(crate) struct Buffers {
    by_addr: RwLock<BTreeMap<usize, Arc<Buffer>>>,
    /// How often there were others than before.
    changes: AtomicU64,
    /// Counts how often a buffer was given up: who copies without asking looks at it afterwards. Its note is the number of
    /// buffers that peers can map.
    board: Board,
    mappable: AtomicU64,
    /// The peers that map memory of ours.
    pub visitors: Arc<Visitors>,
    /// Empty: the kernel checks the host's memory, a device's driver its own.
    registry: Registry,
}

impl Buffers {
    pub fn new() -> Result<Buffers, MemoryError> {
        let (board, visitors, changes) = (Board::new()?, Arc::default(), AtomicU64::new(0));
        let (by_addr, mappable) = (RwLock::default(), AtomicU64::new(0));
        Ok(Buffers { by_addr, changes, board, mappable, visitors, registry: Registry::new() })
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Registers ranges, all or none.
    pub fn register(&self, ranges: &[ForeignRange], location: &str) -> Result<(), EngineError> {
        for range in ranges {
            let (addr, len) = (range.addr(), range.len());
            if addr == 0 || len == 0 || addr.checked_add(len).is_none() {
                return Err(EngineError::InvalidArgument(format!("{len} bytes at {addr:#x} are no memory")));
            }
        }
        let mut by_addr = self.by_addr.write();
        for (at, &range) in ranges.iter().enumerate() {
            let (addr, len) = (range.addr(), range.len());
            let before = by_addr.range(..addr + len).next_back();
            if let Some((&other, found)) = before.filter(|(start, other)| **start + other.range.len() > addr) {
                let other_len = found.range.len();
                let done = ranges[..at].iter().filter_map(|done| by_addr.remove(&done.addr()));
                self.count_mappable(done.filter(|buffer| buffer.block.is_some()).count(), false);
                return Err(EngineError::Overlap { addr, len, other, other_len });
            }
            let (users, gone) = (AtomicUsize::new(0), AtomicBool::new(false));
            let (location, block) = (location.to_owned(), shared_block(addr, len));
            by_addr.insert(addr, Arc::new(Buffer { range, location, block, users, gone }));
            self.count_mappable(usize::from(block.is_some()), true);
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Gives a range up. When it returns nobody touches that memory any more.
    pub fn unregister(&self, addr: usize) -> Result<(), EngineError> {
        let Some(buffer) = self.by_addr.write().remove(&addr) else {
            return Err(EngineError::NotRegistered { owner: "this engine".into(), addr: addr as u64, len: 0 });
        };
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.count_mappable(usize::from(buffer.block.is_some()), false);
        buffer.gone.store(true, Ordering::SeqCst);
        self.board.advance();
        let mut inside = if buffer.block.is_some() { self.visitors.inside() } else { Vec::new() };
        let began = Instant::now();
        loop {
            inside.retain(|visit| visit.lasts());
            if inside.is_empty() && buffer.users.load(Ordering::SeqCst) == 0 {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(EngineError::BufferBusy { addr, waited: PATIENCE });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn count_mappable(&self, buffers: usize, more: bool) {
        let buffers = buffers as u64;
        if more {
            self.mappable.fetch_add(buffers, Ordering::SeqCst);
        } else {
            self.mappable.fetch_sub(buffers, Ordering::SeqCst);
        }
        // Two that write it at once may leave the older number: it is a hint.
        self.board.set_note(self.mappable.load(Ordering::SeqCst));
    }

    /// The block with that number, if any of it is lent.
    pub fn lends_block(&self, id: u64) -> bool {
        self.by_addr.read().values().any(|buffer| buffer.block.is_some_and(|block| block.id == id))
    }

    /// The buffer that a range lies in.
    pub fn find(&self, addr: u64, len: u64) -> Option<Arc<Buffer>> {
        let start = usize::try_from(addr).ok()?;
        let by_addr = self.by_addr.read();
        by_addr.range(..=start).next_back().map(|(_, buffer)| buffer).filter(|buffer| buffer.holds(addr, len)).cloned()
    }

    /// Another number whenever [`Buffers::all`] gives something else than before.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub fn len(&self) -> usize {
        self.by_addr.read().len()
    }

    pub fn all(&self) -> Vec<Arc<Buffer>> {
        self.by_addr.read().values().cloned().collect()
    }

    /// Memory to be read from.
    pub fn source(&self, range: ForeignRange) -> Source<'static> {
        Source::foreign(range, &self.registry)
    }

    /// Memory to be written to.
    pub fn target(&self, range: ForeignRange) -> Target<'static> {
        Target::foreign(range, &self.registry)
    }
}
