//! What a store decides, without I/O: no clock, no lock, no thread, no socket. The same inputs give the same outputs.
//!
//! The product drives these machines from its threads, under the locks that guard their data; the simulator drives them in
//! virtual time. They are reachable from outside for its sake alone and have no stable interface. Time comes in as the
//! duration since an origin that the driver chooses.

pub mod deaths;
pub mod orphans;
pub mod owner;
pub mod parts;
pub mod pins;
pub mod position;
pub mod progress;
pub mod questions;
pub mod reachability;
pub mod sequences;
pub mod session;
pub mod suspects;
pub mod wants;
