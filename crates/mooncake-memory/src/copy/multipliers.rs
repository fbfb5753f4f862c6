//! Multipliers of the kernels that fold: a lane of 128 bits of the message is moved forward by carry-less
//! multiplication ("Fast CRC Computation Using PCLMULQDQ", Intel 2009).

use crate::copy::checksum::times_x;

/// Multipliers that move a lane forward by `distance` bits: low half, high half.
pub(super) const fn multipliers(distance: usize) -> (u64, u64) {
    (power(distance + 32), power(distance - 32))
}

/// x^n modulo the polynomial as the carry-less multiplier wants it: reflected, 33 bits.
const fn power(n: usize) -> u64 {
    let mut value = 1_u32 << 31;
    let mut i = 0;
    while i < n {
        value = times_x(value);
        i += 1;
    }
    (value as u64) << 1
}
