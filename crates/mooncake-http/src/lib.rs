//! What the HTTP servers of the pool have in common: how connections are taken
//! and cut, and what answers look like. Which pages there are is theirs to say.
#![forbid(unsafe_code)]

mod connections;
mod crowd;
#[cfg(any(test, fuzzing))]
pub mod decoders;
mod progress;
pub mod reply;

pub use connections::{Limits, Peer, accept, accept_counting};
pub use progress::Behind;
