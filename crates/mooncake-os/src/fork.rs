//! A forked child must neither use nor hold what its parent has open: an
//! inherited descriptor would hide the parent's death, and an inherited
//! connection would mix two processes' bytes.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Descriptors per chunk of the table.
const CHUNK: usize = 512;

static FORKED: AtomicBool = AtomicBool::new(false);
static TABLE: Chunk = Chunk::new();

/// A slot holds a descriptor + 1, or 0. Chunks are added and never freed, so
/// that the handler, which may take no lock and allocate nothing, can walk them.
struct Chunk {
    slots: [AtomicI32; CHUNK],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { AtomicI32::new(0) }; CHUNK], next: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The following chunk, made if `grow`.
    fn next(&self, grow: bool) -> Option<&'static Chunk> {
        let mut next = self.next.load(Ordering::Acquire);
        if next.is_null() && grow {
            let fresh = Box::into_raw(Box::new(Chunk::new()));
            match self.next.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => next = fresh,
                Err(other) => {
                    // SAFETY: made by `into_raw` above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    next = other;
                }
            }
        }
        // SAFETY: null or a chunk that is never freed.
        unsafe { next.as_ref() }
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> libc::c_int;
}

/// Runs in a forked child: only async-signal-safe work.
unsafe extern "C" fn in_child() {
    FORKED.store(true, Ordering::SeqCst);
    let mut chunk = Some(&TABLE);
    while let Some(this) = chunk {
        for slot in &this.slots {
            let entry = slot.swap(0, Ordering::SeqCst);
            if entry != 0 {
                // SAFETY: the child's copy of a descriptor whose owner in this process never touches it again.
                unsafe { libc::close(entry - 1) };
            }
        }
        chunk = this.next(false);
    }
}

/// Starts to watch for forks; done by everything in this crate that needs it.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is async-signal-safe and lives as long as this code does.
        let rc = unsafe { pthread_atfork(None, None, Some(in_child)) };
        // Only ENOMEM is possible; without the handler a child could touch its parent's connections.
        assert_eq!(rc, 0, "pthread_atfork: {}", std::io::Error::from_raw_os_error(rc));
    });
}

/// Whether this process is a forked child of one that watched.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// A socket or other descriptor that forked children close at once, and that a
/// child's copy of this handle never touches again.
#[derive(Debug)]
pub struct Guarded<T: AsFd> {
    inner: ManuallyDrop<T>,
    slot: &'static AtomicI32,
}

impl<T: AsFd> Guarded<T> {
    /// Guards a descriptor from now on.
    pub fn new(inner: T) -> Self {
        watch_forks();
        let slot = claim(inner.as_fd().as_raw_fd());
        Self { inner: ManuallyDrop::new(inner), slot }
    }
}

impl<T: AsFd + Into<OwnedFd>> Guarded<T> {
    /// The same descriptor, whatever it is of.
    pub fn into_owned_fd(self) -> Guarded<OwnedFd> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so that this is the only one.
        let inner = unsafe { std::ptr::read(&raw const this.inner) };
        Guarded { inner: ManuallyDrop::new(ManuallyDrop::into_inner(inner).into()), slot: this.slot }
    }
}

impl<T: AsFd> Deref for Guarded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: AsFd> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: AsFd> Drop for Guarded<T> {
    fn drop(&mut self) {
        if forked() {
            // The number may name something else in this process by now.
            return;
        }
        // Out of the table first: a child forked in between keeps a descriptor, instead of closing a stranger's.
        self.slot.store(0, Ordering::SeqCst);
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

/// Puts a descriptor into a free slot.
fn claim(fd: RawFd) -> &'static AtomicI32 {
    let mut chunk = &TABLE;
    loop {
        for slot in &chunk.slots {
            if slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, fd + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                return slot;
            }
        }
        chunk = chunk.next(true).expect("a chunk was just added");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_has_been_closed_is_no_childs_to_close() {
        // A number that no other test is given next.
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = rustix::io::fcntl_dupfd_cloexec(&null, 700).unwrap();
        let entry = file.as_raw_fd() + 1;
        let guarded = Guarded::new(file);
        let slot = guarded.slot;
        assert_eq!(slot.load(Ordering::SeqCst), entry);
        drop(guarded);
        assert_ne!(slot.load(Ordering::SeqCst), entry, "the number may be a stranger's by now");
    }
}
