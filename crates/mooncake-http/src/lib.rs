//! What the HTTP servers of the pool have in common: how connections are taken
//! and cut, and what answers look like. Which pages there are is theirs to say.
#![forbid(unsafe_code)]

mod bind;
mod connection_table;
mod connections;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod progress;
pub mod reply;

pub use bind::{BindError, bind, bind_remedy};
pub use connections::{Limits, Peer, accept, accept_counting};
pub use progress::Behind;
