//! The control protocol between clients and the master: messages, framing and the
//! connection preface. It knows what travels, not what it does.
//!
//! Every byte string decodes to [`bytes::Bytes`], a slice of the frame that
//! carried it, so that a batch of keys costs no allocation per key.
#![forbid(unsafe_code)]

mod feature;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod keys;
#[allow(missing_docs, clippy::all, reason = "prost writes it")]
pub mod message;
mod position;
mod preface;
mod request_kind;

pub use feature::{FEATURES, Feature};
pub use frame::{FRAME_BYTES_MAX, FrameError, FrameReader, HELLO_FRAME_BYTES_MAX, encode_frame};
pub use keys::{BATCH_MAX, KEY_BYTES_MAX, KeysError, UnpackedKeys, pack_keys, unpack_groups, unpack_keys};
pub use preface::{CONTROL_PREFACE, LANE_PREFACE, PREFACE_LEN, VERSION};
pub use request_kind::RequestKind;

/// How a master's reason begins where a put has no room as long as memory is being populated: that room comes of
/// itself.
pub const STILL_POPULATED: &str = "memory is still being populated";
