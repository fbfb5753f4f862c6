//! The peers that an engine knows, the links to them, and the calls to them.

pub(crate) mod calls;
pub(crate) mod initiator;
pub(crate) mod link;
pub(crate) mod links;
pub(crate) mod peer;
pub(crate) mod registry;
pub(crate) mod unresponsive;
