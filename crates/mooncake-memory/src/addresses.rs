//! Addresses of memory that we made: no other memory's while anybody holds them, though the memory be freed.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Of memory that was not freed, by first address. What was leaked stays, with nothing behind it.
static IN_USE: Mutex<BTreeMap<usize, Weak<Addresses>>> = Mutex::new(BTreeMap::new());

/// Addresses of one mapping. Once it was freed they are free with the last of these.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub base: usize,
    pub len: usize,
    is_freed: AtomicBool,
}

/// Keeps the addresses of memory that we made from becoming other memory's while this lives, though it be freed: a peer
/// or a call that comes with them late finds no memory there.
#[derive(Debug)]
pub struct AddressHold(Arc<Addresses>);

impl AddressHold {
    /// Whether the memory was freed: what is there now is none.
    pub fn is_freed(&self) -> bool {
        self.0.is_freed.load(Ordering::Acquire)
    }
}

/// Keeps the addresses of the mapping that all of a range lies in, if it is memory that we made for a caller.
pub fn hold_addresses(addr: usize, len: usize) -> Option<AddressHold> {
    let in_use = IN_USE.lock();
    let (_, addresses) = in_use.range(..=addr).next_back()?;
    let addresses = addresses.upgrade()?;
    addresses.has(addr, len).then_some(AddressHold(addresses))
}

impl Addresses {
    /// Of a mapping that was just made.
    pub fn of_mapping(base: usize, len: usize) -> Arc<Addresses> {
        let addresses = Arc::new(Addresses { base, len, is_freed: AtomicBool::new(false) });
        IN_USE.lock().insert(base, Arc::downgrade(&addresses));
        addresses
    }

    /// Whether a range lies in them.
    pub fn has(&self, addr: usize, len: usize) -> bool {
        addr.checked_sub(self.base).and_then(|before| self.len.checked_sub(before)).is_some_and(|behind| len <= behind)
    }

    /// The memory is freed: nothing is there while anybody holds the addresses, and then they are free, too. Should the
    /// kernel refuse to put nothing there, they never are.
    ///
    /// # Safety
    /// The mapping is there still, and nothing uses the memory any more.
    pub unsafe fn free(self: Arc<Addresses>) {
        IN_USE.lock().remove(&self.base);
        self.is_freed.store(true, Ordering::Release);
        // A hold that comes to its end at this moment does no harm, and no new one begins.
        if Arc::strong_count(&self) > 1 {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            let base = ptr::with_exposed_provenance_mut(self.base);
            // SAFETY: nothing uses the memory, and its addresses are this value's.
            if unsafe { mmap_anonymous(base, self.len, ProtFlags::empty(), flags) }.is_err() {
                // Whatever is there now stays: nobody unmaps what may be another's.
                std::mem::forget(self);
            }
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // What was not freed is its user's. A forked child has a mapping of its own, and ends that.
        if *self.is_freed.get_mut() {
            // SAFETY: the caller of `free` has given it up, and nobody has unmapped it since.
            let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.base), self.len) };
        }
    }
}
