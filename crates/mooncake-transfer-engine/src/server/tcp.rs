//! A connection of a peer that reads and writes registered memory by Mooncake's TCP data protocol.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_memory::{Bounce, recv_destinations, send_sources};
use mooncake_net::unpace;
use mooncake_os::Guarded;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::context::ServerContext;
use super::{IdleRank, Next, PeerConnection};
use crate::memory::buffers::Buffer;
use crate::protocol::tcp::{Frame, HEADER_LEN, Header, STATUS_LEN, Status};
use crate::request::Opcode;
use crate::server::writers::{NamedWriter, Writer};

/// Bytes moved for one peer before the others have their turn.
const QUANTUM_BYTES: u64 = 32 << 20;

/// Bytes of one system call, during which the buffer is not free; and of one step of device memory through the host.
const COPY_STEP_BYTES: u64 = 1 << 20;

/// Longest until the first request of a connection has come.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct TcpPeerConnection {
    stream: Guarded<TcpStream>,
    from: SocketAddr,
    state: State,
    moved: Instant,
    /// A request of it has been served, or its hello named this incarnation of the engine.
    known: bool,
    /// By this name its initiator can have it severed.
    named: Option<NamedWriter>,
    bounce: Bounce,
}

enum State {
    Header {
        raw: [u8; HEADER_LEN],
        got: usize,
    },
    /// Bytes of a write come in.
    Receive(Payload),
    /// Bytes of a read go out, after the status if there is one.
    Send {
        payload: Payload,
        status: Option<[u8; STATUS_LEN]>,
        sent: usize,
    },
    /// A status goes out.
    Status {
        raw: [u8; STATUS_LEN],
        sent: usize,
        then: Then,
    },
    /// Another connection is being severed: a status says when.
    Sever(Arc<Writer>),
    /// What the peer sends is dropped until it has read the status: closed at once, the kernel would reset the
    /// connection, and the status might be lost.
    Drain {
        left: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Header,
    Drain,
}

struct Payload {
    buffer: Arc<Buffer>,
    addr: u64,
    len: u64,
    done: u64,
    v2: bool,
}

impl TcpPeerConnection {
    pub fn accept(stream: TcpStream, from: SocketAddr) -> io::Result<PeerConnection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        unpace(&stream);
        let (stream, bounce, moved) = (Guarded::new(stream), Bounce::new(), Instant::now());
        let connection = TcpPeerConnection { stream, from, state: begin(), moved, known: false, named: None, bounce };
        Ok(PeerConnection::Tcp(Box::new(connection)))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn is_overdue(&self, context: &ServerContext, now: Instant) -> bool {
        let still = now.duration_since(self.moved);
        match &self.state {
            State::Header { got: 0, .. } if self.known => false,
            State::Header { .. } | State::Drain { .. } => still > FIRST_REQUEST_TIMEOUT,
            _ => still > context.options().stall_timeout,
        }
    }

    pub fn idle_since(&self) -> Option<Instant> {
        matches!(self.state, State::Header { got: 0, .. }).then_some(self.moved)
    }

    pub fn idle_rank(&self) -> Option<IdleRank> {
        match &self.state {
            State::Header { got: 0, .. } => Some(IdleRank { known: self.known, since: self.moved }),
            State::Header { .. } | State::Drain { .. } => Some(IdleRank { known: false, since: self.moved }),
            _ => None,
        }
    }

    pub fn step(&mut self, context: &ServerContext) -> Next {
        let mut quantum = QUANTUM_BYTES;
        loop {
            let moved = match self.advance(context) {
                Ok(moved) => moved,
                Err(Stop::Wait(next)) => return next,
                Err(Stop::End(reason)) => {
                    if let Some(reason) = reason {
                        tracing::debug!(from = %self.from, reason, "a data connection is cut");
                    }
                    return Next::Close;
                }
            };
            quantum = quantum.saturating_sub(moved);
            if quantum == 0 {
                return Next::Again;
            }
        }
    }

    /// Makes one system call; gives the bytes that moved.
    fn advance(&mut self, context: &ServerContext) -> Result<u64, Stop> {
        let fd = self.stream.as_fd();
        let moved = match &mut self.state {
            State::Header { raw, got } => {
                let count = rustix::net::recv(fd, &mut raw[*got..], RecvFlags::DONTWAIT);
                let count = count.map_err(|errno| Stop::of(errno.into(), Next::Read))?.0;
                if count == 0 {
                    return Err(Stop::End((*got > 0).then_some("it hung up inside a header")));
                }
                *got += count;
                if *got == HEADER_LEN {
                    let frame = Frame::decode(raw).ok_or(Stop::End(Some("it says what is no request")))?;
                    self.state = self.take(context, frame)?;
                }
                count as u64
            }
            State::Receive(payload) => {
                let writer = self.named.as_ref().map(NamedWriter::writer);
                let count = payload.receive(context, fd, writer, &mut self.bounce)?;
                if payload.done == payload.len {
                    self.state = match payload.v2 {
                        true => say(Status::Ok, Then::Header),
                        false => begin(),
                    };
                }
                count
            }
            State::Send { payload, status, sent } => {
                let count = payload.send(context, fd, status, sent, &mut self.bounce)?;
                if payload.done == payload.len {
                    self.state = begin();
                }
                count
            }
            State::Status { raw, sent, then } => {
                let count = rustix::net::send(fd, &raw[*sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                *sent += count.map_err(|errno| Stop::of(errno.into(), Next::Write))?;
                if *sent == STATUS_LEN {
                    self.state = match then {
                        Then::Header => begin(),
                        Then::Drain => {
                            let _ = self.stream.shutdown(std::net::Shutdown::Write);
                            State::Drain { left: QUANTUM_BYTES }
                        }
                    };
                }
                STATUS_LEN as u64
            }
            State::Sever(writer) => {
                if !writer.is_out() {
                    // It is in the midst of a system call, which is over soon: it does not block.
                    return Err(Stop::Wait(Next::Again));
                }
                self.state = say(Status::Ok, Then::Header);
                0
            }
            State::Drain { left } => {
                let mut waste = [0; 64 << 10];
                let count = rustix::net::recv(fd, &mut waste, RecvFlags::DONTWAIT);
                let count = count.map_err(|errno| Stop::of(errno.into(), Next::Read))?.0 as u64;
                if count == 0 || count >= *left {
                    return Err(Stop::End(None));
                }
                *left -= count;
                // Dropped bytes are no progress: the connection ends in time, however much comes.
                return Ok(count);
            }
        };
        self.moved = Instant::now();
        Ok(moved)
    }

    /// What a header begins.
    fn take(&mut self, context: &ServerContext, frame: Frame) -> Result<State, Stop> {
        let header = match frame {
            Frame::Hello(id) => {
                self.known |= id == context.node.id;
                return Ok(if id == context.node.id {
                    say(Status::Ok, Then::Header)
                } else {
                    say(Status::Rejected, Then::Drain)
                });
            }
            Frame::Name(name) => {
                let refused = Stop::End(Some("its name is another's, or it has one"));
                self.named = match self.named {
                    None => Some(context.writers.name(name).ok_or(refused)?),
                    Some(_) => return Err(refused),
                };
                return Ok(begin());
            }
            Frame::Sever(name) => {
                return Ok(match context.writers.sever(&name) {
                    Some(writer) => State::Sever(writer),
                    None => say(Status::Ok, Then::Header),
                });
            }
            Frame::Request(header) => header,
        };
        let Header { size, addr, opcode, v2 } = header;
        let status = v2.then(|| Status::Ok.encode());
        if size == 0 {
            return Ok(status.map_or_else(begin, |_| say(Status::Ok, Then::Header)));
        }
        let Some(buffer) = context.buffers().find(addr, size) else {
            tracing::debug!(from = %self.from, addr, size, "a range that is not registered was asked for");
            return if v2 { Ok(say(Status::Rejected, Then::Drain)) } else { Err(Stop::End(None)) };
        };
        self.known = true;
        let payload = Payload { buffer, addr, len: size, done: 0, v2 };
        Ok(match opcode {
            Opcode::Write => State::Receive(payload),
            Opcode::Read => State::Send { payload, status, sent: 0 },
        })
    }
}

fn begin() -> State {
    State::Header { raw: [0; HEADER_LEN], got: 0 }
}

fn say(status: Status, then: Then) -> State {
    State::Status { raw: status.encode(), sent: 0, then }
}

/// A connection cannot go on at once.
enum Stop {
    Wait(Next),
    /// With a reason where it is worth a line.
    End(Option<&'static str>),
}

impl Stop {
    fn of(error: io::Error, wait: Next) -> Stop {
        match Errno::from_io_error(&error) {
            Some(Errno::AGAIN) => Stop::Wait(wait),
            Some(Errno::INTR) => Stop::Wait(Next::Again),
            Some(Errno::FAULT) => Stop::End(Some("registered memory is not there any more")),
            _ => Stop::End(Some("the connection broke")),
        }
    }
}

impl Payload {
    /// The step that is under way, by whole steps from the first byte.
    fn chunk(&self) -> (u64, u64) {
        let start = self.done - self.done % COPY_STEP_BYTES;
        (start, (self.len - start).min(COPY_STEP_BYTES))
    }

    fn receive(
        &mut self,
        context: &ServerContext,
        fd: BorrowedFd<'_>,
        writer: Option<&Writer>,
        bounce: &mut Bounce,
    ) -> Result<u64, Stop> {
        let severed = || Stop::End(Some("its writer had it severed"));
        let _inside = writer.map(|writer| writer.enter().ok_or_else(severed)).transpose()?;
        // In version 2 the writer waits for the status. A writer that has hung up gave the write up, and may have made
        // another one.
        if self.v2 && mooncake_net::has_hung_up(fd) {
            return Err(Stop::End(Some("its writer has gone")));
        }
        let _in_use = self.buffer.enter().ok_or(Stop::End(Some("its buffer was given up")))?;
        let (start, len) = self.chunk();
        let mut parts = [context.buffers().destination(self.buffer.part(self.addr + start, len))];
        let within = self.done - start;
        let staged = Bounce::is_needed_for_destinations(&parts);
        let count = match staged {
            true => recv_destinations(fd, &mut bounce.destinations(&mut parts), within, len - within),
            false => recv_destinations(fd, &mut parts, within, len - within),
        };
        let count = count.map_err(|error| Stop::of(error, Next::Read))? as u64;
        if count == 0 {
            return Err(Stop::End(Some("it hung up inside a write")));
        }
        self.done += count;
        if staged && within + count == len {
            bounce.deliver(&mut parts).map_err(|error| {
                tracing::warn!(%error, "a peer's write could not be brought to the device");
                Stop::End(None)
            })?;
        }
        Ok(count)
    }

    fn send(
        &mut self,
        context: &ServerContext,
        fd: BorrowedFd<'_>,
        status: &Option<[u8; STATUS_LEN]>,
        sent: &mut usize,
        bounce: &mut Bounce,
    ) -> Result<u64, Stop> {
        let _in_use = self.buffer.enter().ok_or(Stop::End(Some("its buffer was given up")))?;
        let (start, len) = self.chunk();
        let within = self.done - start;
        let parts = [context.buffers().source(self.buffer.part(self.addr + start, len))];
        let header = status.as_ref().map_or(&[][..], |raw| &raw[..]);
        let rest = &header[(*sent).min(header.len())..];
        let send = |parts: &[mooncake_memory::Source<'_>]| {
            let (_, tail) = parts[0].split_at(within as usize);
            send_sources(fd, rest, &[tail], 0, u64::MAX)
        };
        let count = match Bounce::is_needed_for_sources(&parts) {
            // Staged anew after each short send; only a full socket makes one.
            true => match bounce.sources(&parts) {
                Ok(staged) => send(&staged),
                Err(error) => {
                    tracing::warn!(%error, "a peer's read could not be fetched from the device");
                    return Err(Stop::End(None));
                }
            },
            false => send(&parts),
        };
        let count = count.map_err(|error| Stop::of(error, Next::Write))?;
        let of_header = count.min(rest.len());
        *sent += of_header;
        self.done += (count - of_header) as u64;
        Ok(count as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpListener;

    use mooncake_memory::leak_shared;

    use super::*;
    use crate::engine::Engine;
    use crate::memory::mappable::Mappable;
    use crate::options::EngineOptions;

    /// Serves the engine, too.
    fn context_of(engine: &Engine) -> ServerContext {
        ServerContext::new(engine.initiator.node.clone(), Arc::new(Mappable::new().unwrap()))
    }

    /// A connection that no thread serves, and its other end.
    fn connection() -> (Box<TcpPeerConnection>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        match TcpPeerConnection::accept(stream, from).unwrap() {
            PeerConnection::Tcp(connection) => (connection, there),
            _ => unreachable!("a data connection"),
        }
    }

    #[test]
    fn nothing_is_taken_in_of_a_writer_that_has_gone() {
        let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
        let lent = leak_shared(4096).unwrap();
        engine.register(&[lent], "*").unwrap();
        let (mut connection, mut writer) = connection();
        let header = Header { size: 4096, addr: lent.addr() as u64, opcode: Opcode::Write, v2: true };
        writer.write_all(&Frame::Request(header).encode()).unwrap();
        writer.write_all(&[7; 2048]).unwrap();
        drop(writer);
        while !mooncake_net::has_hung_up(connection.fd()) {
            std::thread::yield_now();
        }
        assert!(matches!(connection.step(&context_of(&engine)), Next::Close));
        let mut bytes = [1; 4096];
        lent.read_into(&mut bytes).unwrap();
        assert!(bytes == [0; 4096], "it had given the write up");
    }

    #[test]
    fn a_severing_is_confirmed_when_its_writer_is_out_of_its_system_call() {
        let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
        let context = context_of(&engine);
        let named = context.writers.name([1; 16]).unwrap();
        let inside = named.writer().enter().unwrap();
        let (mut connection, mut asker) = connection();
        asker.write_all(&Frame::Sever([1; 16]).encode()).unwrap();
        while connection.stream.peek(&mut [0; HEADER_LEN]).ok() != Some(HEADER_LEN) {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            assert!(matches!(connection.step(&context), Next::Again), "bytes of it may land");
        }
        asker.set_nonblocking(true).unwrap();
        assert_eq!(asker.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        asker.set_nonblocking(false).unwrap();
        drop(inside);
        assert!(matches!(connection.step(&context), Next::Read));
        let mut status = [0; STATUS_LEN];
        asker.read_exact(&mut status).unwrap();
        assert_eq!(Status::decode(&status), Some(Status::Ok));
    }
}
