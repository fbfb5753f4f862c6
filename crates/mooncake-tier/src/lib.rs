//! Tiers: objects in append-only files of a folder.
//!
//! An address is written once, and a record proves by itself what it is: what the files hold is read as it is found,
//! and the master's log alone says what exists.
#![deny(unsafe_code)]

pub mod address;
pub(crate) mod adopted;
pub mod appender;
pub mod contents;
pub mod disk_times;
pub(crate) mod filling;
pub mod footer;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
#[cfg(test)]
mod golden;
pub mod health;
pub(crate) mod held;
pub mod io_counts;
pub mod medium;
pub(crate) mod order;
pub mod owner;
pub(crate) mod proof;
pub(crate) mod rate;
pub mod reader;
pub mod record;
pub mod slots;
pub mod superblock;
pub mod tier;
