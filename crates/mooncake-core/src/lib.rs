//! The deterministic heart of the master: objects, replicas, segments, puts,
//! lookups, pins, eviction and sessions, as a state machine without I/O,
//! clocks, threads or randomness of its own.
//!
//! Every operation is `op(&mut self, now, ...) -> outcome`, with what must be
//! logged, sent and woken appended to [`Effects`]. Every durable change goes
//! through one function that applies a [`Record`]; replay applies the same
//! records through the same function.
#![forbid(unsafe_code)]

mod apply;
mod clear;
mod clearing;
mod config;
mod core;
mod departure;
mod effect;
mod ending;
mod evicted;
mod eviction;
mod extents;
mod group;
mod ids;
mod index;
mod invariants;
mod listed_views;
mod lookup;
mod lru;
mod maxima;
mod membership;
mod object;
mod objects;
mod pin;
mod placement;
mod put;
mod put_aside;
mod put_end;
mod quarantine;
mod recheck;
mod reign;
mod remove;
mod replies;
mod request;
mod reservation;
mod room;
mod segment;
mod session;
mod slab;
mod snapshot;
mod snapshot_walk;
mod stats;
mod telling;
mod tick;
mod ticket;
mod waiting;
mod why_full;
mod work;

pub use apply::ReplayError;
pub use config::{Config, PlacementStrategy};
pub use core::Core;
pub use departure::Departure;
pub use effect::{Effects, Push, Record, RecordRef, To};
pub use eviction::EvictionPolicy;
pub use extents::{ExtentError, Extents};
pub use ids::{Extent, Replica, SegmentNo, Ticket, Time};
pub use listed_views::ListedViews;
pub use lookup::{Absent, FoundRef};
pub use lru::Lru;
pub use reign::Reign;
pub use remove::{Candidate, KeysCursor, RemoveAll};
pub use request::{
    EndOutcome, Ended, Found, Origin, PinKind, Populated, PutConfig, PutSlot, PutStarted, Refused, Remembered,
    RemoveOutcome, Resumed, SegmentSpec, SessionSpec,
};
pub use segment::{SegmentState, SegmentView};
pub use slab::{Link, Links, List};
pub use snapshot_walk::{AsideFull, SnapshotPart, SnapshotSlice, SnapshotWalk};
pub use stats::Stats;
pub use work::{REMOVED, STEP};
