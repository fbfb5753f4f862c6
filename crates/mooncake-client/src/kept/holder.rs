//! Who holds the descriptors of memory while no process owns it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Holds descriptors from one process to the next: a service manager, or a keeper.
pub trait MemoryHolder: Send + Sync {
    /// What it holds by now, each with its name: what an earlier process gave. Asked for first of all; again where that
    /// came to nothing.
    fn held(&self) -> io::Result<Vec<(String, OwnedFd)>>;

    /// The process has begun: [`MemoryHolder::held`] is asked no more.
    fn begun(&self);

    /// Gives it a descriptor, in the place of all that it holds under that name.
    fn hold(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Has it let go of what it holds under a name.
    fn let_go(&self, name: &str) -> io::Result<()>;

    /// Whether it holds what it was given; asked once a second. One that has ended and was started again holds nothing.
    fn is_there(&self) -> bool;
}

/// A store's memory is to outlive its process.
#[derive(Clone)]
pub struct KeepOptions {
    /// How long the master waits for the next process.
    pub time: Duration,
    /// What has the memory meanwhile.
    pub holder: Arc<dyn MemoryHolder>,
}

impl std::fmt::Debug for KeepOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeepOptions").field("time", &self.time).finish_non_exhaustive()
    }
}
