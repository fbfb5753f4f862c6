//! What the HTTP servers of the pool have in common: how they take and cut connections, and what answers look like.
//! Each server says which pages there are.
#![forbid(unsafe_code)]

mod bind;
mod connection_table;
mod connections;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
pub mod page;
mod problem;
mod progress;
pub mod reply;

pub use bind::{BindError, bind, bind_remedy};
pub use connections::{Limits, Peer, accept, accept_counting};
pub use problem::{Problem, Severity};
pub use progress::Behind;
