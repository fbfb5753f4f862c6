//! What threads wait for: very many descriptors, each of which is told to the kernel once, however often they wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mooncake_os::{Guarded, forked};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData};
use rustix::io::Errno;

pub(crate) use rustix::event::epoll::EventFlags as Ready;

/// An epoll. Each of its descriptors goes by a number that its user chooses.
#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: Guarded<OwnedFd>,
}

impl Readiness {
    pub(crate) fn new() -> io::Result<Readiness> {
        Ok(Readiness { epoll: Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// Waits for a descriptor from now on, until it is closed or [`Readiness::remove`]d.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, number: u64, wanted: Ready) -> io::Result<()> {
        Ok(epoll::add(&*self.epoll, fd, EventData::new_u64(number), wanted)?)
    }

    /// Waits for something else of a descriptor.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, number: u64, wanted: Ready) -> io::Result<()> {
        Ok(epoll::modify(&*self.epoll, fd, EventData::new_u64(number), wanted)?)
    }

    /// Waits for a descriptor no more.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // In a forked child its number may name something else by now. And what the kernel does not know is not waited
        // for.
        if !forked() {
            let _ = epoll::delete(&*self.epoll, fd);
        }
    }

    /// Waits for a descriptor as long as that is held.
    pub(crate) fn watch<T: AsFd>(
        self: &Arc<Self>,
        of: Arc<Guarded<T>>,
        number: u64,
        wanted: Ready,
    ) -> io::Result<Watch<T>> {
        self.add(of.as_fd(), number, wanted)?;
        Ok(Watch { readiness: self.clone(), of, number, wanted })
    }

    /// The numbers of the descriptors that are ready, as many as there is room for, and what for. None when the time is
    /// over, or a signal has come.
    pub(crate) fn wait<const MOST: usize>(
        &self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = (u64, Ready)> + use<MOST>> {
        let mut events = [Event { flags: Ready::empty(), data: EventData::new_u64(0) }; MOST];
        let timeout = timeout
            .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) });
        let count = match epoll::wait(&*self.epoll, &mut events, timeout.as_ref()) {
            Err(Errno::INTR) => 0,
            waited => waited?,
        };
        Ok(events.into_iter().take(count).map(|event| (event.data.u64(), event.flags)))
    }
}

/// A descriptor that is waited for until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch<T: AsFd> {
    readiness: Arc<Readiness>,
    of: Arc<Guarded<T>>,
    number: u64,
    wanted: Ready,
}

impl<T: AsFd> Watch<T> {
    pub(crate) fn of(&self) -> &T {
        &self.of
    }

    /// Waits for this from now on. Costs nothing where that is so already.
    pub(crate) fn want(&mut self, wanted: Ready) {
        if self.wanted != wanted && self.readiness.change(self.of.as_fd(), self.number, wanted).is_ok() {
            self.wanted = wanted;
        }
    }
}

impl<T: AsFd> Drop for Watch<T> {
    fn drop(&mut self) {
        self.readiness.remove(self.of.as_fd());
    }
}

/// What is waited for on a stream to a peer: its words, and room for the words that still wait to be sent.
pub(crate) fn words_and(has_more_to_send: bool) -> Ready {
    if has_more_to_send { Ready::IN | Ready::OUT } else { Ready::IN }
}
