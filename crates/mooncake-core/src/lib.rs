//! The deterministic heart of the master: objects, replicas, segments, puts,
//! lookups, pins, eviction and sessions, as a state machine without I/O,
//! clocks, threads or randomness of its own.
//!
//! Every operation is `op(&mut self, now, ...) -> outcome`, with what must be
//! logged, sent and woken appended to [`Effects`]. Every durable change goes
//! through one function that applies a [`Record`]; replay applies the same
//! records through the same function.
//!
//! A writer that lends a segment, puts an object and looks it up; and what a log would bring back of that:
//!
//! ```
//! use mooncake_core::*;
//! use mooncake_ids::SegmentUuid;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (now, mut log, mut core) = (Time(0), Vec::new(), Core::new(Config::default()));
//! let mut fx = Effects::default();
//! core.begin(now, None, &mut fx);
//!
//! let spec = SessionSpec { secret: 1, name: "host:1".into(), boot_id: Vec::new(), process: Vec::new() };
//! let session = core.open_session(now, spec, &mut fx)?;
//! let origin = |sequence| Origin { session, sequence, answered_below: sequence };
//! let (uuid, bytes) = (SegmentUuid([7; 16]), 1 << 20);
//! let spec = SegmentSpec { uuid, name: "host:1".into(), bytes, endpoint: Vec::new() };
//! core.mount(now, origin(1), spec, bytes, &mut fx)?;
//!
//! // A place for 3,000 bytes, written by the client, and then an object.
//! let wanted: [(&[u8], u64); 1] = [(b"key", 3_000)];
//! let started = core.put_start(now, origin(2), &wanted, &PutConfig::default(), false, &mut fx)?;
//! let PutStarted::Now(outcomes) = started else { panic!("there is room") };
//! let StartOutcome::Placed(replicas) = &outcomes[0] else { panic!("there is room") };
//! let whole = replicas.iter().map(|replica| (replica.rid, true)).collect();
//! let ended = core.put_end(now, origin(3), &[Ended { replicas: whole, crc32c: 0x1234_5678, stays: false }], &mut fx)?;
//! assert_eq!(ended, [EndOutcome::Committed]);
//!
//! let mut found = Vec::new();
//! core.lookup(now, session, [&b"key"[..]].into_iter(), |object| found.push(object.map(|it| it.size).ok()));
//! assert_eq!(found, [Some(3_000)]);
//!
//! // The shell has logged what was done, and is started again.
//! log.append(&mut fx.records);
//! let mut again = Core::new(Config::default());
//! for record in log {
//!     again.replay(record)?;
//! }
//! assert_eq!(durable(&mut again)?, durable(&mut core)?);
//! # Ok(())
//! # }
//!
//! /// All that a snapshot has.
//! fn durable(core: &mut Core) -> Result<Vec<Record>, AsideFull> {
//!     let mut records = Vec::new();
//!     core.begin_snapshot();
//!     while let Some(slice) = core.snapshot_slice(STEP_OBJECTS)? {
//!         records.extend(slice.records.into_iter().flatten());
//!     }
//!     core.end_snapshot();
//!     Ok(records)
//! }
//! ```
#![forbid(unsafe_code)]

mod config;
mod core;
mod durable;
mod effect;
mod ensure;
mod epoch;
mod eviction;
mod ids;
mod operations;
mod record;
mod request;
mod slab;
mod state;
mod touched;
mod work;

pub use config::{Config, Offload, PlacementStrategy, Promotion, SharedStorage};
pub use core::Core;
pub use durable::error::ReplayError;
pub use durable::snapshot_walk::{AsideFull, SnapshotSlice};
pub use effect::{Effects, Push, To};
pub use epoch::Epoch;
pub use eviction::EvictionPolicy;
pub use eviction::lru::Lru;
pub use ids::{Extent, Replica, SegmentNo, Ticket, Time};
pub use operations::clients::ClientView;
pub use operations::listed_views::ListedViews;
pub use operations::lookup::{Absent, FoundRef};
pub use operations::objects::{ObjectView, PinView, PlaceView};
pub use operations::orders::{OrdersAnswered, Written};
pub use operations::promote::Promoted;
pub use operations::remove::{Candidate, KeysCursor, RemoveAll};
pub use operations::stats::Stats;
pub use operations::tiers::{TierMount, TierMounted, TierState, TierView};
pub use record::{Record, RecordRef};
pub use request::{
    Claim, EndOutcome, Ended, Found, Inherited, Keep, Origin, PinKind, Populated, PutConfig, PutStarted, Refused,
    Remembered, RemoveOutcome, Resumed, SegmentSpec, SessionSpec, Sight, StartOutcome, TierSpec, Verdict,
};
pub use slab::{Link, Links, List};
pub use state::counters::Counters;
pub use state::departure::Departure;
pub use state::extents::{ExtentError, Extents};
pub use state::segment::{SegmentState, SegmentView};
pub use state::snapshot_walk::{SnapshotPart, SnapshotWalk};
pub use state::tier::{FileCounts, TierProof};
pub use state::tier_stats::{TierEngine, TierOperations, TierStats};
pub use work::{REMOVAL_SLOTS, STEP_OBJECTS};
