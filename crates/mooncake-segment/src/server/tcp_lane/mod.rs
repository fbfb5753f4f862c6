//! A data lane: one TCP connection to one segment, and how a worker serves a request on it.
//!
//! Bytes go from the segment to the socket and from the socket to the segment
//! without a copy of ours. A read says in its trailer whether the stamps still
//! were right after the kernel had copied; a write is acknowledged when its
//! bytes are in memory.
//!
//! A request is a few steps. A worker whose peer lets it wait for longer than a
//! moment leaves the lane where it is, for the worker that finds the peer ready again.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{CopyError, Destination, Mapping, ReadError, Verify};
use mooncake_net::{is_readable, keep_alive, unpace};
use mooncake_os::Guarded;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Shared;
use super::acceptor::refuse;
use super::lanes::Lanes;
use super::stall_timer::StallTimer;
use crate::gate::{Admitted, WriterConnection};
use crate::local::Served;
use crate::machine::Denied;
use crate::protocol::frames::{
    FRAME_LEN, Frame, HELLO_LEN, Hello, HelloReply, LANE_VERSION, Op, REPLY_LEN, Reply, Status, TRAILER_LEN, Trailer,
};
use crate::readiness::Ready;

/// Reads up to this size are copied once more, so that reply, bytes and trailer
/// go out in one message.
const SMALL: usize = 64 << 10;

/// Bytes received between two looks at whether the lane has been cut.
const CHUNK: u64 = 1 << 20;

/// A worker waits so long at a lane: for the next request if it stays, as a caller that does one thing after the other
/// asks within that, and for a peer that moves no byte in the middle of one.
const STAY: Duration = Duration::from_millis(10);

/// How often the kernel asks whether the host of a peer that sends nothing is there: one that vanished costs no thread
/// for ever.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// What the rest of the server knows of a lane.
#[derive(Debug)]
pub(super) struct LaneControl {
    stream: Guarded<TcpStream>,
    uuid: SegmentUuid,
    cut: AtomicBool,
}

impl LaneControl {
    pub(super) fn uuid(&self) -> SegmentUuid {
        self.uuid
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }
}

impl WriterConnection for LaneControl {
    fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
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
    if prepare(&stream).is_err() {
        // Broken already; there is no peer to tell.
        return Ok(());
    }
    let lane = Lane::new(served.clone(), stream, peer, shared.options.stall_timeout);
    let reply = HelloReply {
        version: LANE_VERSION,
        status: Status::Ok,
        epoch: shared.state.lock().owner.epoch(),
        bytes: served.memory.bytes(),
        uuid: served.memory.uuid(),
        features: 0,
        tenure: 0,
    };
    // A fresh connection has room for it: less means that it is dead.
    let welcome = |lane: &Lane| matches!(send(lane.fd(), &reply.encode(), false), Ok(HELLO_LEN));
    let control = lane.control.clone();
    let added = shared.lanes.add(lane, || served.is_removed(), welcome);
    added.or_else(|status| refuse(&*control.stream, hello, status))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    unpace(stream);
    stream.set_read_timeout(Some(STAY))?;
    stream.set_write_timeout(Some(STAY))?;
    keep_alive(stream, KEEPALIVE_INTERVAL)
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
    pub(super) fn is_held_up(&mut self) {
        if !self.held_up {
            self.held_up = true;
            self.lanes.held_up();
        }
    }
}

/// A lane, as it is when no worker has it.
#[derive(Debug)]
pub(super) struct Lane {
    served: Arc<Served>,
    control: Arc<LaneControl>,
    peer: SocketAddr,
    stall: StallTimer,
    step: Step,
}

/// How far a request is.
#[derive(Debug)]
enum Step {
    /// Of its head so much is here.
    Head([u8; FRAME_LEN], usize),
    /// Bytes of a write come, so many are in memory.
    Fill(Frame, Admitted, u64),
    /// Bytes of a refused write come, so many still, and are let pass: the next request is found where it begins.
    Pass(u64),
    /// A large answer goes out, so many bytes have gone.
    Pour(Frame, u64),
    /// The rest of what is to be said, and how many bytes of a refused write are let pass behind it.
    Say(Vec<u8>, u64),
}

impl Step {
    const NONE: Step = Step::Head([0; FRAME_LEN], 0);
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
    fn new(served: Arc<Served>, stream: Guarded<TcpStream>, peer: SocketAddr, stall_timeout: Duration) -> Lane {
        let control = LaneControl { stream, uuid: served.memory.uuid(), cut: AtomicBool::new(false) };
        Lane { served, control: Arc::new(control), peer, stall: StallTimer::new(stall_timeout), step: Step::NONE }
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

    /// In the middle of a request, put aside: when its peer loses it. `None` between two requests.
    pub(super) fn until(&self) -> Option<Instant> {
        self.stall.until
    }

    /// What a worker is needed for next.
    pub(super) fn wanted(&self) -> Ready {
        match self.step {
            Step::Pour(..) | Step::Say(..) => Ready::OUT,
            Step::Head(..) | Step::Fill(..) | Step::Pass(..) => Ready::IN,
        }
    }

    /// Serves the next request, or goes on with one. False if none has come in the time that a worker stays, or the
    /// peer lets it wait. An error ends the lane.
    pub(super) fn serve_one(&mut self, worker: &mut Worker<'_>) -> Result<bool, End> {
        self.stall.until = None;
        let step = match std::mem::replace(&mut self.step, Step::NONE) {
            Step::Head(mut bytes, 0) => match recv(self.fd(), &mut bytes, true) {
                Ok(0) => return Err(End::Quiet),
                Ok(count) => Step::Head(bytes, count),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(e) => return Err(e.into()),
            },
            step => step,
        };
        let is_done = self.go_on(worker, step)?;
        if is_done {
            self.stall.begin(0);
        }
        Ok(is_done)
    }

    /// Whether the request is done; if not, the step is where it was left.
    fn go_on(&mut self, worker: &mut Worker<'_>, step: Step) -> Result<bool, End> {
        match step {
            Step::Head(bytes, have) => self.head(worker, bytes, have),
            Step::Fill(frame, admitted, got) => self.fill(worker, frame, admitted, got),
            Step::Pass(left) => self.pass(worker, left),
            Step::Pour(frame, sent) => self.pour(worker, frame, sent),
            Step::Say(rest, passes) => self.say(worker, &rest, passes),
        }
    }

    /// The step is to be gone on with when the peer is ready.
    fn wait_at(&mut self, step: Step) -> Result<bool, End> {
        self.step = step;
        Ok(false)
    }

    fn head(&mut self, worker: &mut Worker<'_>, mut bytes: [u8; FRAME_LEN], mut have: usize) -> Result<bool, End> {
        while have < FRAME_LEN {
            let fd = self.control.fd();
            let more = |may_wait| Ok(recv(fd, &mut bytes[have..], may_wait)?);
            match self.stall.move_some(worker, more)? {
                Some(0) => return Err(End::Bad("it hung up in the middle of a request".into())),
                Some(count) => have += count,
                None => return self.wait_at(Step::Head(bytes, have)),
            }
        }
        let frame = Frame::decode(&bytes).ok_or_else(|| End::Bad("it lost its place: this is no request".into()))?;
        // What had come before it was cut is still read, and not done any more.
        if self.control.is_cut() {
            return Err(End::Quiet);
        }
        self.stall.begin(frame.len);
        self.serve(worker, frame)
    }

    fn serve(&mut self, worker: &mut Worker<'_>, frame: Frame) -> Result<bool, End> {
        let bytes = self.served.memory.bytes();
        let in_range = frame.offset.checked_add(frame.len).is_some_and(|end| end <= bytes);
        match frame.op {
            Op::Read if !Rid(frame.rid).is_placement() => self.answer(worker, &frame, Status::Unsupported, 0),
            Op::Read if !in_range => self.answer(worker, &frame, Status::OutOfRange, 0),
            Op::Read if frame.len <= SMALL as u64 => self.read_small(worker, &frame),
            Op::Read => self.read_large(worker, frame),
            Op::Write if !in_range => self.refuse(worker, &frame, Status::OutOfRange, 0),
            Op::Write if !Rid(frame.rid).is_placement() => self.refuse(worker, &frame, Status::Unsupported, 0),
            Op::Write => self.write(worker, frame),
            _ => {
                self.answer(worker, &frame, Status::Unsupported, 0)?;
                Err(End::Bad("a request that lanes do not know".into()))
            }
        }
    }

    fn read_small(&mut self, worker: &mut Worker<'_>, frame: &Frame) -> Result<bool, End> {
        let len = frame.len as usize;
        let mut small = std::mem::take(&mut worker.small);
        small.resize(REPLY_LEN + len + TRAILER_LEN, 0);
        let found = {
            let mut destination = [Destination::new(&mut small[REPLY_LEN..REPLY_LEN + len])];
            self.served.memory.mapping().read(Rid(frame.rid), frame.offset, &mut destination, Verify::Skip)
        };
        let sent = match found {
            Ok(_) => {
                small[..REPLY_LEN].copy_from_slice(&reply(frame, Status::Ok, frame.len, 0).encode());
                let trailer = Trailer { status: Status::Ok, sequence: frame.sequence };
                small[REPLY_LEN + len..].copy_from_slice(&trailer.encode());
                self.say(worker, &small, 0)
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

    fn read_large(&mut self, worker: &mut Worker<'_>, frame: Frame) -> Result<bool, End> {
        // Saves the bytes of a read that is late already.
        if !check(self.served.memory.mapping(), &frame)? {
            return self.answer(worker, &frame, Status::Stale, 0);
        }
        self.pour(worker, frame, 0)
    }

    fn pour(&mut self, worker: &mut Worker<'_>, frame: Frame, mut sent: u64) -> Result<bool, End> {
        worker.is_held_up();
        let head = reply(&frame, Status::Ok, frame.len, 0).encode();
        let total = REPLY_LEN as u64 + frame.len;
        while sent < total {
            let (fd, mapping) = (self.control.fd(), self.served.memory.mapping());
            let more = |_| mapping.send_to(fd, &head, frame.offset, frame.len, sent);
            match self.stall.move_some(worker, more)? {
                Some(count) => sent += count as u64,
                None => return self.wait_at(Step::Pour(frame, sent)),
            }
        }
        // The kernel has its copy; this decides what it is worth.
        let status = if check(self.served.memory.mapping(), &frame)? { Status::Ok } else { Status::Stale };
        self.say(worker, &Trailer { status, sequence: frame.sequence }.encode(), 0)
    }

    fn write(&mut self, worker: &mut Worker<'_>, frame: Frame) -> Result<bool, End> {
        match self.admit(self.served.memory.mapping(), &frame) {
            Ok(admitted) => self.fill(worker, frame, admitted, 0),
            // Its bytes are on their way: say so at once, then let them pass.
            Err((status, detail)) => self.refuse(worker, &frame, status, detail),
        }
    }

    fn fill(&mut self, worker: &mut Worker<'_>, frame: Frame, admitted: Admitted, mut got: u64) -> Result<bool, End> {
        // The bytes of a small write are there with its header, as a rule.
        if frame.len > SMALL as u64 {
            worker.is_held_up();
        }
        while got < frame.len {
            if self.control.is_cut() {
                return Err(End::Quiet);
            }
            let (offset, room) = (frame.offset + got, (frame.len - got).min(CHUNK));
            let (fd, mapping) = (self.control.fd(), self.served.memory.mapping());
            let more = |may_wait| mapping.recv_from(fd, offset, room, may_wait);
            match self.stall.move_some(worker, more)? {
                Some(0) => return Err(End::Bad("it hung up in the middle of a write".into())),
                Some(count) => got += count as u64,
                None => return self.wait_at(Step::Fill(frame, admitted, got)),
            }
        }
        // The last byte is in memory: a fence need not wait for the answer.
        drop(admitted);
        self.answer(worker, &frame, Status::Ok, 0)
    }

    fn admit(&self, mapping: &Mapping, frame: &Frame) -> Result<Admitted, (Status, u64)> {
        let gate = &self.served.gate;
        let admitted = match gate.admit(mapping, Rid(frame.rid), frame.offset, frame.len, Some(self.control.clone())) {
            Ok(admitted) => admitted,
            Err(Denied::Superseded { found }) => return Err((Status::Superseded, found)),
            Err(Denied::OldEpoch { least }) => return Err((Status::OldEpoch, u64::from(least))),
            Err(Denied::Busy) => return Err((Status::Busy, 0)),
            Err(Denied::Closed) => return Err((Status::UnknownSegment, 0)),
            Err(Denied::Copy(_)) => return Err((Status::OutOfRange, 0)),
        };
        match mapping.stamp_if_newest(Rid(frame.rid), frame.offset, frame.len) {
            Ok(()) => Ok(admitted),
            Err(CopyError::Superseded { found, .. }) => Err((Status::Superseded, found)),
            Err(e) => {
                tracing::error!(rid = frame.rid, offset = frame.offset, "stamping the own segment: {e}");
                Err((Status::Failed, 0))
            }
        }
    }

    fn pass(&mut self, worker: &mut Worker<'_>, mut left: u64) -> Result<bool, End> {
        let mut scratch = [0; 16 << 10];
        while left > 0 {
            let (fd, room) = (self.control.fd(), left.min(scratch.len() as u64) as usize);
            let more = |may_wait| Ok(recv(fd, &mut scratch[..room], may_wait)?);
            match self.stall.move_some(worker, more)? {
                Some(0) => return Err(End::Quiet),
                Some(count) => left -= count as u64,
                None => return self.wait_at(Step::Pass(left)),
            }
        }
        Ok(true)
    }

    fn answer(&mut self, worker: &mut Worker<'_>, frame: &Frame, status: Status, detail: u64) -> Result<bool, End> {
        self.say(worker, &reply(frame, status, 0, detail).encode(), 0)
    }

    /// Refuses a write, whose bytes come all the same.
    fn refuse(&mut self, worker: &mut Worker<'_>, frame: &Frame, status: Status, detail: u64) -> Result<bool, End> {
        self.say(worker, &reply(frame, status, 0, detail).encode(), frame.len)
    }

    /// Says this, then lets bytes of a refused write pass.
    fn say(&mut self, worker: &mut Worker<'_>, mut bytes: &[u8], passes: u64) -> Result<bool, End> {
        while !bytes.is_empty() {
            let fd = self.control.fd();
            match self.stall.move_some(worker, |may_wait| Ok(send(fd, bytes, may_wait)?))? {
                Some(count) => bytes = &bytes[count..],
                None => return self.wait_at(Step::Say(bytes.to_vec(), passes)),
            }
        }
        self.pass(worker, passes)
    }
}

fn reply(frame: &Frame, status: Status, len: u64, detail: u64) -> Reply {
    Reply { status, epoch: frame.epoch, sequence: frame.sequence, len, detail }
}

fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8], may_wait: bool) -> Result<usize, Errno> {
    let flags = if may_wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    rustix::net::recv(socket, buffer, flags).map(|(count, _)| count)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], may_wait: bool) -> Result<usize, Errno> {
    let flags = if may_wait { SendFlags::empty() } else { SendFlags::DONTWAIT };
    rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL)
}

fn check(mapping: &Mapping, frame: &Frame) -> Result<bool, End> {
    mapping.check_stamps(Rid(frame.rid), frame.offset, frame.len).map_err(|e| End::Bad(e.to_string()))
}

#[cfg(test)]
mod tests;
