//! A data lane: one TCP connection to one segment, and how a worker serves a request on it.
//!
//! Bytes go from the segment to the socket and from the socket to the segment
//! without a copy of ours. A read says in its trailer whether the stamps still
//! were right after the kernel had copied; a write is acknowledged when its
//! bytes are in memory.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{CopyError, Guarded, Mapping, ReadError, Target, Verify};
use mooncake_wire::is_readable;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Shared;
use super::door::refuse;
use super::lanes::Lanes;
use crate::Uuid;
use crate::gate::Admitted;
use crate::local::Served;
use crate::loopback::unpace;
use crate::machine::Denied;
use crate::wire::{
    FRAME_LEN, Frame, HELLO_LEN, Hello, HelloReply, LANE_VERSION, Op, REPLY_LEN, Reply, Status, TRAILER_LEN, Trailer,
    is_placement,
};

/// Reads up to this size are copied once more, so that reply, bytes and trailer
/// go out in one message.
const SMALL: usize = 64 << 10;

/// Bytes received between two looks at whether the lane has been cut.
const CHUNK: u64 = 1 << 20;

/// A worker that stays at its lane waits so long for the next request: a caller that does one thing after the other asks within that.
const STAY: Duration = Duration::from_millis(10);

/// What the rest of the server knows of a lane.
#[derive(Debug)]
pub(crate) struct LaneControl {
    stream: Guarded<TcpStream>,
    uuid: Uuid,
    cut: AtomicBool,
}

impl LaneControl {
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Ends the lane. Its worker may still store what it has received until it
    /// notices: the gate knows when.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }
}

/// Takes a lane with a good hello in.
pub(super) fn open(
    shared: &Shared,
    stream: Guarded<TcpStream>,
    peer: SocketAddr,
    hello: &Hello,
    served: Arc<Served>,
) -> Result<(), Status> {
    if prepare(&stream, shared.options.data_timeout).is_err() {
        // Broken already; there is nobody to tell.
        return Ok(());
    }
    let lane = Lane::new(served.clone(), stream, peer, shared.options.data_timeout);
    let reply = HelloReply {
        version: LANE_VERSION,
        status: Status::Ok,
        reign: shared.state.lock().owner.reign(),
        bytes: served.memory.bytes(),
        uuid: served.memory.uuid(),
        features: 0,
    };
    // A fresh connection has room for it: less means that it is dead.
    let welcome = |lane: &Lane| matches!(send_now(lane.fd(), &reply.encode()), Ok(HELLO_LEN));
    shared
        .lanes
        .add(lane, || served.is_removed(), welcome)
        .or_else(|(lane, status)| refuse(&*lane.control.stream, hello, status))
}

fn prepare(stream: &TcpStream, data_timeout: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    unpace(stream);
    // Where a request has begun, the lane waits anew until its patience ends.
    stream.set_read_timeout(Some(data_timeout.min(STAY)))?;
    stream.set_write_timeout(Some(data_timeout))?;
    // A host that vanished costs no thread for ever.
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// A thread that serves lanes, one request at a time.
pub(super) struct Worker<'a> {
    lanes: &'a Arc<Lanes>,
    /// The peer may let it wait in the middle of its request.
    pub(super) held_up: bool,
    /// It has waited for that request at its lane.
    pub(super) stays: bool,
    small: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(lanes: &'a Arc<Lanes>) -> Worker<'a> {
        Worker { lanes, held_up: false, stays: false, small: Vec::new() }
    }

    /// From here on the peer may let it wait until the request is done.
    fn is_held_up(&mut self) {
        if !self.held_up {
            self.held_up = true;
            self.lanes.held_up();
        }
    }
}

/// A lane between two requests.
#[derive(Debug)]
pub(super) struct Lane {
    served: Arc<Served>,
    control: Arc<LaneControl>,
    peer: SocketAddr,
    /// A peer that moves no byte for so long in the middle of a request loses its lane.
    patience: Duration,
}

/// The lane cannot go on.
pub(super) enum End {
    /// The peer hung up between requests, or the lane was cut.
    Quiet,
    /// It stopped in the middle, or is not what it should be.
    Bad(String),
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> End {
        End::Bad(e.to_string())
    }
}

impl From<Errno> for End {
    fn from(e: Errno) -> End {
        End::Bad(e.to_string())
    }
}

impl Lane {
    fn new(served: Arc<Served>, stream: Guarded<TcpStream>, peer: SocketAddr, patience: Duration) -> Lane {
        let control = LaneControl { stream, uuid: served.memory.uuid(), cut: AtomicBool::new(false) };
        Lane { served, control: Arc::new(control), peer, patience }
    }

    pub(super) fn control(&self) -> &Arc<LaneControl> {
        &self.control
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.control.fd()
    }

    /// Whether the peer has asked for something that no worker has seen yet, or has hung up.
    pub(super) fn has_request(&self) -> bool {
        is_readable(self.fd())
    }

    /// Serves the next request; false if none has come in the time that a worker stays. An error ends the lane.
    pub(super) fn serve_one(&mut self, worker: &mut Worker<'_>) -> Result<bool, End> {
        let Some(frame) = self.next_frame(worker)? else { return Ok(false) };
        self.serve(worker, &frame).map(|()| true)
    }

    fn serve(&self, worker: &mut Worker<'_>, frame: &Frame) -> Result<(), End> {
        // What had come before it was cut is still read, and not done any more.
        if self.control.is_cut() {
            return Err(End::Quiet);
        }
        let bytes = self.served.memory.bytes();
        let in_range = frame.offset.checked_add(frame.len).is_some_and(|end| end <= bytes);
        match frame.op {
            Op::Read if !is_placement(frame.rid) => self.answer(worker, frame, Status::Unsupported, 0),
            Op::Read if !in_range => self.answer(worker, frame, Status::OutOfRange, 0),
            Op::Read if frame.len <= SMALL as u64 => self.read_small(worker, frame),
            Op::Read => self.read_large(worker, frame),
            Op::Write if !in_range || !is_placement(frame.rid) => {
                let status = if in_range { Status::Unsupported } else { Status::OutOfRange };
                self.answer(worker, frame, status, 0)?;
                self.drain(worker, frame.len)
            }
            Op::Write => self.write(worker, frame),
            _ => {
                self.answer(worker, frame, Status::Unsupported, 0)?;
                Err(End::Bad("a request that lanes do not know".into()))
            }
        }
    }

    fn read_small(&self, worker: &mut Worker<'_>, frame: &Frame) -> Result<(), End> {
        let len = frame.len as usize;
        let mut small = std::mem::take(&mut worker.small);
        small.resize(REPLY_LEN + len + TRAILER_LEN, 0);
        let found = {
            let mut target = [Target::new(&mut small[REPLY_LEN..REPLY_LEN + len])];
            self.served.memory.mapping().read(frame.rid, frame.offset, &mut target, Verify::Skip)
        };
        let sent = match found {
            Ok(_) => {
                small[..REPLY_LEN].copy_from_slice(&self.reply(frame, Status::Ok, frame.len, 0).encode());
                let trailer = Trailer { status: Status::Ok, sequence: frame.sequence };
                small[REPLY_LEN + len..].copy_from_slice(&trailer.encode());
                self.send_all(worker, &small)
            }
            Err(ReadError::Stale { found, .. }) => self.answer(worker, frame, Status::Stale, found),
            Err(e) => {
                tracing::error!(rid = frame.rid, offset = frame.offset, "read of the own segment: {e}");
                self.answer(worker, frame, Status::Failed, 0)
            }
        };
        worker.small = small;
        sent
    }

    fn read_large(&self, worker: &mut Worker<'_>, frame: &Frame) -> Result<(), End> {
        worker.is_held_up();
        let mapping = self.served.memory.mapping();
        // Saves the bytes of a read that is late already.
        if !check(mapping, frame)? {
            return self.answer(worker, frame, Status::Stale, 0);
        }
        let reply = self.reply(frame, Status::Ok, frame.len, 0).encode();
        let total = REPLY_LEN as u64 + frame.len;
        let mut sent = 0;
        while sent < total {
            match mapping.send_to(self.fd(), &reply, frame.offset, frame.len, sent) {
                Ok(count) => sent += count as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        // The kernel has its copy; this decides what it is worth.
        let status = if check(mapping, frame)? { Status::Ok } else { Status::Stale };
        self.send_all(worker, &Trailer { status, sequence: frame.sequence }.encode())
    }

    fn write(&self, worker: &mut Worker<'_>, frame: &Frame) -> Result<(), End> {
        let mapping = self.served.memory.mapping().clone();
        let admitted = match self.admit(&mapping, frame) {
            Ok(admitted) => admitted,
            Err((status, detail)) => {
                // Its bytes are on their way: say so at once, then let them pass.
                self.answer(worker, frame, status, detail)?;
                return self.drain(worker, frame.len);
            }
        };
        if frame.len > SMALL as u64 {
            worker.is_held_up();
        }
        let mut got = 0;
        while got < frame.len {
            if self.control.is_cut() {
                return Err(End::Quiet);
            }
            let room = (frame.len - got).min(CHUNK);
            // The bytes of a small write are there with its header, as a rule.
            let offset = frame.offset + got;
            match self.patiently(worker, |may_wait| mapping.recv_from(self.fd(), offset, room, may_wait))? {
                0 => return Err(End::Bad("it hung up in the middle of a write".into())),
                count => got += count as u64,
            }
        }
        // The last byte is in memory: a fence need not wait for the answer.
        drop(admitted);
        self.answer(worker, frame, Status::Ok, 0)
    }

    fn admit(&self, mapping: &Mapping, frame: &Frame) -> Result<Admitted, (Status, u64)> {
        let gate = &self.served.gate;
        let admitted = match gate.admit(mapping, frame.rid, frame.offset, frame.len, Some(self.control.clone())) {
            Ok(admitted) => admitted,
            Err(Denied::Superseded { found }) => return Err((Status::Superseded, found)),
            Err(Denied::OldEpoch { least }) => return Err((Status::OldEpoch, u64::from(least))),
            Err(Denied::Busy) => return Err((Status::Busy, 0)),
            Err(Denied::Closed) => return Err((Status::UnknownSegment, 0)),
            Err(Denied::Copy(_)) => return Err((Status::OutOfRange, 0)),
        };
        match mapping.stamp_if_newest(frame.rid, frame.offset, frame.len) {
            Ok(()) => Ok(admitted),
            Err(CopyError::Superseded { found, .. }) => Err((Status::Superseded, found)),
            Err(e) => {
                tracing::error!(rid = frame.rid, offset = frame.offset, "stamping the own segment: {e}");
                Err((Status::Failed, 0))
            }
        }
    }

    /// Lets the bytes of a refused write pass, so that the next request is
    /// found where it begins.
    fn drain(&self, worker: &mut Worker<'_>, len: u64) -> Result<(), End> {
        let mut scratch = [0; 16 << 10];
        let mut left = len;
        while left > 0 {
            let room = left.min(scratch.len() as u64) as usize;
            match self.recv(worker, &mut scratch[..room])? {
                0 => return Err(End::Quiet),
                count => left -= count as u64,
            }
        }
        Ok(())
    }

    /// The next request; none if the peer stays silent.
    fn next_frame(&self, worker: &mut Worker<'_>) -> Result<Option<Frame>, End> {
        let mut bytes = [0; FRAME_LEN];
        let mut have = match recv(self.fd(), &mut bytes, true) {
            Ok(0) => return Err(End::Quiet),
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        while have < FRAME_LEN {
            match self.recv(worker, &mut bytes[have..])? {
                0 => return Err(End::Bad("it hung up in the middle of a request".into())),
                count => have += count,
            }
        }
        let frame = Frame::decode(&bytes).ok_or_else(|| End::Bad("it lost its place: this is no request".into()))?;
        Ok(Some(frame))
    }

    fn recv(&self, worker: &mut Worker<'_>, buffer: &mut [u8]) -> Result<usize, End> {
        self.patiently(worker, |may_wait| Ok(recv(self.fd(), buffer, may_wait)?))
    }

    /// Receives more of a request. The first try does not wait unless the worker is held up already.
    fn patiently(
        &self,
        worker: &mut Worker<'_>,
        mut receive: impl FnMut(bool) -> io::Result<usize>,
    ) -> Result<usize, End> {
        let mut silent_since = None;
        loop {
            match receive(worker.held_up) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if silent_since.get_or_insert_with(Instant::now).elapsed() >= self.patience {
                        return Err(e.into());
                    }
                    worker.is_held_up();
                }
                received => return received.map_err(End::from),
            }
        }
    }

    fn reply(&self, frame: &Frame, status: Status, len: u64, detail: u64) -> Reply {
        Reply { status, epoch: frame.epoch, sequence: frame.sequence, len, detail }
    }

    fn answer(&self, worker: &mut Worker<'_>, frame: &Frame, status: Status, detail: u64) -> Result<(), End> {
        self.send_all(worker, &self.reply(frame, status, 0, detail).encode())
    }

    fn send_all(&self, worker: &mut Worker<'_>, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            let wait = if worker.held_up { SendFlags::empty() } else { SendFlags::DONTWAIT };
            match rustix::net::send(self.fd(), bytes, wait | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !worker.held_up => worker.is_held_up(),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8], may_wait: bool) -> Result<usize, Errno> {
    let flags = if may_wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    rustix::net::recv(socket, buffer, flags).map(|(count, _)| count)
}

fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

fn check(mapping: &Mapping, frame: &Frame) -> Result<bool, End> {
    mapping.check_stamps(frame.rid, frame.offset, frame.len).map_err(|e| End::Bad(e.to_string()))
}

#[cfg(test)]
mod tests;
