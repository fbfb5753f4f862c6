//! `mooncake keeper`: holds the memory of one storage node of this host and user from one of its processes to the next.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mooncake_os::{has_exited, peer_credentials, peer_pidfd};
use mooncake_settings::{KEEPER, SettingError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::holder::Said;
use crate::logging::{self, announce};
use crate::{flags, service, signals};

/// Most that it holds: two descriptors a segment, and one for all.
const HELD_MAX: usize = 2 * 512 + 1;

/// Between two looks whether it is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Why a keeper did not start.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No socket is named.
    #[error("flag --socket names no path: storage nodes find this keeper there (mooncake client --keep --keeper=PATH)")]
    NoSocket,
    /// The socket.
    #[error("flag --socket={}: {source}", path.display())]
    Socket {
        /// As given.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// Another keeper has it.
    #[error("flag --socket={}: another keeper answers there", path.display())]
    Taken {
        /// As given.
        path: PathBuf,
    },
    /// Signals.
    #[error("signal handling: {0}")]
    Signals(io::Error),
}

/// What it holds, and for which process.
#[derive(Default)]
struct Kept {
    held: BTreeMap<String, OwnedFd>,
    /// The process that it serves, or served last.
    served: Option<(u32, OwnedFd)>,
}

/// Runs until a signal says that it is over.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), KeeperError> {
    let Some(given) = flags::read(&KEEPER, args)? else { return Ok(()) };
    logging::start_at(given.text_or_default("log_level"));
    given.notes.iter().for_each(|line| tracing::info!("{line}"));
    let path = match given.text_or_default("socket") {
        "" => return Err(KeeperError::NoSocket),
        path => PathBuf::from(path),
    };
    let signals = signals::watch().map_err(KeeperError::Signals)?;
    let listener = listen_at(&path)?;
    announce(&format!("Mooncake keeper ready: {}", path.display()));
    service::is_ready();
    let kept = Arc::new(Mutex::new(Kept::default()));
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_INTERVAL.as_nanos() as _ };
    while !signals.ended.load(std::sync::atomic::Ordering::Acquire) {
        if poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0) {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(caller) => serve_later(&kept, caller),
                Err(error) => {
                    tracing::warn!(%error, "a storage node is not heard");
                    std::thread::sleep(LOOK_INTERVAL);
                }
            }
        }
    }
    service::is_stopping();
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn listen_at(path: &Path) -> Result<OwnedFd, KeeperError> {
    let failed = |source: io::Error| KeeperError::Socket { path: path.to_owned(), source };
    let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
    // What a keeper left behind that was killed is no keeper's.
    let stale = socket().map_err(|errno| failed(errno.into()))?;
    match rustix::net::connect(&stale, &address) {
        Ok(()) => return Err(KeeperError::Taken { path: path.to_owned() }),
        Err(rustix::io::Errno::CONNREFUSED) => _ = std::fs::remove_file(path),
        Err(_) => {}
    }
    let listener = socket().map_err(|errno| failed(errno.into()))?;
    bind(&listener, &address).map_err(|errno| failed(errno.into()))?;
    listen(&listener, 16).map_err(|errno| failed(errno.into()))?;
    Ok(listener)
}

fn serve_later(kept: &Arc<Mutex<Kept>>, caller: OwnedFd) {
    let kept = kept.clone();
    let served = std::thread::Builder::new().name("mooncake-keeper".into()).spawn(move || {
        if let Err(error) = serve(&kept, &caller) {
            tracing::warn!(%error, "the connection to a storage node has ended");
        }
    });
    if let Err(error) = served {
        tracing::warn!(%error, "a storage node is not served");
    }
}

/// One process of its user at a time, by its pidfd: the next one when that has ended, whatever became of its
/// connection.
fn serve(kept: &Mutex<Kept>, caller: &OwnedFd) -> io::Result<()> {
    let credentials = peer_credentials(caller)?;
    if !credentials.is_own_user() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {} calls", credentials.uid)));
    }
    let pidfd = match peer_pidfd(caller) {
        Ok(pidfd) => pidfd,
        // Before Linux 6.5. It is connected, and so it lives.
        Err(_) => {
            let pid = i32::try_from(credentials.pid).ok().and_then(Pid::from_raw);
            pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?
        }
    };
    // A caller that does not read holds up nobody else.
    let held: io::Result<Vec<(String, OwnedFd)>> = {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Every process of another namespace has the number 0 here.
        let is_same = |pid: u32| pid == credentials.pid && pid != 0;
        let other = kept.served.as_ref().filter(|(pid, _)| !is_same(*pid));
        if other.is_some_and(|(_, pidfd)| !matches!(has_exited(pidfd.as_fd()), Ok(true))) {
            drop(kept);
            return Said::Busy.send(caller, &[]);
        }
        kept.served = Some((credentials.pid, pidfd));
        kept.held.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    };
    for (name, fd) in held? {
        Said::Held(name).send(caller, &[fd.as_fd()])?;
    }
    Said::All.send(caller, &[])?;
    tracing::info!(pid = credentials.pid, "a storage node is served");
    while let Some((said, fds)) = Said::receive(caller)? {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        // A process that is served no more says nothing that counts.
        if kept.served.as_ref().is_none_or(|(pid, _)| *pid != credentials.pid) {
            return Ok(());
        }
        match (said, fds.into_iter().next()) {
            (Said::Hold(name), Some(fd)) if kept.held.len() < HELD_MAX || kept.held.contains_key(&name) => {
                kept.held.insert(name, fd);
            }
            (Said::Drop(name), _) => drop(kept.held.remove(&name)),
            (Said::There, _) => {}
            (other, _) => {
                let what = format!("{:?} is not to be done", other.text());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        drop(kept);
        Said::Done.send(caller, &[])?;
    }
    Ok(())
}
