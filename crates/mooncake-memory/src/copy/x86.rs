//! The kernels for x86-64: carry-less multiplication folds the message while it
//! is copied ("Fast CRC Computation Using PCLMULQDQ", Intel 2009), and the
//! `crc32` instruction, which is CRC-32C, takes what is left. Prefetching by hand
//! was tried and gained nothing, in copies without a sum too.

use std::arch::x86_64::*;
use std::sync::atomic::{AtomicU8, Ordering};

use super::Stores;
use crate::copy::multipliers::multipliers;

/// What the processor can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// SSE4.2 and PCLMULQDQ: every x86-64 server since 2010.
    Sse,
    /// AVX-512 with VPCLMULQDQ.
    Avx512,
}

const NONE: u8 = 0;
const STORE: u8 = 1;
const STREAM: u8 = 2;

/// Level of this processor, looked up once.
pub(super) fn level() -> Option<Level> {
    static LEVEL: AtomicU8 = AtomicU8::new(0);
    match LEVEL.load(Ordering::Relaxed) {
        1 => None,
        2 => Some(Level::Sse),
        3 => Some(Level::Avx512),
        _ => {
            let found = detect();
            let number = match found {
                None => 1,
                Some(Level::Sse) => 2,
                Some(Level::Avx512) => 3,
            };
            LEVEL.store(number, Ordering::Relaxed);
            found
        }
    }
}

fn detect() -> Option<Level> {
    if !(is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")) {
        return None;
    }
    let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
    Some(if wide { Level::Avx512 } else { Level::Sse })
}

/// # Safety
/// `level` was detected; `src` is readable for `len` bytes.
pub(super) unsafe fn checksum(level: Level, state: u32, src: *const u8, len: usize) -> u32 {
    let nowhere = std::ptr::null_mut();
    // SAFETY: the caller's word; `NONE` never touches the destination.
    unsafe {
        match level {
            Level::Avx512 => fold_avx512::<NONE>(state, src, nowhere, len),
            Level::Sse => fold_sse::<NONE>(state, src, nowhere, len),
        }
    }
}

/// # Safety
/// `level` was detected; `src` is readable and `dst` writable for `len` bytes.
pub(super) unsafe fn copy_and_checksum(
    level: Level,
    state: u32,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    stores: Stores,
) -> u32 {
    // SAFETY: the caller's word.
    unsafe {
        match (level, stores) {
            (Level::Avx512, Stores::Plain) => fold_avx512::<STORE>(state, src, dst, len),
            (Level::Avx512, Stores::Streaming) => fold_avx512::<STREAM>(state, src, dst, len),
            (Level::Sse, Stores::Plain) => fold_sse::<STORE>(state, src, dst, len),
            (Level::Sse, Stores::Streaming) => fold_sse::<STREAM>(state, src, dst, len),
        }
    }
}

/// Copies by sixteen bytes, a line of the cache in each step. Out of memory that no cache holds that is quicker than by
/// wider loads, and than `rep movsb`, which takes twice as long where source and destination are not aligned alike.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
pub(super) unsafe fn copy_lines(src: *const u8, dst: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's word.
    unsafe {
        match stores {
            Stores::Plain => copy_lines_by::<STORE>(src, dst, len),
            Stores::Streaming => copy_lines_by::<STREAM>(src, dst, len),
        }
    }
}

/// # Safety
/// As [`copy_lines`].
// Not inlined: where the compiler sees that they do not overlap it makes a `memcpy` of the loop again.
#[inline(never)]
unsafe fn copy_lines_by<const TO: u8>(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every access lies inside the `len` bytes of both ranges. SSE2 is part of every x86-64; stores are aligned
    // by the head.
    unsafe {
        // A line that is stored past the caches goes out at once where its four parts come together.
        let mut done = dst.align_offset(if TO == STREAM { 64 } else { 16 }).min(len);
        std::ptr::copy_nonoverlapping(src, dst, done);
        while len - done >= 64 {
            let line = [0, 16, 32, 48].map(|at| _mm_loadu_si128(src.add(done + at).cast()));
            for (nth, bytes) in line.into_iter().enumerate() {
                let to = dst.add(done + 16 * nth).cast();
                if TO == STREAM { _mm_stream_si128(to, bytes) } else { _mm_store_si128(to, bytes) }
            }
            done += 64;
        }
        std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
    }
}

const BY_2048: (u64, u64) = multipliers(2048);
const BY_512: (u64, u64) = multipliers(512);
const BY_128: (u64, u64) = multipliers(128);

/// Byte by byte and word by word: heads, tails and tiny pieces.
///
/// # Safety
/// As [`copy_and_checksum`], SSE4.2.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn trickle<const TO: u8>(mut state: u32, mut src: *const u8, mut dst: *mut u8, mut len: usize) -> u32 {
    // SAFETY: every access lies inside the `len` bytes left of both ranges.
    unsafe {
        while len >= 8 {
            let word = src.cast::<u64>().read_unaligned();
            if TO != NONE {
                dst.cast::<u64>().write_unaligned(word);
                dst = dst.add(8);
            }
            state = _mm_crc32_u64(u64::from(state), word) as u32;
            src = src.add(8);
            len -= 8;
        }
        while len > 0 {
            let byte = src.read();
            if TO != NONE {
                dst.write(byte);
                dst = dst.add(1);
            }
            state = _mm_crc32_u8(state, byte);
            src = src.add(1);
            len -= 1;
        }
    }
    state
}

/// # Safety
/// As [`copy_and_checksum`], on a processor of [`Level::Avx512`].
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
unsafe fn fold_avx512<const TO: u8>(mut state: u32, mut src: *const u8, mut dst: *mut u8, mut len: usize) -> u32 {
    // SAFETY: every access lies inside the `len` bytes left of both ranges; streaming stores are aligned by the head.
    unsafe {
        if TO == STREAM {
            let head = dst.align_offset(64).min(len);
            state = trickle::<TO>(state, src, dst, head);
            (src, dst, len) = (src.add(head), dst.add(head), len - head);
        }
        if len >= 256 {
            let mut x = [
                take512::<TO>(src, dst, 0),
                take512::<TO>(src, dst, 64),
                take512::<TO>(src, dst, 128),
                take512::<TO>(src, dst, 192),
            ];
            // The state so far is added to the first four bytes of what follows.
            x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32)));
            (src, dst, len) = (src.add(256), dst.wrapping_add(256), len - 256);
            let by_2048 = _mm512_broadcast_i32x4(pair(BY_2048));
            while len >= 256 {
                for (i, lane) in x.iter_mut().enumerate() {
                    let next = take512::<TO>(src, dst, 64 * i);
                    *lane = fold512(*lane, by_2048, next);
                }
                (src, dst, len) = (src.add(256), dst.wrapping_add(256), len - 256);
            }
            let by_512 = _mm512_broadcast_i32x4(pair(BY_512));
            let mut last = x[0];
            for lane in &x[1..] {
                last = fold512(last, by_512, *lane);
            }
            while len >= 64 {
                last = fold512(last, by_512, take512::<TO>(src, dst, 0));
                (src, dst, len) = (src.add(64), dst.wrapping_add(64), len - 64);
            }
            let by_128 = pair(BY_128);
            let mut lane = _mm512_castsi512_si128(last);
            lane = fold128(lane, by_128, _mm512_extracti32x4_epi32::<1>(last));
            lane = fold128(lane, by_128, _mm512_extracti32x4_epi32::<2>(last));
            lane = fold128(lane, by_128, _mm512_extracti32x4_epi32::<3>(last));
            state = reduce128(lane);
        }
        trickle::<TO>(state, src, dst, len)
    }
}

/// # Safety
/// As [`copy_and_checksum`], on a processor of [`Level::Sse`].
#[target_feature(enable = "pclmulqdq,sse4.2")]
unsafe fn fold_sse<const TO: u8>(mut state: u32, mut src: *const u8, mut dst: *mut u8, mut len: usize) -> u32 {
    // SAFETY: every access lies inside the `len` bytes left of both ranges; streaming stores are aligned by the head.
    unsafe {
        if TO == STREAM {
            let head = dst.align_offset(16).min(len);
            state = trickle::<TO>(state, src, dst, head);
            (src, dst, len) = (src.add(head), dst.add(head), len - head);
        }
        if len >= 64 {
            let mut x = [
                take128::<TO>(src, dst, 0),
                take128::<TO>(src, dst, 16),
                take128::<TO>(src, dst, 32),
                take128::<TO>(src, dst, 48),
            ];
            x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(state as i32));
            (src, dst, len) = (src.add(64), dst.wrapping_add(64), len - 64);
            let by_512 = pair(BY_512);
            while len >= 64 {
                for (i, lane) in x.iter_mut().enumerate() {
                    let next = take128::<TO>(src, dst, 16 * i);
                    *lane = fold128(*lane, by_512, next);
                }
                (src, dst, len) = (src.add(64), dst.wrapping_add(64), len - 64);
            }
            let by_128 = pair(BY_128);
            let mut last = x[0];
            for lane in &x[1..] {
                last = fold128(last, by_128, *lane);
            }
            state = reduce128(last);
        }
        trickle::<TO>(state, src, dst, len)
    }
}

/// Loads 64 bytes and stores them where they go.
///
/// # Safety
/// 64 bytes from `at` on lie in both ranges; a streaming destination is aligned.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn take512<const TO: u8>(src: *const u8, dst: *mut u8, at: usize) -> __m512i {
    // SAFETY: the caller's word.
    unsafe {
        let bytes = _mm512_loadu_si512(src.add(at).cast());
        match TO {
            STORE => _mm512_storeu_si512(dst.add(at).cast(), bytes),
            STREAM => _mm512_stream_si512(dst.add(at).cast(), bytes),
            _ => {}
        }
        bytes
    }
}

/// Loads 16 bytes and stores them where they go.
///
/// # Safety
/// 16 bytes from `at` on lie in both ranges; a streaming destination is aligned.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take128<const TO: u8>(src: *const u8, dst: *mut u8, at: usize) -> __m128i {
    // SAFETY: the caller's word.
    unsafe {
        let bytes = _mm_loadu_si128(src.add(at).cast());
        match TO {
            STORE => _mm_storeu_si128(dst.add(at).cast(), bytes),
            STREAM => _mm_stream_si128(dst.add(at).cast(), bytes),
            _ => {}
        }
        bytes
    }
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn pair((low, high): (u64, u64)) -> __m128i {
    _mm_set_epi64x(high as i64, low as i64)
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold512(lane: __m512i, by: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(lane, by);
    let high = _mm512_clmulepi64_epi128::<0x11>(lane, by);
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn fold128(lane: __m128i, by: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(lane, by);
    let high = _mm_clmulepi64_si128::<0x11>(lane, by);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}

/// The state after the 16 bytes that stand for the whole message.
#[inline]
#[target_feature(enable = "sse4.2")]
fn reduce128(lane: __m128i) -> u32 {
    let low = _mm_cvtsi128_si64(lane) as u64;
    let high = _mm_extract_epi64::<1>(lane) as u64;
    _mm_crc32_u64(_mm_crc32_u64(0, low), high) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_agree() {
        let Some(best) = level() else { return };
        let data: Vec<u8> = (0..9000_usize).map(|i| (i * 7 + i / 255) as u8).collect();
        for len in (0..600).chain([1024, 4095, 4096, 8999]) {
            // SAFETY: inside the vector; SSE4.2 is part of every level.
            unsafe {
                let plain = trickle::<NONE>(!9, data.as_ptr(), std::ptr::null_mut(), len);
                assert_eq!(checksum(Level::Sse, !9, data.as_ptr(), len), plain, "len {len}");
                assert_eq!(checksum(best, !9, data.as_ptr(), len), plain, "len {len}");
                let mut copy = vec![0; len];
                let level = Level::Sse;
                let crc = copy_and_checksum(level, !9, data.as_ptr(), copy.as_mut_ptr(), len, Stores::Streaming);
                assert_eq!((crc, &copy[..]), (plain, &data[..len]));
            }
        }
    }
}
