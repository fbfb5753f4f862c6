//! Which instance a request goes to.

pub(crate) mod prefix;
pub(crate) mod scheduling;
pub mod simulation;
