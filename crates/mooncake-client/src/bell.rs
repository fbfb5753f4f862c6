//! Wakes the anchor's thread out of its poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mooncake_os::Guarded;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug)]
pub(crate) struct Bell {
    event: Guarded<OwnedFd>,
}

impl Bell {
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event: Guarded::new(event) })
    }

    pub fn ring(&self) {
        // It fails only when it has been rung 2^64 times and nobody came.
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }

    pub fn hush(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0u8; 8]);
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
