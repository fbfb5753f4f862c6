//! What outlives the master: records applied, and snapshots of the whole.

pub(crate) mod apply;
pub(crate) mod error;
pub(crate) mod put_aside;
pub(crate) mod replay;
pub(crate) mod snapshot;
pub(crate) mod snapshot_walk;
