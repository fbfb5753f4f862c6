//! The memory that an engine lends: registered ranges, and who is at work in them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use mooncake_memory::{Board, ForeignRange, MemoryError, Registry, SharedBlock, Source, Target, shared_block};
use parking_lot::RwLock;

use crate::error::EngineError;
use crate::peer::Patience;
use crate::visitors::{Inside, Visitors};

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

/// A buffer that was given up.
#[derive(Debug)]
struct Leaving {
    buffer: Arc<Buffer>,
    /// The peers that were inside its block then, where it is mapped. Those who came later know that it is gone.
    inside: Vec<Inside>,
    since: Instant,
}

impl Leaving {
    /// Nobody touches it any more.
    fn is_left(&self) -> bool {
        self.buffer.users.load(Ordering::SeqCst) == 0 && !self.inside.iter().any(Inside::lasts)
    }

    fn busy(&self) -> EngineError {
        EngineError::BufferBusy { addr: self.buffer.range.addr(), waited: self.since.elapsed() }
    }
}

/// By their first addresses; none overlaps another.
#[derive(Debug, Default)]
struct Ranges {
    lent: BTreeMap<usize, Arc<Buffer>>,
    /// Given up, and not known to be left yet: who asks again waits again, and nobody lends them anew before.
    leaving: BTreeMap<usize, Arc<Leaving>>,
}

impl Ranges {
    /// An error if the range may not be lent now.
    fn check(&self, addr: usize, len: usize) -> Result<(), EngineError> {
        let overlaps = |other: &ForeignRange| other.addr() + other.len() > addr;
        if let Some((_, lent)) = self.lent.range(..addr + len).next_back().filter(|(_, lent)| overlaps(&lent.range)) {
            let (other, other_len) = (lent.range.addr(), lent.range.len());
            return Err(EngineError::Overlap { addr, len, other, other_len });
        }
        let leaving = self.leaving.range(..addr + len).next_back();
        leaving
            .filter(|(_, leaving)| overlaps(&leaving.buffer.range))
            .map_or(Ok(()), |(_, leaving)| Err(leaving.busy()))
    }
}

/// All registered ranges of an engine.
#[derive(Debug)]
pub(crate) struct Buffers {
    ranges: RwLock<Ranges>,
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
        let (ranges, mappable) = (RwLock::default(), AtomicU64::new(0));
        Ok(Buffers { ranges, changes, board, mappable, visitors, registry: Registry::new() })
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
        let mut held = self.ranges.write();
        held.leaving.retain(|_, leaving| !leaving.is_left());
        for (at, &range) in ranges.iter().enumerate() {
            let (addr, len) = (range.addr(), range.len());
            if let Err(error) = held.check(addr, len) {
                let done = ranges[..at].iter().filter_map(|done| held.lent.remove(&done.addr()));
                self.count_mappable(done.filter(|buffer| buffer.block.is_some()).count(), false);
                return Err(error);
            }
            let (users, gone) = (AtomicUsize::new(0), AtomicBool::new(false));
            let (location, block) = (location.to_owned(), shared_block(addr, len));
            held.lent.insert(addr, Arc::new(Buffer { range, location, block, users, gone }));
            self.count_mappable(usize::from(block.is_some()), true);
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Gives ranges up, all that can be; the error is that of the first that could not. After `Ok` nobody touches that memory
    /// any more. All are waited for together. One that is still in use when patience ends takes no new requests, and giving it
    /// up again waits again.
    pub fn unregister(&self, addresses: &[usize], patience: &Patience<'_>) -> Result<(), EngineError> {
        let mut known = Ok(());
        let (mut given_up, mut waited_for) = (Vec::new(), Vec::new());
        {
            let mut held = self.ranges.write();
            for addr in addresses {
                if let Some(buffer) = held.lent.remove(addr) {
                    given_up.push(buffer);
                } else if let Some(leaving) = held.leaving.get(addr) {
                    waited_for.push(leaving.clone());
                } else {
                    let (owner, addr) = ("this engine".into(), *addr as u64);
                    known = known.and(Err(EngineError::NotRegistered { owner, addr, len: 0 }));
                }
            }
            waited_for.extend(self.leave(&mut held, given_up));
        }
        known.and(self.wait(waited_for, patience))
    }

    /// Gives up all that there is, as [`Buffers::unregister`] does.
    pub fn unregister_everything(&self, patience: &Patience<'_>) -> Result<(), EngineError> {
        let waited_for = {
            let mut held = self.ranges.write();
            let given_up = std::mem::take(&mut held.lent).into_values().collect();
            self.leave(&mut held, given_up);
            held.leaving.values().cloned().collect()
        };
        self.wait(waited_for, patience)
    }

    /// Nobody enters these buffers any more; some may be inside.
    fn leave(&self, held: &mut Ranges, given_up: Vec<Arc<Buffer>>) -> Vec<Arc<Leaving>> {
        if given_up.is_empty() {
            return Vec::new();
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        for buffer in &given_up {
            buffer.gone.store(true, Ordering::SeqCst);
        }
        let mappable = given_up.iter().filter(|buffer| buffer.block.is_some()).count();
        self.count_mappable(mappable, false);
        self.board.advance();
        let inside = if mappable > 0 { self.visitors.inside() } else { Vec::new() };
        let leaving = given_up.into_iter().map(|buffer| {
            let touches = |visit: &&Inside| buffer.block.is_some_and(|block| visit.touches(block.id));
            let inside = inside.iter().filter(touches).cloned().collect();
            Arc::new(Leaving { buffer, inside, since: Instant::now() })
        });
        let leaving: Vec<_> = leaving.collect();
        held.leaving.extend(leaving.iter().map(|leaving| (leaving.buffer.range.addr(), leaving.clone())));
        leaving
    }

    fn wait(&self, mut waited_for: Vec<Arc<Leaving>>, patience: &Patience<'_>) -> Result<(), EngineError> {
        patience.wait_until(|| {
            let left: Vec<_> = waited_for.extract_if(.., |leaving| leaving.is_left()).collect();
            if !left.is_empty() {
                let mut held = self.ranges.write();
                for leaving in left {
                    let addr = leaving.buffer.range.addr();
                    // Who waited for the same may have been faster, and the range may have been given up a second time.
                    if held.leaving.get(&addr).is_some_and(|other| Arc::ptr_eq(other, &leaving)) {
                        held.leaving.remove(&addr);
                    }
                }
            }
            waited_for.is_empty()
        });
        waited_for.first().map_or(Ok(()), |busy| Err(busy.busy()))
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
        self.ranges.read().lent.values().any(|buffer| buffer.block.is_some_and(|block| block.id == id))
    }

    /// The buffer that a range lies in.
    pub fn find(&self, addr: u64, len: u64) -> Option<Arc<Buffer>> {
        let start = usize::try_from(addr).ok()?;
        let held = self.ranges.read();
        held.lent
            .range(..=start)
            .next_back()
            .map(|(_, buffer)| buffer)
            .filter(|buffer| buffer.holds(addr, len))
            .cloned()
    }

    /// Another number whenever [`Buffers::all`] gives something else than before.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub fn len(&self) -> usize {
        self.ranges.read().lent.len()
    }

    pub fn all(&self) -> Vec<Arc<Buffer>> {
        self.ranges.read().lent.values().cloned().collect()
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooncake_memory::{BoardView, PassageView, PeerProcess, leak_shared};

    use super::*;
    use crate::host_frame::{SECRET_LEN, Secret};

    const PATIENCE: Duration = Duration::from_millis(200);

    fn soon() -> Patience<'static> {
        Patience::lasting(PATIENCE, &|| false)
    }

    /// So many buffers of 4096 bytes behind each other, and the range that they lie in, which is longer by one.
    fn lending(count: usize) -> (Buffers, ForeignRange, Vec<Arc<Buffer>>) {
        let buffers = Buffers::new().unwrap();
        let memory = leak_shared((count as u64 + 1) * 4096).unwrap();
        let ranges: Vec<_> = (0..count).map(|nth| memory.part(nth * 4096, 4096)).collect();
        buffers.register(&ranges, "*").unwrap();
        let all = buffers.all();
        (buffers, memory, all)
    }

    fn addresses(all: &[Arc<Buffer>]) -> Vec<usize> {
        all.iter().map(|buffer| buffer.range.addr()).collect()
    }

    fn is_busy(result: &Result<(), EngineError>, at: usize) -> bool {
        matches!(result, Err(EngineError::BufferBusy { addr, .. }) if *addr == at)
    }

    #[test]
    fn many_that_are_in_use_are_waited_for_together() {
        let (buffers, memory, all) = lending(6);
        let inside: Vec<_> = all.iter().filter_map(|buffer| buffer.enter()).collect();
        for everything in [false, true] {
            let began = Instant::now();
            let given_up = match everything {
                false => buffers.unregister(&addresses(&all), &soon()),
                true => buffers.unregister_everything(&soon()),
            };
            let took = began.elapsed();
            assert!(is_busy(&given_up, memory.addr()), "{given_up:?}");
            assert!(took >= PATIENCE && took < 4 * PATIENCE, "{took:?}");
        }
        drop(inside);
        buffers.unregister_everything(&soon()).unwrap();
    }

    #[test]
    fn one_that_was_in_use_is_waited_for_again_and_not_lent_before() {
        let (buffers, memory, all) = lending(2);
        let (first, second) = (memory.addr(), memory.addr() + 4096);
        let inside = all[0].enter().unwrap();
        let given_up = buffers.unregister(&[first, second, first + 1], &soon());
        assert!(matches!(given_up, Err(EngineError::NotRegistered { .. })), "{given_up:?}");
        let again = buffers.unregister(&[first], &soon());
        assert!(is_busy(&again, first), "{again:?}");
        for (offset, len) in [(0, 4096), (4095, 1), (100, 1), (0, 1), (4000, 8192), (0, 12_288)] {
            let lent = buffers.register(&[memory.part(offset, len)], "*");
            assert!(is_busy(&lent, first), "{offset} {len} {lent:?}");
        }
        assert!(all[0].enter().is_none() && buffers.find(first as u64, 1).is_none() && buffers.len() == 0);
        // What was left by then is nobody's.
        let other = buffers.unregister(&[second], &soon());
        assert!(matches!(other, Err(EngineError::NotRegistered { .. })), "{other:?}");
        buffers.register(&[memory.part(4096, 4096)], "*").unwrap();

        drop(inside);
        buffers.unregister(&[first], &soon()).unwrap();
        buffers.register(&[memory.part(0, 4096)], "*").unwrap();
        assert_eq!(buffers.len(), 2);
    }

    #[test]
    fn who_has_waited_enough_is_told_that_it_is_in_use() {
        let (buffers, memory, all) = lending(1);
        let inside = all[0].enter().unwrap();
        let long = Patience::lasting(Duration::from_secs(600), &|| true);
        assert!(is_busy(&buffers.unregister(&[memory.addr()], &long), memory.addr()));
        assert!(is_busy(&buffers.unregister_everything(&long), memory.addr()));
        drop(inside);
        buffers.unregister(&[memory.addr()], &long).unwrap();
    }

    #[test]
    fn one_that_was_left_meanwhile_is_lent_anew_without_being_asked_for() {
        let (buffers, memory, all) = lending(1);
        let inside = all[0].enter().unwrap();
        assert!(is_busy(
            &buffers.unregister(&[memory.addr()], &Patience::lasting(Duration::ZERO, &|| false)),
            memory.addr()
        ));
        drop(inside);
        buffers.register(&[memory.part(2048, 4096)], "*").unwrap();
    }

    #[test]
    fn an_address_that_is_named_twice_is_given_up_once() {
        let (buffers, memory, _all) = lending(1);
        let given_up = buffers.unregister(&[memory.addr(), memory.addr()], &soon());
        assert!(matches!(given_up, Err(EngineError::NotRegistered { .. })), "{given_up:?}");
        assert_eq!(buffers.len(), 0);
    }

    #[test]
    fn a_peer_inside_mapped_memory_keeps_its_block_and_nothing_else() {
        let (buffers, memory, all) = lending(3);
        for (id, buffer) in (1..).zip(&all[..2]) {
            // As if it lay in a block of its own.
            let (range, location) = (buffer.range, buffer.location.clone());
            let block = Some(SharedBlock { id, addr: range.addr(), len: range.len() });
            let (users, gone) = (AtomicUsize::new(0), AtomicBool::new(false));
            let mappable = Arc::new(Buffer { range, location, block, users, gone });
            buffers.ranges.write().lent.insert(range.addr(), mappable);
            buffers.count_mappable(1, true);
        }
        let bytes = [7; SECRET_LEN];
        let secret = Secret { addr: bytes.as_ptr().expose_provenance() as u64, bytes };
        let (_admission, fd) = buffers.visitors.admit(Arc::new(PeerProcess::myself().unwrap()), secret).unwrap();
        let mut passage = PassageView::map(&fd).unwrap();
        let board = BoardView::map(&buffers.board().fd().try_clone_to_owned().unwrap()).unwrap();
        let visit = passage.enter(&board, board.get(), 1).unwrap();
        buffers.unregister(&addresses(&all[1..]), &soon()).unwrap();

        let began = Instant::now();
        let given_up = buffers.unregister(&addresses(&all[..1]), &soon());
        assert!(is_busy(&given_up, memory.addr()), "{given_up:?}");
        assert!(began.elapsed() < 4 * PATIENCE, "{:?}", began.elapsed());
        let everything = buffers.unregister_everything(&soon());
        assert!(is_busy(&everything, memory.addr()), "{everything:?}");

        drop(visit);
        // Who comes in now knows that they are gone, and keeps nobody.
        let _visit = passage.enter(&board, board.get(), 1).unwrap();
        buffers.unregister(&addresses(&all[..1]), &soon()).unwrap();
        buffers.unregister_everything(&soon()).unwrap();
    }
}
