//! What the master decides, without sockets, threads, clocks, locks or files: the same code serves clients and runs in
//! a simulation, in virtual time.
//!
//! Each module takes what was decoded, the core and what it keeps beside the core, and the time, and gives what is to
//! be sent once the records are in the log. The tasks around them read and write connections, append to the log, watch
//! processes and count. This is for the simulation: it has no stable interface.

pub mod anchor_frames;
pub mod anchors;
pub mod commit;
pub mod convert;
pub mod core_driver;
pub mod delivery;
pub mod epoch_claim;
pub mod hello;
pub mod inspect;
pub mod pattern;
pub mod processes;
pub mod queries;
pub mod removals;
pub mod requests;
pub mod segment_list;
pub mod start;
#[cfg(test)]
mod testbed;
pub mod ticker;

/// Objects looked at in one step with the core, which is free between two of them.
pub const SLICE: usize = 512;
