//! What engines say to each other and of themselves: Mooncake's handshake, data port and documents, and our frames
//! within a host.

pub(crate) mod connection;
pub(crate) mod handshake;
pub(crate) mod ids;
pub(crate) mod peer_name;
pub(crate) mod same_host;
pub(crate) mod segment_document;
pub(crate) mod tcp;
