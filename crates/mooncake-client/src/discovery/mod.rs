//! Where masters, storage nodes and this host's own addresses are.

pub(crate) mod listen_address;
pub(crate) mod masters;
pub(crate) mod resolver;
pub(crate) mod storage_node;
