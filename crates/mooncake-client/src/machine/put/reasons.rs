//! Why keys of a request were not placed.

use mooncake_wire::message::{PutSlot, put_slot};

use crate::error::Cause;

/// What a master said of the keys of one request. Of a kind it says it once, in the first of them; earlier versions say
/// it of each key that is too large or busy.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    full: String,
    too_large: String,
}

impl Reasons {
    /// Why the key of a slot, with a value of so many bytes, was not placed. `None` if it was, or if the slot says
    /// nothing that a master can say.
    pub fn cause(&mut self, slot: PutSlot, bytes: u64) -> Option<Cause> {
        let kind = slot.kind();
        let said = |said: &mut String, reason: String| {
            if !reason.is_empty() {
                *said = reason;
            }
            said.clone()
        };
        Some(match kind {
            put_slot::Kind::Exists => Cause::Exists,
            put_slot::Kind::Full => Cause::NoSpace { bytes, reason: said(&mut self.full, slot.reason) },
            put_slot::Kind::TooLarge => Cause::TooLarge { bytes, reason: said(&mut self.too_large, slot.reason) },
            // Which put it is is another one for each key.
            put_slot::Kind::Busy if slot.reason.is_empty() => Cause::Busy { reason: "by another put".to_owned() },
            put_slot::Kind::Busy => Cause::Busy { reason: slot.reason },
            put_slot::Kind::Refused => Cause::PutRefused { bytes, reason: slot.reason },
            put_slot::Kind::Placed | put_slot::Kind::Unspecified => return None,
        })
    }

    /// What the master said of keys without room.
    pub fn full(&self) -> &str {
        &self.full
    }
}
