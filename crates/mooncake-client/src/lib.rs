//! Client of the KV-cache pool: put, get, exists, remove, and views over the
//! pool's memory.
//!
//! A [`Store`] is one client. With a `global_segment_size` it also lends that
//! much memory to the pool. Calls block the calling thread only, do their own
//! I/O on it, and end by a deadline. They take lists; `put`, `upsert` and `get`
//! have a form for one key.
//!
//! ```no_run
//! use mooncake_client::{PutOptions, Source, Store, StoreOptions};
//!
//! # fn main() -> Result<(), mooncake_client::StoreError> {
//! let mut options = StoreOptions::new("localhost", "localhost:50051").from_env()?;
//! options.global_segment_size = 1 << 30;
//! let store = Store::connect(options)?;
//!
//! let block = vec![7u8; 256 << 10];
//! store.put(b"block/7", &[Source::new(&block)], &PutOptions::default())?;
//! assert_eq!(store.get(b"block/7")?.as_deref(), Some(&block[..]));
//!
//! // In place, without a copy where the memory is on this host.
//! for view in store.view(&["block/7"]) {
//!     if let Some(bytes) = view? {
//!         assert_eq!(bytes[..], block[..]);
//!     }
//! }
//! store.close();
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! * A get gives the bytes of the object or a miss, never other bytes: stamps
//!   beside the memory and a checksum over the whole object say which.
//! * A replica that cannot be read is skipped for the next; when none is left,
//!   that is a miss. [`Store::last_miss_cause`] says why.
//! * A put either stores the whole object or fails with a reason. The first
//!   writer of a key wins; the others learn that it [existed](PutOutcome::Existed).
//!   An upsert replaces.
//! * A master that is away costs one deadline, then calls fail at once until it
//!   answers again. The session, its memory and its objects outlast that.
//! * In a forked child every call refuses ([`ErrorKind::Forked`]).
#![forbid(unsafe_code)]

mod anchor;
mod call;
mod connection_error;
mod descriptors;
mod discovery;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod inner;
mod kept;
mod key;
#[doc(hidden)]
pub mod machine;
mod metrics;
mod options;
mod process;
mod report;
#[cfg(test)]
mod scripted_master;
mod segment_id;
mod segments;
mod session;
mod size;
mod store;
mod tier;
mod tier_metrics;
mod transfer_error;

pub use call::describe::{ReplicaDescriptor, ReplicaKind, ReplicaStatus};
pub use call::get::{GetInto, Receive};
pub use call::put::PutItem;
pub use call::put_session::{PutRanges, WriteRange};
pub use call::query::RemoveOutcome;
pub use call::ranges::{GetRanges, RangeOutcome, ReadRange};
pub use call::refused::Refused;
pub use call::view::View;
pub use discovery::masters::masters;
pub use discovery::storage_node::{NodeInfo, NodeInfoPort, NodeInfoServer};
pub use error::{Cause, ErrorKind, StoreError};
pub use kept::{KeepOptions, MemoryHolder};
pub use machine::put::PutOutcome;
pub use metrics::reference_page as metrics_page;
pub use mooncake_memory::{Destination, ForeignRange, Registry, RunsOut, Source};
pub use mooncake_segment::{LinkReport, Path};
pub use options::{InterruptHook, PinKind, PutOptions, SharedTier, StoreOptions, TierOptions};
pub use segment_id::SegmentId;
pub use session::master_info::{MasterInfo, MasterPages};
pub use size::{SizeError, parse_size};
pub use store::{Health, Store};
