//! A TCP connection to a peer's data port. The caller's thread does the work.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use mooncake_memory::{Bounce, recv_destinations, send_sources};
use mooncake_net::{Connect, Connection, PollHistory, Spread, recv_busy_poll, unpace};
use mooncake_os::{Deadline, Guarded, WaitError, forked, random_bytes};

use super::abandoned::AbandonedConnections;
use crate::error::EngineError;
use crate::protocol::handshake;
use crate::protocol::ids::{ConnectionName, EngineId};
use crate::protocol::segment_document::SegmentDocument;
use crate::protocol::tcp::{Frame, Header, STATUS_LEN, Status};
use crate::request::{Opcode, Request};
use crate::transport::context::Context;
use crate::transport::stall::StallTimer;
use crate::transport::{none_free, too_soon};

/// Requests under way on a connection. So many headers and statuses fit into the sockets' buffers, so that neither side
/// ever waits for the other to read.
const REQUESTS_AHEAD_MAX: usize = 64;

/// Bytes of one system call, and of one step of device memory through the host.
const COPY_STEP_BYTES: u64 = 1 << 20;

/// Where a peer's data port is, in one network, and which version of the protocol it speaks.
#[derive(Clone)]
pub(crate) struct Address {
    peer: Arc<str>,
    /// The first that answers.
    addresses: Vec<SocketAddr>,
    /// The address of this host that connections there come from; none: as the kernel's routes say.
    local: Option<IpAddr>,
    v2: bool,
    /// The incarnation of the engine that is meant; none if the peer has no such id, as Mooncake's engines have none.
    id: Option<EngineId>,
    abandoned: Arc<AbandonedConnections>,
}

impl Address {
    pub fn new(peer: &str, addresses: Vec<SocketAddr>, document: &SegmentDocument) -> Address {
        let (v2, id) = (document.tcp_proto_version >= 2, document.engine_id());
        Address { peer: peer.into(), addresses, local: None, v2, id, abandoned: Arc::default() }
    }

    /// The same peer in another network.
    pub fn at(&self, address: SocketAddr, local: Option<IpAddr>) -> Address {
        Address { addresses: vec![address], local, ..self.clone() }
    }

    /// As reports name it.
    pub fn first(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Connections to the peer that ended with a write under way.
    pub fn abandoned(&self) -> &AbandonedConnections {
        &self.abandoned
    }
}

/// Where the requests of a connection come from. None of them is empty.
pub(crate) trait Requests {
    /// The next one. If there is none for now, those that are under way are finished first.
    fn next(&mut self) -> Option<Request>;

    /// The oldest one that is under way has been carried out.
    fn done(&mut self);
}

/// Requests that are all there.
struct Listed<'a>(std::slice::Iter<'a, Request>);

impl Requests for Listed<'_> {
    fn next(&mut self) -> Option<Request> {
        self.0.find(|request| !request.local.is_empty()).copied()
    }

    fn done(&mut self) {}
}

pub(crate) struct TcpConnection {
    stream: Guarded<TcpStream>,
    peer: Arc<str>,
    v2: bool,
    history: PollHistory,
    bounce: Bounce,
    /// Nothing is under way on it: the peer has answered all that it was asked, and sends nothing.
    is_idle: bool,
    /// A write has gone out on it since it was idle.
    has_written: bool,
    /// The name by which an engine of this project knows it, and ends it on request.
    name: Option<ConnectionName>,
    abandoned: Arc<AbandonedConnections>,
}

impl Drop for TcpConnection {
    /// A write that its caller gave up must not land over a newer one.
    ///
    /// So the connection ends by a reset: closed in order, the kernel would send what it has as soon as the link is
    /// back. The reset may be lost, and the target may hold bytes that it has not looked at. So the connection is also
    /// noted as abandoned, and the next one names it to the target, if that is an engine of this project.
    fn drop(&mut self) {
        if self.is_idle || forked() {
            return;
        }
        if let Some(name) = self.name.filter(|_| self.has_written) {
            self.abandoned.note(name);
        }
        let _ = socket2::SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO));
    }
}

/// Connects to a peer, for the calls of an engine.
pub(crate) struct Connector<'a> {
    pub context: &'a Context,
    pub address: &'a Address,
    /// An attempt takes no longer, whatever the options allow.
    pub timeout: Duration,
}

impl Connect for Connector<'_> {
    type Connection = TcpConnection;
    type Error = EngineError;

    fn open(&self, deadline: &Deadline<'_>) -> Result<TcpConnection, EngineError> {
        let address = self.address;
        let peer = address.peer.clone();
        let connect_timeout = self.context.options.connect_timeout.min(self.timeout);
        let stream = handshake::connect_from(&peer, address.local, &address.addresses, connect_timeout, deadline)?;
        let prepare = || {
            stream.set_nodelay(true)?;
            unpace(&stream);
            stream.set_read_timeout(Some(Deadline::SLICE))?;
            stream.set_write_timeout(Some(Deadline::SLICE))
        };
        prepare().map_err(EngineError::socket(&peer, "prepare a connection"))?;
        let (history, bounce) = (PollHistory::new(), Bounce::new());
        let (v2, abandoned) = (address.v2, address.abandoned.clone());
        let mut connection = TcpConnection {
            stream,
            peer,
            v2,
            history,
            bounce,
            is_idle: true,
            has_written: false,
            name: None,
            abandoned,
        };
        if let Some(id) = address.id {
            let name = random_bytes().map_err(EngineError::socket(&connection.peer, "random bytes"))?;
            connection.name = Some(name);
            let mut timer = StallTimer::new(&connection.peer, deadline, connect_timeout);
            connection.send(&[Frame::Name(name).encode(), Frame::Hello(id).encode()].concat(), &mut timer)?;
            if connection.status(&mut timer)? != Status::Ok {
                return Err(EngineError::malformed(&connection.peer, "another engine has its port by now"));
            }
        }
        Ok(connection)
    }

    fn is_lost(&self, error: &EngineError) -> bool {
        matches!(error, EngineError::Socket { .. })
    }

    fn none_free(&self, error: WaitError) -> EngineError {
        none_free(&self.address.peer, error)
    }

    fn too_soon(&self, reason: &str, ago: Duration) -> EngineError {
        too_soon(&self.address.peer, reason, ago)
    }
}

impl Connection for TcpConnection {
    fn is_alive(&self) -> bool {
        // A peer that sends what it was not asked for is as bad as one that hung up.
        !mooncake_net::is_readable(self.fd())
    }

    fn is_reusable(&self) -> bool {
        self.is_idle
    }
}

impl TcpConnection {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Carries requests out, several of them under way at a time. First it has the peer confirm that nothing lands of
    /// abandoned writes. It fails if no byte moves for so long.
    pub fn transfer(
        &mut self,
        context: &Context,
        requests: &[Request],
        stall_timeout: Duration,
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        self.is_idle = false;
        let peer = self.peer.clone();
        let mut timer = StallTimer::new(&peer, deadline, stall_timeout);
        self.retire_abandoned(&mut timer)?;
        // In runs of one kind. Were reads and writes under way together, each side could wait for the other to read:
        // this one with the bytes of a write, the peer with those of a read.
        for run in requests.chunk_by(|one, next| one.opcode == next.opcode) {
            let mut listed = Listed(run.iter());
            match run[0].opcode {
                Opcode::Write => self.write(context, &mut listed, &mut timer)?,
                Opcode::Read => self.read(context, &mut listed, &mut timer)?,
            }
        }
        (self.is_idle, self.has_written) = (true, false);
        Ok(())
    }

    /// The same of requests of one kind, as a lane of several gets them, until none is under way and none comes.
    pub fn transfer_drawn(
        &mut self,
        context: &Context,
        opcode: Opcode,
        requests: &mut impl Requests,
        (spread, lane): (&Spread, usize),
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        self.is_idle = false;
        let peer = self.peer.clone();
        let timer = StallTimer::new(&peer, deadline, context.options.stall_timeout);
        let mut timer = timer.of_one(spread, lane);
        self.retire_abandoned(&mut timer)?;
        match opcode {
            Opcode::Write => self.write(context, requests, &mut timer)?,
            Opcode::Read => self.read(context, requests, &mut timer)?,
        }
        (self.is_idle, self.has_written) = (true, false);
        Ok(())
    }

    /// On return nothing lands any more of abandoned writes: the target has severed their connections. It confirms them
    /// in groups that fit into the sockets' buffers.
    fn retire_abandoned(&self, timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
        let names = if self.name.is_some() { self.abandoned.all() } else { Vec::new() };
        for some in names.chunks(REQUESTS_AHEAD_MAX) {
            let frames: Vec<_> = some.iter().map(|name| Frame::Sever(*name).encode()).collect();
            self.send(&frames.concat(), timer)?;
            for _ in some {
                if self.status(timer)? != Status::Ok {
                    return Err(EngineError::malformed(&self.peer, "it does not end a connection"));
                }
            }
            self.abandoned.confirmed(some);
        }
        Ok(())
    }

    fn header(&self, request: &Request) -> [u8; crate::protocol::tcp::HEADER_LEN] {
        let (size, addr) = (request.local.len() as u64, request.remote);
        Frame::Request(Header { size, addr, opcode: request.opcode, v2: self.v2 }).encode()
    }

    fn write(
        &mut self,
        context: &Context,
        requests: &mut impl Requests,
        timer: &mut StallTimer<'_>,
    ) -> Result<(), EngineError> {
        let (mut unanswered, mut last) = (VecDeque::new(), None);
        self.has_written = true;
        loop {
            let Some(request) = requests.next() else {
                if unanswered.is_empty() {
                    break;
                }
                self.take_status(&mut unanswered, requests, timer)?;
                continue;
            };
            last = Some(request);
            if let Err(error) = self.send_payload(context, &request, &mut unanswered, requests, timer) {
                // A peer that refuses a write sends a status before it hangs up.
                return Err(self.refusal(&unanswered, &request, error, timer));
            }
            if !self.v2 {
                continue;
            }
            unanswered.push_back(request);
            // Statuses are taken as they come, so that they never fill the socket's buffer.
            while unanswered.len() >= REQUESTS_AHEAD_MAX
                || (!unanswered.is_empty() && mooncake_net::is_readable(self.fd()))
            {
                self.take_status(&mut unanswered, requests, timer)?;
            }
        }
        match last {
            // Version 1 acknowledges nothing. The peer serves one request after the other, so that a byte that it reads
            // back proves that it has taken in what went before.
            Some(last) if !self.v2 => self.read_back(&last, timer),
            _ => Ok(()),
        }
    }

    /// Takes the status of the oldest write.
    fn take_status(
        &self,
        unanswered: &mut VecDeque<Request>,
        requests: &mut impl Requests,
        timer: &mut StallTimer<'_>,
    ) -> Result<(), EngineError> {
        let status = self.status(timer)?;
        let oldest = unanswered.pop_front().expect("one is waited for");
        match status {
            Status::Ok => {
                requests.done();
                Ok(())
            }
            Status::Rejected => Err(self.rejected(&oldest)),
        }
    }

    fn rejected(&self, request: &Request) -> EngineError {
        let (addr, len) = (request.remote, request.local.len() as u64);
        EngineError::NotRegistered { owner: self.peer.to_string(), addr, len }
    }

    /// Why a send failed: the peer's refusal, if it sent one before it hung up.
    fn refusal(
        &self,
        unanswered: &VecDeque<Request>,
        sending: &Request,
        error: EngineError,
        timer: &mut StallTimer<'_>,
    ) -> EngineError {
        if !self.v2 || !matches!(error, EngineError::Socket { .. }) {
            return error;
        }
        for request in unanswered.iter().chain([sending]) {
            match self.status(timer) {
                Ok(Status::Ok) => {}
                Ok(Status::Rejected) => return self.rejected(request),
                Err(_) => break,
            }
        }
        error
    }

    fn send_payload(
        &mut self,
        context: &Context,
        request: &Request,
        unanswered: &mut VecDeque<Request>,
        requests: &mut impl Requests,
        timer: &mut StallTimer<'_>,
    ) -> Result<(), EngineError> {
        let header = self.header(request);
        let len = request.local.len() as u64;
        let source = context.buffers.source(request.local);
        if !Bounce::is_needed_for_sources(&[source]) {
            let (mut sent, total) = (0, header.len() as u64 + len);
            while sent < total {
                match send_sources(self.fd(), &header, &[source], sent, u64::MAX) {
                    Ok(count) => {
                        sent += count as u64;
                        timer.moved()?;
                    }
                    Err(error) => timer.failed(error, "send")?,
                }
                while sent < total && self.v2 && mooncake_net::is_readable(self.fd()) {
                    if unanswered.is_empty() {
                        // A status for the write that is going out: the peer refuses it.
                        let source = std::io::Error::other("the peer stopped reading");
                        return Err(EngineError::Socket { peer: self.peer.to_string(), what: "send", source });
                    }
                    // The status of an earlier write, while this one still goes out.
                    self.take_status(unanswered, requests, timer)?;
                }
            }
            return Ok(());
        }
        self.send(&header, timer)?;
        let mut done = 0;
        let mut bounce = std::mem::take(&mut self.bounce);
        while done < len {
            let step = (len - done).min(COPY_STEP_BYTES);
            let parts = [context.buffers.source(request.local.part(done as usize, step as usize))];
            let staged = bounce.sources(&parts).map_err(|error| EngineError::Memory(error.to_string()))?;
            let mut sent = 0;
            while sent < step {
                match send_sources(self.fd(), &[], &staged, sent, u64::MAX) {
                    Ok(count) => {
                        sent += count as u64;
                        timer.moved()?;
                    }
                    Err(error) => timer.failed(error, "send")?,
                }
            }
            done += step;
        }
        self.bounce = bounce;
        Ok(())
    }

    fn read(
        &mut self,
        context: &Context,
        requests: &mut impl Requests,
        timer: &mut StallTimer<'_>,
    ) -> Result<(), EngineError> {
        let mut asked: VecDeque<Request> = VecDeque::new();
        loop {
            if asked.len() < REQUESTS_AHEAD_MAX / 2 {
                // Only once half of them are answered, so that several headers go out in one send.
                let mut headers = Vec::new();
                while asked.len() < REQUESTS_AHEAD_MAX
                    && let Some(request) = requests.next()
                {
                    headers.extend_from_slice(&self.header(&request));
                    asked.push_back(request);
                }
                if !headers.is_empty() {
                    self.send(&headers, timer)?;
                }
            }
            let Some(request) = asked.pop_front() else { return Ok(()) };
            if self.v2 && self.status(timer)? == Status::Rejected {
                return Err(self.rejected(&request));
            }
            self.receive_payload(context, &request, timer)?;
            requests.done();
        }
    }

    fn receive_payload(
        &mut self,
        context: &Context,
        request: &Request,
        timer: &mut StallTimer<'_>,
    ) -> Result<(), EngineError> {
        let len = request.local.len() as u64;
        let mut done = 0;
        let mut bounce = std::mem::take(&mut self.bounce);
        while done < len {
            let step = (len - done).min(COPY_STEP_BYTES);
            let mut parts = [context.buffers.destination(request.local.part(done as usize, step as usize))];
            let staged = Bounce::is_needed_for_destinations(&parts);
            let mut got = 0;
            while got < step {
                let count = match staged {
                    true => recv_destinations(self.fd(), &mut bounce.destinations(&mut parts), got, step - got),
                    false => recv_destinations(self.fd(), &mut parts, got, step - got),
                };
                match count {
                    Ok(0) => return Err(self.hung_up()),
                    Ok(count) => {
                        got += count as u64;
                        timer.moved()?;
                    }
                    Err(error) => timer.failed(error, "receive")?,
                }
            }
            if staged {
                bounce.deliver(&mut parts).map_err(|error| EngineError::Memory(error.to_string()))?;
            }
            done += step;
        }
        self.bounce = bounce;
        Ok(())
    }

    fn read_back(&self, last: &Request, timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
        let header = Frame::Request(Header { size: 1, addr: last.remote, opcode: Opcode::Read, v2: false });
        self.send(&header.encode(), timer)?;
        // Version 1 refuses by hanging up.
        self.receive(&mut [0], timer).map_err(|error| match error {
            EngineError::Socket { .. } => self.rejected(last),
            other => other,
        })
    }

    fn status(&self, timer: &mut StallTimer<'_>) -> Result<Status, EngineError> {
        let mut raw = [0; STATUS_LEN];
        self.receive(&mut raw, timer)?;
        Status::decode(&raw).ok_or_else(|| EngineError::malformed(&self.peer, "its status is none"))
    }

    fn send(&self, bytes: &[u8], timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
        let mut sent = 0;
        while sent < bytes.len() as u64 {
            match send_sources(self.fd(), bytes, &[], sent, u64::MAX) {
                Ok(count) => {
                    sent += count as u64;
                    timer.moved()?;
                }
                Err(error) => timer.failed(error, "send")?,
            }
        }
        Ok(())
    }

    fn receive(&self, bytes: &mut [u8], timer: &mut StallTimer<'_>) -> Result<(), EngineError> {
        let mut got = 0;
        while got < bytes.len() {
            match recv_busy_poll(&self.history, self.fd(), &mut bytes[got..]) {
                Ok(0) => return Err(self.hung_up()),
                Ok(count) => {
                    got += count;
                    timer.moved()?;
                }
                Err(errno) => timer.failed(errno.into(), "receive")?,
            }
        }
        Ok(())
    }

    fn hung_up(&self) -> EngineError {
        let source = std::io::ErrorKind::UnexpectedEof.into();
        EngineError::Socket { peer: self.peer.to_string(), what: "the peer hung up", source }
    }
}
