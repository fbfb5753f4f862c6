//! A service manager with a store of descriptors (systemd's `FileDescriptorStoreMax=`): it takes them by its
//! notification socket, and passes them to the next process of the service.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mooncake_client::MemoryHolder;
use mooncake_os::passed_fds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::service;

/// How long a manager may take to take something.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// It.
#[derive(Debug)]
pub struct ServiceManager {
    socket: String,
    /// Until the process has begun.
    passed: Mutex<Vec<(String, OwnedFd)>>,
}

impl ServiceManager {
    /// The one that has started this process; none where there is none.
    pub fn of_this_process() -> Option<ServiceManager> {
        service::manager().map(|socket| ServiceManager { socket, passed: Mutex::new(passed_fds()) })
    }

    fn tell(&self, message: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        service::tell_at(&self.socket, message, fds)
    }

    /// Waits until the manager has carried out what it was told before: it closes the descriptor that it is given then.
    fn wait(&self) -> io::Result<()> {
        let (mut theirs_ends, ours) = io::pipe()?;
        self.tell("BARRIER=1", &[ours.as_fd()])?;
        drop(ours);
        let timeout = Timespec { tv_sec: TAKEN_WITHIN.as_secs() as _, tv_nsec: 0 };
        let mut fds = [PollFd::new(&theirs_ends, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the service manager takes no descriptors"));
        }
        theirs_ends.read(&mut [0]).map(drop)
    }
}

impl MemoryHolder for ServiceManager {
    fn held(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }

    fn begun(&self) {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn hold(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        // It would hold the former one beside this one.
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])?;
        // Of a memfd there is nothing to be polled for.
        self.tell(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), &[fd])?;
        self.wait()
    }

    fn let_go(&self, name: &str) -> io::Result<()> {
        // Its memory goes with the last descriptor.
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).retain(|(passed, _)| passed != name);
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    fn is_there(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use mooncake_os::recv_fds;

    use super::*;

    #[test]
    fn a_descriptor_is_held_once_the_manager_has_taken_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = std::thread::spawn(move || {
            let mut heard = Vec::new();
            loop {
                let (mut bytes, mut fds) = ([0; 256], Vec::new());
                let length = recv_fds(&socket, &mut bytes, &mut fds).unwrap();
                let said = String::from_utf8(bytes[..length].to_vec()).unwrap();
                let is_last = said == "BARRIER=1";
                heard.push((said, fds.len()));
                if is_last {
                    return heard;
                }
            }
        });
        let holder = ServiceManager { socket: path.to_str().unwrap().to_owned(), passed: Mutex::default() };
        let (_, file) = io::pipe().unwrap();
        holder.hold("state", file.as_fd()).unwrap();
        let heard = manager.join().unwrap();
        let told = |said: &str, fds| (said.to_owned(), fds);
        assert_eq!(
            heard,
            [
                told("FDSTOREREMOVE=1\nFDNAME=state", 0),
                told("FDSTORE=1\nFDPOLL=0\nFDNAME=state", 1),
                told("BARRIER=1", 1)
            ]
        );
    }
}
