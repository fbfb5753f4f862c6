//! Pinned slots and the streams that fill and empty them.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Copy, Direction, Driver, Stream};
use crate::error::CopyError;
use crate::error::DeviceError;
use mooncake_os::forked;

/// Slots of a ring: some are on their way while one is in the processor's hands.
pub(super) const SLOTS: usize = 4;

/// Bytes of a slot: enough for a copy to run at the full rate of a device's link,
/// little enough for what the processor reads next to be in its caches.
pub(super) const SLOT: usize = 1 << 20;

/// Rings of a process, all devices together: 128 MiB of pinned memory.
const RINGS_MAX: usize = 32;

/// Longest wait for a ring. A call holds one for copies only, never while it waits for a peer, so that this is ages.
const RING_TIMEOUT: Duration = Duration::from_secs(3);

/// The rings of this process.
pub(super) static POOL: Pool = Pool::new(RINGS_MAX, RING_TIMEOUT);

/// Lends rings, makes them when they are first needed, and keeps them.
#[derive(Debug)]
pub(super) struct Pool {
    most: usize,
    timeout: Duration,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<Slots>,
    /// Idle and in use.
    made: usize,
    /// Callers that ask, in the order of their coming. Otherwise a caller that gives a ring back and wants it again at
    /// once would always be quicker than one that is asleep.
    asking: VecDeque<u64>,
    /// The caller that came last.
    last: u64,
}

/// What there was for a caller that asked.
enum Found {
    Ring(Slots),
    /// Room for another ring, once these are gone.
    Room(Option<Slots>),
}

impl State {
    fn take(&mut self, device: i32, most: usize) -> Option<Found> {
        if let Some(at) = self.idle.iter().rposition(|slots| slots.device == device) {
            return Some(Found::Ring(self.idle.swap_remove(at)));
        }
        if self.made < most {
            self.made += 1;
            return Some(Found::Room(None));
        }
        self.idle.pop().map(|others| Found::Room(Some(others)))
    }
}

/// Pinned memory and a stream for each of its slots.
#[derive(Debug)]
struct Slots {
    driver: &'static dyn Driver,
    device: i32,
    memory: NonNull<u8>,
    streams: [Stream; SLOTS],
}

// SAFETY: the memory belongs to the owner of the value.
unsafe impl Send for Slots {}

impl Pool {
    pub(super) const fn new(most: usize, timeout: Duration) -> Self {
        let state = State { idle: Vec::new(), made: 0, asking: VecDeque::new(), last: 0 };
        Self { most, timeout, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// A ring for a device. While all are in use it waits for one, behind the callers that wait already.
    pub(super) fn check_out(&'static self, driver: &'static dyn Driver, device: i32) -> Result<Ring, CopyError> {
        match self.wait_for_one(device)? {
            Found::Ring(slots) => return Ok(Ring::new(self, slots)),
            Found::Room(others) => others.into_iter().for_each(Slots::free),
        }
        match Slots::make(driver, device) {
            Ok(slots) => Ok(Ring::new(self, slots)),
            Err(e) => {
                self.forget();
                Err(e.into())
            }
        }
    }

    fn wait_for_one(&self, device: i32) -> Result<Found, CopyError> {
        let deadline = Instant::now() + self.timeout;
        let mut state = self.state.lock();
        state.last += 1;
        let mine = state.last;
        state.asking.push_back(mine);
        let found = loop {
            if state.asking.front() == Some(&mine)
                && let Some(found) = state.take(device, self.most)
            {
                break Ok(found);
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                break Err(CopyError::NoStaging { device, rings: self.most, waited: self.timeout });
            }
        };
        state.asking.retain(|other| *other != mine);
        if !state.asking.is_empty() {
            // There may be one for the next caller, which was not the first until now.
            self.freed.notify_all();
        }
        found
    }

    fn check_in(&self, slots: Slots) {
        self.state.lock().idle.push(slots);
        self.freed.notify_all();
    }

    /// Gives up the idle rings of a device that may have lost its state: each would fail one more call.
    fn drop_idle(&self, device: i32) {
        let mut state = self.state.lock();
        let (dropped, kept): (Vec<_>, Vec<_>) = state.idle.drain(..).partition(|slots| slots.device == device);
        state.idle = kept;
        state.made -= dropped.len();
        drop(state);
        self.freed.notify_all();
        dropped.into_iter().for_each(Slots::free);
    }

    fn forget(&self) {
        self.state.lock().made -= 1;
        self.freed.notify_all();
    }
}

impl Slots {
    fn make(driver: &'static dyn Driver, device: i32) -> Result<Slots, DeviceError> {
        let memory = driver.pin(device, SLOTS * SLOT)?;
        let mut streams = [Stream { device, handle: 0 }; SLOTS];
        for made in 0..SLOTS {
            match driver.open(device) {
                Ok(stream) => streams[made] = stream,
                Err(e) => {
                    streams[..made].iter().for_each(|stream| driver.close(*stream));
                    // SAFETY: made above, and nothing uses it.
                    unsafe { driver.unpin(device, memory) };
                    return Err(e);
                }
            }
        }
        Ok(Slots { driver, device, memory, streams })
    }

    /// Nothing is under way on its streams.
    fn free(self) {
        self.streams.iter().for_each(|stream| self.driver.close(*stream));
        // SAFETY: no copy is under way, and the value is gone.
        unsafe { self.driver.unpin(self.device, self.memory) };
    }
}

/// A ring that is in use: its slots are used in turn.
#[derive(Debug)]
pub(super) struct Ring {
    pool: &'static Pool,
    /// Taken out when the ring is dropped.
    slots: Option<Slots>,
    under_way: [bool; SLOTS],
    /// The driver failed in a way that may have to do with the ring.
    poisoned: bool,
}

impl Ring {
    fn new(pool: &'static Pool, slots: Slots) -> Ring {
        Ring { pool, slots: Some(slots), under_way: [false; SLOTS], poisoned: false }
    }

    fn slots(&self) -> &Slots {
        self.slots.as_ref().expect("taken out only when the ring is dropped")
    }

    pub(super) fn device(&self) -> i32 {
        self.slots().device
    }

    /// Memory of a slot, on which nothing is under way.
    pub(super) fn memory(&self, slot: usize) -> *mut u8 {
        debug_assert!(!self.under_way[slot]);
        // SAFETY: inside the pinned memory.
        unsafe { self.slots().memory.as_ptr().add(slot * SLOT) }
    }

    /// Queues copies between a slot and a device's memory: `ranges` of it, one
    /// after another in the slot, [`SLOT`] bytes at most.
    pub(super) fn copy(&mut self, slot: usize, way: Direction, ranges: &[(usize, usize)]) -> Result<(), CopyError> {
        let mut host = self.memory(slot);
        let mut left = SLOT;
        let copies: Vec<Copy> = ranges
            .iter()
            .map(|&(device, len)| {
                left = left.checked_sub(len).expect("more ranges than fit into a slot");
                let copy = Copy { device, host, len };
                host = host.wrapping_add(len);
                copy
            })
            .collect();
        let (driver, stream) = (self.slots().driver, self.slots().streams[slot]);
        self.under_way[slot] = true;
        // SAFETY: the copies lie in the slot, which is not touched until it was waited for.
        let queued = unsafe { driver.copy(stream, way, &copies) };
        queued.map_err(|e| self.failed(e))
    }

    /// Waits for what is under way on a slot.
    pub(super) fn wait(&mut self, slot: usize) -> Result<(), CopyError> {
        if !self.under_way[slot] {
            return Ok(());
        }
        let slots = self.slots();
        let waited = slots.driver.wait(slots.streams[slot]);
        waited.map_err(|e| self.failed(e))?;
        self.under_way[slot] = false;
        Ok(())
    }

    /// Copies that are queued from now on begin after what the framework has queued on the device's default stream
    /// until now.
    pub(super) fn follow_default(&mut self) -> Result<(), CopyError> {
        let Slots { driver, device, streams, .. } = self.slots();
        let following = driver.follow_default(*device, streams);
        following.map_err(|e| self.failed(e))
    }

    pub(super) fn wait_for_all(&mut self) -> Result<(), CopyError> {
        (0..SLOTS).try_for_each(|slot| self.wait(slot))
    }

    fn failed(&mut self, error: DeviceError) -> CopyError {
        self.poisoned |= !error.is_wrong_range();
        error.into()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(slots) = self.slots.take() else { return };
        if forked() {
            // The parent's, with everything that is under way on it.
            return;
        }
        let is_idle = |(under_way, stream): (&bool, &Stream)| !under_way || slots.driver.wait(*stream).is_ok();
        // All of them, whatever one says: a call's memory is its caller's again when it has returned.
        let idle = self.under_way.iter().zip(&slots.streams).map(is_idle).fold(true, |all, idle| all & idle);
        if idle && !self.poisoned {
            return self.pool.check_in(slots);
        }
        self.pool.forget();
        self.pool.drop_idle(slots.device);
        if idle {
            slots.free();
        }
        // What could not be waited for is left pinned: the device may still be at it.
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    use super::super::Location;
    use super::*;

    /// Counts what is pinned; copies nothing.
    #[derive(Debug, Default)]
    struct Counting {
        pinned: AtomicI64,
        streams: AtomicI64,
        fails: AtomicBool,
    }

    impl Driver for Counting {
        fn device_in_use(&self) -> Option<i32> {
            Some(0)
        }

        fn location_of(&self, _: usize) -> Result<Location, DeviceError> {
            Ok(Location::Unknown)
        }
        fn pin(&self, _: i32, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
            self.pinned.fetch_add(1, Ordering::Relaxed);
            Ok(NonNull::from(Box::leak(vec![0; bytes].into_boxed_slice())).cast())
        }
        unsafe fn unpin(&self, _: i32, _: NonNull<u8>) {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
        fn open(&self, device: i32) -> Result<Stream, DeviceError> {
            self.streams.fetch_add(1, Ordering::Relaxed);
            if device == 9 {
                return Err(DeviceError { call: "open", name: "no", code: 2, addr: 0, len: 0, device });
            }
            Ok(Stream { device, handle: 0 })
        }
        fn close(&self, _: Stream) {
            self.streams.fetch_sub(1, Ordering::Relaxed);
        }
        fn follow_default(&self, device: i32, _: &[Stream]) -> Result<(), DeviceError> {
            match self.fails.load(Ordering::Relaxed) {
                true => Err(DeviceError { call: "follow", name: "reset", code: 700, addr: 0, len: 0, device }),
                false => Ok(()),
            }
        }
        unsafe fn copy(&self, _: Stream, _: Direction, _: &[Copy]) -> Result<(), DeviceError> {
            Ok(())
        }
        fn wait(&self, _: Stream) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn pool(most: usize) -> (&'static Pool, &'static Counting) {
        let pool = Pool::new(most, Duration::from_millis(30));
        (Box::leak(Box::new(pool)), Box::leak(Box::default()))
    }

    #[test]
    fn no_more_rings_are_made_than_allowed_and_the_wait_for_one_ends() {
        let (pool, driver) = pool(2);
        let (first, _second) = (pool.check_out(driver, 0).unwrap(), pool.check_out(driver, 0).unwrap());
        let refused = pool.check_out(driver, 0).unwrap_err();
        assert!(matches!(refused, CopyError::NoStaging { device: 0, rings: 2, .. }), "{refused}");
        let waiting = std::thread::spawn(move || pool.check_out(driver, 0).map(drop));
        drop(first);
        waiting.join().unwrap().unwrap();
        assert_eq!(driver.pinned.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn who_has_waited_is_served_before_who_gives_a_ring_back_and_wants_it_again() {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new(1, Duration::from_secs(20))));
        let driver: &'static Counting = Box::leak(Box::default());
        let ring = pool.check_out(driver, 0).unwrap();
        let order: &'static Mutex<Vec<&str>> = Box::leak(Box::default());
        let waiting = std::thread::spawn(move || {
            let _ring = pool.check_out(driver, 0).unwrap();
            order.lock().push("who waited");
        });
        while pool.state.lock().asking.is_empty() {
            std::thread::yield_now();
        }
        drop(ring);
        let _ring = pool.check_out(driver, 0).unwrap();
        order.lock().push("who came back");
        assert_eq!(*order.lock(), ["who waited", "who came back"]);
        waiting.join().unwrap();
    }

    #[test]
    fn an_idle_ring_of_another_device_makes_room() {
        let (pool, driver) = pool(1);
        drop(pool.check_out(driver, 0).unwrap());
        drop(pool.check_out(driver, 1).unwrap());
        assert_eq!(pool.check_out(driver, 0).unwrap().device(), 0);
        assert_eq!((driver.pinned.load(Ordering::Relaxed), driver.streams.load(Ordering::Relaxed)), (1, SLOTS as i64));
    }

    #[test]
    fn after_a_devices_failure_none_of_its_idle_rings_is_used_again() {
        let (pool, driver) = pool(4);
        let in_use: Vec<Ring> = [0, 0, 0, 1].map(|device| pool.check_out(driver, device).unwrap()).into();
        drop(in_use);
        let mut ring = pool.check_out(driver, 0).unwrap();
        driver.fails.store(true, Ordering::Relaxed);
        ring.follow_default().unwrap_err();
        drop(ring);
        assert_eq!((driver.pinned.load(Ordering::Relaxed), pool.state.lock().made), (1, 1), "the other device's");
        driver.fails.store(false, Ordering::Relaxed);
        let all: Vec<Ring> = [0, 0, 0, 1].map(|device| pool.check_out(driver, device).unwrap()).into();
        assert_eq!((driver.pinned.load(Ordering::Relaxed), pool.state.lock().made), (4, 4));
        drop(all);
    }

    #[test]
    fn a_ring_that_could_not_be_made_takes_no_place() {
        let (pool, driver) = pool(1);
        assert!(matches!(pool.check_out(driver, 9), Err(CopyError::Device(_))));
        assert_eq!(driver.pinned.load(Ordering::Relaxed), 0);
        pool.check_out(driver, 0).unwrap();
    }
}
