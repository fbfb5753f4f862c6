//! Memory of a store that outlives its process (docs/kept-memory.md; docs/safety.md, rule 26): its state, what holds
//! its descriptors, and how the next process comes to it.

mod adoption;
pub(crate) mod holder;
mod memory;
pub(crate) mod state;

pub use holder::{KeepOptions, MemoryHolder};

pub(crate) use adoption::{Adopted, Beginning, begin};
pub(crate) use memory::{KeptMemory, Reclaim};
