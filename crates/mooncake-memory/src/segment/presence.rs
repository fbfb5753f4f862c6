//! Whether other users have a segment mapped, when its owner is dead and cannot say.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::segment::mapping::Mapping;
use mooncake_os::Guarded;

/// A shared lock on a segment's data memory, held for as long as the segment is
/// mapped. It belongs to an open file of its own, so that it tells two users of
/// one process apart as well.
///
/// Whether there are others is only asked, never tried out by taking the lock exclusively: a failing conversion of a
/// `flock` loses the shared lock, and with it the proof for the others that this user still looks at the bytes.
#[derive(Debug)]
pub struct Presence {
    file: Guarded<OwnedFd>,
}

impl Presence {
    /// From now on no other user is alone.
    pub fn announce(mapping: &Mapping) -> io::Result<Self> {
        // The descriptors that came are the owner's own open file; a lock of ours needs one of ours.
        let path = format!("/proc/self/fd/{}", mapping.data_fd().as_raw_fd());
        let file = Guarded::new(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        let presence = Self { file };
        presence.call(libc::F_OFD_SETLK, libc::F_RDLCK)?;
        Ok(presence)
    }

    /// Whether no other user of the segment has announced itself, or all have ended.
    pub fn is_alone(&self) -> io::Result<bool> {
        // What stands in the way of an exclusive lock is another user's lock.
        Ok(self.call(libc::F_OFD_GETLK, libc::F_WRLCK)? == libc::F_UNLCK)
    }

    /// One call about the whole file; gives the kind of lock that it left in the answer.
    fn call(&self, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: plain numbers, for which zeros are "from the start, to the end, no process".
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        // SAFETY: the command reads and writes one `flock`, which is there.
        let rc = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) };
        if rc == 0 { Ok(libc::c_int::from(lock.l_type)) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{SegmentMemory, SegmentOptions};

    #[test]
    fn asking_loses_nothing() {
        let segment = SegmentMemory::create(4096, SegmentOptions::default()).unwrap();
        let [a, b, c] = [(); 3].map(|()| Presence::announce(segment.mapping()).unwrap());
        for _ in 0..3 {
            assert!([&a, &b, &c].iter().all(|presence| !presence.is_alone().unwrap()));
        }
        drop(c);
        assert!(!a.is_alone().unwrap() && !b.is_alone().unwrap());
        drop(a);
        assert!(b.is_alone().unwrap() && b.is_alone().unwrap());
    }
}
