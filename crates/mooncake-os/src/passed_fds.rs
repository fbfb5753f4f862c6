//! Descriptors that the program which started this one has passed to it (systemd's `LISTEN_FDS`).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first of them.
const FIRST: RawFd = 3;

/// Most of them that are looked at.
const MOST: i32 = 4096;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The descriptors that were passed to this very process, each with its name, and close-on-exec from now on. They are
/// given once: the second caller gets none.
pub fn passed_fds() -> Vec<(String, OwnedFd)> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<i64>().ok());
    // Another process's, from which this one has the environment.
    if number("LISTEN_PID") != Some(i64::from(std::process::id())) || TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|count| i32::try_from(count).ok()).unwrap_or(0).clamp(0, MOST);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    (FIRST..FIRST + count).filter_map(|raw| Some((names.next().unwrap_or_default(), take(raw)?))).collect()
}

/// `None`: it is not open.
fn take(raw: RawFd) -> Option<OwnedFd> {
    // SAFETY: the number may be of no open file. It is not kept beyond the look that says so.
    let flags = fcntl_getfd(unsafe { std::os::fd::BorrowedFd::borrow_raw(raw) }).ok()?;
    // SAFETY: open, and this process's own by the protocol: what starts it has put it there for this call, which is
    // made once, and nothing else in the process knows the number.
    let owned = unsafe { OwnedFd::from_raw_fd(raw) };
    fcntl_setfd(&owned, flags | FdFlags::CLOEXEC).ok()?;
    Some(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_open_is_no_descriptor() {
        assert!(take(RawFd::from(900_i16)).is_none());
        assert!(passed_fds().is_empty(), "nothing was passed to this process");
    }
}
