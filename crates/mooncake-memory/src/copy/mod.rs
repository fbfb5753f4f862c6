//! Copies, most of which compute a CRC-32C on the way.
//!
//! Source bytes are loaded once: what is stored and what is summed are the same register. So a checksum is of exactly
//! the bytes that arrived, even when another thread or process stores to the source meanwhile.

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod arm;
pub(crate) mod barrier;
pub(crate) mod checksum;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", not(miri))))]
mod multipliers;
#[cfg(target_arch = "x86_64")]
mod x86;

/// How a copy stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the caches.
    Plain,
    /// Past the caches, where the processor has such stores. Only [`barrier::store_barrier`] orders these: the caller
    /// runs it before anybody, itself too, touches what was stored.
    Streaming,
}

/// A part of what is stored past the caches is so from this size on: each waits for its own stores at its end.
pub(crate) const STREAM_PARTS_FROM: usize = 16 << 10;

/// Bytes per step where copying and summing are two passes: small enough to stay in the first-level cache.
const COPY_STEP_BYTES: usize = 16 * 1024;

/// CRC-32C of what `crc` covers followed by `len` bytes at `src`.
///
/// # Safety
/// `src` is readable for `len` bytes. Others may store to it meanwhile; then
/// the result is that of some mixture.
pub(crate) unsafe fn checksum(crc: u32, src: *const u8, len: usize) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(level) = x86::level() {
        // SAFETY: the level was detected; the caller vouches for the memory.
        return !unsafe { x86::checksum(level, !crc, src, len) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    if let Some(level) = arm::level() {
        // SAFETY: as above.
        return !unsafe { arm::checksum(level, !crc, src, len) };
    }
    // SAFETY: the caller vouches for the memory.
    unsafe { checksum_portable(crc, src, len) }
}

/// The same of borrowed bytes, which nobody stores to meanwhile.
pub(crate) fn checksum_of(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let has_kernel = x86::level().is_some();
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    let has_kernel = arm::level().is_some();
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    let has_kernel = false;
    if has_kernel {
        // SAFETY: the slice is readable for its length.
        return unsafe { checksum(crc, bytes.as_ptr(), bytes.len()) };
    }
    sum_portable(crc, bytes)
}

/// Copies `len` bytes and returns the CRC-32C of what `crc` covers followed by them.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap. With [`Stores::Streaming`] the
/// caller runs a [`barrier::store_barrier`] before anybody touches `dst`.
pub(crate) unsafe fn copy_and_checksum(crc: u32, src: *const u8, dst: *mut u8, len: usize, stores: Stores) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(level) = x86::level() {
        // SAFETY: the level was detected; the caller vouches for the memory.
        return !unsafe { x86::copy_and_checksum(level, !crc, src, dst, len, stores) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    if let Some(level) = arm::level() {
        // SAFETY: as above.
        return !unsafe { arm::copy_and_checksum(level, !crc, src, dst, len) };
    }
    let _ = stores;
    // SAFETY: the caller vouches for the memory.
    unsafe { copy_and_checksum_portable(crc, src, dst, len) }
}

/// [`copy_and_checksum`], or where no sum is asked for a mere copy, which gives `crc` back.
///
/// # Safety
/// As [`copy_and_checksum`].
pub(crate) unsafe fn load(crc: u32, src: *const u8, dst: *mut u8, len: usize, sum: bool, stores: Stores) -> u32 {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        if sum {
            return copy_and_checksum(crc, src, dst, len, stores);
        }
        copy(src, dst, len, stores);
    }
    crc
}

/// From this length on the C library copies by `rep movsb`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINES_FROM: usize = 4 * 1024;

/// Copies `len` bytes.
///
/// # Safety
/// As [`copy_and_checksum`].
unsafe fn copy(src: *const u8, dst: *mut u8, len: usize, stores: Stores) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= LINES_FROM {
        // SAFETY: the caller vouches for the memory.
        return unsafe { x86::copy_lines(src, dst, len, stores) };
    }
    let _ = stores;
    // SAFETY: the caller vouches for the memory.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// # Safety
/// As [`checksum()`].
unsafe fn checksum_portable(mut crc: u32, src: *const u8, len: usize) -> u32 {
    // Others may store there, so that it is no slice: a copy is.
    let mut copied = [0; COPY_STEP_BYTES];
    for done in (0..len).step_by(COPY_STEP_BYTES) {
        let step = &mut copied[..COPY_STEP_BYTES.min(len - done)];
        // SAFETY: readable by the caller's word, and as long as the step at least.
        unsafe { std::ptr::copy_nonoverlapping(src.add(done), step.as_mut_ptr(), step.len()) };
        crc = sum_portable(crc, step);
    }
    crc
}

fn sum_portable(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Copies a step, then sums the copy, which nothing else stores to on the way to a reader.
///
/// # Safety
/// As [`copy_and_checksum`].
unsafe fn copy_and_checksum_portable(mut crc: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    let mut done = 0;
    while done < len {
        let step = COPY_STEP_BYTES.min(len - done);
        // SAFETY: `done + step <= len`, inside both ranges.
        unsafe {
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), step);
            crc = sum_portable(crc, std::slice::from_raw_parts(dst.add(done), step));
        }
        done += step;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::barrier::store_barrier;
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    #[test]
    fn copies_of_every_length_and_alignment_are_exact_and_summed() {
        let source = pattern(5000);
        for len in (0..700).chain([1023, 1024, 1025, 4096, 4500]) {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (13, 63), (64, 64)] {
                for stores in [Stores::Plain, Stores::Streaming] {
                    let mut destination = vec![0xa5_u8; len + 200];
                    // SAFETY: both ranges lie inside their vectors.
                    let crc = unsafe {
                        copy_and_checksum(7, source.as_ptr().add(from), destination.as_mut_ptr().add(to), len, stores)
                    };
                    store_barrier();
                    assert_eq!(destination[to..to + len], source[from..from + len]);
                    assert!(destination[..to].iter().chain(&destination[to + len..]).all(|&byte| byte == 0xa5));
                    // SAFETY: inside the vector.
                    let expected = unsafe { checksum_portable(7, source.as_ptr().add(from), len) };
                    assert_eq!(crc, expected, "len {len} from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn copies_without_a_sum_are_exact_and_keep_the_sum_so_far() {
        let source = pattern(70_000);
        for len in (0..130).chain(4090..4260).chain([65_535, 65_536, 65_600]) {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (13, 63), (64, 16)] {
                for stores in [Stores::Plain, Stores::Streaming] {
                    let mut destination = vec![0xa5_u8; len + 200];
                    // SAFETY: both ranges lie inside their vectors.
                    let sum = unsafe {
                        load(7, source.as_ptr().add(from), destination.as_mut_ptr().add(to), len, false, stores)
                    };
                    store_barrier();
                    assert_eq!((sum, &destination[to..to + len]), (7, &source[from..from + len]), "len {len}");
                    assert!(destination[..to].iter().chain(&destination[to + len..]).all(|&byte| byte == 0xa5));
                }
            }
        }
    }

    #[test]
    fn the_portable_path_agrees() {
        let source = pattern(100_000);
        let mut destination = vec![0; 100_000];
        // SAFETY: both vectors have that length.
        let (portable, fast) = unsafe {
            (
                copy_and_checksum_portable(0, source.as_ptr(), destination.as_mut_ptr(), source.len()),
                checksum(0, source.as_ptr(), source.len()),
            )
        };
        assert_eq!(portable, fast);
        assert_eq!(source, destination);
    }
}
