//! The process's own heap.

/// Gives freed pages of the heap back to the system. glibc keeps those below a
/// live allocation until it is told; other C libraries need no telling.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions; it takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
