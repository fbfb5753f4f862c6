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
mod core;
mod durable;
mod effect;
mod ensure;
mod eviction;
mod ids;
mod operations;
mod record;
mod reign;
mod request;
mod slab;
mod state;
mod touched;
mod work;

pub use config::{Config, PlacementStrategy};
pub use core::Core;
pub use durable::error::ReplayError;
pub use durable::snapshot_walk::{AsideFull, SnapshotSlice};
pub use effect::{Effects, Push, To};
pub use eviction::EvictionPolicy;
pub use eviction::lru::Lru;
pub use ids::{Extent, Replica, SegmentNo, Ticket, Time};
pub use operations::listed_views::ListedViews;
pub use operations::lookup::{Absent, FoundRef};
pub use operations::remove::{Candidate, KeysCursor, RemoveAll};
pub use operations::stats::Stats;
pub use record::{Record, RecordRef};
pub use reign::Reign;
pub use request::{
    EndOutcome, Ended, Found, Origin, PinKind, Populated, PutConfig, PutSlot, PutStarted, Refused, Remembered,
    RemoveOutcome, Resumed, SegmentSpec, SessionSpec,
};
pub use slab::{Link, Links, List};
pub use state::counters::Counters;
pub use state::departure::Departure;
pub use state::extents::{ExtentError, Extents};
pub use state::segment::{SegmentState, SegmentView};
pub use state::snapshot_walk::{SnapshotPart, SnapshotWalk};
pub use work::{REMOVED, STEP};
