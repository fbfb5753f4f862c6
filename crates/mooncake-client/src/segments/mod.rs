//! Segments: those that a store lends, and the links to those of others.

pub(crate) mod directory;
pub(crate) mod links;
pub(crate) mod owner;
pub(crate) mod owner_events;
pub(crate) mod server;
pub(crate) mod suspects;
