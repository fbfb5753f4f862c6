//! The deterministic heart of the master: objects, replicas, segments, puts,
//! lookups, pins, eviction and sessions, as a state machine without I/O,
//! clocks, threads or randomness of its own.
//!
//! Every operation is `op(&mut self, now, ...) -> outcome`, with what must be
//! logged, sent and woken appended to [`Effects`]. Every durable change goes
//! through one function that applies a [`Record`]; replay applies the same
//! records through the same function.
#![forbid(unsafe_code)]

mod config;
mod effect;
mod ids;
mod request;

pub use config::{Config, PlacementStrategy};
pub use effect::{Effects, Push, Record};
pub use ids::{Extent, GRANULE, Replica, Rid, SegmentNo, SegmentUuid, SessionId, Ticket, Time};
pub use request::{
    EndOutcome, Ended, Found, Origin, PinKind, PutConfig, PutSlot, PutStarted, Refused, Remembered, RemoveOutcome,
    SegmentSpec, SessionSpec,
};
