//! Transfer engine: peers read and write each other's registered memory.
//!
//! An [`Engine`] owns one segment: the set of ranges that it has registered,
//! under its name. Another engine that knows the name writes to an address in
//! it, or reads from there, and no thread of the other program has to take
//! part: [`Engine::transfer`] in the caller's thread, [`Engine::submit`] in the
//! background.
//!
//! Bytes go by the best path to each peer, chosen when it is met: a copy within
//! the process, a copy to or from memory of a peer on this host that was made
//! to be shared and is mapped here, a copy between processes of one host (the
//! destination's side copies, so that no byte can land in a process that was
//! not meant), or TCP.
//! On TCP the engine speaks Mooncake's data protocol, and its handshake beside
//! it, so that engines of both kinds work together.
//!
//! ```
//! use mooncake_transfer_engine::{Engine, EngineOptions, Opcode, Request};
//! use mooncake_memory::ForeignRange;
//!
//! let target = Engine::new("127.0.0.1", EngineOptions::default())?;
//! let initiator = Engine::new("127.0.0.1", EngineOptions::default())?;
//! let mut there = vec![0u8; 4096];
//! let here = vec![7u8; 4096];
//! let addr = there.as_mut_ptr().expose_provenance();
//! // SAFETY: both live until the engines are closed, and nobody else uses them meanwhile.
//! let (there_range, here_range) = unsafe {
//!     (ForeignRange::new(addr, there.len()), ForeignRange::new(here.as_ptr().expose_provenance(), here.len()))
//! };
//! target.register(&[there_range], "*")?;
//! let peer = initiator.open(target.name())?;
//! let request = Request { opcode: Opcode::Write, local: here_range, remote: addr as u64 };
//! initiator.transfer(peer, &[request])?;
//! assert_eq!(there, here);
//! target.close()?;
//! # Ok::<(), mooncake_transfer_engine::EngineError>(())
//! ```
#![forbid(unsafe_code)]

mod batch;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
#[cfg(test)]
mod golden;
mod link_report;
mod local_node;
mod memory;
mod metadata;
mod notify;
mod options;
mod peers;
mod protocol;
mod request;
mod server;
mod shared_segment;
mod transport;

pub use batch::{BatchId, Status, TaskStatus};
pub use engine::{Engine, Registered};
pub use error::EngineError;
pub use link_report::LinkReport;
pub use metadata::{HttpMetadata, Metadata};
pub use mooncake_rdma::Topology;
pub use notify::Notify;
pub use options::{EngineOptions, Protocol};
pub use request::{Opcode, PeerId, Request};
pub use shared_segment::SharedSegment;
