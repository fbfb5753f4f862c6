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

/// Has small blocks joined as they are freed. glibc else keeps them apart, and joins all of them when a large block is
/// freed: millions at a time, which takes that one call many milliseconds. To be called before there are threads that
/// allocate.
pub fn join_freed_blocks_at_once() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions; it takes the allocator's own locks, and blocks that are kept apart already stay valid.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
    }
}
