//! A Unix socket to a peer of this host. Memory that it made to be shared is mapped here, and copied to and from. Of
//! other memory, reads are copied here; writes it copies from ours, at our word.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use mooncake_memory::{
    AccessPageView, ForeignRange, MemoryError, PeerMemory, PeerProcess, PullError, RevisionPageView, Target,
};
use mooncake_net::{Connect, Connection, Habit, busy_poll_behind, connect_abstract, recv_awake_behind};
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
    ANSWER_LEN, Answer, BOUNDS_LEN, BlockBounds, Bounds, Hello, MOST_PIECES, Piece, REPLY_HELLO_LEN, ReplyHello,
    Secret, Welcome, Wish, request, words,
};
use crate::request::{Opcode, Request};
use crate::transport::context::Context;
use crate::transport::stall::StallTimer;
use crate::transport::{none_free, too_soon};

/// Bytes copied between two looks at the clock.
const STEP: usize = 16 << 20;

/// Bytes that the peer is asked to copy between two of its answers, which are all that is seen to move.
const FILL: u64 = 256 << 20;

/// Longest that a call which gave a write up waits for the peer to leave it, unless its caller has had enough. It takes
/// the peer a millisecond or two to come out of a copy, unless it stands still there.
const LEAVING: Duration = Duration::from_secs(1);

/// Bytes copied to or from mapped memory in one go: so long the peer cannot give it up.
const VISIT: usize = 4 << 20;

pub(crate) struct Address {
    peer: Arc<str>,
    unix: String,
    id: EngineId,
    mapped: Arc<MappedPeer>,
    out_of_reach: Arc<UnreadableRanges>,
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
        Address { peer, unix: unix.to_owned(), id, mapped, out_of_reach: Arc::default(), stuck_writes }
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
    /// What the peer has proven itself by.
    secret: Secret,
    revision_page: RevisionPageView,
    /// The way into the peer's mapped memory, and this end's word for copies out of its own. None: the peer cannot copy
    /// out of this process, and is asked for none.
    access_page: Option<AccessPageView>,
    mapped: Arc<MappedPeer>,
    out_of_reach: Arc<UnreadableRanges>,
    /// Where it is noted what the peer does not leave.
    stuck_writes: Arc<StuckWrites>,
    /// So long a write that was given up is waited for.
    leaving: Duration,
    /// Buffers of the peer, by their start, as they were when its revision page said so.
    known: (u64, BTreeMap<u64, Bounds>),
    habit: Habit,
    between: bool,
}

/// Writes that the peer will copy by itself.
#[derive(Default)]
struct PendingPulls {
    pieces: Vec<Piece>,
    bytes: u64,
}

/// A transfer did not come about within the host.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another transport may do it.
    OtherWay(String),
    /// The same, for a reason that may pass.
    NotNow(String),
    /// The same, as memory of either end is a device's, or is not there.
    NotCopied {
        /// The peer's end of it, in the peer's process.
        addr: u64,
        len: u64,
        /// It is the peer's end, for certain.
        there: bool,
        reason: String,
    },
    /// Another transport would not help.
    Broken(EngineError),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::OtherWay(reason) | Failure::NotNow(reason) | Failure::NotCopied { reason, .. } => {
                f.write_str(reason)
            }
            Failure::Broken(error) => error.fmt(f),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        match error {
            EngineError::Interrupted | EngineError::Timeout { .. } | EngineError::NotRegistered { .. } => {
                Failure::Broken(error)
            }
            EngineError::Socket { .. } => Failure::NotNow(error.to_string()),
            other => Failure::OtherWay(other.to_string()),
        }
    }
}

impl Drop for SameHostConnection {
    /// The peer may be at it still, with a write that was given up. It begins no further copy from here on; for the one
    /// that it is at, if it is at one, it is waited for.
    fn drop(&mut self) {
        let Some(access_page) = self.access_page.take() else { return };
        if self.between || forked() {
            return;
        }
        let given_up = StuckWrite::new(self.id, access_page, self.process.clone(), self.secret);
        if !Deadline::after(self.leaving, &|| false).wait_until(|| !given_up.lasts()) {
            tracing::warn!(peer = &*self.peer, "stands still in the midst of a copy from here");
            self.stuck_writes.note(given_up);
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
        let other_way = |what: &'static str| move |error: std::io::Error| Failure::OtherWay(format!("{what}: {error}"));
        let stream = connect_abstract(&address.unix).map_err(|error| {
            let reason = format!("its Unix socket cannot be reached: {error}");
            match Errno::from_io_error(&error) {
                // Its queue is full, or there are too many sockets here.
                Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    Failure::NotNow(reason)
                }
                Some(Errno::CONNREFUSED) => {
                    // Nobody listens there any more, and never will again.
                    address.mapped.forget();
                    Failure::OtherWay(reason)
                }
                _ => Failure::OtherWay(reason),
            }
        })?;
        stream.set_read_timeout(Some(Deadline::SLICE)).map_err(other_way("prepare"))?;
        stream.set_write_timeout(Some(Deadline::SLICE)).map_err(other_way("prepare"))?;
        let cannot = |error: PullError| Failure::OtherWay(error.to_string());
        // Before anything is said: the name of a peer that has ended may be another user's by now.
        let process = PeerProcess::of_socket(&*stream).map_err(cannot)?;
        let mut timer = StallTimer::new(&peer, deadline, context.options.connect_timeout);
        let hello = Hello { target: address.id, secret: context.secret() };
        send(stream.as_fd(), &hello.encode(), &mut timer)?;
        let mut raw = [0; REPLY_HELLO_LEN];
        let mut fds = Vec::new();
        let mut got = 0;
        while got < raw.len() {
            match recv_fds(&*stream, &mut raw[got..], &mut fds) {
                Ok(0) => return Err(Failure::NotNow("it hung up at the greeting".into())),
                Ok(count) => {
                    got += count;
                    timer.moved()?;
                }
                Err(error) => timer.failed(error, "wait for its greeting")?,
            }
        }
        let reply = ReplyHello::decode(&raw).ok_or_else(|| Failure::OtherWay("its greeting is none".into()))?;
        if reply.welcome == Welcome::Stranger {
            return Err(Failure::OtherWay("another engine has its socket".into()));
        }
        let can_pull = reply.welcome == Welcome::CanPull;
        let (revision_page, access_page) = match (&fds[..], can_pull) {
            ([revision_page], false) => (revision_page, None),
            ([revision_page, access_page], true) => {
                (revision_page, Some(AccessPageView::map(access_page).map_err(cannot_map)?))
            }
            _ => return Err(Failure::NotNow("it did not send what belongs to its greeting".into())),
        };
        let revision_page = RevisionPageView::map(revision_page).map_err(cannot_map)?;
        let process = proven(process, &reply.secret).map_err(cannot)?;
        let process =
            process.ok_or_else(|| Failure::OtherWay("the process behind its socket is another one".into()))?;
        let (process, secret) = (Arc::new(process), reply.secret);
        let (id, mapped, stuck_writes) = (address.id, address.mapped.clone(), address.stuck_writes.clone());
        let known = (revision_page.get(), BTreeMap::new());
        let (habit, leaving, between) = (Habit::new(), LEAVING, true);
        Ok(SameHostConnection {
            stream,
            peer,
            id,
            leaving,
            process,
            secret,
            revision_page,
            access_page,
            mapped,
            out_of_reach: address.out_of_reach.clone(),
            stuck_writes,
            known,
            habit,
            between,
        })
    }

    fn is_lost(&self, _: &Failure) -> bool {
        // TCP is tried next, which finds out whether the peer is there at all.
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
        self.between
    }
}

impl SameHostConnection {
    /// Carries requests out in their order.
    pub fn transfer(
        &mut self,
        context: &Context,
        requests: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<(), Failure> {
        let ends = || requests.iter().map(|request| (request.remote, request.local.len() as u64));
        if self.out_of_reach.has_any(self.revision_page.get(), ends) {
            let reason = "a device's memory at the peer".into();
            return Err(Failure::NotCopied { addr: 0, len: 0, there: true, reason });
        }
        match self.transfer_all(context, requests, deadline) {
            Err(Failure::Broken(EngineError::Interrupted)) => {
                self.leaving = Deadline::SLICE;
                Err(EngineError::Interrupted.into())
            }
            Err(Failure::NotCopied { addr, len, reason, .. }) => {
                let there = self.is_out_of_reach(addr, len);
                if there {
                    self.note_out_of_reach(context, addr, len, deadline);
                } else {
                    context.buffers.look_for_devices();
                }
                Err(Failure::NotCopied { addr, len, there, reason })
            }
            result => result,
        }
    }

    /// Whether memory of the peer's cannot be read, at its first or last byte. It may be a device's, for all that its
    /// process shows of it.
    fn is_out_of_reach(&self, addr: u64, len: u64) -> bool {
        [addr, addr.saturating_add(len.saturating_sub(1))].into_iter().any(|addr| {
            let read = self.process.pull(addr, &mut Target::new(&mut [0]));
            matches!(read, Err(PullError::Fault { .. }))
        })
    }

    /// The next requests to that buffer take another way at once.
    fn note_out_of_reach(&mut self, context: &Context, addr: u64, len: u64, deadline: &Deadline<'_>) {
        let peer = self.peer.clone();
        let mut timer = StallTimer::new(&peer, deadline, context.options.stall_timeout);
        // A request that is not answered ends the connection, as any other does.
        if let Ok((revision, bounds)) = self.know(addr, len, &mut timer) {
            self.out_of_reach.note(bounds.start, bounds.len, revision);
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
                self.fill(&mut pulls, &mut timer)?;
                self.visit(context, request, &mut timer)?;
                continue;
            }
            match request.opcode {
                Opcode::Write if self.access_page.is_none() => {
                    return Err(Failure::OtherWay("the peer may not read this process".into()));
                }
                Opcode::Write => self.add(&mut pulls, request, &mut timer)?,
                Opcode::Read => {
                    self.fill(&mut pulls, &mut timer)?;
                    self.read(context, request, &mut timer)?;
                }
            }
        }
        self.fill(&mut pulls, &mut timer)
    }

    /// Adds a write to what the peer will copy, and lets it copy what is enough for once.
    fn add(&mut self, pulls: &mut PendingPulls, request: &Request, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        let Piece { to, from, len } = piece(request);
        let mut at = 0;
        while at < len {
            let step = (len - at).min(FILL - pulls.bytes);
            pulls.pieces.push(Piece { to: to + at, from: from + at, len: step });
            pulls.bytes += step;
            at += step;
            if pulls.pieces.len() == MOST_PIECES || pulls.bytes == FILL {
                self.fill(pulls, timer)?;
                timer.check("copying to the peer")?;
            }
        }
        Ok(())
    }

    /// Lets the peer copy from here.
    fn fill(&mut self, pulls: &mut PendingPulls, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        if pulls.pieces.is_empty() {
            return Ok(());
        }
        let by_passage = self.access_page.as_mut().is_some_and(|access_page| access_page.ask(words(&pulls.pieces)));
        match by_passage {
            true => self.answer_by_passage(&pulls.pieces, timer)?,
            false => drop(self.ask(Wish::Fill, &pulls.pieces, timer)?),
        }
        pulls.pieces.clear();
        pulls.bytes = 0;
        Ok(())
    }

    /// The answer to what the peer was asked for through the access page, as it was awake. It comes there while this
    /// end is awake, too, or by the socket.
    fn answer_by_passage(&mut self, pieces: &[Piece], timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        self.between = false;
        let Some(access_page) = &mut self.access_page else { return Ok(()) };
        let answer = match busy_poll_behind(&self.habit, copying(bytes_of(pieces)), || access_page.answer()) {
            None if access_page.fall_asleep() => None,
            // It may have come since.
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

    /// Whether the peer's end of a request lies in memory that is mapped here, or is from now on.
    fn is_mapped(&mut self, request: &Request, timer: &mut StallTimer<'_>) -> Result<bool, Failure> {
        // A peer without such memory is not asked where its buffers lie, but for reads.
        if self.revision_page.note() == 0 || self.access_page.is_none() {
            return Ok(false);
        }
        let (_, bounds) = self.know(request.remote, request.local.len() as u64, timer)?;
        let Some(block) = bounds.block else { return Ok(false) };
        Ok(self.block(&block, timer)?.is_some())
    }

    /// A block of the peer's memory; none if it cannot be mapped.
    fn block(&mut self, block: &BlockBounds, timer: &mut StallTimer<'_>) -> Result<Option<Arc<PeerMemory>>, Failure> {
        if let Some(memory) = self.mapped.get(block.id, self.known.0) {
            return Ok(Some(memory));
        }
        let fds = match self.ask_for(Wish::Map, &[Piece { to: block.id, from: 0, len: 0 }], timer) {
            Ok((_, fds)) => fds,
            Err(Failure::Broken(EngineError::NotRegistered { .. })) => return Ok(None),
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

    /// Copies between memory of here and the peer's mapped memory.
    fn visit(&mut self, context: &Context, request: &Request, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        for at in (0..request.local.len()).step_by(VISIT) {
            let local = request.local.part(at, VISIT.min(request.local.len() - at));
            let addr = request.remote + at as u64;
            while !self.visit_once(context, request.opcode, local, addr, timer)? {
                // It gave a buffer up meanwhile: this one perhaps, so it is asked anew. Or the way is closed for good.
                if !self.is_alive() {
                    return Err(Failure::OtherWay("the peer hung up".into()));
                }
                timer.check("being let in by the peer")?;
            }
            timer.moved()?;
        }
        Ok(())
    }

    /// One step; false if the peer did not let this engine in.
    fn visit_once(
        &mut self,
        context: &Context,
        opcode: Opcode,
        local: ForeignRange,
        addr: u64,
        timer: &mut StallTimer<'_>,
    ) -> Result<bool, Failure> {
        let len = local.len() as u64;
        let (revision, bounds) = self.know(addr, len, timer)?;
        let elsewhere = || Failure::OtherWay("the peer's buffer is another one than before".into());
        let block = bounds.block.ok_or_else(elsewhere)?;
        let memory = self.block(&block, timer)?.ok_or_else(elsewhere)?;
        let there = memory.range(addr - block.start, len).ok_or_else(elsewhere)?;
        let (from, into) = match opcode {
            Opcode::Read => (there, local),
            Opcode::Write => (local, there),
        };
        let mut into = context.buffers.target(into);
        let Some(access_page) = &mut self.access_page else { return Err(elsewhere()) };
        let Some(visit) = access_page.enter(&self.revision_page, revision, block.id) else { return Ok(false) };
        let copied = context.own_process.pull(from.addr() as u64, &mut into);
        drop(visit);
        // The peer's end is memory that can be mapped: it is no device's.
        copied.map_err(|error| Failure::NotCopied { addr, len, there: false, reason: error.to_string() })?;
        // What is mapped here stays mapped when its owner has gone, and nobody has the bytes then.
        if !access_page.is_open() || !self.is_there() {
            return Err(self.gone());
        }
        // Its owner does not wait for ever for whoever is inside. If this was not its buffer any more, it is visited
        // anew.
        Ok(self.revision_page.get() == revision || self.know(addr, len, timer)?.1.block == Some(block))
    }

    /// One request and its answer, of which the rest is given.
    fn ask(&mut self, wish: Wish, pieces: &[Piece], timer: &mut StallTimer<'_>) -> Result<Vec<u8>, Failure> {
        self.ask_for(wish, pieces, timer).map(|(rest, _)| rest)
    }

    /// The same, with the descriptors that come along.
    fn ask_for(
        &mut self,
        wish: Wish,
        pieces: &[Piece],
        timer: &mut StallTimer<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), Failure> {
        self.between = false;
        send(self.stream.as_fd(), &request(wish, pieces), timer)?;
        let mut raw = [0; ANSWER_LEN];
        let bytes = match wish {
            Wish::Fill => bytes_of(pieces),
            Wish::Look | Wish::Map => 0,
        };
        let mut fds = Vec::new();
        match wish {
            Wish::Map => self.receive_fds(&mut raw, &mut fds, timer)?,
            Wish::Fill | Wish::Look => self.receive(&mut raw, copying(bytes), timer)?,
        }
        let mut rest = Vec::new();
        if wish == Wish::Look && Answer::decode(&raw) == Some(Answer::Done) {
            rest.resize(pieces.len() * BOUNDS_LEN, 0);
            self.receive(&mut rest, Duration::ZERO, timer)?;
        }
        self.answered(&raw, pieces)?;
        Ok((rest, fds))
    }

    /// All that was asked for is answered.
    fn answered(&mut self, raw: &[u8; ANSWER_LEN], pieces: &[Piece]) -> Result<(), Failure> {
        let answer = Answer::decode(raw).ok_or_else(|| EngineError::malformed(&self.peer, "its answer is none"))?;
        self.between = true;
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
            Answer::Refused(_) => Err(Failure::OtherWay("the peer may not read this process".into())),
        }
    }

    /// Copies out of the peer's memory. The range is known to have lain in a registered buffer before, and no buffer
    /// was given up until afterwards.
    fn read(&mut self, context: &Context, request: &Request, timer: &mut StallTimer<'_>) -> Result<(), Failure> {
        for at in (0..request.local.len()).step_by(STEP) {
            let local = request.local.part(at, STEP.min(request.local.len() - at));
            let addr = request.remote + at as u64;
            let (before, _) = self.know(addr, local.len() as u64, timer)?;
            let mut target = context.buffers.target(local);
            self.process.pull(addr, &mut target).map_err(|error| match error {
                PullError::Fault { .. } => {
                    let (len, reason) = (local.len() as u64, error.to_string());
                    Failure::NotCopied { addr, len, there: false, reason }
                }
                PullError::Refused { .. } => Failure::OtherWay(error.to_string()),
                PullError::Ended { .. } => self.ended(),
            })?;
            if !self.is_there() {
                // Another program in the same process, perhaps, and its bytes.
                return Err(self.gone());
            }
            if self.revision_page.get() != before {
                return Err(Failure::OtherWay("the peer gave a buffer up meanwhile".into()));
            }
            timer.moved()?;
        }
        Ok(())
    }

    /// Neither the peer's process nor its engine has ended: looked at between two requests, when it has nothing to say.
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

    /// It ended, or hung up: its engine may have had too many connections, and may be reached by TCP.
    fn gone(&self) -> Failure {
        if self.process.has_ended() { self.ended() } else { Failure::OtherWay("the peer hung up".into()) }
    }

    fn ended(&self) -> Failure {
        let source = std::io::ErrorKind::ConnectionReset.into();
        Failure::Broken(EngineError::Socket { peer: self.peer.to_string(), what: "the peer has ended", source })
    }

    /// The buffer of the peer's that a range lies in, and what its revision page said before that was known.
    fn know(&mut self, addr: u64, len: u64, timer: &mut StallTimer<'_>) -> Result<(u64, Bounds), Failure> {
        let now = self.revision_page.get();
        if self.known.0 != now {
            self.known = (now, BTreeMap::new());
        }
        let holds = |bounds: &Bounds| {
            addr >= bounds.start && addr.checked_add(len).is_some_and(|end| end <= bounds.start + bounds.len)
        };
        let before = self.known.1.range(..=addr).next_back().map(|(_, bounds)| *bounds);
        if let Some(bounds) = before.filter(holds) {
            return Ok((now, bounds));
        }
        let raw = self.ask(Wish::Look, &[Piece { to: addr, from: 0, len }], timer)?;
        let bounds = raw.first_chunk().and_then(Bounds::decode).filter(holds);
        let bounds =
            bounds.ok_or_else(|| EngineError::malformed(&self.peer, "it names a buffer that was not asked for"))?;
        self.known.1.insert(bounds.start, bounds);
        Ok((now, bounds))
    }

    /// Receives what comes with descriptors.
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

    /// Receives what the peer says after so much work.
    fn receive(&self, bytes: &mut [u8], work: Duration, timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
        self.receive_by(bytes, timer, |rest| recv_awake_behind(&self.habit, work, self.stream.as_fd(), rest))
    }

    /// Receives what the peer says, by one `recv` after another.
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

/// How long the peer takes for a copy, at the rate of a slow host.
fn copying(bytes: u64) -> Duration {
    const BYTES_PER_NANOSECOND: u64 = 4;
    Duration::from_nanos(bytes / BYTES_PER_NANOSECOND)
}

fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len))
}

fn cannot_map(error: MemoryError) -> Failure {
    Failure::OtherWay(error.to_string())
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
