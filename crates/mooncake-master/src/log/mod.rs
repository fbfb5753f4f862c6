//! The log: every change of durable state, appended before its reply.
//!
//! `docs/log-format.md` describes the files. One operation is one frame; the
//! task that made it writes it, together with whatever others have queued by
//! then (group commit). A snapshot replaces old log files in the background.

mod anew;
mod compactor;
mod error;
mod files;
mod folder;
pub mod frame;
#[cfg(test)]
mod golden;
mod recovery;
mod replay;
mod snapshot;
mod step;
mod witness;
mod writer;

pub use anew::{Begun, begin_anew};
pub use compactor::{Compactor, Living, SNAPSHOT_SLICE};
pub use error::LogError;
pub use files::{FileHeader, FileKind};
pub use folder::Folder;
pub use recovery::{Recovered, log_id_of, recover};
pub use replay::{Progress, Replay};
pub use snapshot::SnapshotFile;
#[cfg(any(test, fuzzing))]
pub use snapshot::read as read_snapshot;
pub use witness::{FoundWitness, Witness};
pub use writer::{Log, LogClosed, LogReading, LogStats, Sink};
