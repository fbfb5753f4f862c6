//! Keys that objects can have.

use mooncake_wire::MAX_KEY;

use crate::error::{Cause, StoreError};

/// Whether an object can have this key.
pub(crate) fn check_key(key: &[u8]) -> Result<(), StoreError> {
    match key.len() {
        1..=MAX_KEY => Ok(()),
        length => Err(Cause::InvalidKey { length, limit: MAX_KEY }.into()),
    }
}
