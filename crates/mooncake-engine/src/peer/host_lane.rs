//! A Unix socket to a peer of this host. Reads are copied from its memory here; writes it copies from ours, at our word.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use mooncake_memory::{BoardView, Guarded, PeerProcess, PullError, recv_fds};
use mooncake_transfer::{Habit, recv_awake};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::pace::{Pace, Patience, SLICE};
use super::pool::Carrier;
use crate::engine::{Home, Opcode, Request};
use crate::error::EngineError;
use crate::frame::EngineId;
use crate::host_frame::{
    ANSWER_LEN, Answer, BOUNDS_LEN, Hello, MOST_PIECES, Piece, REPLY_HELLO_LEN, ReplyHello, Welcome, Wish, read_bounds,
    request,
};
use crate::server::proven;

/// Bytes copied between two looks at the clock.
const STEP: usize = 16 << 20;

pub(super) struct Address {
    peer: Arc<str>,
    unix: String,
    id: EngineId,
}

impl Address {
    pub fn new(peer: &str, unix: &str, id: EngineId) -> Address {
        Address { peer: peer.into(), unix: unix.to_owned(), id }
    }
}

pub(super) struct HostLane {
    stream: Guarded<UnixStream>,
    peer: Arc<str>,
    process: PeerProcess,
    board: BoardView,
    /// It can copy out of this process.
    can_pull: bool,
    /// Buffers of the peer, by their start, as they were when its board said so.
    known: (u64, BTreeMap<u64, u64>),
    habit: Habit,
    between: bool,
}

/// A transfer did not come about within the host.
#[derive(Debug)]
pub(super) enum Failure {
    /// TCP may do it.
    OtherWay(String),
    /// TCP would not help.
    Broken(EngineError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        match error {
            EngineError::Interrupted | EngineError::Timeout { .. } | EngineError::NotRegistered { .. } => {
                Failure::Broken(error)
            }
            other => Failure::OtherWay(other.to_string()),
        }
    }
}

impl Drop for HostLane {
    /// The peer may be at it still, with a write that was given up: it looks before each step whether this end is there, and
    /// hangs up. A step takes it a millisecond or two; one that stands still hangs up when it goes on.
    fn drop(&mut self) {
        if !self.between && self.stream.shutdown(Shutdown::Write).is_ok() {
            let deadline = Instant::now() + SLICE;
            while matches!(
                rustix::net::recv(&*self.stream, &mut [0; 64], RecvFlags::empty()),
                Err(Errno::AGAIN | Errno::INTR) | Ok((1.., _))
            ) && Instant::now() < deadline
            {}
        }
    }
}

impl Carrier for HostLane {
    type Address = Address;
    type Error = Failure;

    fn open(home: &Home, address: &Address, patience: &Patience<'_>) -> Result<HostLane, Failure> {
        let peer = address.peer.clone();
        let other_way = |what: &'static str| move |error: std::io::Error| Failure::OtherWay(format!("{what}: {error}"));
        let stream = connect(&address.unix).map_err(other_way("its Unix socket cannot be reached"))?;
        stream.set_read_timeout(Some(SLICE)).map_err(other_way("prepare"))?;
        stream.set_write_timeout(Some(SLICE)).map_err(other_way("prepare"))?;
        let stream = Guarded::new(stream);
        let mut pace = Pace::new(&peer, patience, home.options.connect_timeout);
        let hello = Hello { target: address.id, secret: home.secret() };
        send(stream.as_fd(), &hello.encode(), &mut pace)?;
        let mut raw = [0; REPLY_HELLO_LEN];
        let mut fds = Vec::new();
        let mut got = 0;
        while got < raw.len() {
            match recv_fds(&*stream, &mut raw[got..], &mut fds) {
                Ok(0) => return Err(Failure::OtherWay("it hung up at the greeting".into())),
                Ok(count) => {
                    got += count;
                    pace.moved();
                }
                Err(error) => pace.failed(error, "wait for its greeting")?,
            }
        }
        let reply = ReplyHello::decode(&raw).ok_or_else(|| Failure::OtherWay("its greeting is none".into()))?;
        if reply.welcome == Welcome::Stranger {
            return Err(Failure::OtherWay("another engine has its socket".into()));
        }
        let board = fds.first().ok_or_else(|| Failure::OtherWay("it sent no board".into()))?;
        let board = BoardView::map(board).map_err(|error| Failure::OtherWay(error.to_string()))?;
        let cannot = |error: PullError| Failure::OtherWay(error.to_string());
        let process = PeerProcess::of_socket(&*stream).map_err(cannot)?;
        let process = proven(process, &reply.secret).map_err(cannot)?;
        let process =
            process.ok_or_else(|| Failure::OtherWay("the process behind its socket is another one".into()))?;
        let can_pull = reply.welcome == Welcome::CanPull;
        let known = (board.get(), BTreeMap::new());
        Ok(HostLane { stream, peer, process, board, can_pull, known, habit: Habit::new(), between: true })
    }

    fn is_alive(&self) -> bool {
        !mooncake_transfer::is_readable(self.stream.as_fd())
    }

    fn is_reusable(&self) -> bool {
        self.between
    }

    fn peer(address: &Address) -> &str {
        &address.peer
    }

    fn is_lost(_: &Failure) -> bool {
        // TCP is tried next, which finds out whether the peer is there at all.
        false
    }
}

impl HostLane {
    /// Carries requests out in their order.
    pub fn transfer(&mut self, home: &Home, requests: &[Request], patience: &Patience<'_>) -> Result<(), Failure> {
        let peer = self.peer.clone();
        let mut pace = Pace::new(&peer, patience, home.options.stall_timeout);
        for run in requests.chunk_by(|one, next| one.opcode == next.opcode) {
            match run[0].opcode {
                Opcode::Write if !self.can_pull => {
                    return Err(Failure::OtherWay("the peer may not read this process".into()));
                }
                Opcode::Write => self.write(run, &mut pace)?,
                Opcode::Read => self.read(home, run, &mut pace)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, run: &[Request], pace: &mut Pace<'_>) -> Result<(), Failure> {
        let wanted = run.iter().filter(|request| !request.local.is_empty());
        let all: Vec<Piece> = wanted.map(piece).collect();
        for pieces in all.chunks(MOST_PIECES) {
            self.ask(Wish::Fill, pieces, pace)?;
        }
        Ok(())
    }

    /// One request and its answer, of which the rest is given.
    fn ask(&mut self, wish: Wish, pieces: &[Piece], pace: &mut Pace<'_>) -> Result<Vec<u8>, Failure> {
        self.between = false;
        send(self.stream.as_fd(), &request(wish, pieces), pace)?;
        let mut raw = [0; ANSWER_LEN];
        self.receive(&mut raw, pace)?;
        let answer = Answer::decode(&raw).ok_or_else(|| EngineError::malformed(&self.peer, "its answer is none"))?;
        let mut rest = Vec::new();
        if wish == Wish::Look && answer == Answer::Done {
            rest.resize(pieces.len() * BOUNDS_LEN, 0);
            self.receive(&mut rest, pace)?;
        }
        self.between = true;
        let at = |at: u32| pieces.get(at as usize).copied().unwrap_or(pieces[0]);
        match answer {
            Answer::Done => Ok(rest),
            Answer::NotRegistered(which) => {
                let Piece { to: addr, len, .. } = at(which);
                Err(EngineError::NotRegistered { owner: self.peer.to_string(), addr, len }.into())
            }
            Answer::Fault(which) => {
                let Piece { to, from, len } = at(which);
                let reason = format!("{len} bytes from {from:#x} here to {to:#x} there cannot be copied directly");
                Err(Failure::OtherWay(reason))
            }
            Answer::Refused(_) => Err(Failure::OtherWay("the peer may not read this process".into())),
        }
    }

    /// Copies out of the peer's memory. The ranges are known to have lain in registered buffers before, and no buffer was
    /// given up until afterwards.
    fn read(&mut self, home: &Home, run: &[Request], pace: &mut Pace<'_>) -> Result<(), Failure> {
        for request in run.iter().filter(|request| !request.local.is_empty()) {
            for at in (0..request.local.len()).step_by(STEP) {
                let local = request.local.part(at, STEP.min(request.local.len() - at));
                let addr = request.remote + at as u64;
                let before = self.know(addr, local.len() as u64, pace)?;
                let mut target = home.buffers.target(local);
                self.process.pull(addr, &mut target).map_err(|error| match error {
                    PullError::Fault { .. } | PullError::Refused { .. } => Failure::OtherWay(error.to_string()),
                    PullError::Ended { .. } => {
                        let source = std::io::ErrorKind::ConnectionReset.into();
                        let (peer, what) = (self.peer.to_string(), "the peer has ended");
                        Failure::Broken(EngineError::Socket { peer, what, source })
                    }
                })?;
                if self.board.get() != before {
                    return Err(Failure::OtherWay("the peer gave a buffer up meanwhile".into()));
                }
                pace.moved();
                pace.check("copying from the peer")?;
            }
        }
        Ok(())
    }

    /// Makes sure that a range lies in a buffer of the peer's, and gives what its board said before that was known.
    fn know(&mut self, addr: u64, len: u64, pace: &mut Pace<'_>) -> Result<u64, Failure> {
        let now = self.board.get();
        if self.known.0 != now {
            self.known = (now, BTreeMap::new());
        }
        let lies_in = |known: &BTreeMap<u64, u64>| {
            let before = known.range(..=addr).next_back();
            before.is_some_and(|(start, size)| addr.checked_add(len).is_some_and(|end| end <= start + size))
        };
        if !lies_in(&self.known.1) {
            let raw = self.ask(Wish::Look, &[Piece { to: addr, from: 0, len }], pace)?;
            let (start, size) = read_bounds(&raw);
            if start.checked_add(size).is_some() {
                self.known.1.insert(start, size);
            }
            if !lies_in(&self.known.1) {
                return Err(EngineError::malformed(&self.peer, "it names a buffer that was not asked for").into());
            }
        }
        Ok(now)
    }

    fn receive(&self, bytes: &mut [u8], pace: &mut Pace<'_>) -> Result<(), EngineError> {
        let mut got = 0;
        while got < bytes.len() {
            match recv_awake(&self.habit, self.stream.as_fd(), &mut bytes[got..]) {
                Ok(0) => {
                    let source = std::io::ErrorKind::UnexpectedEof.into();
                    return Err(EngineError::Socket { peer: self.peer.to_string(), what: "the peer hung up", source });
                }
                Ok(count) => {
                    got += count;
                    pace.moved();
                }
                Err(errno) => pace.failed(errno.into(), "wait for its answer")?,
            }
        }
        Ok(())
    }
}

/// Connects at once or not at all: to one that has stopped accepting, a connect that waits would wait for ever.
fn connect(name: &str) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn piece(request: &Request) -> Piece {
    Piece { to: request.remote, from: request.local.addr() as u64, len: request.local.len() as u64 }
}

fn send(fd: BorrowedFd<'_>, bytes: &[u8], pace: &mut Pace<'_>) -> Result<(), EngineError> {
    let mut sent = 0;
    while sent < bytes.len() {
        match rustix::net::send(fd, &bytes[sent..], SendFlags::NOSIGNAL) {
            Ok(count) => {
                sent += count;
                pace.moved();
            }
            Err(errno) => pace.failed(errno.into(), "ask the peer")?,
        }
    }
    Ok(())
}
