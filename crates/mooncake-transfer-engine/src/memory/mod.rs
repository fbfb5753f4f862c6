//! The memory that an engine has registered, and the processes of the host that map it.

pub(crate) mod active_access;
pub(crate) mod buffers;
pub(crate) mod mappable;
pub(crate) mod mappers;
pub(crate) mod peer_identity;
