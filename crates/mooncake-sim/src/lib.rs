//! The product's own logic in virtual time: many clients, owners and readers, masters with logs, and a world in which
//! processes freeze and die, messages are lost, connections break, logs lose their ends, and callers close stores, give
//! up and fork.
//!
//! What decides is the product's: the pool's core, and the machines of the master, of a store's session, calls, links
//! and segments, and of both sides of an attachment. What moves bytes and messages between them is this crate's, one
//! small step at a time, in one thread, and a model: a way to a segment is mapped or a lane by where it is alone, lanes
//! carry one write or read each, stamps and bytes are words in the order in which one processor would see them, and
//! files, sockets, device memory and other paths are not there. Everything follows from a seed, so that a failure can
//! be run again.
#![forbid(unsafe_code)]

mod attachment;
mod dice;
mod disk;
mod master;
mod memory;
mod mix;
mod network;
mod pipe;
mod schedule;
mod server;
mod snapshots;
mod store;
mod verdict;
mod whims;
mod world;

pub use dice::Dice;
pub use disk::{Folder, Host};
pub use master::{FromMaster, Master, ToMaster};
pub use memory::ledger::Ledger;
pub use network::{Masters, Network};
pub use pipe::{Closed, Receiver, Sender, pipe};
pub use schedule::{Plan, Sum};
pub use store::calls::{IfUnanswered, NoAnswer};
pub use store::puts::{Item, Options};
pub use store::views::Borrowed;
pub use store::{Store, Tally};
pub use whims::Whimsical;
pub use world::{HostId, ProcessId, Slot, TaskId, World};
