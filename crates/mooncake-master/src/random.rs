//! Random numbers from the kernel: secrets and ids.

/// Sixteen random bytes. No master runs without them.
pub fn bytes() -> [u8; 16] {
    mooncake_os::random_bytes().unwrap_or_else(|error| panic!("the kernel gives no random bytes: {error}"))
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
