//! Wakes one of the threads that wait on an epoll, at a moment that is set.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mooncake_os::{Guarded, forked};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::readiness::Ready;

/// A timer that goes off once each time that it is set.
#[derive(Debug)]
pub(crate) struct Alarm {
    fd: Guarded<OwnedFd>,
}

impl Alarm {
    /// Told by its edge: of all the threads that wait the kernel wakes one, and no thread need read it.
    pub(crate) const WANTED: Ready = Ready::IN.union(Ready::ET);

    pub(crate) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Alarm { fd: Guarded::new(timerfd_create(TimerfdClockId::Monotonic, flags)?) })
    }

    /// Sets it to this moment, and to no other any more.
    pub(crate) fn set(&self, at: Instant) {
        // Nothing at all would switch it off.
        let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // In a forked child its number may name something else by now.
        if !forked()
            && let Err(e) = timerfd_settime(self.fd(), TimerfdTimerFlags::empty(), &once)
        {
            tracing::error!("timerfd_settime: {e}");
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
