//! Registered memory: what an engine lends, the copies at work in it, and what is the local end of transfers alone.
//!
//! A buffer is free when three things hold: it takes no new copy, no copy of this process is inside of it, and no peer
//! is inside of its block. [`Buffers::unregister`] brings them about in this order, so that nothing begins behind a
//! look that found nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use mooncake_memory::{
    AddressHold, Destination, ForeignRange, SharedBlock, Source, check_reach, hold_addresses, shared_block,
};
use mooncake_os::Deadline;
use parking_lot::{Mutex, RwLock};

use crate::error::EngineError;
use crate::memory::active_access::ActiveAccess;
use crate::request::Request;

/// Is told of memory as it comes and goes.
pub(crate) trait MemoryObserver: Send + Sync {
    /// Takes memory on before anything may use it: to be [lent](Buffer::lent), or else as the local end of transfers
    /// alone. All of it, or none and an error. It may take its time: transfers go on meanwhile.
    fn register(&self, _buffers: &[Arc<Buffer>]) -> Result<(), EngineError> {
        Ok(())
    }

    /// Unregisters buffers. On return no peer starts a new access. Returns the accesses still active; the caller waits
    /// for them before it reports the memory free.
    fn unregister(&self, _buffers: &[Arc<Buffer>]) -> Vec<Arc<dyn ActiveAccess>> {
        Vec::new()
    }
}

/// Those of an engine, in the order in which they are told.
pub(crate) type MemoryObservers = Vec<Arc<dyn MemoryObserver>>;

/// One registered range.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub range: ForeignRange,
    /// `cpu:0`, `cuda:1`, `*`.
    pub location: String,
    /// Peers may read and write it.
    pub lent: bool,
    /// The memory of ours that it lies in, if peers can map it.
    pub block: Option<SharedBlock>,
    /// Of memory of ours: its user may free it before unregistering it, and no peer may reach what comes after it.
    _addresses: Option<AddressHold>,
    users: AtomicUsize,
    gone: AtomicBool,
}

impl Buffer {
    fn new(range: ForeignRange, location: &str, lent: bool, block: Option<SharedBlock>) -> Buffer {
        let (users, gone) = (AtomicUsize::new(0), AtomicBool::new(false));
        let addresses = hold_addresses(range.addr(), range.len());
        Buffer { range, location: location.to_owned(), lent, block, _addresses: addresses, users, gone }
    }

    /// Keeps the buffer from being free while the answer lives; none if it is being unregistered.
    ///
    /// Counts first and looks second, while unregistering marks first and counts second: of a copy and a unregistration
    /// at the same moment at least one sees the other.
    pub fn enter(&self) -> Option<BufferUse<'_>> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let in_use = BufferUse(self);
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

/// A copy to or from the buffer, under way as long as this lives.
pub(crate) struct BufferUse<'a>(&'a Buffer);

impl Drop for BufferUse<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A buffer that was unregistered and may not be free yet.
#[derive(Debug)]
struct LeavingBuffer {
    buffer: Arc<Buffer>,
    /// Peers' accesses to its block that were active then. A peer that enters later looks whether the buffer is still
    /// there, and finds that it is not.
    accesses: Vec<Arc<dyn ActiveAccess>>,
    since: Instant,
}

impl LeavingBuffer {
    /// Nothing touches it any more.
    fn is_free(&self) -> bool {
        self.buffer.users.load(Ordering::SeqCst) == 0 && !self.accesses.iter().any(|access| access.lasts())
    }

    fn busy(&self) -> EngineError {
        EngineError::BufferBusy { addr: self.buffer.range.addr(), waited: self.since.elapsed() }
    }
}

/// By their first addresses; none overlaps another.
#[derive(Debug, Default)]
struct Ranges {
    registered: BTreeMap<usize, Arc<Buffer>>,
    /// Unregistered, and not known to be free yet: a second call for them waits again, and until they are free they
    /// cannot be registered anew.
    leaving: BTreeMap<usize, Arc<LeavingBuffer>>,
}

impl Ranges {
    /// An error if the range may not be registered now.
    fn check(&self, addr: usize, len: usize) -> Result<(), EngineError> {
        let overlaps = |other: &ForeignRange| other.addr() + other.len() > addr;
        let before = self.registered.range(..addr + len).next_back();
        if let Some((_, before)) = before.filter(|(_, before)| overlaps(&before.range)) {
            let (other, other_len) = (before.range.addr(), before.range.len());
            return Err(EngineError::Overlap { addr, len, other, other_len });
        }
        let leaving = self.leaving.range(..addr + len).next_back();
        leaving
            .filter(|(_, leaving)| overlaps(&leaving.buffer.range))
            .map_or(Ok(()), |(_, leaving)| Err(leaving.busy()))
    }
}

/// No process has memory from here on: hosts translate 57 bits of an address at most, and the upper half of that is the
/// kernel's.
const ADDRESSES_END: usize = 1 << 56;

/// All registered ranges of an engine.
pub(crate) struct Buffers {
    ranges: RwLock<Ranges>,
    /// Held while buffers are registered or unregistered. Observers may take their time, and only such calls wait for
    /// them: transfers look buffers up under `ranges` alone.
    registration: Mutex<()>,
    observers: MemoryObservers,
    /// Counts the times that what is lent has changed.
    changes: AtomicU64,
    /// Memory of a device has been seen here, so that there may be more.
    devices: AtomicBool,
}

impl Buffers {
    pub fn new(observers: MemoryObservers) -> Buffers {
        let (ranges, registration) = (RwLock::default(), Mutex::default());
        Buffers { ranges, registration, observers, changes: AtomicU64::new(0), devices: AtomicBool::new(false) }
    }

    /// Registers ranges, all or none: to be lent to peers, or as the local end of transfers alone.
    pub fn register(&self, ranges: &[ForeignRange], location: &str, lent: bool) -> Result<(), EngineError> {
        for range in ranges {
            let (addr, len) = (range.addr(), range.len());
            if addr == 0 || len == 0 || addr.checked_add(len).is_none_or(|end| end > ADDRESSES_END) {
                return Err(EngineError::InvalidArgument(format!("{len} bytes at {addr:#x} are no memory")));
            }
        }
        let _registration = self.registration.lock();
        // Among themselves, too, the new ranges must not overlap.
        let mut fresh = Ranges::default();
        {
            let mut held = self.ranges.write();
            held.leaving.retain(|_, leaving| !leaving.is_free());
            for &range in ranges {
                let (addr, len) = (range.addr(), range.len());
                held.check(addr, len)?;
                fresh.check(addr, len)?;
                fresh.registered.insert(addr, Arc::new(Buffer::new(range, location, lent, shared_block(addr, len))));
            }
        }
        // Before any peer can find the buffers: a transport may have to make keys that peers use.
        self.tell_all(&fresh.registered.values().cloned().collect::<Vec<_>>())?;
        if ranges.iter().any(|range| self.source(*range).is_on_device()) {
            self.look_for_devices();
        }
        self.ranges.write().registered.extend(fresh.registered);
        if lent {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Tells all observers of buffers, or none.
    fn tell_all(&self, buffers: &[Arc<Buffer>]) -> Result<(), EngineError> {
        for (nth, observer) in self.observers.iter().enumerate() {
            if let Err(error) = observer.register(buffers) {
                for before in self.observers[..nth].iter().rev() {
                    // No peer has learned of them yet, so that no access is active.
                    before.unregister(buffers);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Unregisters ranges, all that are registered; the error is that of the first that was not, or is not free in
    /// time. After `Ok` nothing touches that memory any more. All are waited for together. A buffer that is still in
    /// use at the deadline takes no new requests, and unregistering it again waits again.
    pub fn unregister(&self, addresses: &[usize], deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let mut known = Ok(());
        let (mut leaving, mut waited_for) = (Vec::new(), Vec::new());
        {
            let _registration = self.registration.lock();
            let mut held = self.ranges.write();
            for addr in addresses {
                if let Some(buffer) = held.registered.remove(addr) {
                    leaving.push(buffer);
                } else if let Some(leaving) = held.leaving.get(addr) {
                    waited_for.push(leaving.clone());
                } else {
                    let (owner, addr) = ("this engine".into(), *addr as u64);
                    known = known.and(Err(EngineError::NotRegistered { owner, addr, len: 0 }));
                }
            }
            drop(held);
            waited_for.extend(self.leave(leaving));
        }
        known.and(self.wait(waited_for, deadline))
    }

    /// Unregisters all that there is, as [`Buffers::unregister`] does.
    pub fn unregister_all(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let waited_for = {
            let _registration = self.registration.lock();
            let leaving = std::mem::take(&mut self.ranges.write().registered).into_values().collect();
            self.leave(leaving);
            self.ranges.read().leaving.values().cloned().collect()
        };
        self.wait(waited_for, deadline)
    }

    /// Takes no new copies into these buffers; some may be under way. The caller has taken them out of those that are
    /// registered, and holds `registration`, so that no call registers the ranges before they are listed as leaving.
    ///
    /// The order matters. A peer that sees the revision change, which observers bring about, looks a buffer up again:
    /// it must not be found by then. And a copy that has found it before must not enter behind the look at those that
    /// are inside: so it is marked first.
    fn leave(&self, leaving: Vec<Arc<Buffer>>) -> Vec<Arc<LeavingBuffer>> {
        if leaving.is_empty() {
            return Vec::new();
        }
        if leaving.iter().any(|buffer| buffer.lent) {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        for buffer in &leaving {
            buffer.gone.store(true, Ordering::SeqCst);
        }
        let active: Vec<Arc<dyn ActiveAccess>> =
            self.observers.iter().flat_map(|observer| observer.unregister(&leaving)).collect();
        let leaving = leaving.into_iter().map(|buffer| {
            let accesses = active.iter().filter(|access| access.touches(&buffer)).cloned().collect();
            Arc::new(LeavingBuffer { buffer, accesses, since: Instant::now() })
        });
        let leaving: Vec<_> = leaving.collect();
        let by_address = leaving.iter().map(|leaving| (leaving.buffer.range.addr(), leaving.clone()));
        self.ranges.write().leaving.extend(by_address);
        leaving
    }

    fn wait(&self, mut waited_for: Vec<Arc<LeavingBuffer>>, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        deadline.wait_until(|| {
            let free: Vec<_> = waited_for.extract_if(.., |leaving| leaving.is_free()).collect();
            if !free.is_empty() {
                let mut held = self.ranges.write();
                for leaving in free {
                    let addr = leaving.buffer.range.addr();
                    // Another call for the same buffer may have taken it out, and the range may have been registered
                    // and unregistered again since.
                    if held.leaving.get(&addr).is_some_and(|other| Arc::ptr_eq(other, &leaving)) {
                        held.leaving.remove(&addr);
                    }
                }
            }
            waited_for.is_empty()
        });
        waited_for.first().map_or(Ok(()), |busy| Err(busy.busy()))
    }

    /// The block with that number, if any of it is lent.
    pub fn lends_block(&self, id: u64) -> bool {
        let is_it = |buffer: &Arc<Buffer>| buffer.lent && buffer.block.is_some_and(|block| block.id == id);
        self.ranges.read().registered.values().any(is_it)
    }

    /// The lent buffer that a range lies in.
    pub fn find(&self, addr: u64, len: u64) -> Option<Arc<Buffer>> {
        let start = usize::try_from(addr).ok()?;
        let held = self.ranges.read();
        held.registered
            .range(..=start)
            .next_back()
            .map(|(_, buffer)| buffer)
            .filter(|buffer| buffer.lent && buffer.holds(addr, len))
            .cloned()
    }

    /// Another number whenever [`Buffers::lent`] gives something else than before.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub fn len(&self) -> usize {
        self.ranges.read().registered.len()
    }

    /// All that are registered, by ascending address.
    pub fn all(&self) -> Vec<Arc<Buffer>> {
        self.ranges.read().registered.values().cloned().collect()
    }

    /// Those that peers may reach, by ascending address.
    pub fn lent(&self) -> Vec<Arc<Buffer>> {
        self.ranges.read().registered.values().filter(|buffer| buffer.lent).cloned().collect()
    }

    /// Whether the local end of any of these requests is memory of a device. False as long as such memory has not been
    /// seen here: the look-up asks a driver, and most processes have no device.
    pub fn are_any_on_device(&self, requests: &[Request]) -> bool {
        let is_on_device = |request: &Request| self.source(request.local).is_on_device();
        self.devices.load(Ordering::Relaxed) && requests.iter().any(is_on_device)
    }

    /// From now on [`Buffers::are_any_on_device`] looks.
    pub fn look_for_devices(&self) {
        self.devices.store(true, Ordering::Relaxed);
    }

    /// Refuses memory of this process that begins in a registered range, lent or not, and runs out of the registered
    /// ranges.
    pub fn check_local(&self, local: impl IntoIterator<Item = ForeignRange>) -> Result<(), EngineError> {
        let held = self.ranges.read();
        let bounds = |(start, buffer): (&usize, &Arc<Buffer>)| (*start, start + buffer.range.len());
        local.into_iter().try_for_each(|range| {
            // None overlaps another, so that of those that begin before it only the last can hold its first byte.
            let before = held.registered.range(..=range.addr()).next_back().map(bounds);
            if before.is_none_or(|(_, end)| end <= range.addr() || range.len() <= end - range.addr()) {
                return Ok(());
            }
            let behind = held.registered.range((Bound::Excluded(range.addr()), Bound::Unbounded)).map(bounds);
            Ok(check_reach(range, before, behind)?)
        })
    }

    /// Memory to read from, of a request that was [checked](Buffers::check_local) or of a registered buffer. The kernel
    /// checks memory of the host as it copies, a device's driver its own.
    pub fn source(&self, range: ForeignRange) -> Source<'static> {
        Source::unregistered(range)
    }

    /// Memory to write to, as above.
    pub fn destination(&self, range: ForeignRange) -> Destination<'static> {
        Destination::unregistered(range)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooncake_memory::{AccessPageView, PeerProcess, RevisionPageView, leak_shared};

    use super::*;
    use crate::memory::mappable::Mappable;
    use crate::protocol::same_host::{SECRET_LEN, Secret};
    use crate::transport::same_host::SameHost;

    const TIMEOUT: Duration = Duration::from_millis(200);

    fn soon() -> Deadline<'static> {
        Deadline::after(TIMEOUT, &|| false)
    }

    /// So many buffers of 4096 bytes behind each other, and the range that they lie in, which is longer by one.
    fn lending(count: usize) -> (Buffers, ForeignRange, Vec<Arc<Buffer>>) {
        lending_by(count, Vec::new())
    }

    fn lending_by(count: usize, observers: MemoryObservers) -> (Buffers, ForeignRange, Vec<Arc<Buffer>>) {
        let buffers = Buffers::new(observers);
        let memory = leak_shared((count as u64 + 1) * 4096).unwrap();
        let ranges: Vec<_> = (0..count).map(|nth| memory.part(nth * 4096, 4096)).collect();
        buffers.register(&ranges, "*", true).unwrap();
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
            let result = match everything {
                false => buffers.unregister(&addresses(&all), &soon()),
                true => buffers.unregister_all(&soon()),
            };
            let took = began.elapsed();
            assert!(is_busy(&result, memory.addr()), "{result:?}");
            assert!(took >= TIMEOUT && took < 4 * TIMEOUT, "{took:?}");
        }
        drop(inside);
        buffers.unregister_all(&soon()).unwrap();
    }

    #[test]
    fn one_that_was_in_use_is_waited_for_again_and_not_lent_before() {
        let (buffers, memory, all) = lending(2);
        let (first, second) = (memory.addr(), memory.addr() + 4096);
        let inside = all[0].enter().unwrap();
        let result = buffers.unregister(&[first, second, first + 1], &soon());
        assert!(matches!(result, Err(EngineError::NotRegistered { .. })), "{result:?}");
        let again = buffers.unregister(&[first], &soon());
        assert!(is_busy(&again, first), "{again:?}");
        for (offset, len) in [(0, 4096), (4095, 1), (100, 1), (0, 1), (4000, 8192), (0, 12_288)] {
            let lent = buffers.register(&[memory.part(offset, len)], "*", true);
            assert!(is_busy(&lent, first), "{offset} {len} {lent:?}");
        }
        assert!(all[0].enter().is_none() && buffers.find(first as u64, 1).is_none() && buffers.len() == 0);
        // The other was free by then, and is forgotten.
        let other = buffers.unregister(&[second], &soon());
        assert!(matches!(other, Err(EngineError::NotRegistered { .. })), "{other:?}");
        buffers.register(&[memory.part(4096, 4096)], "*", true).unwrap();

        drop(inside);
        buffers.unregister(&[first], &soon()).unwrap();
        buffers.register(&[memory.part(0, 4096)], "*", true).unwrap();
        assert_eq!(buffers.len(), 2);
    }

    #[test]
    fn who_has_waited_enough_is_told_that_it_is_in_use() {
        let (buffers, memory, all) = lending(1);
        let inside = all[0].enter().unwrap();
        let long = Deadline::after(Duration::from_secs(600), &|| true);
        assert!(is_busy(&buffers.unregister(&[memory.addr()], &long), memory.addr()));
        assert!(is_busy(&buffers.unregister_all(&long), memory.addr()));
        drop(inside);
        buffers.unregister(&[memory.addr()], &long).unwrap();
    }

    #[test]
    fn one_that_was_left_meanwhile_is_lent_anew_without_being_asked_for() {
        let (buffers, memory, all) = lending(1);
        let inside = all[0].enter().unwrap();
        assert!(is_busy(
            &buffers.unregister(&[memory.addr()], &Deadline::after(Duration::ZERO, &|| false)),
            memory.addr()
        ));
        drop(inside);
        buffers.register(&[memory.part(2048, 4096)], "*", true).unwrap();
    }

    #[test]
    fn an_address_that_is_named_twice_is_given_up_once() {
        let (buffers, memory, _all) = lending(1);
        let result = buffers.unregister(&[memory.addr(), memory.addr()], &soon());
        assert!(matches!(result, Err(EngineError::NotRegistered { .. })), "{result:?}");
        assert_eq!(buffers.len(), 0);
    }

    #[test]
    fn a_peer_inside_mapped_memory_keeps_its_block_and_nothing_else() {
        let mappable = Arc::new(Mappable::new().unwrap());
        let same_host = Arc::new(SameHost::new(String::new(), mappable.clone()));
        let (buffers, memory, all) = lending_by(3, vec![same_host]);
        mappable.remove(&all[..2]);
        for (id, buffer) in (1..).zip(&all[..2]) {
            // As if it lay in a block of its own.
            let (addr, len) = (buffer.range.addr(), buffer.range.len());
            let alone = Buffer::new(buffer.range, "*", true, Some(SharedBlock { id, addr, len }));
            let alone = Arc::new(alone);
            mappable.add(std::slice::from_ref(&alone));
            buffers.ranges.write().registered.insert(addr, alone);
        }
        let bytes = [7; SECRET_LEN];
        let secret = Secret { addr: bytes.as_ptr().expose_provenance() as u64, bytes };
        let (_admission, fd) = mappable.mappers.admit(Arc::new(PeerProcess::myself().unwrap()), secret).unwrap();
        let mut access_page = AccessPageView::map(&fd).unwrap();
        let revision_page =
            RevisionPageView::map(&mappable.revision_page().fd().try_clone_to_owned().unwrap()).unwrap();
        let visit = access_page.enter(&revision_page, revision_page.get(), 1).unwrap();
        buffers.unregister(&addresses(&all[1..]), &soon()).unwrap();

        let began = Instant::now();
        let result = buffers.unregister(&addresses(&all[..1]), &soon());
        assert!(is_busy(&result, memory.addr()), "{result:?}");
        assert!(began.elapsed() < 4 * TIMEOUT, "{:?}", began.elapsed());
        let everything = buffers.unregister_all(&soon());
        assert!(is_busy(&everything, memory.addr()), "{everything:?}");

        drop(visit);
        // An access that begins now finds that they are gone, and nothing waits for it.
        let _visit = access_page.enter(&revision_page, revision_page.get(), 1).unwrap();
        buffers.unregister(&addresses(&all[..1]), &soon()).unwrap();
        buffers.unregister_all(&soon()).unwrap();
    }

    /// An observer that has to know of memory, as RDMA has.
    #[derive(Default)]
    struct Observer {
        refuses: AtomicBool,
        log: Mutex<Vec<(&'static str, usize, bool)>>,
    }

    impl Observer {
        fn note(&self, what: &'static str, buffers: &[Arc<Buffer>]) {
            self.log.lock().extend(buffers.iter().map(|buffer| (what, buffer.range.addr(), buffer.lent)));
        }
    }

    impl MemoryObserver for Observer {
        fn register(&self, buffers: &[Arc<Buffer>]) -> Result<(), EngineError> {
            if self.refuses.load(Ordering::SeqCst) {
                return Err(EngineError::Memory("it cannot be pinned".into()));
            }
            self.note("has", buffers);
            Ok(())
        }

        fn unregister(&self, buffers: &[Arc<Buffer>]) -> Vec<Arc<dyn ActiveAccess>> {
            self.note("had", buffers);
            Vec::new()
        }
    }

    #[test]
    fn all_transports_know_of_memory_before_it_is_lent_and_none_of_what_one_of_them_refuses() {
        let told: [Arc<Observer>; 2] = Default::default();
        let (buffers, memory, all) = lending_by(2, told.iter().map(|one| one.clone() as _).collect());
        let (first, second, third) = (memory.addr(), memory.addr() + 4096, memory.part(8192, 4096));
        told[1].refuses.store(true, Ordering::SeqCst);
        let refused = buffers.register(&[third], "*", true);
        assert!(matches!(refused, Err(EngineError::Memory(_))), "{refused:?}");
        assert!(buffers.find(third.addr() as u64, 1).is_none() && buffers.len() == 2);
        let inside = all[1].enter().unwrap();
        // Its keys are taken back at once, though a copy by another transport is under way.
        assert!(is_busy(&buffers.unregister(&[first, second], &soon()), second));
        let both = |what| [(what, first, true), (what, second, true)];
        let (has, had) = (("has", third.addr(), true), ("had", third.addr(), true));
        assert_eq!(*told[0].log.lock(), [&both("has")[..], &[has, had], &both("had")].concat());
        assert_eq!(*told[1].log.lock(), [both("has"), both("had")].concat());
        drop(inside);
    }

    #[test]
    fn memory_for_this_end_alone_is_shown_to_transports_and_to_no_peer() {
        let told = Arc::new(Observer::default());
        let (buffers, memory, _) = lending_by(1, vec![told.clone()]);
        let (changes, alone) = (buffers.changes(), memory.part(4096, 4096));
        buffers.register(&[alone], "cpu:0", false).unwrap();
        assert_eq!(told.log.lock().last(), Some(&("has", alone.addr(), false)));
        assert!(buffers.find(alone.addr() as u64, 1).is_none());
        assert!(buffers.find(memory.addr() as u64, 4097).is_none(), "nor as the end of what is lent");
        assert_eq!((buffers.lent().len(), buffers.all().len(), buffers.changes()), (1, 2, changes));
        let again = buffers.register(&[memory.part(8191, 1)], "*", true);
        assert!(matches!(again, Err(EngineError::Overlap { .. })), "{again:?}");
        buffers.unregister(&[alone.addr()], &soon()).unwrap();
        assert_eq!((told.log.lock().last(), buffers.changes()), (Some(&("had", alone.addr(), false)), changes));
        buffers.register(&[alone], "cpu:0", true).unwrap();
    }
}
