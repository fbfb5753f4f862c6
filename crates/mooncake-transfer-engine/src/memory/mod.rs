//! The memory that an engine has registered, and who of the host is at it.

pub(crate) mod buffers;
pub(crate) mod mappable;
pub(crate) mod mappers;
pub(crate) mod peer_identity;
