//! Memory that a device may touch.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mooncake_memory::{ForeignRange, PrivatePages};
use mooncake_os::forked;

use crate::abi::{ACCESS_LOCAL_WRITE, ACCESS_RELAXED_ORDERING, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, IbvMr};
use crate::domain::Domain;
use crate::error::VerbsError;

/// A registered range: pinned by the kernel, and known to the device by two keys.
///
/// The device touches it whenever a request of the domain's queue pairs says so, from this side or, with the remote
/// key, from the other one, until it is [given up](Region::give_up). That holds behind the life of the mapping, too:
/// pages that are pinned stay.
pub struct Region {
    domain: Arc<Domain>,
    handle: NonNull<IbvMr>,
    range: ForeignRange,
    /// The memory's owner.
    _memory: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the library locks for itself; the structure does not change.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// For what a region is registered. This process's own requests may read it always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// READs of this process may fill it.
    pub local_write: bool,
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write it.
    pub remote_write: bool,
    /// Writes of the device may reach it in another order than they were made in: faster on some hosts. Without a
    /// library that knows it, it means nothing.
    pub relaxed_ordering: bool,
}

/// A part of a [`Region`] that a request reads or fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) key: u32,
}

impl Region {
    /// Registers a range, which `memory`, if it is given, keeps where it is. It takes as long as the kernel needs to
    /// find and pin each page, which counts against the limit of locked memory once for each region.
    pub fn register(
        domain: &Arc<Domain>,
        range: ForeignRange,
        access: Access,
        memory: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Region, VerbsError> {
        let context = domain.context();
        context.alive("ibv_reg_mr")?;
        let calls = &context.library().calls;
        let pd = domain.handle().as_ptr();
        let addr = ptr::with_exposed_provenance_mut(range.addr());
        let flags = access.flags();
        let handle = match calls.reg_mr_iova2 {
            // SAFETY: the domain is alive; that the device may touch the range is the word of who has made it, for as
            // long as it is registered.
            Some(call) if access.relaxed_ordering => unsafe {
                call(pd, addr, range.len(), range.addr() as u64, flags | ACCESS_RELAXED_ORDERING)
            },
            // SAFETY: as above.
            _ => unsafe { (calls.reg_mr)(pd, addr, range.len(), flags.cast_signed()) },
        };
        let handle = NonNull::new(handle).ok_or_else(|| context.refused("ibv_reg_mr"))?;
        Ok(Region { domain: domain.clone(), handle, range, _memory: memory })
    }

    /// Registers pages that are nothing but this region's memory from here on.
    pub fn register_pages(domain: &Arc<Domain>, pages: PrivatePages, access: Access) -> Result<Region, VerbsError> {
        // SAFETY: no reference to them is made any more, and the region keeps them.
        let range = unsafe { ForeignRange::new(pages.as_ptr().expose_provenance(), pages.len()) };
        Region::register(domain, range, access, Some(Arc::new(pages)))
    }

    /// What the device may touch.
    pub fn range(&self) -> ForeignRange {
        self.range
    }

    /// What a peer names it by.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the library has set it, and does not change it.
        unsafe { (*self.handle.as_ptr()).rkey }
    }

    /// A part of it, from an offset on, for a request of this side; none if that is not inside, or more than a
    /// request may have.
    pub fn piece(&self, offset: usize, len: usize) -> Option<Piece> {
        let end = offset.checked_add(len).filter(|end| *end <= self.range.len())?;
        let len = u32::try_from(end - offset).ok().filter(|len| *len <= MESSAGE_BYTES_MAX)?;
        // SAFETY: as for the other key.
        let key = unsafe { (*self.handle.as_ptr()).lkey };
        Some(Piece { addr: (self.range.addr() + offset) as u64, len, key })
    }

    /// Unregisters it: behind this the device touches none of it. It waits for what the device has under way.
    pub fn give_up(self) -> Result<(), (Region, VerbsError)> {
        if forked() {
            let error = self.domain.context().alive("ibv_dereg_mr").expect_err("a child");
            return Err((self, error));
        }
        match self.unregister() {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: each read once, of a value that is never dropped.
                unsafe {
                    drop(ptr::read(&raw const this.domain));
                    drop(ptr::read(&raw const this._memory));
                }
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    fn unregister(&self) -> Result<(), VerbsError> {
        let context = self.domain.context();
        // SAFETY: registered once, and given up once that this has worked.
        let rc = unsafe { (context.library().calls.dereg_mr)(self.handle.as_ptr()) };
        context.check("ibv_dereg_mr", rc)
    }
}

/// Bytes of one request at most: a message of InfiniBand.
const MESSAGE_BYTES_MAX: u32 = 1 << 31;

impl Access {
    fn flags(self) -> u32 {
        // Whoever lets peers write must be allowed to write.
        let writes = self.local_write || self.remote_write;
        (if writes { ACCESS_LOCAL_WRITE } else { 0 })
            | (if self.remote_read { ACCESS_REMOTE_READ } else { 0 })
            | (if self.remote_write { ACCESS_REMOTE_WRITE } else { 0 })
    }
}

impl Piece {
    /// Its bytes.
    pub fn bytes(self) -> u32 {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        if let Err(error) = self.unregister() {
            // The device may touch it still: whatever keeps the memory where it is must stay.
            std::mem::forget(self._memory.take());
            std::mem::forget(self.domain.clone());
            tracing::error!(%error, bytes = self.range.len(), "memory stays registered until this process ends");
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("range", &self.range).field("remote_key", &self.remote_key()).finish()
    }
}
