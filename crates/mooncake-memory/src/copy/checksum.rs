//! CRC-32C (Castagnoli, as in iSCSI).

use crate::copy::{self, Stores};

/// The polynomial, bit-reflected.
pub(crate) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// CRC-32C of some bytes.
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// CRC-32C of what `crc` covers followed by `data`.
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    copy::checksum_of(crc, data)
}

/// Copies bytes to a place of the same length, in one pass with their CRC-32C. Panics if the lengths differ.
pub fn copy_and_sum(from: &[u8], to: &mut [u8]) -> u32 {
    assert_eq!(from.len(), to.len(), "bytes and the place that they are copied to");
    // SAFETY: both are as long, and one of them is an exclusive borrow: they do not overlap.
    unsafe { copy::load(0, from.as_ptr(), to.as_mut_ptr(), from.len(), true, Stores::Plain) }
}

/// CRC-32C of what `first` covers followed by the `len` bytes that `second` covers.
///
/// The sum of the whole is that of its first part, times x once for each bit that follows, plus that of what follows.
pub fn crc32c_combine(first: u32, second: u32, len: u64) -> u32 {
    let mut shifted = first;
    for (power, shift) in SHIFTS.iter().enumerate() {
        if len >> power & 1 == 1 {
            shifted = times(shifted, *shift);
        }
    }
    shifted ^ second
}

/// x to the number of bits of 2^n bytes, modulo the polynomial.
const SHIFTS: [u32; 64] = {
    let mut shifts = [0; 64];
    // x to the eighth.
    let mut shift = 1 << (31 - 8);
    let mut power = 0;
    while power < 64 {
        shifts[power] = shift;
        shift = times(shift, shift);
        power += 1;
    }
    shifts
};

/// The product of two polynomials modulo the polynomial, bit-reflected.
const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 1_u32 << 31);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = times_x(b);
        bit >>= 1;
    }
    product
}

/// A polynomial times x modulo the polynomial, bit-reflected.
pub(crate) const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit_by_bit(data: &[u8]) -> u32 {
        let mut crc = !0;
        for &byte in data {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = times_x(crc);
            }
        }
        !crc
    }

    pub(crate) fn bytes(len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect()
    }

    #[test]
    fn checksum_is_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn every_length_and_alignment_gives_the_same_checksum() {
        let data = bytes(3000);
        for len in (0..1100).chain([1535, 1536, 1537, 2047, 2048, 2049, 2500]) {
            let start = len % 67;
            assert_eq!(crc32c(&data[start..start + len]), bit_by_bit(&data[start..start + len]), "len {len}");
        }
    }

    #[test]
    fn the_sums_of_parts_combine_to_that_of_the_whole_wherever_it_is_cut() {
        let data = bytes(70_000);
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        for round in 0..2_000 {
            let whole = &data[..1 + below(if round % 50 == 0 { 70_000 } else { 600 })];
            let cut = below(whole.len() + 1);
            let (first, second) = whole.split_at(cut);
            let combined = crc32c_combine(crc32c(first), crc32c(second), second.len() as u64);
            assert_eq!(combined, crc32c(whole), "{} bytes cut at {cut}", whole.len());
        }
    }

    #[test]
    fn lengths_that_no_test_can_sum_combine_as_their_halves_do() {
        // Of zeros only the length counts: two halves of 2^n of them are one of 2^(n+1).
        let mut zeros = crc32c(&[0; 1 << 10]);
        for power in 10..63 {
            let twice = crc32c_combine(zeros, zeros, 1 << power);
            let other = crc32c(b"other");
            let one_by_one = crc32c_combine(crc32c_combine(other, zeros, 1 << power), zeros, 1 << power);
            assert_eq!(one_by_one, crc32c_combine(other, twice, 1 << (power + 1)), "2^{power}");
            zeros = twice;
        }
    }

    #[test]
    fn parts_append_to_the_whole() {
        let data = bytes(70_000);
        let whole = crc32c(&data);
        for cut in [0, 1, 7, 8, 63, 64, 255, 256, 257, 16_384, 65_537, 70_000] {
            let (first, second) = data.split_at(cut);
            assert_eq!(crc32c_append(crc32c(first), second), whole);
        }
    }
}
