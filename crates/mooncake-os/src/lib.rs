//! What a process asks of its kernel: forks, processes, descriptors, threads and random bytes; and how its threads
//! wait: until a deadline, for a permit, for a call that no caller can end.
//!
//! Nothing here knows a protocol, a socket's peer or the memory of a segment. With `mooncake-memory` it is the one
//! crate of the tree (besides the FFI edges) with `unsafe` in it.

mod about;
mod blocking_pool;
mod deadline;
mod descriptor_limit;
mod error;
mod fd_passing;
mod fork;
mod heap;
mod numa;
mod own_file;
mod passed_fds;
mod permits;
mod process;
mod random;
mod sigpipe;
pub mod thread;
mod waker;

pub use about::AboutProcess;
pub use blocking_pool::{BlockingError, BlockingPool};
pub use deadline::{Deadline, WaitError};
pub use descriptor_limit::{
    DESCRIPTORS_OF_OTHERS_MAX, descriptor_limit, is_short_of_descriptors, raise_descriptor_limit,
};
pub use error::ProcessError;
pub use fd_passing::{PeerCredentials, peer_credentials, peer_pidfd, recv_fds, send_fds};
pub use fork::{Guarded, forked, watch_forks};
pub use heap::{keep_frees_short, trim_heap};
pub use numa::prefer_numa_node;
pub use own_file::{Lock, OwnFile};
pub use passed_fds::passed_fds;
pub use permits::{Permit, Permits};
pub use process::{ProcessIdentity, boot_id, has_exited};
pub use random::{hex, random_bytes};
pub use sigpipe::NoSignal;
pub use waker::Waker;
