//! The identity of a process, and the proof that it is gone.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::ProcessError;

/// Names one process of one boot of one host for ever: pids are recycled, pids
/// with a start time are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// Boot of the host.
    pub boot_id: [u8; 16],
    /// Process id in its own namespace.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat, clock ticks since boot.
    pub start_time: u64,
    /// Inode of its pid namespace.
    pub pid_namespace: u64,
}

/// Boot id of this host.
pub fn boot_id() -> Result<[u8; 16], ProcessError> {
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(id) = BOOT.get() {
        return Ok(*id);
    }
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path).map_err(|source| ProcessError::Os { what: path, source })?;
    let id = parse_uuid(&text).ok_or_else(|| ProcessError::Os { what: path, source: malformed(&text) })?;
    Ok(*BOOT.get_or_init(|| id))
}

/// Whether the process of a pidfd has ended.
pub fn has_exited(pidfd: BorrowedFd<'_>) -> Result<bool, ProcessError> {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(ProcessError::Os { what: "poll of a pidfd", source: errno.into() }),
        }
    }
}

impl ProcessIdentity {
    /// This process.
    pub fn current() -> Result<Self, ProcessError> {
        let what = "/proc/self/stat";
        let start_time = start_time(what).map_err(|source| ProcessError::Os { what, source })?;
        Ok(Self { boot_id: boot_id()?, pid: std::process::id(), start_time, pid_namespace: pid_namespace()? })
    }

    /// A descriptor that becomes readable when the process ends; `None` if it
    /// has ended already. Fails where nothing can be proven.
    pub fn pidfd(&self) -> Result<Option<OwnedFd>, ProcessError> {
        if self.boot_id != boot_id()? {
            return Err(ProcessError::OtherBoot { pid: self.pid });
        }
        let ours = pid_namespace()?;
        if self.pid_namespace != ours {
            return Err(ProcessError::OtherNamespace { pid: self.pid, theirs: self.pid_namespace, ours });
        }
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| ProcessError::Os { what: "a process identity", source: malformed(&self.pid.to_string()) })?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // No such process, or the number is a thread's by now.
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(ProcessError::Os { what: "pidfd_open", source: errno.into() }),
        };
        // Only now: the number cannot be recycled unnoticed between the two any more.
        match start_time(&format!("/proc/{}/stat", self.pid)) {
            Ok(start) if start != self.start_time => Ok(None),
            Ok(_) => Ok(if has_exited(pidfd.as_fd())? { None } else { Some(pidfd) }),
            // An absent entry alone proves nothing: /proc may be mounted with hidepid.
            Err(_) if has_exited(pidfd.as_fd())? => Ok(None),
            Err(source) => Err(ProcessError::Os { what: "/proc/PID/stat", source }),
        }
    }
}

fn pid_namespace() -> Result<u64, ProcessError> {
    let what = "/proc/self/ns/pid";
    fs::metadata(what).map(|meta| meta.ino()).map_err(|source| ProcessError::Os { what, source })
}

/// Field 22 of a stat file. The second field, the name, may hold blanks and parentheses.
fn start_time(path: &str) -> io::Result<u64> {
    // Bytes, because a process may give itself any name.
    let stat = fs::read(path)?;
    let after_name = stat.iter().rposition(|&byte| byte == b')').map(|at| &stat[at + 1..]);
    after_name
        .and_then(|rest| std::str::from_utf8(rest).ok())
        .and_then(|rest| rest.split_ascii_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| malformed(&String::from_utf8_lossy(&stat)))
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .trim()
        .bytes()
        .filter(|&byte| byte != b'-')
        .map(|byte| (byte as char).to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    let mut id = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(id)
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed: {text:?}"))
}
