//! Wakes a thread out of `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mooncake_os::{Guarded, forked};
use rustix::event::{EventfdFlags, eventfd};

/// An eventfd: any thread rings, one polls.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: Guarded<OwnedFd>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell { fd: Guarded::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?) })
    }

    pub(crate) fn ring(&self) {
        if !forked() {
            // Full means that it has been rung often enough.
            let _ = rustix::io::write(self.fd(), &1u64.to_ne_bytes());
        }
    }

    /// Makes it quiet again after `poll` has heard it.
    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(self.fd(), &mut [0u8; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
