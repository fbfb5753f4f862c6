//! The owner's end of a lane to a tier: a thread of its own, which waits for the disk.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_os::{Guarded, thread};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::epoch::Epoch;
use crate::protocol::frames::{
    FRAME_LEN, Frame, Hello, HelloReply, LANE_KEPT, LANE_VERSION, Op, REPLY_LEN, Reply, Status, TRAILER_LEN, Trailer,
};
use crate::records::{RecordAddress, RecordError, RecordPart, RecordReads, Records};

/// Most lanes to the tiers of one process.
const LANES_MAX: usize = 256;

/// Bytes that are read at a time.
const PART_BYTES: u64 = 1 << 20;

/// What is taken of the peer's requests while it receives what it asked for before: so many parts, and bytes of them.
/// Some of it is at the disk, and some has been read.
const PARTS_AHEAD: usize = 128;
const BYTES_AHEAD: u64 = 8 << 20;

/// Bytes of buffers that are kept: as many as all parts have, and what goes before and behind them.
const BUFFERS_MAX: usize = (BYTES_AHEAD + PART_BYTES) as usize + PARTS_AHEAD * (REPLY_LEN + TRAILER_LEN);

/// Requests that are taken from the stream at once.
const FRAMES_AT_ONCE: usize = 128;

/// A lane looks so often whether it is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A tier that is served.
#[derive(Debug)]
pub(super) struct ServedTier {
    pub access_key: u64,
    pub bytes: u64,
    pub records: Arc<dyn Records>,
    pub withdrawn: AtomicBool,
}

impl ServedTier {
    /// The answer to a good hello.
    pub(super) fn welcome(&self, hello: &Hello) -> HelloReply {
        HelloReply {
            version: LANE_VERSION,
            status: Status::Ok,
            epoch: Epoch::default(),
            bytes: self.bytes,
            uuid: hello.uuid,
            features: 0,
            tenure: 0,
        }
    }
}

/// How many lanes there are, and connections for files.
static LANES: AtomicUsize = AtomicUsize::new(0);

/// One of them, for as long as it lives, however it ends.
pub(super) struct Counted;

impl Counted {
    pub(super) fn one_more() -> Option<Counted> {
        let counted =
            LANES.fetch_update(Ordering::AcqRel, Ordering::Acquire, |lanes| (lanes < LANES_MAX).then_some(lanes + 1));
        counted.is_ok().then_some(Counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LANES.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers a good hello, and serves the lane until it ends.
pub(super) fn open(
    stream: Guarded<TcpStream>,
    hello: &Hello,
    tier: Arc<ServedTier>,
    stall_timeout: Duration,
) -> Result<(), Status> {
    let Some(counted) = Counted::one_more() else {
        return super::acceptor::refuse(&*stream, hello, Status::Overloaded);
    };
    let reply = tier.welcome(hello);
    let builder = std::thread::Builder::new().name("mooncake-records".into());
    let serve = move || {
        let _counted = counted;
        let mut lane = Lane::new(stream, tier, stall_timeout);
        let ended = lane.begin(&reply).and_then(|()| lane.serve());
        if let Err(error) = ended {
            tracing::debug!(%error, "a lane to a tier ended");
        }
    };
    thread::start(builder, serve).map(drop).map_err(|_| Status::Overloaded)
}

struct Lane {
    stream: Guarded<TcpStream>,
    tier: Arc<ServedTier>,
    stall_timeout: Duration,
    frames: Frames,
    /// What the next reads are of.
    named: Option<RecordAddress>,
    reads: Box<dyn RecordReads>,
    /// The request of which further parts are to be read.
    rest: Option<Rest>,
    /// What is to be sent, in this order.
    parts: VecDeque<Part>,
    bytes_ahead: u64,
    buffers: Buffers,
}

/// What is left of a request.
#[derive(Debug, Clone, Copy)]
struct Rest {
    record: RecordAddress,
    sequence: u64,
    /// Bytes of the request.
    len: u64,
    from: u64,
    left: u64,
}

/// A piece of the answer to a request.
#[derive(Debug, Clone, Copy)]
enum Part {
    Refusal {
        sequence: u64,
        status: Status,
    },
    /// So many bytes of it, which are being read; with the first ones goes how many there are in all.
    Bytes {
        sequence: u64,
        bytes: u64,
        all: Option<u64>,
        is_last: bool,
    },
}

impl Lane {
    fn new(stream: Guarded<TcpStream>, tier: Arc<ServedTier>, stall_timeout: Duration) -> Lane {
        let reads = tier.records.clone().reads();
        Lane {
            stream,
            tier,
            stall_timeout,
            frames: Frames::new(),
            named: None,
            reads,
            rest: None,
            parts: VecDeque::new(),
            bytes_ahead: 0,
            buffers: Buffers::default(),
        }
    }

    fn begin(&mut self, reply: &HelloReply) -> io::Result<()> {
        prepare(&*self.stream, self.stall_timeout)?;
        self.stream.set_nodelay(true)?;
        (&*self.stream).write_all(&reply.encode())
    }

    fn serve(&mut self) -> io::Result<()> {
        while !self.tier.withdrawn.load(Ordering::Acquire) {
            // The peer asks for many at a time, and they are taken so, too: what lies side by side is read at once.
            let is_low = self.parts.len() <= PARTS_AHEAD / 2 && self.bytes_ahead <= BYTES_AHEAD / 2;
            while self.parts.is_empty() || is_low && self.parts.len() < PARTS_AHEAD && self.bytes_ahead < BYTES_AHEAD {
                if self.rest.is_some() {
                    self.read_on();
                    continue;
                }
                let frame = match self.parts.is_empty() {
                    true => self.frames.next(&*self.stream, &self.tier, self.stall_timeout)?,
                    false => self.frames.next_that_came(&*self.stream)?,
                };
                match frame {
                    Some(frame) => self.take(&frame)?,
                    None if self.parts.is_empty() => return Ok(()),
                    None => break,
                }
            }
            let part = self.parts.pop_front().expect("one was awaited");
            self.answer(part)?;
        }
        Ok(())
    }

    fn take(&mut self, frame: &Frame) -> io::Result<()> {
        let sequence = frame.sequence;
        match frame.op {
            Op::Record => self.named = RecordAddress::of(frame),
            Op::Read => match self.named.filter(|record| record.rid == Rid(frame.rid)) {
                None => self.parts.push_back(Part::Refusal { sequence, status: Status::Unsupported }),
                Some(record) if frame.offset.checked_add(frame.len).is_none_or(|end| end > record.size) => {
                    self.parts.push_back(Part::Refusal { sequence, status: Status::OutOfRange });
                }
                Some(record) => {
                    let (len, from) = (frame.len, frame.offset);
                    self.rest = Some(Rest { record, sequence, len, from, left: len });
                    // A record of no bytes is looked at, too.
                    self.read_on();
                }
            },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    /// Has the next part of a request read.
    fn read_on(&mut self) {
        let Some(rest) = &mut self.rest else { return };
        let bytes = rest.left.min(PART_BYTES);
        let (all, is_last) = ((rest.left == rest.len).then_some(rest.len), rest.left == bytes);
        // What goes before and behind the bytes is sent with them.
        let head = if all.is_some() { REPLY_LEN } else { 0 };
        let tail = if is_last { TRAILER_LEN } else { 0 };
        let into = head..head + bytes as usize;
        let buffer = self.buffers.take(into.end + tail);
        let part = RecordPart { is_first: all.is_some(), is_last };
        self.reads.ask(&rest.record, rest.from, buffer, into, part);
        let sequence = rest.sequence;
        (rest.from, rest.left) = (rest.from + bytes, rest.left - bytes);
        if is_last {
            self.rest = None;
        }
        self.parts.push_back(Part::Bytes { sequence, bytes, all, is_last });
        self.bytes_ahead += bytes;
    }

    fn answer(&mut self, part: Part) -> io::Result<()> {
        let (sequence, bytes, all, is_last) = match part {
            Part::Refusal { sequence, status } => return self.refuse(sequence, status),
            Part::Bytes { sequence, bytes, all, is_last } => (sequence, bytes, all, is_last),
        };
        let (mut buffer, read) = self.read(bytes);
        match read {
            Ok(()) => {}
            Err(error) if all.is_some() => {
                self.buffers.give(buffer);
                self.give_up(sequence);
                return self.refuse(sequence, status_of(error));
            }
            // Its length is told already: the peer knows by the end of the lane that this is not all of it.
            Err(error) => return Err(io::Error::other(error)),
        }
        if let Some(len) = all {
            let reply = Reply { status: Status::Ok, epoch: 0, sequence, len, detail: 0 };
            buffer[..REPLY_LEN].copy_from_slice(&reply.encode());
        }
        if is_last {
            let (trailer, at) = (Trailer { status: Status::Ok, sequence }, buffer.len() - TRAILER_LEN);
            buffer[at..].copy_from_slice(&trailer.encode());
        }
        let sent = (&*self.stream).write_all(&buffer);
        self.buffers.give(buffer);
        sent
    }

    fn refuse(&self, sequence: u64, status: Status) -> io::Result<()> {
        let reply = Reply { status, epoch: 0, sequence, len: 0, detail: 0 };
        (&*self.stream).write_all(&reply.encode())
    }

    /// The end of the oldest read.
    fn read(&mut self, bytes: u64) -> (Vec<u8>, Result<(), RecordError>) {
        self.bytes_ahead -= bytes;
        self.reads.next().expect("it was asked for")
    }

    /// A request was refused: what else was read of it is not sent.
    fn give_up(&mut self, of: u64) {
        self.rest = self.rest.filter(|rest| rest.sequence != of);
        while let Some(Part::Bytes { sequence, bytes, .. }) = self.parts.front().copied()
            && sequence == of
        {
            self.parts.pop_front();
            let (buffer, _) = self.read(bytes);
            self.buffers.give(buffer);
        }
    }
}

/// Buffers of parts that were sent, for the next ones.
#[derive(Debug, Default)]
struct Buffers {
    idle: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// One of that size, of any content.
    fn take(&mut self, len: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| (len..=2 * len).contains(&buffer.capacity());
        let mut buffer = match self.idle.iter().rposition(fits) {
            Some(nth) => self.idle.swap_remove(nth),
            None => return vec![0; len],
        };
        self.bytes -= buffer.capacity();
        buffer.resize(len, 0);
        buffer
    }

    fn give(&mut self, buffer: Vec<u8>) {
        if self.bytes + buffer.capacity() > BUFFERS_MAX {
            // Of other sizes than what is asked for now.
            self.idle.clear();
            self.bytes = 0;
        }
        self.bytes += buffer.capacity();
        self.idle.push(buffer);
    }
}

/// A stream that waits, and looks now and then whether it is to end.
pub(super) fn prepare(stream: impl AsFd, stall_timeout: Duration) -> io::Result<()> {
    let stream = socket2::SockRef::from(&stream);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_write_timeout(Some(stall_timeout))
}

/// Requests, of which several may have come together.
pub(super) struct Frames {
    bytes: [u8; FRAMES_AT_ONCE * FRAME_LEN],
    have: Range<usize>,
}

impl Frames {
    pub(super) fn new() -> Frames {
        Frames { bytes: [0; FRAMES_AT_ONCE * FRAME_LEN], have: 0..0 }
    }

    /// The next request; none when the peer has hung up, or has asked for nothing for long.
    pub(super) fn next(
        &mut self,
        mut stream: impl Read,
        tier: &ServedTier,
        stall_timeout: Duration,
    ) -> io::Result<Option<Frame>> {
        let began = Instant::now();
        while self.have.len() < FRAME_LEN {
            if tier.withdrawn.load(Ordering::Acquire) {
                return Ok(None);
            }
            match stream.read(self.room()) {
                Ok(0) => return Ok(None),
                Ok(count) => self.have.end += count,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    let limit = if self.have.is_empty() { LANE_KEPT } else { stall_timeout };
                    if began.elapsed() > limit {
                        return Ok(None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.decode().map(Some)
    }

    /// A request that has come; none if there is no whole one yet.
    fn next_that_came(&mut self, stream: impl AsFd) -> io::Result<Option<Frame>> {
        if self.have.len() < FRAME_LEN {
            let room = self.room();
            match rustix::net::recv(&stream, room, RecvFlags::DONTWAIT) {
                // An end is seen once what was asked for before it has been sent.
                Ok((count, _)) => self.have.end += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.have.len() < FRAME_LEN {
            return Ok(None);
        }
        self.decode().map(Some)
    }

    /// Behind what has come, which lies at the front from here on.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.have.clone(), 0);
        self.have = 0..self.have.len();
        &mut self.bytes[self.have.end..]
    }

    fn decode(&mut self) -> io::Result<Frame> {
        let bytes = self.bytes[self.have.start..].first_chunk().expect("a whole one has come");
        self.have.start += FRAME_LEN;
        Frame::decode(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

pub(super) fn status_of(error: RecordError) -> Status {
    match error {
        RecordError::Gone | RecordError::Wrong => Status::Stale,
        RecordError::Busy => Status::Busy,
        RecordError::Failed => Status::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_all_parts_are_used_again_for_parts_of_their_size_and_those_of_others_go() {
        const MIB: usize = 1 << 20;
        let mut buffers = Buffers::default();
        // As many as are ahead of a batch of one size, all of which are sent before the next one begins.
        for (count, part) in [(9, MIB), (128, 64 << 10), (128, 1), (2, MIB), (100, 80 << 10), (9, MIB - 100)] {
            for round in 0..3 {
                let len = part + REPLY_LEN + TRAILER_LEN - round;
                let taken: Vec<Vec<u8>> = (0..count).map(|_| buffers.take(len)).collect();
                assert!(taken.iter().all(|buffer| buffer.len() == len && buffer.capacity() <= 2 * len));
                taken.into_iter().for_each(|buffer| buffers.give(buffer));
                assert_eq!(buffers.bytes, buffers.idle.iter().map(Vec::capacity).sum::<usize>());
                assert!(buffers.bytes <= BUFFERS_MAX, "{} bytes are kept", buffers.bytes);
                // The first time room is made of what others have left.
                let fit = buffers.idle.iter().filter(|buffer| (len..=2 * len).contains(&buffer.capacity())).count();
                assert!(round == 0 || fit >= count, "{fit} of {count} of {len} bytes are kept");
            }
        }
    }
}
