//! What a store decides, without I/O: no clock, no lock, no thread, no socket. The same inputs give the same outputs.
//!
//! The product drives these machines from its threads, under the locks that guard their data; the simulation drives
//! them in virtual time. They are reachable from outside for its sake alone and have no stable interface. Time comes in
//! as the duration since a time origin that the driver chooses.
//!
//! What a call of a store does is written as a future over a driver. The product's drivers block inside, so that its
//! futures are ready when they are polled first and a call stays on its caller's thread ([`ready`]); the simulation's
//! wait for the world.

pub mod anchor_context;
pub mod call;
pub mod deaths;
pub mod directory;
pub mod filling;
pub mod get;
pub mod get_session;
pub mod inheritance;
pub mod lending;
pub mod numbering;
pub mod orphans;
pub mod owner;
pub mod pins;
pub mod position;
pub mod progress;
pub mod put;
pub mod put_session;
pub mod questions;
pub mod reachability;
pub mod replica_reports;
pub(crate) mod rounds;
pub mod sequences;
pub mod session;
pub mod view;
pub mod wants;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future over a driver that blocks.
///
/// # Panics
///
/// Where the driver does not block: its future would have to be polled again.
#[inline]
pub fn ready<F: Future>(call: F) -> F::Output {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a driver that blocks has waited for all that the call needs"),
    }
}
