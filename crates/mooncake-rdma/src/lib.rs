//! RDMA between processes: network cards, memory that they know, and lanes between two of them.
//!
//! `mooncake-verbs` has the calls of the library; what is decided stands here, for the store and for the transfer
//! engine. The rule of it all: *a call returns when its queue pairs can touch none of its memory*, and a write that
//! failed is over when its end at the peer is destroyed.
#![forbid(unsafe_code)]

mod gid_choice;
mod lane;
mod nic;
mod options;
mod planner;
mod registered;
mod topology;
mod worker;

pub use gid_choice::Candidate;
pub use lane::carry::{CarryError, Reason, carry};
pub use lane::{Gone, Lane, Work};
pub use nic::{Nic, NicError, PeerEnd};
pub use options::RdmaOptions;
pub use planner::{RailState, SPREAD_BYTES_MIN, choose, request_bytes};
pub use registered::{Chunk, Registered};
pub use topology::Topology;
pub use worker::WorkerError;
