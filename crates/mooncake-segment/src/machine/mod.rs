//! What is decided here, apart from the sockets, threads, clocks and locks that carry it out.
//!
//! These are state machines: the same inputs give the same outputs. Time is a [`std::time::Duration`] since a time
//! origin that the driver chooses. In the product the drivers are the files beside this folder; in virtual time it is
//! the simulation. For that this module can be reached from outside; it has no stable interface.

#[cfg(test)]
mod fixture;
mod gate;
mod insiders;
mod least_epoch;
mod link_book;
mod owner;
mod peer;
mod remains;
#[cfg(test)]
mod together;

pub use crate::protocol::frames::{Frame, Op};
pub use gate::{Denied, Gate, Stamps, Writes};
pub use insiders::Insiders;
pub use least_epoch::LeastEpoch;
pub use link_book::{LinkBook, Look, Permit, Unwanted};
pub use owner::{Elders, Fence, Newcomer, Output, Owner, ProcessGone, Segment, Tenure};
pub use peer::{DETACHED, Heard, Peer, WritePermission};
pub use remains::Remains;
