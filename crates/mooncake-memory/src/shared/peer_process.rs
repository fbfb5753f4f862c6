//! Copies out of another process's memory.
//!
//! Only the destination copies (`process_vm_readv`). A writer names the other process by its number: once that process
//! has ended, the writer may write into the one that got the number next. A reader finds out afterwards, and throws the
//! bytes away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::caller::piece::Destination;
use mooncake_os::forked;
use mooncake_os::has_exited;
use mooncake_os::{peer_credentials, peer_pidfd};

/// Most ranges of one system call.
const RANGES_MAX: usize = 64;

/// Bytes of one system call, during which no copy can be told to stop.
const CALL_BYTES_MAX: usize = 4 << 20;

/// Another process of this host, by the Unix socket that leads to it.
#[derive(Debug)]
pub struct PeerProcess {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

/// Why bytes of another process could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// This process may not look into it, or the kernel cannot tell which process it is.
    #[error("process {pid} cannot be read: {source}")]
    Refused {
        /// Its number here; 0 if it has none.
        pid: i32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Either the peer's memory or this process's is not there.
    #[error("{len} bytes at {addr:#x} of process {pid} cannot be copied")]
    Fault {
        /// The peer.
        pid: i32,
        /// Its address.
        addr: u64,
        /// Bytes of the range.
        len: usize,
    },
    /// It has ended: what was copied may be another's.
    #[error("process {pid} has ended")]
    Ended {
        /// The number that it had.
        pid: i32,
    },
}

/// Its pidfd: readable when it has ended.
impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl PeerProcess {
    /// The process at the other end of a connected Unix socket: the one that connected, or that listened.
    /// Fails where its number is not visible, before Linux 6.5, and for another user's process.
    pub fn of_socket(socket: impl AsFd) -> Result<PeerProcess, PullError> {
        let refused = |pid, source| PullError::Refused { pid, source };
        let credentials = peer_credentials(&socket).map_err(|source| refused(0, source))?;
        let pid = i32::try_from(credentials.pid).unwrap_or(0);
        if pid <= 0 || !credentials.is_own_user() {
            let why = if pid <= 0 { "it is in a namespace not visible from here" } else { "it is another user's" };
            return Err(refused(pid, io::Error::new(io::ErrorKind::PermissionDenied, why)));
        }
        let pidfd = peer_pidfd(&socket).map_err(|source| refused(pid, source))?;
        Ok(PeerProcess { pid, pidfd })
    }

    /// This very process: for copies between ranges of its own memory that are not checked.
    pub fn myself() -> Result<PeerProcess, PullError> {
        let own = rustix::process::getpid();
        let pid = own.as_raw_nonzero().get();
        let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
        let pidfd = pidfd.map_err(|errno| PullError::Refused { pid, source: errno.into() })?;
        Ok(PeerProcess { pid, pidfd })
    }

    /// Its number in this process's namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has certainly ended: none of its threads runs any more.
    pub fn has_ended(&self) -> bool {
        matches!(has_exited(self.pidfd.as_fd()), Ok(true))
    }

    /// Fills `into` from the peer's memory at `addr`. After a failure it may hold anything.
    ///
    /// The kernel checks both sides: memory that is not there is an error, never a signal. Nothing else may use `into`
    /// meanwhile. The caller finds out whether the peer still means those bytes.
    pub fn pull(&self, addr: u64, into: &mut Destination<'_>) -> Result<(), PullError> {
        self.pull_all(&[(addr, into.len() as u64)], std::slice::from_mut(into))
    }

    /// The same for several ranges: the concatenation of the peer's fills the concatenation of ours.
    pub fn pull_all(&self, from: &[(u64, u64)], into: &mut [Destination<'_>]) -> Result<(), PullError> {
        self.pull_while(from, into, || true).map(drop)
    }

    /// The same for as long as it is `wanted`, which is asked right before each system call. Whether all was copied.
    pub fn pull_while(
        &self,
        from: &[(u64, u64)],
        into: &mut [Destination<'_>],
        mut wanted: impl FnMut() -> bool,
    ) -> Result<bool, PullError> {
        if forked() {
            let source = io::Error::other("this process was forked from the one that uses the engine");
            return Err(PullError::Refused { pid: self.pid, source });
        }
        let mut remote = Cursor::new(from.iter().map(|(addr, len)| (*addr as usize, *len as usize)));
        let mut local = Cursor::new(into.iter().map(|part| (part.ptr.expose_provenance(), part.len)));
        loop {
            let (theirs, count, bytes) = remote.ranges(CALL_BYTES_MAX);
            let (ours, our_count, our_bytes) = local.ranges(bytes);
            if bytes == 0 || our_bytes == 0 {
                break;
            }
            if !wanted() {
                return Ok(false);
            }
            // SAFETY: the local ranges are destinations, which are exclusively the caller's; the kernel checks all
            // ranges.
            let copied = unsafe {
                libc::process_vm_readv(self.pid, ours.as_ptr(), our_count as u64, theirs.as_ptr(), count as u64, 0)
            };
            match copied {
                copied if copied > 0 => {
                    remote.advance(copied as usize);
                    local.advance(copied as usize);
                }
                0 => return Err(self.fault(&theirs[0])),
                _ => {
                    let source = io::Error::last_os_error();
                    match source.raw_os_error() {
                        Some(libc::EINTR) => {}
                        Some(libc::EFAULT | libc::EINVAL) => return Err(self.fault(&theirs[0])),
                        Some(libc::ESRCH) => return Err(PullError::Ended { pid: self.pid }),
                        _ => return Err(PullError::Refused { pid: self.pid, source }),
                    }
                }
            }
        }
        match has_exited(self.pidfd.as_fd()) {
            Ok(false) => Ok(true),
            _ => Err(PullError::Ended { pid: self.pid }),
        }
    }

    fn fault(&self, range: &libc::iovec) -> PullError {
        PullError::Fault { pid: self.pid, addr: range.iov_base.addr() as u64, len: range.iov_len }
    }
}

/// Ranges that are gone through step by step.
struct Cursor<I: Iterator<Item = (usize, usize)>> {
    /// Those of the next call that are not done.
    ahead: Vec<(usize, usize)>,
    later: I,
}

impl<I: Iterator<Item = (usize, usize)>> Cursor<I> {
    fn new(ranges: I) -> Self {
        Cursor { ahead: Vec::new(), later: ranges }
    }

    /// The next ranges, of at most so many bytes together: (them, their number, their bytes).
    fn ranges(&mut self, most: usize) -> ([libc::iovec; RANGES_MAX], usize, usize) {
        let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RANGES_MAX];
        let (mut used, mut bytes) = (0, 0);
        while used < RANGES_MAX && bytes < most {
            if self.ahead.len() == used {
                match self.later.find(|(_, len)| *len > 0) {
                    Some(range) => self.ahead.push(range),
                    None => break,
                }
            }
            let (addr, len) = self.ahead[used];
            let len = len.min(most - bytes);
            list[used] = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(addr), iov_len: len };
            used += 1;
            bytes += len;
        }
        (list, used, bytes)
    }

    fn advance(&mut self, mut bytes: usize) {
        let mut done = 0;
        for (addr, len) in &mut self.ahead {
            let step = bytes.min(*len);
            *addr += step;
            *len -= step;
            bytes -= step;
            if *len > 0 {
                break;
            }
            done += 1;
        }
        self.ahead.drain(..done);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::caller::registry::Registry;
    use crate::range::ForeignRange;

    #[test]
    fn ranges_of_different_cuts_are_copied_in_order() {
        let from: Vec<u8> = (0..200_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let mut into = vec![0_u8; from.len()];
        let base = from.as_ptr().expose_provenance() as u64;
        let cuts = [0, 1, 5000, 5000, 70_000, 199_999, 200_000];
        let ranges: Vec<(u64, u64)> = cuts.windows(2).map(|cut| (base + cut[0], cut[1] - cut[0])).collect();
        let mut destinations: Vec<Destination<'_>> = into.chunks_mut(1234).map(Destination::new).collect();
        PeerProcess::myself().unwrap().pull_all(&ranges, &mut destinations).unwrap();
        assert_eq!(into, from);
    }

    #[test]
    fn whoever_is_not_wanted_any_more_makes_no_further_system_call() {
        let from = vec![7_u8; 1_000 * 64];
        let base = from.as_ptr().expose_provenance() as u64;
        let ranges: Vec<(u64, u64)> = (0..1_000).map(|at| (base + at * 64, 64)).collect();
        for calls in 0..3 {
            let mut into = vec![0_u8; from.len()];
            let mut destinations: Vec<Destination<'_>> = into.chunks_mut(64).map(Destination::new).collect();
            let mut left: usize = calls;
            let wanted = || {
                let more = left > 0;
                left = left.saturating_sub(1);
                more
            };
            assert!(!PeerProcess::myself().unwrap().pull_while(&ranges, &mut destinations, wanted).unwrap());
            let copied = into.iter().filter(|byte| **byte == 7).count();
            assert_eq!(copied, calls * RANGES_MAX * 64);
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_on_either_side() {
        let mut bytes = [0; 64];
        assert!(matches!(
            PeerProcess::myself().unwrap().pull(8, &mut Destination::new(&mut bytes)),
            Err(PullError::Fault { .. })
        ));
        let here = [1_u8; 64];
        // SAFETY: page 0 is nobody's.
        let nowhere = unsafe { ForeignRange::new(16, 64) };
        let mut destination = Destination::foreign(nowhere, &Registry::new()).unwrap();
        let from = here.as_ptr().expose_provenance() as u64;
        assert!(matches!(PeerProcess::myself().unwrap().pull(from, &mut destination), Err(PullError::Fault { .. })));
    }

    #[test]
    fn bytes_of_a_process_that_has_ended_are_refused() {
        let name = format!("\0peer-process-{}", std::process::id());
        let address = {
            use std::os::linux::net::SocketAddrExt;
            std::os::unix::net::SocketAddr::from_abstract_name(&name[1..]).unwrap()
        };
        let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        let script = format!("import socket; s=socket.socket(socket.AF_UNIX); s.connect({name:?}); s.send(b'x')");
        let mut child =
            std::process::Command::new("python3").arg("-c").arg(script.replace("\\0", "\\x00")).spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        let peer = PeerProcess::of_socket(&socket).unwrap();
        child.wait().unwrap();
        let mut bytes = [0; 64];
        let pulled = peer.pull(bytes.as_ptr().addr() as u64, &mut Destination::new(&mut bytes));
        assert!(matches!(pulled, Err(PullError::Ended { .. })), "{pulled:?}");
    }

    #[test]
    fn bytes_of_whoever_has_the_number_now_are_refused() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        // Another process has its number: this one, which can be read.
        let peer = PeerProcess { pidfd, ..PeerProcess::myself().unwrap() };
        let (from, mut into) = ([7_u8; 64], [0_u8; 64]);
        let pulled = peer.pull(from.as_ptr().expose_provenance() as u64, &mut Destination::new(&mut into));
        assert!(matches!(pulled, Err(PullError::Ended { .. })), "{pulled:?}");
    }

    /// A pair of sockets that a user of that number connected, in this process; none where that takes more rights.
    fn sockets_of(uid: libc::uid_t) -> Option<(UnixStream, UnixStream)> {
        let thread = std::thread::spawn(move || {
            // Of this thread alone, which ends with it: the system call itself knows no processes.
            // SAFETY: plain numbers.
            let rc = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
            (rc == 0).then(|| UnixStream::pair().unwrap())
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_process_that_is_not_beyond_doubt_of_this_user_and_host_is_not_looked_into() {
        // A connection of a kind that no process is known to be at the other end of.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let e = PeerProcess::of_socket(&tcp).unwrap_err();
        assert!(matches!(e, PullError::Refused { pid: 0, .. }) && e.to_string().contains("not visible"), "{e}");
        let e = PeerProcess::of_socket(std::fs::File::open("/dev/null").unwrap()).unwrap_err();
        assert!(matches!(e, PullError::Refused { pid: 0, .. }), "{e}");
        let (own, _other) = UnixStream::pair().unwrap();
        assert_eq!(PeerProcess::of_socket(&own).unwrap().pid(), PeerProcess::myself().unwrap().pid());
        let own = rustix::process::geteuid().as_raw();
        let Some((stranger, _other)) = sockets_of(own + 1) else {
            return eprintln!("skipped: this user can be no other");
        };
        let credentials = peer_credentials(&stranger).unwrap();
        assert!(credentials.uid == own + 1 && !credentials.is_own_user());
        let e = PeerProcess::of_socket(&stranger).unwrap_err();
        let pid = PeerProcess::myself().unwrap().pid();
        assert!(matches!(e, PullError::Refused { pid: found, .. } if found == pid), "{e}");
        assert!(e.to_string().contains("another user"), "{e}");
    }

    #[test]
    fn as_much_is_copied_as_both_sides_name_and_none_where_one_names_none() {
        let (from, me) = ([7_u8; 256], PeerProcess::myself().unwrap());
        let base = from.as_ptr().expose_provenance() as u64;
        for (theirs, ours) in [(0, 0), (0, 64), (64, 0), (64, 128), (128, 64), (200, 200)] {
            let mut into = [0_u8; 256];
            let mut destinations = [Destination::new(&mut into[..ours])];
            me.pull_all(&[(base, theirs as u64)], &mut destinations).unwrap();
            let copied = theirs.min(ours);
            assert!(into[..copied].iter().all(|byte| *byte == 7) && into[copied..].iter().all(|byte| *byte == 0));
            me.pull_all(&[], &mut [Destination::new(&mut into)]).unwrap();
        }
    }

    #[test]
    fn a_range_that_ends_in_the_middle_is_a_fault_that_names_what_is_left_of_it() {
        let page = crate::file::mapped_file::PAGE as usize;
        // SAFETY: a fresh mapping, and nothing else uses it.
        let addr = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let made = libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ, flags, -1, 0);
            assert_ne!(made, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(made.wrapping_byte_add(page), page, libc::PROT_NONE), 0);
            made.addr()
        };
        let mut into = vec![0; 2 * page];
        let pulled = PeerProcess::myself().unwrap().pull(addr as u64, &mut Destination::new(&mut into));
        let gone = (addr + page) as u64;
        assert!(matches!(pulled, Err(PullError::Fault { addr, len, .. }) if addr == gone && len == page), "{pulled:?}");
    }
}
