//! Memory that processes of one host share besides segments: callers' blocks, and the pages by which engines agree on
//! them.

pub(crate) mod access_page;
pub(crate) mod allocator;
pub(crate) mod common_memory;
pub(crate) mod hatch;
pub(crate) mod peer_memory;
pub(crate) mod peer_process;
pub(crate) mod revision_page;
