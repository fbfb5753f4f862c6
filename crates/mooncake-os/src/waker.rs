//! Wakes a thread out of `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::fork::{Guarded, forked};

/// An eventfd: any thread wakes, one polls. In a forked child nothing is written, for the parent's thread would wake.
#[derive(Debug)]
pub struct Waker {
    fd: Guarded<OwnedFd>,
}

impl Waker {
    /// One that no thread has woken.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker { fd: Guarded::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?) })
    }

    /// Makes the descriptor readable, until [`Waker::clear`].
    pub fn wake(&self) {
        if !forked() {
            // Full means that it has been woken often enough.
            let _ = rustix::io::write(self.fd(), &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable again, after `poll` has seen it.
    pub fn clear(&self) {
        let _ = rustix::io::read(self.fd(), &mut [0u8; 8]);
    }

    /// What to poll for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
