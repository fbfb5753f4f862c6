//! A connection of a peer of this host: it looks buffers up, maps them, and has this engine pull its writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::memory::peer_identity::proven;
use mooncake_memory::{PeerProcess, shared_block, shared_block_file};
use mooncake_net::PollHistory;
use mooncake_os::{Guarded, peer_credentials, peer_pidfd, send_fds};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::context::ServerContext;
use super::pull::{Progress, Pull};
use super::{IdleRank, Next, PeerConnection};
use crate::memory::mappers::MapGrant;
use crate::protocol::same_host::{
    Answer, BlockBounds, Bounds, HELLO_LEN, Hello, HelloReply, PIECE_LEN, Piece, REQUEST_LEN, Welcome, Wish, head,
    pieces, pieces_of,
};

/// Looks into the access page for each look at the socket, which is a system call.
const PAGE_LOOKS_PER_SOCKET_LOOK: u32 = 32;

/// Longest for a hello, and for the rest of a request that has begun.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct SameHostPeerConnection {
    stream: Guarded<UnixStream>,
    /// None: this engine cannot read the peer's memory, and pulls nothing out of it.
    peer: Option<ProvenPeer>,
    state: State,
    moved: Instant,
}

/// A process of this user, proven to be the one that it says it is. It may map this engine's memory.
struct ProvenPeer {
    process: Arc<PeerProcess>,
    /// Its access page: where it enters memory that it maps, and withdraws copies out of its own.
    grant: MapGrant,
}

impl ProvenPeer {
    /// A request that it has put on the access page.
    fn asked(&self) -> Option<Vec<u64>> {
        self.grant.access_page().asked()
    }
}

enum State {
    Hello(Vec<u8>),
    Request(Vec<u8>),
    Pull(Pull, By),
    Answer {
        raw: Vec<u8>,
        sent: usize,
        /// They go with the first byte.
        fds: Vec<OwnedFd>,
    },
}

/// What a request came by, and what its answer goes by.
#[derive(Clone, Copy)]
enum By {
    Socket,
    AccessPage,
}

impl SameHostPeerConnection {
    pub fn accept(stream: UnixStream) -> io::Result<PeerConnection> {
        stream.set_nonblocking(true)?;
        let stream = Guarded::new(stream);
        let (state, moved) = (State::Hello(Vec::new()), Instant::now());
        Ok(PeerConnection::SameHost(Box::new(SameHostPeerConnection { stream, peer: None, state, moved })))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn is_overdue(&self, context: &ServerContext, now: Instant) -> bool {
        let still = now.duration_since(self.moved);
        match &self.state {
            State::Request(read) if read.is_empty() => false,
            State::Pull(..) | State::Answer { .. } => still > context.options().stall_timeout,
            _ => still > REQUEST_TIMEOUT,
        }
    }

    pub fn idle_since(&self) -> Option<Instant> {
        matches!(&self.state, State::Request(read) if read.is_empty()).then_some(self.moved)
    }

    pub fn idle_rank(&self) -> Option<IdleRank> {
        let known = match &self.state {
            State::Hello(_) => false,
            State::Request(_) => true,
            State::Pull(..) | State::Answer { .. } => return None,
        };
        Some(IdleRank { known, since: self.moved })
    }

    pub fn step(&mut self, context: &ServerContext) -> Next {
        loop {
            match self.advance(context) {
                Ok(()) => self.moved = Instant::now(),
                Err(Some(next)) => return next,
                Err(None) => return Next::Close,
            }
        }
    }

    /// One step. `Err` says what to wait for, or nothing if the connection is to end.
    fn advance(&mut self, context: &ServerContext) -> Result<(), Option<Next>> {
        let fd = self.stream.as_fd();
        match &mut self.state {
            State::Hello(read) => {
                fill(fd, read, HELLO_LEN)?;
                let Some(raw) = read.first_chunk::<HELLO_LEN>() else { return Ok(()) };
                let hello = Hello::decode(raw).ok_or(None)?;
                self.welcome(context, &hello)?;
                self.state = State::Request(Vec::new());
                Ok(())
            }
            State::Request(read) => {
                if let Some(asked) = self.peer.as_ref().filter(|_| read.is_empty()).and_then(ProvenPeer::asked) {
                    self.state = State::Pull(Pull::new(pieces_of(&asked).ok_or(None)?), By::AccessPage);
                    return Ok(());
                }
                let asked = read.first_chunk::<REQUEST_LEN>().map(|raw| head(raw).ok_or(None)).transpose()?;
                let wanted = REQUEST_LEN + asked.map_or(0, |(_, count)| count * PIECE_LEN);
                if asked.is_none() || read.len() < wanted {
                    // One call for the head and the first piece: small requests come whole.
                    return fill(fd, read, wanted.max(REQUEST_LEN + PIECE_LEN));
                }
                if read.len() > wanted {
                    // A peer waits for the answer before it makes the next request.
                    return Err(None);
                }
                let Some((wish, _)) = asked else { return Ok(()) };
                let asked = pieces(&read[REQUEST_LEN..]);
                let mut fds = Vec::new();
                let raw = match wish {
                    Wish::Pull => {
                        self.state = State::Pull(Pull::new(asked), By::Socket);
                        return Ok(());
                    }
                    Wish::Look => look(context, &asked, self.peer.is_some()),
                    Wish::Map => match self.lend(context, asked[0].to) {
                        Some(file) => {
                            fds.push(file);
                            Answer::Done.encode().to_vec()
                        }
                        None => Answer::NotRegistered(0).encode().to_vec(),
                    },
                };
                self.state = State::Answer { raw, sent: 0, fds };
                Ok(())
            }
            State::Pull(pull, by) => {
                let peer = self.peer.as_ref().ok_or(None)?;
                let access_page = peer.grant.access_page();
                let (raw, fds) = match pull.go_on(context.buffers(), fd, &peer.process, access_page) {
                    Progress::Done(answer) => {
                        let raw = answer.encode();
                        if let By::AccessPage = by
                            && access_page.answer(u64::from_le_bytes(raw))
                        {
                            self.state = State::Request(Vec::new());
                            self.moved = Instant::now();
                            // Not another step: the next request is most likely not there yet.
                            return Err(Some(Next::Read));
                        }
                        (raw.to_vec(), Vec::new())
                    }
                    Progress::Gone => return Err(None),
                    Progress::Again => {
                        self.moved = Instant::now();
                        return Err(Some(Next::Again));
                    }
                };
                self.state = State::Answer { raw, sent: 0, fds };
                Ok(())
            }
            State::Answer { raw, sent, fds } => {
                // Before the answer goes out: the next request may follow before `send` has returned, and then on the
                // page.
                if let Some(peer) = &self.peer {
                    peer.grant.access_page().look();
                }
                let count = if fds.is_empty() {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    rustix::net::send(fd, &raw[*sent..], flags).map_err(|errno| after(errno, Next::Write))?
                } else {
                    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                    send_fds(fd, &raw[*sent..], &borrowed)
                        .map_err(|error| after(Errno::from_io_error(&error).unwrap_or(Errno::IO), Next::Write))?
                };
                fds.clear();
                *sent += count;
                if *sent == raw.len() {
                    self.state = State::Request(Vec::new());
                    self.moved = Instant::now();
                    // Not another step: a peer that makes its next request at once would keep this thread for ever, so
                    // that the caller decides.
                    return Err(Some(Next::Read));
                }
                Ok(())
            }
        }
    }

    /// Busy polls for the next request, on the access page and on the socket. False: none has come, or polling is not
    /// worth it.
    pub fn is_asked_soon(&self, history: &PollHistory) -> bool {
        let is_readable = || mooncake_net::is_readable(self.stream.as_fd());
        let Some(ProvenPeer { grant, .. }) = &self.peer else {
            return mooncake_net::busy_poll(history, || is_readable().then_some(())).is_some();
        };
        let access_page = grant.access_page();
        let mut looks = 0_u32;
        let asked = mooncake_net::busy_poll(history, || {
            looks += 1;
            (access_page.is_asked() || (looks % PAGE_LOOKS_PER_SOCKET_LOOK == 1 && is_readable())).then_some(())
        });
        asked.is_some() || !access_page.look_away()
    }

    fn welcome(&mut self, context: &ServerContext, hello: &Hello) -> Result<(), Option<Next>> {
        let secret = context.node.context.secret();
        let mut access_page = None;
        let welcome = if hello.target != context.node.id {
            Welcome::Stranger
        } else {
            match PeerProcess::of_socket(&*self.stream).and_then(|peer| proven(peer, &hello.secret)) {
                Ok(Some(process)) => {
                    let process = Arc::new(process);
                    let admitted = context.mappable.mappers.admit(process.clone(), hello.secret);
                    // Ends the connection: descriptors or memory are short, and the peer may try again.
                    let (grant, fd) = admitted
                        .inspect_err(|error| tracing::warn!(%error, "an access page cannot be made"))
                        .map_err(|_| None)?;
                    (self.peer, access_page) = (Some(ProvenPeer { process, grant }), Some(fd));
                    Welcome::CanPull
                }
                // The process that the kernel names is not the one that wrote the hello.
                Ok(None) => return Err(None),
                Err(error) => {
                    tracing::debug!(%error, "a peer of this host writes by TCP");
                    Welcome::CannotPull
                }
            }
        };
        let raw = HelloReply { welcome, secret }.encode();
        // One call is enough: they are the first bytes on a fresh socket, which has room for them.
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(context.mappable.revision_page().fd())
            .chain(access_page.as_ref().map(AsFd::as_fd))
            .collect();
        match send_fds(&*self.stream, &raw, &fds) {
            Ok(sent) if sent == raw.len() && welcome != Welcome::Stranger => Ok(()),
            _ => Err(None),
        }
    }

    /// The file of a block that is lent, for a proven peer.
    fn lend(&self, context: &ServerContext, block: u64) -> Option<OwnedFd> {
        self.peer.as_ref().filter(|_| context.buffers().lends_block(block))?;
        shared_block_file(block)
    }
}

/// Whether the process that has connected may be told anything: the kernel says that it is of this user, and which
/// process it is. All others use TCP.
pub(super) fn may_be_a_peer(stream: &UnixStream) -> bool {
    peer_credentials(stream).is_ok_and(|peer| peer.is_own_user()) && peer_pidfd(stream).is_ok()
}

/// Answers in which buffers the pieces lie, and in which blocks those lie if the peer may map them.
fn look(context: &ServerContext, asked: &[Piece], may_map: bool) -> Vec<u8> {
    let mut out = Answer::Done.encode().to_vec();
    for (at, piece) in asked.iter().enumerate() {
        let Some(buffer) = context.buffers().find(piece.to, piece.len) else {
            return Answer::NotRegistered(at as u32).encode().to_vec();
        };
        // A block may be freed while a part of it is lent: what a peer has mapped of it is no memory of this process
        // then.
        let block = buffer.block.filter(|block| may_map && shared_block(block.addr, block.len) == Some(*block));
        let block = block.map(|block| BlockBounds { id: block.id, start: block.addr as u64, len: block.len as u64 });
        let (start, len) = (buffer.range.addr() as u64, buffer.range.len() as u64);
        out.extend_from_slice(&Bounds { start, len, block }.encode());
    }
    out
}

/// Reads until there are so many bytes, as far as they have come.
fn fill(fd: BorrowedFd<'_>, read: &mut Vec<u8>, wanted: usize) -> Result<(), Option<Next>> {
    let had = read.len();
    read.resize(wanted.max(had), 0);
    let count = rustix::net::recv(fd, &mut read[had..], RecvFlags::DONTWAIT);
    read.truncate(had + count.as_ref().map_or(0, |(count, _)| *count));
    match count {
        Ok((0, _)) => Err(None),
        Ok(_) => Ok(()),
        Err(errno) => Err(after(errno, Next::Read)),
    }
}

fn after(errno: Errno, wait: Next) -> Option<Next> {
    match errno {
        Errno::AGAIN => Some(wait),
        Errno::INTR => Some(Next::Again),
        _ => None,
    }
}
