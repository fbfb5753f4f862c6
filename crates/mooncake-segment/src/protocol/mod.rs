//! What travels between an owner and its peers.

pub(crate) mod attach_stream;
pub(crate) mod frames;
