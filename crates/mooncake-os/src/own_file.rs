//! Open files of one's own, and locks that belong to them.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::fork::Guarded;

/// Behind the last byte that a lock can name. A file needs no byte where a lock lies.
const END: u64 = i64::MAX as u64;

/// An open file that no other process shares, of a file whose descriptor may be everybody's: a descriptor that was
/// handed on is the same open file for all that have it, and so would be a lock on it.
///
/// Its locks (`F_OFD_SETLK`) end with it. The kernel closes files behind the memory of a process that ends, so a lock
/// that is gone proves that its process touches nothing any more that it had mapped. A forked child has no copy.
#[derive(Debug)]
pub struct OwnFile {
    file: Guarded<OwnedFd>,
}

/// How a range is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Beside others of this kind.
    Shared,
    /// Alone. It takes an open file that may be written.
    Exclusive,
}

impl OwnFile {
    /// Opens the file of a descriptor once more. Needs `/proc`.
    pub fn reopen(fd: BorrowedFd<'_>, writable: bool) -> io::Result<OwnFile> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?;
        Ok(OwnFile { file: Guarded::new(file) })
    }

    /// Locks a range without waiting. False: a lock of another open file is in the way.
    pub fn try_lock(&self, lock: Lock, range: Range<u64>) -> io::Result<bool> {
        let kind = match lock {
            Lock::Shared => libc::F_RDLCK,
            Lock::Exclusive => libc::F_WRLCK,
        };
        match self.call(libc::F_OFD_SETLK, kind, range) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether another open file has a lock in a range, of either kind.
    pub fn is_locked_by_another(&self, range: Range<u64>) -> io::Result<bool> {
        if range.is_empty() {
            return Ok(false);
        }
        // What stands in the way of an exclusive lock is another one's lock. It is only asked, never taken.
        Ok(self.call(libc::F_OFD_GETLK, libc::F_WRLCK, range)? != libc::F_UNLCK)
    }

    /// One call about a range; gives the kind of lock that it left in the answer.
    fn call(&self, command: libc::c_int, kind: libc::c_int, range: Range<u64>) -> io::Result<libc::c_int> {
        if range.is_empty() || range.end > END {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no range to be locked: {range:?}")));
        }
        // SAFETY: plain numbers, for which zeros are "from the start, no process".
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = range.start as libc::off_t;
        lock.l_len = (range.end - range.start) as libc::off_t;
        // SAFETY: the command reads and writes one `flock`, which is there.
        let rc = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) };
        if rc == 0 { Ok(libc::c_int::from(lock.l_type)) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for OwnFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::fs::MemfdFlags;

    use super::*;

    const FAR: u64 = 1 << 61;

    #[test]
    fn locks_of_two_open_files_of_one_descriptor_are_told_apart() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let [a, b] = [(); 2].map(|()| OwnFile::reopen(file.as_fd(), true).unwrap());
        assert!(a.try_lock(Lock::Exclusive, 0..8).unwrap() && a.try_lock(Lock::Exclusive, 0..8).unwrap());
        assert!(!b.try_lock(Lock::Exclusive, 7..9).unwrap() && !b.try_lock(Lock::Shared, 0..1).unwrap());
        assert!(b.is_locked_by_another(0..1).unwrap() && !a.is_locked_by_another(0..8).unwrap());
        assert!(b.try_lock(Lock::Shared, 8..9).unwrap(), "it is beside the other one");
        drop(a);
        assert!(b.try_lock(Lock::Exclusive, 0..8).unwrap());
    }

    #[test]
    fn any_lock_in_a_range_is_seen_where_the_file_has_no_byte() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let [a, b, c] = [(); 3].map(|()| OwnFile::reopen(file.as_fd(), false).unwrap());
        assert!(a.try_lock(Lock::Shared, FAR + 3..FAR + 4).unwrap());
        assert!(b.try_lock(Lock::Shared, FAR + 3..FAR + 4).unwrap());
        assert!(c.is_locked_by_another(FAR..FAR + 4).unwrap());
        assert!(!c.is_locked_by_another(FAR..FAR + 3).unwrap() && !c.is_locked_by_another(FAR..FAR).unwrap());
        drop(a);
        assert!(c.is_locked_by_another(FAR..FAR + 4).unwrap(), "one is left");
        drop(b);
        assert!(!c.is_locked_by_another(FAR..FAR + 4).unwrap());
        assert!(a_range_is_refused(&c, 5..5) && a_range_is_refused(&c, 0..u64::MAX));
    }

    fn a_range_is_refused(file: &OwnFile, range: Range<u64>) -> bool {
        file.try_lock(Lock::Shared, range).is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
    }

    #[test]
    fn a_process_that_was_started_meanwhile_does_not_hold_them() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let [a, b] = [(); 2].map(|()| OwnFile::reopen(file.as_fd(), true).unwrap());
        assert!(a.try_lock(Lock::Exclusive, 0..1).unwrap());
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(a);
        // It runs before its copy is closed, by a little.
        let until = Instant::now() + Duration::from_secs(5);
        let is_free = loop {
            let is_free = b.try_lock(Lock::Exclusive, 0..1).unwrap();
            if is_free || Instant::now() > until {
                break is_free;
            }
        };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(is_free);
    }
}
