//! Random numbers from the kernel: secrets and ids.

use rustix::rand::{GetRandomFlags, getrandom};

/// Sixteen random bytes.
pub fn bytes() -> [u8; 16] {
    let mut out = [0; 16];
    let mut filled = 0;
    while filled < out.len() {
        match getrandom(&mut out[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
    out
}

/// A random number other than 0.
pub fn number() -> u64 {
    loop {
        let number = u64::from_le_bytes(bytes()[..8].try_into().expect("eight bytes"));
        if number != 0 {
            return number;
        }
    }
}
