//! A connection to a keeper, and what is said on it: one message each, with a descriptor where it is about one.
//!
//! ```text
//! keeper -> node  "held NAME" + descriptor, for each   "all"      or   "busy"
//! node -> keeper  "hold NAME" + descriptor, "drop NAME", "there"
//! keeper -> node  "done"
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mooncake_client::MemoryHolder;
use mooncake_os::{peer_credentials, recv_fds, send_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Longest message.
pub const MESSAGE_MAX: usize = 512;

/// How long a keeper may take for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How long the process that a keeper serves is waited for: it may be about to end.
const BUSY_WAIT: Duration = Duration::from_secs(30);

/// Between two tries.
const RETRY: Duration = Duration::from_millis(100);

/// What is said.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// It holds this.
    Held(String),
    /// That was all of it.
    All,
    /// It serves another process.
    Busy,
    /// It is to hold this, in the place of what it has of that name.
    Hold(String),
    /// It is to let go of this.
    Drop(String),
    /// Is it there?
    There,
    /// It is done.
    Done,
}

impl Said {
    /// What is sent.
    pub fn text(&self) -> String {
        match self {
            Said::Held(name) => format!("held {name}"),
            Said::All => "all".to_owned(),
            Said::Busy => "busy".to_owned(),
            Said::Hold(name) => format!("hold {name}"),
            Said::Drop(name) => format!("drop {name}"),
            Said::There => "there".to_owned(),
            Said::Done => "done".to_owned(),
        }
    }

    /// Reads a message; `None` makes no sense.
    pub fn read(text: &[u8]) -> Option<Said> {
        let text = std::str::from_utf8(text).ok()?;
        let (verb, name) = text.split_once(' ').unwrap_or((text, ""));
        let name = name.to_owned();
        Some(match (verb, name.is_empty()) {
            ("held", false) => Said::Held(name),
            ("hold", false) => Said::Hold(name),
            ("drop", false) => Said::Drop(name),
            ("all", true) => Said::All,
            ("busy", true) => Said::Busy,
            ("there", true) => Said::There,
            ("done", true) => Said::Done,
            _ => return None,
        })
    }

    /// Sends it.
    pub fn send(&self, socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_fds(socket, self.text().as_bytes(), fds).map(drop)
    }

    /// Receives the next message; `None`: the other side has hung up.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<(Said, Vec<OwnedFd>)>> {
        let (mut bytes, mut fds) = ([0; MESSAGE_MAX], Vec::new());
        match recv_fds(socket, &mut bytes, &mut fds)? {
            0 => Ok(None),
            length => match Said::read(&bytes[..length]) {
                Some(said) => Ok(Some((said, fds))),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer is no keeper, or of another version")),
            },
        }
    }
}

/// A storage node's side.
#[derive(Debug)]
pub struct KeeperConnection {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    socket: Option<OwnedFd>,
    held: Vec<(String, OwnedFd)>,
}

impl KeeperConnection {
    /// Reaches a keeper, and waits until the process that it served has ended.
    pub fn open(path: &Path) -> io::Result<KeeperConnection> {
        let until = Instant::now() + BUSY_WAIT;
        loop {
            let reached = match reach(path) {
                // As many as may wait for it do.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                reached => reached?,
            };
            match reached {
                Some((socket, held)) => {
                    let state = Mutex::new(State { socket: Some(socket), held });
                    return Ok(KeeperConnection { path: path.to_owned(), state });
                }
                None if Instant::now() < until => std::thread::sleep(RETRY),
                None => return Err(io::Error::new(io::ErrorKind::AddrInUse, "it serves another process")),
            }
        }
    }

    fn ask(&self, said: &Said, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = &state.socket else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the keeper has ended"));
        };
        let answered = said.send(socket, fds).and_then(|()| answer(socket));
        match answered {
            Ok((Said::Done, _)) => Ok(()),
            Ok((other, _)) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("the keeper says {:?}", other.text())))
            }
            Err(error) => {
                state.socket = None;
                Err(error)
            }
        }
    }
}

impl MemoryHolder for KeeperConnection {
    fn held(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }

    fn begun(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).held.clear();
    }

    fn hold(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(&Said::Hold(name.to_owned()), &[fd])
    }

    fn let_go(&self, name: &str) -> io::Result<()> {
        // Its memory goes with the last descriptor.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held.retain(|(held, _)| held != name);
        drop(state);
        self.ask(&Said::Drop(name.to_owned()), &[])
    }

    fn is_there(&self) -> bool {
        if self.ask(&Said::There, &[]).is_ok() {
            return true;
        }
        // One that was started again holds nothing, and is there from now on.
        if let Ok(Some((socket, _))) = reach(&self.path) {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).socket = Some(socket);
        }
        false
    }
}

/// A keeper that serves this process, and what it holds, by its names.
type Reached = (OwnedFd, Vec<(String, OwnedFd)>);

/// `None`: it serves another process, which has not ended.
fn reach(path: &Path) -> io::Result<Option<Reached>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // One that stands still, and has as many callers as may wait, would have this one wait for ever.
    ioctl_fionbio(&socket, true)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    ioctl_fionbio(&socket, false)?;
    if !peer_credentials(&socket)?.is_own_user() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a process of another user listens there"));
    }
    let mut held = Vec::new();
    loop {
        match answer(&socket)? {
            (Said::Held(name), fds) => held.extend(fds.into_iter().next().map(|fd| (name, fd))),
            (Said::All, _) => return Ok(Some((socket, held))),
            (Said::Busy, _) => return Ok(None),
            (other, _) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it says {:?}", other.text())));
            }
        }
    }
}

fn answer(socket: &OwnedFd) -> io::Result<(Said, Vec<OwnedFd>)> {
    let timeout = Timespec { tv_sec: ANSWER.as_secs() as _, tv_nsec: 0 };
    if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the keeper does not answer"));
    }
    Said::receive(socket)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_as_it_was_and_anything_else_is_nothing() {
        let name = || "mooncake-data-1-2".to_owned();
        for said in
            [Said::Held(name()), Said::All, Said::Busy, Said::Hold(name()), Said::Drop(name()), Said::There, Said::Done]
        {
            assert_eq!(Said::read(said.text().as_bytes()), Some(said));
        }
        for nothing in [&b""[..], b"hold", b"hold ", b"all of it", b"\xff", b"else name"] {
            assert_eq!(Said::read(nothing), None, "{nothing:?}");
        }
    }
}
