//! Commands that look at a pool, and use it, from a shell.

pub mod bench;
pub mod objects;
pub mod pages;
pub mod status;
pub mod top;
pub mod values;
