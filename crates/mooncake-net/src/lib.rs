//! Blocking sockets, whatever is sent over them: waiting for bytes, awake at first, and what a TCP connection within a
//! host is told.
#![forbid(unsafe_code)]

mod spin;
mod tcp;

pub use spin::{
    Habit, MOMENT, busy_poll, busy_poll_behind, has_hung_up, is_readable, recv_awake, recv_awake_behind, turns,
};
pub use tcp::{stays_within_host, unpace};
