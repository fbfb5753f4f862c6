//! Descriptors over Unix sockets, and which process is at the other end.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Most descriptors in one message.
const DESCRIPTORS_MAX: usize = 4;

/// Linux 6.5; the C library may be older.
const SO_PEERPIDFD: libc::c_int = 77;

/// Credentials of a Unix socket's peer when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id as seen from here; 0 if it lives in a namespace not visible here.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl PeerCredentials {
    /// Whether the peer is a process of the user of this one, beyond doubt.
    ///
    /// A user that has no number in this process's user namespace appears as the overflow user. To a process that runs
    /// as that user (nobody, most often) in a namespace of its own, all such strangers look like itself.
    pub fn is_own_user(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw() && !(self.uid == overflow_uid() && some_users_have_no_number())
    }
}

fn overflow_uid() -> u32 {
    let said = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    said.and_then(|text| text.trim().parse().ok()).unwrap_or(65534)
}

fn some_users_have_no_number() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // All numbers but the last, which is none.
    !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// `SO_PEERCRED`.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let raw = option::<libc::ucred>(socket.as_fd(), libc::SO_PEERCRED)?;
    Ok(PeerCredentials { pid: raw.pid as u32, uid: raw.uid, gid: raw.gid })
}

/// `SO_PEERPIDFD`: a pidfd of the very process that connected, free of pid
/// recycling. `ENOPROTOOPT` before Linux 6.5.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let raw = option::<RawFd>(socket.as_fd(), SO_PEERPIDFD)?;
    // SAFETY: a descriptor that the kernel just made for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// One `sendmsg` of bytes (at least one) with up to four descriptors attached to the first.
pub fn send_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The buffer has some room to spare, on which no receiver can count.
    let too_many = fds.len() > DESCRIPTORS_MAX || !control.push(SendAncillaryMessage::ScmRights(fds));
    if bytes.is_empty() || too_many {
        let what = format!("{} descriptors with {} bytes in one message", fds.len(), bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// One `recvmsg`; descriptors that came along are appended, close-on-exec.
pub fn recv_fds(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    Ok(received.bytes)
}

fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel stores at most `len` bytes at `value`.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<T>() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("socket option {name} has {len} bytes")));
    }
    // SAFETY: all of it was stored, and every option read here is plain numbers.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_come_with_the_first_byte_in_their_order_and_not_without_one() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let files = [(); 5].map(|()| {
            let (_, write) = std::io::pipe().unwrap();
            OwnedFd::from(write)
        });
        let all: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let inode = |fd: &dyn Fn() -> RawFd| fs::read_link(format!("/proc/self/fd/{}", fd())).unwrap();
        for (bytes, count) in [(&b""[..], 1), (b"", 0), (b"x", 5), (b"", 5)] {
            let e = send_fds(&ours, bytes, &all[..count]).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
            assert!(e.to_string().contains(&format!("{count} descriptors with {} bytes", bytes.len())), "{e}");
        }
        for count in 0..=4 {
            assert_eq!(send_fds(&ours, b"hello", &all[..count]).unwrap(), 5);
            (&ours).write_all(b" there").unwrap();
            let (mut bytes, mut fds) = ([0; 11], Vec::new());
            let mut have = 0;
            while have < bytes.len() {
                have += recv_fds(&theirs, &mut bytes[have..], &mut fds).unwrap();
            }
            assert_eq!((&bytes, fds.len()), (b"hello there", count));
            for (came, sent) in fds.iter().zip(&all) {
                assert_eq!(inode(&|| came.as_raw_fd()), inode(&|| sent.as_raw_fd()));
                assert!(rustix::io::fcntl_getfd(came).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            }
        }
        drop(ours);
        let mut fds = Vec::new();
        assert_eq!((recv_fds(&theirs, &mut [0; 8], &mut fds).unwrap(), fds.len()), (0, 0));
    }

    #[test]
    fn who_is_at_the_other_end_is_known_of_sockets_alone() {
        let (own, _other) = UnixStream::pair().unwrap();
        let credentials = peer_credentials(&own).unwrap();
        assert_eq!(credentials.pid, std::process::id());
        assert!(credentials.is_own_user());
        for uid in [credentials.uid + 1, u32::MAX] {
            assert!(!PeerCredentials { uid, ..credentials }.is_own_user());
        }
        let null = fs::File::open("/dev/null").unwrap();
        assert!(peer_credentials(&null).is_err() && peer_pidfd(&null).is_err());
    }
}
