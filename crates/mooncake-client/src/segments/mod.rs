//! Segments: the ones that a store lends, and links to the ones that others lend.

pub(crate) mod direct_reads;
pub(crate) mod directory;
pub(crate) mod links;
pub(crate) mod owner;
pub(crate) mod owner_events;
pub(crate) mod replica_reports;
pub(crate) mod server;
