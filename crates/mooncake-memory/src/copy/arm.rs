//! The kernels for aarch64. As on x86-64, carry-less multiplication folds the message while it is copied, and the
//! `crc32c` instructions take what is left.
//!
//! No store goes past the caches here. The cores of servers notice by themselves that whole lines are stored one after
//! the other, and stop allocating lines for them ("write streaming"); `stnp` would be a hint on top of that. A copy
//! without a sum is the C library's, which has one for each family of cores.
//!
//! Written without an ARM machine to measure on. Eight lanes are what two multipliers need: a fold takes 6 cycles until
//! its lane can be folded again, and 16 multiplications take 8.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use crate::copy::multipliers::multipliers;

/// What the processor can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The `crc32c` instructions alone: small boards.
    Crc,
    /// Carry-less multiplication too, which comes with the instructions for AES: every server.
    Pmull,
}

/// Level of this processor. The standard library looks it up once.
pub(super) fn level() -> Option<Level> {
    if !is_aarch64_feature_detected!("crc") {
        return None;
    }
    let multiplies = is_aarch64_feature_detected!("aes") && is_aarch64_feature_detected!("pmull");
    Some(if multiplies { Level::Pmull } else { Level::Crc })
}

/// # Safety
/// `level` was detected; `src` is readable for `len` bytes.
pub(super) unsafe fn checksum(level: Level, state: u32, src: *const u8, len: usize) -> u32 {
    let nowhere = std::ptr::null_mut();
    // SAFETY: the caller's word; without `STORE` nothing touches the destination.
    unsafe {
        match level {
            Level::Pmull => fold_pmull::<false>(state, src, nowhere, len),
            Level::Crc => trickle::<false>(state, src, nowhere, len),
        }
    }
}

/// # Safety
/// `level` was detected; `src` is readable and `dst` writable for `len` bytes.
pub(super) unsafe fn copy_and_checksum(level: Level, state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller's word.
    unsafe {
        match level {
            Level::Pmull => fold_pmull::<true>(state, src, dst, len),
            Level::Crc => trickle::<true>(state, src, dst, len),
        }
    }
}

/// Lanes that are folded side by side, and their bytes.
const LANES: usize = 8;
const STEP: usize = 16 * LANES;

const BY_1024: (u64, u64) = multipliers(1024);
const BY_512: (u64, u64) = multipliers(512);
const BY_256: (u64, u64) = multipliers(256);
const BY_128: (u64, u64) = multipliers(128);

/// Word by word and byte by byte: tails, tiny pieces, and all of it where nothing multiplies.
///
/// # Safety
/// As [`copy_and_checksum`], on a processor of any level.
#[inline]
#[target_feature(enable = "crc")]
unsafe fn trickle<const STORE: bool>(mut state: u32, mut src: *const u8, mut dst: *mut u8, mut len: usize) -> u32 {
    // SAFETY: every access lies inside the `len` bytes left of both ranges.
    unsafe {
        while len >= 8 {
            let word = src.cast::<u64>().read_unaligned();
            if STORE {
                dst.cast::<u64>().write_unaligned(word);
                dst = dst.add(8);
            }
            state = __crc32cd(state, word);
            src = src.add(8);
            len -= 8;
        }
        while len > 0 {
            let byte = src.read();
            if STORE {
                dst.write(byte);
                dst = dst.add(1);
            }
            state = __crc32cb(state, byte);
            src = src.add(1);
            len -= 1;
        }
    }
    state
}

/// # Safety
/// As [`copy_and_checksum`], on a processor of [`Level::Pmull`].
#[target_feature(enable = "neon,aes,crc")]
unsafe fn fold_pmull<const STORE: bool>(mut state: u32, mut src: *const u8, mut dst: *mut u8, mut len: usize) -> u32 {
    // SAFETY: every access lies inside the `len` bytes left of both ranges.
    unsafe {
        if len >= STEP {
            let mut x = take::<STORE>(src, dst);
            // The state so far is added to the first four bytes of what follows.
            x[0] = veorq_u64(x[0], pair((u64::from(state), 0)));
            (src, dst, len) = (src.add(STEP), dst.wrapping_add(STEP), len - STEP);
            while len >= STEP {
                let next = take::<STORE>(src, dst);
                for (lane, next) in x.iter_mut().zip(next) {
                    *lane = fold(*lane, pair(BY_1024), next);
                }
                (src, dst, len) = (src.add(STEP), dst.wrapping_add(STEP), len - STEP);
            }
            let four: [_; 4] = std::array::from_fn(|i| fold(x[i], pair(BY_512), x[i + 4]));
            let two: [_; 2] = std::array::from_fn(|i| fold(four[i], pair(BY_256), four[i + 2]));
            state = reduce(fold(two[0], pair(BY_128), two[1]));
        }
        trickle::<STORE>(state, src, dst, len)
    }
}

/// Loads one step and stores it where it goes.
///
/// # Safety
/// [`STEP`] bytes lie in both ranges.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn take<const STORE: bool>(src: *const u8, dst: *mut u8) -> [uint64x2_t; LANES] {
    // SAFETY: the caller's word.
    unsafe {
        let (a, b) = take_pair::<STORE, 0>(src, dst);
        let (c, d) = take_pair::<STORE, 32>(src, dst);
        let (e, f) = take_pair::<STORE, 64>(src, dst);
        let (g, h) = take_pair::<STORE, 96>(src, dst);
        [a, b, c, d, e, f, g, h]
    }
}

/// Loads 32 bytes, once: of a load that it knows the compiler may make a `memcpy` to where the lanes are, and another
/// one to the destination. What arrives would not be what is summed if others store to the source meanwhile.
///
/// # Safety
/// 32 bytes from `AT` on lie in both ranges.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn take_pair<const STORE: bool, const AT: usize>(src: *const u8, dst: *mut u8) -> (uint64x2_t, uint64x2_t) {
    let (low, high): (uint64x2_t, uint64x2_t);
    // SAFETY: the caller's word; neither instruction touches flags or the stack.
    unsafe {
        asm!(
            "ldp {low:q}, {high:q}, [{src}, #{at}]",
            low = out(vreg) low, high = out(vreg) high, src = in(reg) src, at = const AT,
            options(readonly, nostack, preserves_flags),
        );
        if STORE {
            asm!(
                "stp {low:q}, {high:q}, [{dst}, #{at}]",
                low = in(vreg) low, high = in(vreg) high, dst = in(reg) dst, at = const AT,
                options(nostack, preserves_flags),
            );
        }
    }
    (low, high)
}

#[inline]
#[target_feature(enable = "neon")]
fn pair((low, high): (u64, u64)) -> uint64x2_t {
    vcombine_u64(vcreate_u64(low), vcreate_u64(high))
}

#[inline]
#[target_feature(enable = "neon,aes")]
fn fold(lane: uint64x2_t, by: uint64x2_t, next: uint64x2_t) -> uint64x2_t {
    let low = vmull_p64(vgetq_lane_u64::<0>(lane), vgetq_lane_u64::<0>(by));
    let high = vmull_high_p64(vreinterpretq_p64_u64(lane), vreinterpretq_p64_u64(by));
    veorq_u64(veorq_u64(vreinterpretq_u64_p128(low), vreinterpretq_u64_p128(high)), next)
}

/// The state after the 16 bytes that stand for the whole message.
#[inline]
#[target_feature(enable = "neon,crc")]
fn reduce(lane: uint64x2_t) -> u32 {
    __crc32cd(__crc32cd(0, vgetq_lane_u64::<0>(lane)), vgetq_lane_u64::<1>(lane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::sum_portable;

    #[test]
    fn all_levels_agree() {
        let Some(best) = level() else { return };
        let data: Vec<u8> = (0..9000_usize).map(|i| (i * 7 + i / 255) as u8).collect();
        for len in (0..600).chain([1024, 4095, 4096, 8985]) {
            let from = len % 15;
            let data = &data[from..from + len];
            let expected = !sum_portable(9, data);
            for level in [Level::Crc, best] {
                let mut copy = vec![0xa5; len + 40];
                // SAFETY: inside the vectors; the `crc32c` instructions are part of every level.
                let sums = unsafe {
                    [
                        checksum(level, !9, data.as_ptr(), len),
                        copy_and_checksum(level, !9, data.as_ptr(), copy.as_mut_ptr().add(3), len),
                    ]
                };
                assert_eq!(sums, [expected; 2], "{level:?}, len {len}");
                assert_eq!(&copy[3..3 + len], data);
                assert!(copy[..3].iter().chain(&copy[3 + len..]).all(|&byte| byte == 0xa5));
            }
        }
    }

    /// An emulated processor has what its command line says, and whoever writes that knows the kernel.
    #[test]
    fn the_processor_gets_the_kernel_that_is_named() {
        let Some(named) = std::env::var_os("TESTED_COPY_KERNEL") else { return };
        let level = level().map_or("portable".to_owned(), |level| format!("{level:?}").to_lowercase());
        assert_eq!(*named, *level);
    }
}
