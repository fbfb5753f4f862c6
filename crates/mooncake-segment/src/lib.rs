//! Segments over the wire: an owner serves its memory, peers read, write
//! and view it by the best path there is.
//!
//! [`SegmentServer`] is the owner's side: one TCP listener for data lanes and
//! one abstract Unix socket that hands the sealed memory to same-host peers. It
//! also carries out fences and epochs, the two promises that let a master give
//! the same bytes out twice: nothing of the old writer can land any more.
//!
//! [`Links`] is a peer's side: one [`Link`] per segment, by the path
//! chosen when it was made ([`Path`]): the own process's memory, shared memory,
//! or TCP. Callers' threads do all the work of reads and writes themselves, on
//! blocking sockets; every wait ends by a deadline or at the caller's wish.
//!
//! Nothing here knows objects, keys or the master.
#![forbid(unsafe_code)]

mod alarm;
mod epoch;
mod error;
#[cfg(test)]
mod eventually;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod gate;
#[cfg(test)]
mod golden;
mod link;
mod link_events;
mod local;
mod protocol;
// For the simulation, which runs the same decisions in virtual time. It has no stable interface.
#[doc(hidden)]
pub mod machine;
mod rate;
mod readiness;
mod records;
mod server;

pub use epoch::Epoch;
pub use error::{LinkError, ServerError, TransferError, TwoEpochs, WriteError};
pub use link::{
    Link, LinkOptions, LinkReport, Links, Path, Paths, RecordFiles, RecordLanes, RecordRead, SegmentAddress, View,
};
pub use link_events::{EpochQuestion, LinkEvents};
pub use protocol::frames::Status;
pub use rate::RATE_MIN;
pub use records::{RecordAddress, RecordError, RecordPart, RecordReads, Records};
pub use server::{Fence, ProcessGone, SegmentServer, ServerEvents, ServerOptions};
