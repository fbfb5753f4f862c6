//! A peer of this host: its bytes are fetched from its memory, at its request.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::memory::peer_identity::proven;
use mooncake_memory::{PeerProcess, shared_block, shared_block_file};
use mooncake_net::Habit;
use mooncake_os::{Guarded, peer_credentials, peer_pidfd, send_fds};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::context::ServerContext;
use super::pull::{Pull, Turn};
use super::{IdleRank, Next, Session};
use crate::memory::mappers::MapGrant;
use crate::protocol::same_host::{
    Answer, BlockBounds, Bounds, HELLO_LEN, Hello, PIECE_LEN, Piece, REQUEST_LEN, ReplyHello, Welcome, Wish, head,
    pieces, pieces_of,
};

/// Looks into the access page for each look at the socket, which is a system call.
const LOOKS: u32 = 32;

/// A hello, and the rest of a request that has begun.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Host {
    stream: Guarded<UnixStream>,
    /// A peer whose memory may be read, and that may read this engine's: the very process that it says, of this user.
    peer: Option<Known>,
    state: State,
    moved: Instant,
}

struct Known {
    process: Arc<PeerProcess>,
    /// Its way into memory that it maps, and its word for copies out of its own.
    admission: MapGrant,
}

impl Known {
    /// What it asks for through the access page.
    fn asked(&self) -> Option<Vec<u64>> {
        self.admission.access_page().asked()
    }
}

enum State {
    Hello(Vec<u8>),
    Request(Vec<u8>),
    Fill(Pull, By),
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

impl Host {
    pub fn session(stream: UnixStream) -> io::Result<Session> {
        stream.set_nonblocking(true)?;
        let stream = Guarded::new(stream);
        let (state, moved) = (State::Hello(Vec::new()), Instant::now());
        Ok(Session::Host(Box::new(Host { stream, peer: None, state, moved })))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn is_overdue(&self, context: &ServerContext, now: Instant) -> bool {
        let still = now.duration_since(self.moved);
        match &self.state {
            State::Request(read) if read.is_empty() => false,
            State::Fill(..) | State::Answer { .. } => still > context.options().stall_timeout,
            _ => still > PATIENCE,
        }
    }

    pub fn idle_since(&self) -> Option<Instant> {
        matches!(&self.state, State::Request(read) if read.is_empty()).then_some(self.moved)
    }

    pub fn idle_rank(&self) -> Option<IdleRank> {
        let known = match &self.state {
            State::Hello(_) => false,
            State::Request(_) => true,
            State::Fill(..) | State::Answer { .. } => return None,
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

    /// One step; `Err` says what to wait for, or that this is the end.
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
                if let Some(asked) = self.peer.as_ref().filter(|_| read.is_empty()).and_then(Known::asked) {
                    self.state = State::Fill(Pull::new(pieces_of(&asked).ok_or(None)?), By::AccessPage);
                    return Ok(());
                }
                let asked = read.first_chunk::<REQUEST_LEN>().map(|raw| head(raw).ok_or(None)).transpose()?;
                let wanted = REQUEST_LEN + asked.map_or(0, |(_, count)| count * PIECE_LEN);
                if asked.is_none() || read.len() < wanted {
                    // Small requests come whole: one call for head and first piece.
                    return fill(fd, read, wanted.max(REQUEST_LEN + PIECE_LEN));
                }
                if read.len() > wanted {
                    // It is to wait for the answer before it asks again.
                    return Err(None);
                }
                let Some((wish, _)) = asked else { return Ok(()) };
                let asked = pieces(&read[REQUEST_LEN..]);
                let mut fds = Vec::new();
                let raw = match wish {
                    Wish::Fill => {
                        self.state = State::Fill(Pull::new(asked), By::Socket);
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
            State::Fill(filling, by) => {
                let peer = self.peer.as_ref().ok_or(None)?;
                let access_page = peer.admission.access_page();
                let (raw, fds) = match filling.go_on(context.buffers(), fd, &peer.process, access_page) {
                    Turn::Done(answer) => {
                        let raw = answer.encode();
                        if let By::AccessPage = by
                            && access_page.answer(u64::from_le_bytes(raw))
                        {
                            self.state = State::Request(Vec::new());
                            self.moved = Instant::now();
                            // The next one is not there yet, most likely.
                            return Err(Some(Next::Read));
                        }
                        (raw.to_vec(), Vec::new())
                    }
                    Turn::Gone => return Err(None),
                    Turn::Again => {
                        self.moved = Instant::now();
                        return Err(Some(Next::Again));
                    }
                };
                self.state = State::Answer { raw, sent: 0, fds };
                Ok(())
            }
            State::Answer { raw, sent, fds } => {
                // The next request may follow before this call has returned: by the access page then.
                if let Some(known) = &self.peer {
                    known.admission.access_page().look();
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
                    // The access page is looked at here too: a peer that asks again at once would keep this thread for
                    // ever, so the caller decides.
                    return Err(Some(Next::Read));
                }
                Ok(())
            }
        }
    }

    /// Waits awake for the next request, by the access page or by the socket. False: none has come, or it is not worth
    /// it.
    pub fn is_asked_soon(&self, habit: &Habit) -> bool {
        let is_readable = || mooncake_net::is_readable(self.stream.as_fd());
        let Some(Known { admission, .. }) = &self.peer else {
            return mooncake_net::busy_poll(habit, || is_readable().then_some(())).is_some();
        };
        let access_page = admission.access_page();
        let mut looks = 0_u32;
        let asked = mooncake_net::busy_poll(habit, || {
            looks += 1;
            (access_page.is_asked() || (looks % LOOKS == 1 && is_readable())).then_some(())
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
                    // It may try again: descriptors or memory are short.
                    let (admission, fd) =
                        admitted.inspect_err(|error| tracing::warn!(%error, "a passage")).map_err(|_| None)?;
                    (self.peer, access_page) = (Some(Known { process, admission }), Some(fd));
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
        let raw = ReplyHello { welcome, secret }.encode();
        // The first bytes on a fresh socket: there is room for them.
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(context.mappable.revision_page().fd())
            .chain(access_page.as_ref().map(AsFd::as_fd))
            .collect();
        match send_fds(&*self.stream, &raw, &fds) {
            Ok(sent) if sent == raw.len() && welcome != Welcome::Stranger => Ok(()),
            _ => Err(None),
        }
    }

    /// A block of this engine's memory, for a peer that is known.
    fn lend(&self, context: &ServerContext, block: u64) -> Option<OwnedFd> {
        self.peer.as_ref().filter(|_| context.buffers().lends_block(block))?;
        shared_block_file(block)
    }
}

/// Whether the process that has connected may be told anything: it is this user's, beyond doubt, and the kernel says
/// which one it is. All others go by TCP.
pub(super) fn may_be_a_peer(stream: &UnixStream) -> bool {
    peer_credentials(stream).is_ok_and(|peer| peer.is_own_user()) && peer_pidfd(stream).is_ok()
}

/// In which buffers the pieces lie, and in which blocks those if the peer may map them.
fn look(context: &ServerContext, asked: &[Piece], may_map: bool) -> Vec<u8> {
    let mut out = Answer::Done.encode().to_vec();
    for (at, piece) in asked.iter().enumerate() {
        let Some(buffer) = context.buffers().find(piece.to, piece.len) else {
            return Answer::NotRegistered(at as u32).encode().to_vec();
        };
        // A block may be freed while a part of it is lent: what a peer has mapped of it is nobody's memory then.
        let block = buffer.block.filter(|block| may_map && shared_block(block.addr, block.len) == Some(*block));
        let block = block.map(|block| BlockBounds { id: block.id, start: block.addr as u64, len: block.len as u64 });
        let (start, len) = (buffer.range.addr() as u64, buffer.range.len() as u64);
        out.extend_from_slice(&Bounds { start, len, block }.encode());
    }
    out
}

/// Reads on until there are so many bytes, as far as there are any.
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
