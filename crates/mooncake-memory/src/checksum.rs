//! CRC-32C (Castagnoli, as in iSCSI).

use crate::kernel;

/// The polynomial, bit-reflected.
pub(crate) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// CRC-32C of some bytes.
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// CRC-32C of what `crc` covers followed by `data`.
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    // SAFETY: the slice is readable for its length.
    unsafe { kernel::checksum(crc, data.as_ptr(), data.len()) }
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
    fn parts_append_to_the_whole() {
        let data = bytes(70_000);
        let whole = crc32c(&data);
        for cut in [0, 1, 7, 8, 63, 64, 255, 256, 257, 16_384, 65_537, 70_000] {
            let (first, second) = data.split_at(cut);
            assert_eq!(crc32c_append(crc32c(first), second), whole);
        }
    }
}
