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

/// Bytes from which a block is memory of its own, which goes back to the kernel by itself. It is where glibc begins,
/// which else raises it with the size of what is freed, up to 32 MiB.
#[cfg(target_env = "gnu")]
const OWN_BLOCK: libc::c_int = 128 << 10;

/// Keeps each call that frees memory short, in a process that has gigabytes of it in millions of blocks. glibc else
/// does much at a time: it joins all small blocks when a large one is freed, and gives the kernel whatever has become
/// free below the last block, tens of megabytes and many milliseconds. Free memory between small blocks stays with the
/// process until [`trim_heap`]. To be called before there are threads that allocate.
pub fn keep_frees_short() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions; it takes the allocator's own locks, and blocks that are there already stay valid.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_BLOCK);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
    }
}
