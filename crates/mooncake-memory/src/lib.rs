//! Sealed shared-memory segments, stamps and verified copies.
//!
//! A segment is a sealed memfd of its owner with a control memfd beside it that holds one 8-byte stamp per
//! [granule](mooncake_ids::GRANULE). A process that has both descriptors maps them once ([`Mapping`]) and copies
//! directly. The stamps decide afterwards whether a copy is the object that was asked for.
//!
//! `unsafe` stands here, in `mooncake-os`, at the FFI edges and in the fake driver of `mooncake-test-support`. Memory
//! that is shared with other processes is touched here and nowhere else. So is memory of a caller that we cannot trust
//! to keep it mapped.

mod addresses;
mod caller;
mod copy;
mod device;
mod error;
mod file;
mod private_pages;
mod range;
mod sealed_file;
mod segment;
mod shared;
mod socket_io;
mod splice;

pub use addresses::{AddressHold, hold_addresses};
pub use caller::bounce::Bounce;
pub use caller::neighbours::Neighbours;
pub use caller::piece::{
    Destination, Source, copy_for_disk, crc_of_destinations, crc_of_sources, fill_destinations, split_destinations,
    split_sources, total_of_destinations, total_of_sources,
};
pub use caller::reach::{Bounds, RunsOut, check_reach};
pub use caller::recycled::Recycled;
pub use caller::registry::Registry;
pub use copy::checksum::{copy_and_sum, crc32c, crc32c_append, crc32c_combine};
pub use device::wait_for_stream;
pub use error::{CopyError, DeviceError, MemoryError, ReadError, RegisterError};
pub use private_pages::PrivatePages;
pub use range::ForeignRange;
pub use sealed_file::SealedFile;
pub use segment::mapping::{Expect, Mapping, Verify};
#[doc(hidden)]
pub use segment::order;
pub use segment::presence::Presence;
pub use segment::tenure::{TenureLock, TenureLocks, TenureUse};
pub use segment::view::MappedView;
pub use segment::{SegmentMemory, SegmentOptions};
pub use shared::access_page::{AccessGuard, AccessPage, AccessPageView, CopyGuard, OngoingAccess};
pub use shared::allocator::{
    SharedBlock, allocate_huge, allocate_shared, free_host_memory, leak_shared, prefer_huge_pages, shared_block,
    shared_block_file,
};
pub use shared::common_memory::CommonMemory;
pub use shared::peer_memory::PeerMemory;
pub use shared::peer_process::{PeerProcess, PullError};
pub use shared::revision_page::{RevisionPage, RevisionPageView};
pub use socket_io::{recv_destinations, send_sources};
pub use splice::Splice;
