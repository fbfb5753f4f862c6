//! Keys that objects can have.

use std::fmt;

use mooncake_wire::KEY_BYTES_MAX;

use crate::error::{Cause, StoreError};

/// Refuses a key that no object can have.
pub(crate) fn check_key(key: &[u8]) -> Result<(), StoreError> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        length => Err(Cause::InvalidKey { length, limit: KEY_BYTES_MAX }.into()),
    }
}

/// A key as errors show it: in quotes, with quotes and control characters escaped and bytes that are not UTF-8
/// replaced; of a long one the first 128 bytes.
pub(crate) struct ShownKey<'a>(pub &'a [u8]);

/// Bytes of a key that an error shows.
const SHOWN_MAX: usize = 128;

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_MAX)];
        write!(f, "key {:?}", String::from_utf8_lossy(shown))?;
        if shown.len() < self.0.len() { write!(f, "... of {} bytes", self.0.len()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_a_key_whatever_its_bytes_and_however_long_it_is() {
        assert_eq!(ShownKey(b"a\"b\n\xff").to_string(), "key \"a\\\"b\\n\u{fffd}\"");
        assert_eq!(ShownKey(&[b'k'; SHOWN_MAX]).to_string(), format!("key \"{}\"", "k".repeat(SHOWN_MAX)));
        let long = ShownKey(&[b'k'; KEY_BYTES_MAX]).to_string();
        assert_eq!(long, format!("key \"{}\"... of 65536 bytes", "k".repeat(SHOWN_MAX)));
    }
}
