//! The owner's end of a lane to a tier: a thread of its own, which waits for the disk.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_os::{Guarded, thread};

use crate::epoch::Epoch;
use crate::protocol::frames::{
    FRAME_LEN, Frame, Hello, HelloReply, LANE_KEPT, LANE_VERSION, Op, Reply, Status, Trailer,
};
use crate::records::{RecordAddress, RecordError, Records};

/// Most lanes to the tiers of one process.
const LANES_MAX: usize = 256;

/// Bytes that are read at a time, and sent while the peer takes them.
const CHUNK_BYTES: u64 = 4 << 20;

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
        let mut lane = Lane { stream, tier, stall_timeout, named: None, buffer: Vec::new() };
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
    /// What the next reads are of.
    named: Option<RecordAddress>,
    buffer: Vec<u8>,
}

impl Lane {
    fn begin(&mut self, reply: &HelloReply) -> io::Result<()> {
        prepare(&*self.stream, self.stall_timeout)?;
        self.stream.set_nodelay(true)?;
        (&*self.stream).write_all(&reply.encode())
    }

    fn serve(&mut self) -> io::Result<()> {
        while let Some(frame) = next_frame(&*self.stream, &self.tier, self.stall_timeout)? {
            match frame.op {
                Op::Record => self.named = RecordAddress::of(&frame),
                Op::Read => self.answer(&frame)?,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    fn answer(&mut self, frame: &Frame) -> io::Result<()> {
        let refuse = |lane: &Lane, status| {
            let reply = Reply { status, epoch: 0, sequence: frame.sequence, len: 0, detail: 0 };
            (&*lane.stream).write_all(&reply.encode())
        };
        let Some(record) = self.named.filter(|record| record.rid == Rid(frame.rid)) else {
            return refuse(self, Status::Unsupported);
        };
        if frame.offset.checked_add(frame.len).is_none_or(|end| end > record.size) {
            return refuse(self, Status::OutOfRange);
        }
        let mut sent = 0;
        // A record of no bytes is looked at, too.
        while sent < frame.len || sent == 0 {
            let chunk = (frame.len - sent).min(CHUNK_BYTES);
            self.buffer.resize(chunk as usize, 0);
            let read = self.tier.records.read(&record, frame.offset + sent, &mut self.buffer);
            match read {
                Ok(()) => {}
                Err(error) if sent == 0 => return refuse(self, status_of(error)),
                // Its length is told already: the peer knows by the end of the lane that this is not all of it.
                Err(error) => return Err(io::Error::other(error)),
            }
            if sent == 0 {
                let (sequence, len) = (frame.sequence, frame.len);
                let reply = Reply { status: Status::Ok, epoch: 0, sequence, len, detail: 0 };
                (&*self.stream).write_all(&reply.encode())?;
            }
            (&*self.stream).write_all(&self.buffer)?;
            sent += chunk;
            if chunk == 0 {
                break;
            }
        }
        (&*self.stream).write_all(&Trailer { status: Status::Ok, sequence: frame.sequence }.encode())
    }
}

/// A stream that waits, and looks now and then whether it is to end.
pub(super) fn prepare(stream: impl AsFd, stall_timeout: Duration) -> io::Result<()> {
    let stream = socket2::SockRef::from(&stream);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_write_timeout(Some(stall_timeout))
}

/// The next request; none when the peer has hung up, or has asked for nothing for long.
pub(super) fn next_frame(
    mut stream: impl Read,
    tier: &ServedTier,
    stall_timeout: Duration,
) -> io::Result<Option<Frame>> {
    let (mut bytes, mut have, began) = ([0; FRAME_LEN], 0, Instant::now());
    while have < FRAME_LEN {
        if tier.withdrawn.load(Ordering::Acquire) {
            return Ok(None);
        }
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Ok(None),
            Ok(count) => have += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let limit = if have == 0 { LANE_KEPT } else { stall_timeout };
                if began.elapsed() > limit {
                    return Ok(None);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Frame::decode(&bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

pub(super) fn status_of(error: RecordError) -> Status {
    match error {
        RecordError::Gone | RecordError::Wrong => Status::Stale,
        RecordError::Busy => Status::Busy,
        RecordError::Failed => Status::Failed,
    }
}
