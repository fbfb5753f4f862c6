//! How much of a trace of requests a pool of a size finds.
//!
//! Each size has a [`mooncake_core::Core`] of its own, the code that a master runs, with one segment. It is driven as
//! clients drive a master, at the times of the trace: blocks are looked up, the leading ones that are there are read,
//! and the rest is put. No bytes move, so that an hour of requests takes a second.
//!
//! A block takes one granule there, whatever it would take in memory: what counts is how many blocks a pool holds.
//!
//! ```
//! use mooncake_sizing::{Rules, Trace, point};
//!
//! # fn main() -> Result<(), mooncake_sizing::TraceError> {
//! let lines = r#"
//! {"timestamp": 0, "hash_ids": [1, 2, 3]}
//! {"timestamp": 9000, "hash_ids": [1, 2, 4]}
//! "#;
//! let trace = Trace::read(lines.as_bytes())?;
//! let room_for_all = point(&trace, &Rules::default(), trace.distinct());
//! assert_eq!((room_for_all.found, room_for_all.best), (2, 2));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod bound;
mod curve;
mod pool;
mod put;
#[cfg(test)]
mod testing;
mod trace;

pub use curve::{Point, Rules, least, point, points};
pub use trace::{LineFault, Request, Trace, TraceError};
