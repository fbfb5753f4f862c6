//! A library that others may have loaded.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A library that this process uses already. It is never loaded from here, and
/// never unloaded again once it was found.
#[derive(Debug)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
}

// SAFETY: a handle is a name for the dynamic linker, which locks for itself.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The library of that name if this process has it loaded.
    pub(crate) fn find(name: &CStr) -> Option<Library> {
        // SAFETY: the name is a string; nothing is loaded, so that nothing of the library runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        NonNull::new(handle).map(|handle| Library { handle })
    }

    /// Address of a function.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a handle that is never closed, and a string.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// Remembers how many libraries had been loaded at the last look: a look for one
/// that is not there costs a microsecond, and callers would pay it for every piece.
#[derive(Debug)]
pub(crate) struct Lookout {
    loads: AtomicU64,
}

impl Lookout {
    pub(crate) const fn new() -> Self {
        Self { loads: AtomicU64::new(0) }
    }

    /// Looks if any library was loaded since the last look that found nothing.
    pub(crate) fn look<T>(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let loads = loads();
        // 0: this linker does not count.
        if loads != 0 && self.loads.load(Ordering::Acquire) == loads {
            return None;
        }
        let found = find();
        if found.is_none() {
            // Not earlier: a thread beside this one must not take a look that is under way for one in vain.
            self.loads.store(loads, Ordering::Release);
        }
        found
    }
}

/// How many libraries this process has ever loaded.
fn loads() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, size: usize, loads: *mut c_void) -> c_int {
        if size >= size_of::<libc::dl_phdr_info>() {
            // SAFETY: the linker passes an entry of at least that size, and what `dl_iterate_phdr` was given.
            unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        }
        1
    }
    let mut loads = 0_u64;
    // SAFETY: the function only stores to `loads`, and ends the walk at once.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_only_where_it_is_loaded() {
        assert!(Library::find(c"libnobody-has-this.so.7").is_none());
        let libc = Library::find(c"libc.so.6").expect("every process here has it");
        assert!(libc.symbol(c"getpid").is_some());
        assert!(libc.symbol(c"no such function").is_none());
    }

    #[test]
    fn a_second_look_is_taken_only_after_a_load() {
        let lookout = Lookout::new();
        assert_eq!(lookout.look(|| Some(1)), Some(1));
        assert_eq!(lookout.look(|| None::<i32>), None);
        assert_eq!(lookout.look(|| Some(2)), None, "nothing was loaded since a look in vain");
    }
}
