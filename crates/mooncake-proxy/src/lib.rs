//! Front door of disaggregated inference.
//!
//! Some servers compute prompts (prefill), others generate (decode). For each request the proxy asks a prefill instance
//! for a single token, so that the prompt's KV cache is there: in the pool, or at that instance, to be fetched from it.
//! Then a decode instance answers, and the proxy passes its answer on as it comes.
//!
//! ```text
//! client -> admission -> prefill: one token -> decode: the request -> relay -> client
//!             (queue)      (another one, then      (another one, until
//!                           without)                the first byte)
//! ```
#![forbid(unsafe_code)]

mod access_log;
mod admin;
mod admission;
mod body;
mod check;
mod counts;
mod fault;
mod forward;
mod history;
mod instances;
mod options;
mod problems;
mod proxy;
mod request;
pub mod routing;
mod server;
mod status;
mod usage;

pub use counts::metrics_page;
pub use instances::address::{InstanceAddress, NoAddress};
pub use instances::instance::Kind;
pub use options::ProxyOptions;
pub use routing::scheduling::Scheduling;
pub use server::{ProxyServer, StartError};
