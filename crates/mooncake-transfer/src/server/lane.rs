//! A data lane: one TCP connection to one segment, one blocking thread.
//!
//! Bytes go from the segment to the socket and from the socket to the segment
//! without a copy of ours. A read says in its trailer whether the stamps still
//! were right after the kernel had copied; a write is acknowledged when its
//! bytes are in memory.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{CopyError, Guarded, Mapping, ReadError, Target, Verify};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Shared;
use super::door::refuse;
use crate::Uuid;
use crate::gate::Admitted;
use crate::local::Served;
use crate::loopback::unpace;
use crate::machine::Denied;
use crate::reign::Reign;
use crate::wire::{
    FRAME_LEN, Frame, Hello, HelloReply, LANE_VERSION, Op, REPLY_LEN, Reply, Status, TRAILER_LEN, Trailer, is_placement,
};

/// Reads up to this size are copied once more, so that reply, bytes and trailer
/// go out in one message.
const SMALL: usize = 64 << 10;

/// Bytes received between two looks at whether the lane has been cut.
const CHUNK: u64 = 1 << 20;

/// A lane that stood idle for so long makes room for a new one.
const IDLE: Duration = Duration::from_secs(5);

/// Ample for the small buffers here.
const STACK: usize = 256 << 10;

/// What the rest of the server knows of a lane.
pub(crate) struct LaneControl {
    stream: Arc<Guarded<TcpStream>>,
    uuid: Uuid,
    cut: AtomicBool,
    born: Instant,
    /// Milliseconds after `born` of the end of the last request; `BUSY` inside one.
    idle_since: AtomicU64,
}

const BUSY: u64 = u64::MAX;

impl LaneControl {
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Ends the lane. Its thread may still store what it has received until it
    /// notices: the gate knows when.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    fn idle(&self) -> Option<Duration> {
        match self.idle_since.load(Ordering::Relaxed) {
            BUSY => None,
            since => Some(self.born.elapsed().saturating_sub(Duration::from_millis(since))),
        }
    }

    fn mark_idle(&self) {
        self.idle_since.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn mark_busy(&self) {
        self.idle_since.store(BUSY, Ordering::Relaxed);
    }
}

/// Gives a lane with a good hello its thread.
pub(super) fn open(
    shared: &Arc<Shared>,
    stream: Guarded<TcpStream>,
    peer: SocketAddr,
    hello: &Hello,
    served: Arc<Served>,
) -> Result<(), Status> {
    let stream = Arc::new(stream);
    if prepare(&stream, shared.options.data_timeout).is_err() {
        // Broken already; there is nobody to tell.
        return Ok(());
    }
    let control = Arc::new(LaneControl {
        stream: stream.clone(),
        uuid: hello.uuid,
        cut: AtomicBool::new(false),
        born: Instant::now(),
        idle_since: AtomicU64::new(0),
    });
    let mut state = shared.state.lock();
    if served.is_removed() {
        return refuse(&**stream, hello, Status::UnknownSegment);
    }
    if state.lanes.len() >= shared.options.max_lanes {
        let oldest = state.lanes.values().filter(|lane| !lane.is_cut()).max_by_key(|lane| lane.idle());
        match oldest.filter(|lane| lane.idle().is_some_and(|idle| idle >= IDLE)) {
            // Its place is free as soon as its thread has ended; one too many until then.
            Some(lane) => lane.cut(),
            None => return refuse(&**stream, hello, Status::Overloaded),
        }
    }
    state.next_lane += 1;
    let id = state.next_lane;
    let reign = state.owner.reign();
    state.lanes.insert(id, control.clone());
    drop(state);
    let ended = Ended { shared: shared.clone(), id };
    let lane = Lane { served, stream, control, peer, small: Vec::new() };
    let spawned = std::thread::Builder::new().name("mooncake-lane".into()).stack_size(STACK).spawn(move || {
        let _ended = ended;
        lane.run(reign);
    });
    match spawned {
        Ok(_detached) => Ok(()),
        // The closure, and with it the lane's record, has been dropped.
        Err(_) => Err(Status::Overloaded),
    }
}

fn prepare(stream: &TcpStream, data_timeout: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    unpace(stream);
    stream.set_read_timeout(Some(data_timeout))?;
    stream.set_write_timeout(Some(data_timeout))?;
    // A host that vanished costs no thread for ever.
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Takes the lane off the list, whatever ended its thread.
struct Ended {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.shared.state.lock().lanes.remove(&self.id);
        self.shared.lane_ended.notify_all();
    }
}

struct Lane {
    served: Arc<Served>,
    stream: Arc<Guarded<TcpStream>>,
    control: Arc<LaneControl>,
    peer: SocketAddr,
    small: Vec<u8>,
}

/// The lane cannot go on.
enum End {
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

impl Lane {
    fn run(mut self, reign: Reign) {
        let reply = HelloReply {
            version: LANE_VERSION,
            status: Status::Ok,
            reign,
            bytes: self.served.memory.bytes(),
            uuid: self.served.memory.uuid(),
            features: 0,
        };
        if (&**self.stream).write_all(&reply.encode()).is_err() {
            return;
        }
        loop {
            match self.serve_one() {
                Ok(()) => {}
                Err(End::Bad(why)) if !self.control.is_cut() => {
                    tracing::debug!(peer = %self.peer, "data lane ended: {why}");
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn serve_one(&mut self) -> Result<(), End> {
        self.control.mark_idle();
        let frame = self.next_frame()?;
        self.control.mark_busy();
        // What had come before it was cut is still read, and not done any more.
        if self.control.is_cut() {
            return Err(End::Quiet);
        }
        let bytes = self.served.memory.bytes();
        let in_range = frame.offset.checked_add(frame.len).is_some_and(|end| end <= bytes);
        match frame.op {
            Op::Read if !is_placement(frame.rid) => self.answer(&frame, Status::Unsupported, 0),
            Op::Read if !in_range => self.answer(&frame, Status::OutOfRange, 0),
            Op::Read if frame.len <= SMALL as u64 => self.read_small(&frame),
            Op::Read => self.read_large(&frame),
            Op::Write if !in_range || !is_placement(frame.rid) => {
                let status = if in_range { Status::Unsupported } else { Status::OutOfRange };
                self.answer(&frame, status, 0)?;
                self.drain(frame.len)
            }
            Op::Write => self.write(&frame),
            _ => {
                self.answer(&frame, Status::Unsupported, 0)?;
                Err(End::Bad("a request that lanes do not know".into()))
            }
        }
    }

    fn read_small(&mut self, frame: &Frame) -> Result<(), End> {
        let len = frame.len as usize;
        let mut small = std::mem::take(&mut self.small);
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
                self.send_all(&small)
            }
            Err(ReadError::Stale { found, .. }) => self.answer(frame, Status::Stale, found),
            Err(e) => {
                tracing::error!(rid = frame.rid, offset = frame.offset, "read of the own segment: {e}");
                self.answer(frame, Status::Failed, 0)
            }
        };
        self.small = small;
        sent
    }

    fn read_large(&mut self, frame: &Frame) -> Result<(), End> {
        let mapping = self.served.memory.mapping();
        // Saves the bytes of a read that is late already.
        if !check(mapping, frame)? {
            return self.answer(frame, Status::Stale, 0);
        }
        let reply = self.reply(frame, Status::Ok, frame.len, 0).encode();
        let total = REPLY_LEN as u64 + frame.len;
        let mut sent = 0;
        while sent < total {
            match mapping.send_to(self.stream.as_fd(), &reply, frame.offset, frame.len, sent) {
                Ok(count) => sent += count as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        // The kernel has its copy; this decides what it is worth.
        let status = if check(mapping, frame)? { Status::Ok } else { Status::Stale };
        self.send_all(&Trailer { status, sequence: frame.sequence }.encode())
    }

    fn write(&mut self, frame: &Frame) -> Result<(), End> {
        let mapping = self.served.memory.mapping().clone();
        let admitted = match self.admit(&mapping, frame) {
            Ok(admitted) => admitted,
            Err((status, detail)) => {
                // Its bytes are on their way: say so at once, then let them pass.
                self.answer(frame, status, detail)?;
                return self.drain(frame.len);
            }
        };
        let mut got = 0;
        while got < frame.len {
            if self.control.is_cut() {
                return Err(End::Quiet);
            }
            let room = (frame.len - got).min(CHUNK);
            match mapping.recv_from(self.stream.as_fd(), frame.offset + got, room) {
                Ok(0) => return Err(End::Bad("it hung up in the middle of a write".into())),
                Ok(count) => got += count as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        // The last byte is in memory: a fence need not wait for the answer.
        drop(admitted);
        self.answer(frame, Status::Ok, 0)
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
    fn drain(&self, len: u64) -> Result<(), End> {
        let mut scratch = [0; 16 << 10];
        let mut left = len;
        while left > 0 {
            let room = left.min(scratch.len() as u64) as usize;
            match self.recv(&mut scratch[..room]) {
                Ok(0) => return Err(End::Quiet),
                Ok(count) => left -= count as u64,
                Err(Errno::INTR) => {}
                Err(e) => return Err(End::Bad(e.to_string())),
            }
        }
        Ok(())
    }

    /// The next request. Between requests a lane may be silent for ever.
    fn next_frame(&self) -> Result<Frame, End> {
        let mut bytes = [0; FRAME_LEN];
        let mut have = 0;
        while have < FRAME_LEN {
            match self.recv(&mut bytes[have..]) {
                Ok(0) if have == 0 => return Err(End::Quiet),
                Ok(0) => return Err(End::Bad("it hung up in the middle of a request".into())),
                Ok(count) => have += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if have == 0 && !self.control.is_cut() => {}
                Err(e) => return Err(End::Bad(e.to_string())),
            }
        }
        Frame::decode(&bytes).ok_or_else(|| End::Bad("it lost its place: this is no request".into()))
    }

    fn recv(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&**self.stream, buffer, RecvFlags::empty()).map(|(count, _)| count)
    }

    fn reply(&self, frame: &Frame, status: Status, len: u64, detail: u64) -> Reply {
        Reply { status, epoch: frame.epoch, sequence: frame.sequence, len, detail }
    }

    fn answer(&self, frame: &Frame, status: Status, detail: u64) -> Result<(), End> {
        self.send_all(&self.reply(frame, status, 0, detail).encode())
    }

    fn send_all(&self, bytes: &[u8]) -> Result<(), End> {
        (&**self.stream).write_all(bytes).map_err(End::from)
    }
}

fn check(mapping: &Mapping, frame: &Frame) -> Result<bool, End> {
    mapping.check_stamps(frame.rid, frame.offset, frame.len).map_err(|e| End::Bad(e.to_string()))
}

#[cfg(test)]
mod tests;
