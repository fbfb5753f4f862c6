//! RDMA verbs: network cards that read and write memory of other hosts without their processors.
//!
//! The library of the host, `libibverbs.so.1`, is loaded when [`Library::load`] is first called, and never linked: a
//! process that asks for no RDMA loads nothing. What is here is its table of calls and *owners* of what it gives out,
//! each of which keeps alive what it stands on:
//!
//! ```text
//! Library -> Device -> Context -> Domain -> Region          memory that a card may touch
//!                         |          \----> QueuePair       one end of a connection
//!                         \-------> CompletionQueue         where it tells what is done
//! ```
//!
//! Nothing here decides: which device, when a connection is given up, whether memory can be given back are questions
//! of its users.
//!
//! **Forks.** A child has copies of these owners that name its parent's objects. Every call of it is refused
//! ([`VerbsError::Forked`]), and dropping a copy does nothing.

pub mod abi;
mod completion_queue;
mod context;
mod device;
mod domain;
mod error;
mod event;
mod forks;
mod gid;
mod library;
mod queue_pair;
mod region;
mod request;

pub use completion_queue::{Completion, CompletionQueue, Completions, Status};
pub use context::{Context, DeviceLimits, LinkLayer, Mtu, Port, PortState};
pub use device::{Device, devices};
pub use domain::Domain;
pub use error::{LoadError, PostError, VerbsError};
pub use event::{Event, EventKind, Subject};
pub use forks::keep_from_children;
pub use gid::Gid;
pub use library::Library;
pub use queue_pair::{Connection, QueuePair, QueuePairOptions};
pub use region::{Access, Piece, Region};
pub use request::{Chain, Local, Operation, Remote, Request};
