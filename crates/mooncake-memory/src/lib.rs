//! Sealed shared-memory segments, stamps and verified copies.
//!
//! A segment is a sealed memfd of its owner with a control memfd beside it that
//! holds one 8-byte stamp per [`GRANULE`]. Whoever has both descriptors maps
//! them once ([`Mapping`]) and copies directly; the stamps decide afterwards
//! whether a copy is the object that was asked for. With `mooncake-os` this is the one
//! crate of the tree (besides the FFI edges) with `unsafe` in it: everything that is
//! shared with other processes, or that belongs to a caller we cannot trust to
//! keep it mapped, is touched here and nowhere else.

mod board;
mod checksum;
mod common_memory;
mod device;
mod error;
mod file_range;
mod foreign;
mod hatch;
mod host_memory;
mod kernel;
mod layout;
mod lending;
mod limits;
mod mapped;
mod mapping;
mod memfd;
mod neighbours;
#[doc(hidden)]
pub mod order;
mod passage;
mod peer_memory;
mod peer_process;
mod piece;
mod presence;
mod reach;
mod recycled;
mod registry;
mod segment;
mod socket_io;
mod stamps;
mod view;

pub use board::{Board, BoardView};
pub use checksum::{crc32c, crc32c_append, crc32c_combine};
pub use common_memory::CommonMemory;
pub use device::{Bounce, DeviceError, wait_for_stream};
pub use error::{CopyError, MemoryError, ReadError, RegisterError};
pub use host_memory::{
    SharedBlock, allocate_huge, allocate_shared, free_host_memory, leak_shared, prefer_huge_pages, shared_block,
    shared_block_file,
};
pub use lending::Lending;
pub use mapping::{Expect, Mapping, Verify};
pub use neighbours::Neighbours;
pub use passage::{Copying, Passage, PassageView, Visit, Visiting};
pub use peer_memory::PeerMemory;
pub use peer_process::{PeerProcess, PullError};
pub use piece::{
    ForeignRange, Source, Target, crc_of_sources, crc_of_targets, split_sources, split_targets, total_of_sources,
    total_of_targets,
};
pub use presence::Presence;
pub use reach::{Bounds, RunsOut, check_reach};
pub use recycled::Recycled;
pub use registry::Registry;
pub use segment::{SegmentMemory, SegmentOptions};
pub use socket_io::{recv_targets, send_sources};
pub use view::MappedView;
