//! The master of a KV-cache pool: a thin shell around `mooncake-core`.
//!
//! It decodes requests, takes the core's lock once per batch, applies them,
//! appends what changed to the log, and replies, all in the task of the
//! connection. Objects' bytes never come near it.
//!
//! [`serve`] runs a master inside a tokio runtime.
#![forbid(unsafe_code)]

mod births;
mod call_loops;
mod clients;
mod committer;
mod connections;
mod control;
mod events;
#[cfg(test)]
mod eventually;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod history;
mod http;
#[doc(hidden)]
pub mod log;
mod log_opening;
mod lost_log;
// For the simulation, without a stable interface.
#[doc(hidden)]
pub mod machine;
mod master;
mod metrics;
mod peer;
mod problems;
mod process_watch;
mod pulse;
mod random;
mod reading;
mod removal;
mod replaying;
mod routes;
mod settings;
mod shared;
mod state;
mod status;
mod ticker;

pub use connections::Limits;
pub use events::Events;
pub use log::LogError;
pub use master::{Master, StartError, serve};
pub use metrics::reference_page as metrics_page;
pub use settings::{LogFolder, Settings, Wal, address, resolve, state_folder};
pub use state::{LeftWitness, State, StateFolder};
