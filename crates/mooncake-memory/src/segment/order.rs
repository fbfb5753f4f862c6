//! The order of a writer and of a reader of one extent.
//!
//! A reader of bytes of a later placement also sees the stamp of that placement, or of a still later one: that alone
//! makes one-sided reads safe. Both orders are written down once, here, and a loom model runs these very functions.

/// A writer: all stamps; the barrier; the bytes; the barrier, before it tells that they are there.
pub fn write_in_order<T>(stamps: impl FnOnce(), barrier: impl Fn(), bytes: impl FnOnce() -> T) -> T {
    stamps();
    barrier();
    let result = bytes();
    barrier();
    result
}

/// A reader: the bytes; the barrier; the stamps of the granules that it copied.
pub fn read_in_order<T, S>(bytes: impl FnOnce() -> T, barrier: impl FnOnce(), stamps: impl FnOnce() -> S) -> (T, S) {
    let result = bytes();
    barrier();
    (result, stamps())
}

/// Orders all earlier stores, non-temporal ones too, before all later ones.
/// `fence(Release)` does not do that on x86-64, where it emits no instruction.
#[inline]
pub fn store_barrier() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: an instruction without operands. Without `nomem` it is a barrier for the compiler as well.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("dmb ish", options(nostack, preserves_flags));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Orders all earlier loads before all later ones.
#[inline]
pub fn load_barrier() {
    #[cfg(not(miri))]
    // SAFETY: no instruction at all; the compiler may not move memory accesses across it, plain ones included.
    unsafe {
        std::arch::asm!("", options(nostack, preserves_flags));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}
