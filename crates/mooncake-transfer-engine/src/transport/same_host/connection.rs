//! A Unix socket to a peer of this host.
//!
//! Memory that the peer got from this project is mapped here, and this process copies to and from it. Of other memory,
//! this process copies reads out of the peer's, and the peer copies writes out of this one's: the destination's side
//! copies, so that no byte can land in a process that was not meant.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use mooncake_memory::{
    AccessPageView, Destination, ForeignRange, MemoryError, PeerMemory, PeerProcess, PullError, RevisionPageView,
};
use mooncake_net::{Connect, Connection, PollHistory, busy_poll_behind, connect_abstract, recv_busy_poll_behind};
use mooncake_os::{Deadline, Guarded, WaitError, forked, recv_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::mapped::MappedPeer;
use super::stuck_writes::{StuckWrite, StuckWrites};
use super::unreadable::UnreadableRanges;
use crate::error::EngineError;
use crate::memory::peer_identity::proven;
use crate::protocol::ids::EngineId;
use crate::protocol::same_host::{
    ANSWER_LEN, Answer, BOUNDS_LEN, BlockBounds, Bounds, Hello, HelloReply, PIECES_MAX, Piece, REPLY_HELLO_LEN, Secret,
    Welcome, Wish, request, words,
};
use crate::request::{Opcode, Request};
use crate::transport::context::Context;
use crate::transport::stall::StallTimer;
use crate::transport::{none_free, too_soon};

/// Bytes of one read out of the peer's memory, between two looks at the clock.
const READ_STEP_BYTES: usize = 16 << 20;

/// Bytes that the peer is asked to pull in one request: its answers are all that this side sees move.
const PULL_BYTES_MAX: u64 = 256 << 20;

/// Longest that a call which gave a write up waits for the peer to leave its copy: a millisecond or two, unless the
/// peer stands still there. A call that its caller interrupted waits for a slice.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of one access to mapped memory: the peer cannot unregister it meanwhile.
const ACCESS_BYTES_MAX: usize = 4 << 20;

pub(crate) struct Address {
    peer: Arc<str>,
    unix: String,
    id: EngineId,
    mapped: Arc<MappedPeer>,
    unreadable: Arc<UnreadableRanges>,
    stuck_writes: Arc<StuckWrites>,
}

impl Address {
    pub fn new(
        peer: Arc<str>,
        unix: &str,
        id: EngineId,
        mapped: Arc<MappedPeer>,
        stuck_writes: Arc<StuckWrites>,
    ) -> Address {
        Address { peer, unix: unix.to_owned(), id, mapped, unreadable: Arc::default(), stuck_writes }
    }

    pub fn mapped_blocks(&self) -> usize {
        self.mapped.count()
    }
}

pub(crate) struct SameHostConnection {
    stream: Guarded<UnixStream>,
    peer: Arc<str>,
    id: EngineId,
    process: Arc<PeerProcess>,
    /// In the peer's memory as long as the program runs that has proven itself by it.
    secret: Secret,
    revision_page: RevisionPageView,
    /// Where this process enters the peer's mapped memory, and withdraws copies out of its own. None: the peer cannot
    /// copy out of this process, and is not asked to.
    access_page: Option<AccessPageView>,
    mapped: Arc<MappedPeer>,
    unreadable: Arc<UnreadableRanges>,
    /// Where a write is noted that the peer does not leave.
    stuck_writes: Arc<StuckWrites>,
    /// So long this connection waits for the peer to leave a write.
    leave_timeout: Duration,
    /// Buffers of the peer by their start, and what its revision page said before it named them.
    peer_buffers: (u64, BTreeMap<u64, Bounds>),
    history: PollHistory,
    is_idle: bool,
}

/// Writes that the peer will be asked to pull.
#[derive(Default)]
struct PendingPulls {
    pieces: Vec<Piece>,
    bytes: u64,
}

/// Why a transfer did not come about within the host.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another transport may do it.
    Unsuitable(String),
    /// The same, for a reason that may pass.
    UnsuitableNow(String),
    /// The same, as memory of one end is a device's, or is not there.
    NotCopied {
        /// The peer's end of it, an address in the peer's process.
        addr: u64,
        len: u64,
        /// It is certain that it is the peer's end.
        there: bool,
        reason: String,
    },
    /// Another transport would not help.
    Failed(EngineError),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unsuitable(reason) | Failure::UnsuitableNow(reason) | Failure::NotCopied { reason, .. } => {
                f.write_str(reason)
            }
            Failure::Failed(error) => error.fmt(f),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        match error {
            EngineError::Interrupted | EngineError::Timeout { .. } | EngineError::NotRegistered { .. } => {
                Failure::Failed(error)
            }
            EngineError::Socket { .. } => Failure::UnsuitableNow(error.to_string()),
            other => Failure::Unsuitable(other.to_string()),
        }
    }
}

impl Drop for SameHostConnection {
    /// If the call ended before the peer's answer, the peer may still copy out of the caller's memory.
    ///
    /// Withdrawn, the peer begins no further copy. This waits for the one that the peer may be at, since the caller
    /// uses its memory again afterwards. A peer that stands still in the midst of one is noted: until it has come out
    /// nothing else may go to it.
    fn drop(&mut self) {
        let Some(access_page) = self.access_page.take() else { return };
        if self.is_idle || forked() {
            return;
        }
        let write = StuckWrite::new(self.id, access_page, self.process.clone(), self.secret);
        if !Deadline::after(self.leave_timeout, &|| false).wait_until(|| !write.lasts()) {
            tracing::warn!(peer = &*self.peer, "stands still in the midst of a copy from here");
            self.stuck_writes.note(write);
        }
    }
}

/// Connects to a peer, for the calls of an engine.
pub(crate) struct Connector<'a> {
    pub context: &'a Context,
    pub address: &'a Address,
}

impl Connect for Connector<'_> {
    type Connection = SameHostConnection;
    type Error = Failure;

    fn open(&self, deadline: &Deadline<'_>) -> Result<SameHostConnection, Failure> {
        let (context, address) = (self.context, self.address);
        let peer = address.peer.clone();
        let unsuitable =
            |what: &'static str| move |error: std::io::Error| Failure::Unsuitable(format!("{what}: {error}"));
        let stream = connect_abstract(&address.unix).map_err(|error| {
            let reason = format!("its Unix socket cannot be reached: {error}");
            match Errno::from_io_error(&error) {
                // Its queue is full, or this process has too many sockets.
                Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    Failure::UnsuitableNow(reason)
                }
                Some(Errno::CONNREFUSED) => {
                    // The engine has ended: no other ever has its name.
                    address.mapped.forget();
                    Failure::Unsuitable(reason)
                }
                _ => Failure::Unsuitable(reason),
            }
        })?;
        stream.set_read_timeout(Some(Deadline::SLICE)).map_err(unsuitable("prepare"))?;
        stream.set_write_timeout(Some(Deadline::SLICE)).map_err(unsuitable("prepare"))?;
        let cannot = |error: PullError| Failure::Unsuitable(error.to_string());
        // Before the hello: the abstract name of a peer that has ended is free for any process, and the hello
        // holds a secret.
        let process = PeerProcess::of_socket(&*stream).map_err(cannot)?;
        let mut timer = StallTimer::new(&peer, deadline, context.options.connect_timeout);
        let hello = Hello { target: address.id, secret: context.secret() };
        send(stream.as_fd(), &hello.encode(), &mut timer)?;
        let mut raw = [0; REPLY_HELLO_LEN];
        let mut fds = Vec::new();
        let mut got = 0;
        while got < raw.len() {
            match recv_fds(&*stream, &mut raw[got..], &mut fds) {
                Ok(0) => return Err(Failure::UnsuitableNow("it hung up at the hello".into())),
                Ok(count) => {
                    got += count;
                    timer.moved()?;
                }
                Err(error) => timer.failed(error, "wait for its hello")?,
            }
        }
        let reply = HelloReply::decode(&raw).ok_or_else(|| Failure::Unsuitable("its hello is none".into()))?;
        if reply.welcome == Welcome::Stranger {
            return Err(Failure::Unsuitable("another engine has its socket".into()));
        }
        let can_pull = reply.welcome == Welcome::CanPull;
        let (revision_page, access_page) = match (&fds[..], can_pull) {
            ([revision_page], false) => (revision_page, None),
            ([revision_page, access_page], true) => {
                (revision_page, Some(AccessPageView::map(access_page).map_err(cannot_map)?))
            }
            _ => return Err(Failure::UnsuitableNow("it did not send what belongs to its hello".into())),
        };
        let revision_page = RevisionPageView::map(revision_page).map_err(cannot_map)?;
        let process = proven(process, &reply.secret).map_err(cannot)?;
        let process =
            process.ok_or_else(|| Failure::Unsuitable("the process behind its socket is another one".into()))?;
        let (process, secret) = (Arc::new(process), reply.secret);
        let (id, mapped, stuck_writes) = (address.id, address.mapped.clone(), address.stuck_writes.clone());
        let peer_buffers = (revision_page.get(), BTreeMap::new());
        let (history, leave_timeout, is_idle) = (PollHistory::new(), LEAVE_TIMEOUT, true);
        Ok(SameHostConnection {
            stream,
            peer,
            id,
            leave_timeout,
            process,
            secret,
            revision_page,
            access_page,
            mapped,
            unreadable: address.unreadable.clone(),
            stuck_writes,
            peer_buffers,
            history,
            is_idle,
        })
    }

    fn is_lost(&self, _: &Failure) -> bool {
        // No second try here: TCP is tried next, which finds out whether the peer is there at all.
        false
    }

    fn none_free(&self, error: WaitError) -> Failure {
        none_free(&self.address.peer, error).into()
    }

    fn too_soon(&self, reason: &str, ago: Duration) -> Failure {
        too_soon(&self.address.peer, reason, ago).into()
    }
}

impl Connection for SameHostConnection {
    fn is_alive(&self) -> bool {
        !mooncake_net::is_readable(self.stream.as_fd())
    }

    fn is_reusable(&self) -> bool {
        self.is_idle
    }
}

impl SameHostConnection {
    /// Carries requests out in their order. Learns which of the peer's buffers cannot be copied directly.
    pub fn transfer(
        &mut self,
        context: &Context,
        requests: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<(), Failure> {
        let ends = || requests.iter().map(|request| (request.remote, request.local.len() as u64));
        if self.unreadable.has_any(self.revision_page.get(), ends) {
            let reason = "a device's memory at the peer".into();
            return Err(Failure::NotCopied { addr: 0, len: 0, there: true, reason });
        }
        match self.transfer_all(context, requests, deadline) {
            Err(Failure::Failed(EngineError::Interrupted)) => {
                self.leave_timeout = Deadline::SLICE;
                Err(EngineError::Interrupted.into())
            }
            Err(Failure::NotCopied { addr, len, reason, .. }) => {
                let there = self.is_unreadable(addr, len);
                if there {
                    self.note_unreadable(context, addr, len, deadline);
                } else {
                    context.buffers.look_for_devices();
                }
                Err(Failure::NotCopied { addr, len, there, reason })
            }
            result => result,
        }
    }

    /// Whether memory of the peer cannot be read, at its first or last byte: it may be a device's.
    fn is_unreadable(&self, addr: u64, len: u64) -> bool {
        [addr, addr.saturating_add(len.saturating_sub(1))].into_iter().any(|addr| {
            let read = self.process.pull(addr, &mut Destination::new(&mut [0]));
            matches!(read, Err(PullError::Fault { .. }))
        })
    }

    /// Has the next requests to that buffer take another path at once.
    fn note_unreadable(&mut self, context: &Context, addr: u64, len: u64, deadline: &Deadline<'_>) {
        let peer = self.peer.clone();
        let mut timer = StallTimer::new(&peer, deadline, context.options.stall_timeout);
        // A failure needs no report: an unanswered request has ended the connection.
        if let Ok((revision, bounds)) = self.find_buffer(addr, len, &mut timer) {
            self.unreadable.note(bounds.start, bounds.len, revision);
        }
    }

    fn transfer_all(
        &mut self,
        context: &Context,
        requests: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<(), Failure> {
        let peer = self.peer.clone();
        let mut timer = StallTimer::new(&peer, deadline, context.options.stall_timeout);
        let mut pulls = PendingPulls::default();
        for request in requests.iter().filter(|request| !request.local.is_empty()) {
            if self.is_mapped(request, &mut timer)? {
                self.have_pulled(&mut pulls, &mut timer)?;
                self.copy_mapped(context, request, &mut timer)?;
                continue;
            }
            match request.opcode {
                Opcode::Write if self.access_page.is_none() => {
                    return Err(Failure::Unsuitable("the peer may not read this process".into()));
                }
                Opcode::Write => self.add(&mut pulls, request, &mut timer)?,
                Opcode::Read => {
                    self.have_pulled(&mut pulls, &mut timer)?;
                    self.read(context, request, &mut timer)?;
                }
            }
        }
        self.have_pulled(&mut pulls, &mut timer)
    }

    /// Adds a write to what the peer will pull, and has it pull whenever that is enough for one request.
    fn add(&mut self, pulls: &mut PendingPulls, request: &Request, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        let Piece { to, from, len } = piece(request);
        let mut at = 0;
        while at < len {
            let step = (len - at).min(PULL_BYTES_MAX - pulls.bytes);
            pulls.pieces.push(Piece { to: to + at, from: from + at, len: step });
            pulls.bytes += step;
            at += step;
            if pulls.pieces.len() == PIECES_MAX || pulls.bytes == PULL_BYTES_MAX {
                self.have_pulled(pulls, timer)?;
                timer.check("copying to the peer")?;
            }
        }
        Ok(())
    }

    /// Has the peer copy out of this process, and waits for its answer.
    fn have_pulled(&mut self, pulls: &mut PendingPulls, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        if pulls.pieces.is_empty() {
            return Ok(());
        }
        let is_on_page = self.access_page.as_mut().is_some_and(|access_page| access_page.ask(words(&pulls.pieces)));
        match is_on_page {
            true => self.receive_on_access_page(&pulls.pieces, timer)?,
            false => drop(self.ask(Wish::Pull, &pulls.pieces, timer)?),
        }
        pulls.pieces.clear();
        pulls.bytes = 0;
        Ok(())
    }

    /// Receives the answer to a request that was put on the access page, as the peer was looking there. The peer
    /// answers on the page while this end looks there, too, and by the socket otherwise.
    fn receive_on_access_page(&mut self, pieces: &[Piece], timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        self.is_idle = false;
        let Some(access_page) = &mut self.access_page else { return Ok(()) };
        let answer = match busy_poll_behind(&self.history, copying(bytes_of(pieces)), || access_page.answer()) {
            None if access_page.fall_asleep() => None,
            // The peer may have answered before it saw that this end stopped looking.
            answer => answer.or_else(|| access_page.answer()),
        };
        let raw = match answer {
            Some(word) => {
                timer.moved()?;
                word.to_le_bytes()
            }
            None => {
                let mut raw = [0; ANSWER_LEN];
                let read = |bytes: &mut [u8]| rustix::net::recv(&*self.stream, bytes, RecvFlags::empty());
                self.receive_by(&mut raw, timer, |bytes| read(bytes).map(|(count, _)| count))?;
                raw
            }
        };
        self.answered(&raw, pieces)
    }

    /// Whether the peer's end of a request lies in memory that is mapped here; maps it if it can be.
    fn is_mapped(&mut self, request: &Request, timer: &mut StallTimer<'_>) -> Result<bool, Failure> {
        // The note is the number of buffers that can be mapped. Without any, a write needs no look-up of its buffer:
        // the peer checks the range when it pulls.
        if self.revision_page.note() == 0 || self.access_page.is_none() {
            return Ok(false);
        }
        let (_, bounds) = self.find_buffer(request.remote, request.local.len() as u64, timer)?;
        let Some(block) = bounds.block else { return Ok(false) };
        Ok(self.block(&block, timer)?.is_some())
    }

    /// A block of the peer's memory, mapped here; none if it cannot be mapped.
    fn block(&mut self, block: &BlockBounds, timer: &mut StallTimer<'_>) -> Result<Option<Arc<PeerMemory>>, Failure> {
        if let Some(memory) = self.mapped.get(block.id, self.peer_buffers.0) {
            return Ok(Some(memory));
        }
        let fds = match self.ask_for(Wish::Map, &[Piece { to: block.id, from: 0, len: 0 }], timer) {
            Ok((_, fds)) => fds,
            Err(Failure::Failed(EngineError::NotRegistered { .. })) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let [file] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|_| EngineError::malformed(&self.peer, "it sent something else than its memory"))?;
        match PeerMemory::map(&file, block.len) {
            Ok(memory) => Ok(Some(self.mapped.keep(block.id, memory, &self.process))),
            Err(error) => {
                tracing::warn!(peer = &*self.peer, %error, "memory of a peer that cannot be mapped");
                Ok(None)
            }
        }
    }

    /// Copies between memory of this process and the peer's mapped memory.
    fn copy_mapped(&mut self, context: &Context, request: &Request, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        for at in (0..request.local.len()).step_by(ACCESS_BYTES_MAX) {
            let local = request.local.part(at, ACCESS_BYTES_MAX.min(request.local.len() - at));
            let addr = request.remote + at as u64;
            while !self.copy_mapped_step(context, request.opcode, local, addr, timer)? {
                // The peer unregistered a buffer meanwhile, perhaps this one: the next attempt looks it up again. Or
                // the peer has closed the page for good.
                if !self.is_alive() {
                    return Err(Failure::Unsuitable("the peer hung up".into()));
                }
                timer.check("being let in by the peer")?;
            }
            timer.moved()?;
        }
        Ok(())
    }

    /// One access; false if it does not count and is to be made again.
    ///
    /// The peer takes no part, so that the order of looks proves its side. The buffer is looked up at a revision. The
    /// access is counted in on the page, and goes on if the page is open and the revision the same. The bytes are
    /// copied, and the access is counted out. It counts if afterwards
    ///
    /// 1. the page is open: a peer that has closed it does not wait for accesses;
    /// 2. the peer's process and its connection live: what is mapped here outlives them, and no program has the bytes;
    /// 3. the revision is the same, or a fresh look-up names the same block: the peer waits for an access only for some
    ///    time, and then reports its buffer as busy.
    fn copy_mapped_step(
        &mut self,
        context: &Context,
        opcode: Opcode,
        local: ForeignRange,
        addr: u64,
        timer: &mut StallTimer<'_>,
    ) -> Result<bool, Failure> {
        let len = local.len() as u64;
        let (revision, bounds) = self.find_buffer(addr, len, timer)?;
        let elsewhere = || Failure::Unsuitable("the peer's buffer is another one than before".into());
        let block = bounds.block.ok_or_else(elsewhere)?;
        let memory = self.block(&block, timer)?.ok_or_else(elsewhere)?;
        let there = memory.range(addr - block.start, len).ok_or_else(elsewhere)?;
        let (from, into) = match opcode {
            Opcode::Read => (there, local),
            Opcode::Write => (local, there),
        };
        let mut into = context.buffers.destination(into);
        let Some(access_page) = &mut self.access_page else { return Err(elsewhere()) };
        let Some(access) = access_page.enter(&self.revision_page, revision, block.id) else { return Ok(false) };
        let copied = context.own_process.pull(from.addr() as u64, &mut into);
        drop(access);
        // Memory that can be mapped is no device's, so that it is this end that cannot be copied.
        copied.map_err(|error| Failure::NotCopied { addr, len, there: false, reason: error.to_string() })?;
        if !access_page.is_open() || !self.is_there() {
            return Err(self.gone());
        }
        Ok(self.revision_page.get() == revision || self.find_buffer(addr, len, timer)?.1.block == Some(block))
    }

    /// Makes one request; gives what follows its answer.
    fn ask(&mut self, wish: Wish, pieces: &[Piece], timer: &mut StallTimer<'_>) -> Result<Vec<u8>, Failure> {
        self.ask_for(wish, pieces, timer).map(|(rest, _)| rest)
    }

    /// The same, with the descriptors that come with the answer.
    fn ask_for(
        &mut self,
        wish: Wish,
        pieces: &[Piece],
        timer: &mut StallTimer<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), Failure> {
        self.is_idle = false;
        send(self.stream.as_fd(), &request(wish, pieces), timer)?;
        let mut raw = [0; ANSWER_LEN];
        let bytes = match wish {
            Wish::Pull => bytes_of(pieces),
            Wish::Look | Wish::Map => 0,
        };
        let mut fds = Vec::new();
        match wish {
            Wish::Map => self.receive_fds(&mut raw, &mut fds, timer)?,
            Wish::Pull | Wish::Look => self.receive(&mut raw, copying(bytes), timer)?,
        }
        let mut rest = Vec::new();
        if wish == Wish::Look && Answer::decode(&raw) == Some(Answer::Done) {
            rest.resize(pieces.len() * BOUNDS_LEN, 0);
            self.receive(&mut rest, Duration::ZERO, timer)?;
        }
        self.answered(&raw, pieces)?;
        Ok((rest, fds))
    }

    /// Reads an answer: from here on nothing is under way on the connection.
    fn answered(&mut self, raw: &[u8; ANSWER_LEN], pieces: &[Piece]) -> Result<(), Failure> {
        let answer = Answer::decode(raw).ok_or_else(|| EngineError::malformed(&self.peer, "its answer is none"))?;
        self.is_idle = true;
        let at = |at: u32| pieces.get(at as usize).copied().unwrap_or(pieces[0]);
        match answer {
            Answer::Done => Ok(()),
            Answer::NotRegistered(which) => {
                let Piece { to: addr, len, .. } = at(which);
                Err(EngineError::NotRegistered { owner: self.peer.to_string(), addr, len }.into())
            }
            Answer::Fault(which) => {
                let Piece { to, from, len } = at(which);
                let reason = format!("{len} bytes from {from:#x} here to {to:#x} there cannot be copied directly");
                Err(Failure::NotCopied { addr: to, len, there: false, reason })
            }
            Answer::Refused(_) => Err(Failure::Unsuitable("the peer may not read this process".into())),
        }
    }

    /// Copies out of the peer's memory by `process_vm_readv`.
    ///
    /// The peer is not asked. The range was in one of its buffers at a revision; if its process and connection live
    /// afterwards and the revision is the same, no buffer was unregistered meanwhile, and the bytes are that buffer's.
    fn read(&mut self, context: &Context, request: &Request, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        for at in (0..request.local.len()).step_by(READ_STEP_BYTES) {
            let local = request.local.part(at, READ_STEP_BYTES.min(request.local.len() - at));
            let addr = request.remote + at as u64;
            let (before, _) = self.find_buffer(addr, local.len() as u64, timer)?;
            let mut destination = context.buffers.destination(local);
            self.process.pull(addr, &mut destination).map_err(|error| match error {
                PullError::Fault { .. } => {
                    let (len, reason) = (local.len() as u64, error.to_string());
                    Failure::NotCopied { addr, len, there: false, reason }
                }
                PullError::Refused { .. } => Failure::Unsuitable(error.to_string()),
                PullError::Ended { .. } => self.ended(),
            })?;
            if !self.is_there() {
                // The process may have called `exec`, and the bytes are of another program.
                return Err(self.gone());
            }
            if self.revision_page.get() != before {
                return Err(Failure::Unsuitable("the peer gave a buffer up meanwhile".into()));
            }
            timer.moved()?;
        }
        Ok(())
    }

    /// Whether the peer's process and engine live. Looked at between two requests, when the peer sends nothing:
    /// anything to read is the end.
    fn is_there(&self) -> bool {
        let process = PollFd::new(&self.process, PollFlags::IN);
        let mut fds = [process, PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN | PollFlags::RDHUP)];
        loop {
            match poll(&mut fds, Some(&Timespec::default())) {
                Err(Errno::INTR) => {}
                ready => return ready == Ok(0),
            }
        }
    }

    /// The process has ended, or only the connection: an engine with too many connections hangs up, and may be reached
    /// by TCP.
    fn gone(&self) -> Failure {
        if self.process.has_ended() { self.ended() } else { Failure::Unsuitable("the peer hung up".into()) }
    }

    fn ended(&self) -> Failure {
        let source = std::io::ErrorKind::ConnectionReset.into();
        Failure::Failed(EngineError::Socket { peer: self.peer.to_string(), what: "the peer has ended", source })
    }

    /// The peer's buffer that a range lies in, and what its revision page said before it named it. What it named before
    /// holds as long as the revision is the same.
    fn find_buffer(&mut self, addr: u64, len: u64, timer: &mut StallTimer<'_>) -> Result<(u64, Bounds), Failure> {
        let now = self.revision_page.get();
        if self.peer_buffers.0 != now {
            self.peer_buffers = (now, BTreeMap::new());
        }
        let holds = |bounds: &Bounds| {
            addr >= bounds.start && addr.checked_add(len).is_some_and(|end| end <= bounds.start + bounds.len)
        };
        let before = self.peer_buffers.1.range(..=addr).next_back().map(|(_, bounds)| *bounds);
        if let Some(bounds) = before.filter(holds) {
            return Ok((now, bounds));
        }
        let raw = self.ask(Wish::Look, &[Piece { to: addr, from: 0, len }], timer)?;
        let bounds = raw.first_chunk().and_then(Bounds::decode).filter(holds);
        let bounds =
            bounds.ok_or_else(|| EngineError::malformed(&self.peer, "it names a buffer that was not asked for"))?;
        self.peer_buffers.1.insert(bounds.start, bounds);
        Ok((now, bounds))
    }

    /// Receives bytes and the descriptors that come with them.
    fn receive_fds(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        timer: &mut StallTimer<'_>,
    ) -> Result<(), EngineError> {
        let mut got = 0;
        while got < bytes.len() {
            match recv_fds(&*self.stream, &mut bytes[got..], fds) {
                Ok(0) => {
                    let source = std::io::ErrorKind::UnexpectedEof.into();
                    return Err(EngineError::Socket { peer: self.peer.to_string(), what: "the peer hung up", source });
                }
                Ok(count) => {
                    got += count;
                    timer.moved()?;
                }
                Err(error) => timer.failed(error, "wait for its answer")?,
            }
        }
        Ok(())
    }

    /// Receives an answer, for which the peer works so long.
    fn receive(&self, bytes: &mut [u8], work: Duration, timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
        self.receive_by(bytes, timer, |rest| recv_busy_poll_behind(&self.history, work, self.stream.as_fd(), rest))
    }

    /// Receives bytes, by one `recv` after another.
    fn receive_by(
        &self,
        bytes: &mut [u8],
        timer: &mut StallTimer<'_>,
        mut recv: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), EngineError> {
        let mut got = 0;
        while got < bytes.len() {
            match recv(&mut bytes[got..]) {
                Ok(0) => {
                    let source = std::io::ErrorKind::UnexpectedEof.into();
                    return Err(EngineError::Socket { peer: self.peer.to_string(), what: "the peer hung up", source });
                }
                Ok(count) => {
                    got += count;
                    timer.moved()?;
                }
                Err(errno) => timer.failed(errno.into(), "wait for its answer")?,
            }
        }
        Ok(())
    }
}

/// How long the peer copies, at the rate of a slow host.
fn copying(bytes: u64) -> Duration {
    const BYTES_PER_NANOSECOND: u64 = 4;
    Duration::from_nanos(bytes / BYTES_PER_NANOSECOND)
}

fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len))
}

fn cannot_map(error: MemoryError) -> Failure {
    Failure::Unsuitable(error.to_string())
}

fn piece(request: &Request) -> Piece {
    Piece { to: request.remote, from: request.local.addr() as u64, len: request.local.len() as u64 }
}

fn send(fd: BorrowedFd<'_>, bytes: &[u8], timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
    let mut sent = 0;
    while sent < bytes.len() {
        match rustix::net::send(fd, &bytes[sent..], SendFlags::NOSIGNAL) {
            Ok(count) => {
                sent += count;
                timer.moved()?;
            }
            Err(errno) => timer.failed(errno.into(), "ask the peer")?,
        }
    }
    Ok(())
}
