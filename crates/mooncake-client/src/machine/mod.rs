//! The store's own logic, without I/O, clock, lock or thread: what it decides,
//! given what came from the master, from owners and from the caller.
//!
//! The store drives it with sockets and mapped memory, the simulator in
//! virtual time. Calls are written as futures over a driver. The store's
//! drivers block inside, so that its futures are ready when they are polled
//! first and a call stays on its caller's thread ([`ready`]); the
//! simulator's wait for the world.

pub mod get;
pub mod put;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future over a driver that blocks.
///
/// # Panics
///
/// Where the driver does not block: its future would have to be polled again.
pub fn ready<F: Future>(call: F) -> F::Output {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a driver that blocks has waited for all that the call needs"),
    }
}
