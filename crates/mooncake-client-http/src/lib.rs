//! The HTTP server of a client: whether it is well, and what it has counted.
//! Paths and shapes are Mooncake's.
#![forbid(unsafe_code)]

mod pages;
mod server;

pub use server::ClientServer;
