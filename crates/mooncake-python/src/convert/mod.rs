//! What callers give, made into what Rust takes: a `TypeError` says what was expected.

pub(crate) mod buffers;
pub(crate) mod enums;
pub(crate) mod flag;
pub(crate) mod integer;
pub(crate) mod key;
pub(crate) mod sequence;
pub(crate) mod text;
pub(crate) mod value;
