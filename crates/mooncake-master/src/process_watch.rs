//! Proof that a client's process is gone: its pidfd, for clients of this host. The thread that waits for that can be
//! woken for other work.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mooncake_ids::SessionId;
use mooncake_os::Waker;
use mooncake_wire::message::ProcessIdentity;
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};

use crate::machine::processes::Known;

/// The waker's mark in epoll: no session's id.
const WAKER: u64 = u64::MAX;

/// Looks for a process by its identity.
pub fn find(identity: &ProcessIdentity) -> Known<OwnedFd> {
    let Ok(boot_id) = identity.boot_id[..].try_into() else { return Known::Unknown };
    let identity = mooncake_os::ProcessIdentity {
        boot_id,
        pid: identity.pid,
        start_time: identity.start_time,
        pid_namespace: identity.pid_namespace,
    };
    match identity.pidfd() {
        Ok(Some(pidfd)) => Known::Runs(pidfd),
        Ok(None) => Known::Gone,
        Err(_) => Known::Unknown,
    }
}

/// How a peer came.
#[derive(Debug)]
pub enum Via {
    /// By TCP.
    Tcp,
    /// By the Unix socket, with the pidfd of the process that connected.
    Unix(Option<OwnedFd>),
}

/// The watched processes: one epoll of their pidfds.
#[derive(Debug)]
pub struct ProcessWatch {
    epoll: OwnedFd,
    waker: Waker,
    /// It has been woken, and has not come yet.
    woken: AtomicBool,
    /// Closing a pidfd ends its watch.
    pidfds: Mutex<HashMap<SessionId, OwnedFd>>,
}

impl ProcessWatch {
    /// Watches no process yet.
    pub fn new() -> io::Result<ProcessWatch> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        // It is never cleared: an edge is all that is wanted.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, waker.fd(), epoll::EventData::new_u64(WAKER), flags)?;
        Ok(ProcessWatch { epoll, waker, woken: AtomicBool::new(false), pidfds: Mutex::default() })
    }

    /// Watches a session's process. Returns whether it can.
    ///
    /// A pidfd that came with the Unix socket is the process that connected,
    /// free of any doubt; else the identity must be of this host and pid namespace.
    pub fn watch(&self, session: SessionId, identity: &ProcessIdentity, via: Via) -> bool {
        match (via, find(identity)) {
            (Via::Unix(Some(pidfd)), _) | (_, Known::Runs(pidfd)) => self.watch_pidfd(session, pidfd),
            _ => false,
        }
    }

    /// Watches a process by its pidfd: when it ends, its session is over.
    pub fn watch_pidfd(&self, session: SessionId, pidfd: OwnedFd) -> bool {
        // Once is enough: a process ends once.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        if let Err(error) = epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(session.0), flags) {
            tracing::warn!(session = session.0, %error, "a client's process cannot be watched");
            return false;
        }
        self.pidfds.lock().insert(session, pidfd);
        true
    }

    /// Ends the wait for processes, or the next one.
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            self.waker.wake();
        }
    }

    /// Waits for processes to end, at most that long or until [`ProcessWatch::wake`]; returns their sessions.
    pub fn wait(&self, at_most: Duration) -> Vec<SessionId> {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Vec::new(),
            Err(error) => {
                tracing::error!(%error, "waiting for processes failed");
                std::thread::sleep(at_most);
                return Vec::new();
            }
        }
        self.woken.store(false, Ordering::Relaxed);
        let sessions = events.iter().map(|event| event.data.u64()).filter(|session| *session != WAKER);
        let ended: Vec<SessionId> = sessions.map(SessionId).collect();
        let mut pidfds = self.pidfds.lock();
        for session in &ended {
            pidfds.remove(session);
        }
        ended
    }

    /// Ends the watch of a session that is over.
    pub fn end(&self, session: SessionId) {
        self.pidfds.lock().remove(&session);
    }

    /// Sessions whose processes are watched.
    pub fn sessions(&self) -> BTreeSet<SessionId> {
        self.pidfds.lock().keys().copied().collect()
    }

    /// Ends the watch of sessions that are over.
    pub fn forget(&self, over: impl Fn(SessionId) -> bool) {
        self.pidfds.lock().retain(|session, _| !over(*session));
    }
}
