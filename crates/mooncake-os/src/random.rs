//! Random numbers from the kernel: names and keys that cannot be guessed.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// So many random bytes, at most 256.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    // So few are never given in part.
    const { assert!(N <= 256) };
    let mut out = [0; N];
    loop {
        match getrandom(&mut out, GetRandomFlags::empty()) {
            Err(Errno::INTR) => {}
            given => return given.map(|_| out).map_err(io::Error::from),
        }
    }
}

/// Bytes as every message names them: lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}
