//! The servers behind the proxy: their addresses, their fleets, and one request to one of them.

pub(crate) mod address;
pub(crate) mod fleet;
pub(crate) mod instance;
pub(crate) mod peer_to_peer;
pub(crate) mod upstream;
