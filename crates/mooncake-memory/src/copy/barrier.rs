//! Barriers between accesses to memory that other processes, or a device, have too.

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
