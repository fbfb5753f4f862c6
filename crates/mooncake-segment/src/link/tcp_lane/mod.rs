//! The peer's end of a data lane: the caller's thread sends and receives.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_memory::{
    Bounce, Destination, Source, Splice, crc_of_destinations, crc_of_sources, recv_destinations, send_sources,
    split_destinations, split_sources, total_of_destinations, total_of_sources,
};
use mooncake_net::{
    ConnectError, PollHistory, Spread, connect_from, is_readable, recv_busy_poll, stays_within_host, unpace,
};
use mooncake_os::{Deadline, Guarded};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::error::TransferError;
use crate::protocol::frames::{
    FRAME_LEN, Frame, HELLO_LEN, Hello, HelloReply, Op, REPLY_LEN, Reply, Status, TRAILER_LEN, Trailer,
};
use crate::records::RecordAddress;

/// Bytes received between two steps of their checksum: they are still in the cache.
const RECV_CHUNK: u64 = 256 << 10;

/// Bytes sent and then checksummed in one go: few, to be in the cache still; many,
/// because each go ends with a short packet.
const SEND_CHUNK: u64 = 1 << 20;

/// Reads of records that are asked for before the first of them has come, and bytes of them: as many as its owner takes
/// at a time, and as many again.
const READS_ASKED: usize = 256;
const BYTES_ASKED: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Lane {
    stream: Guarded<TcpStream>,
    address: SocketAddr,
    segment: Arc<str>,
    sequence: u64,
    stall_timeout: Duration,
    history: PollHistory,
    /// Both ends are inside this host: the kernel may take bytes from where they lie, and the receiver alone copies.
    within_host: bool,
    /// Stands for device memory, which a socket cannot reach. Taken out while it is in use.
    bounce: Bounce,
}

/// How a request on a lane ended.
pub(super) struct Outcome<T> {
    pub result: Result<T, TransferError>,
    /// The lane stands between two requests and can carry the next.
    pub reusable: bool,
    /// Nothing of this request touches the owner's memory any more: the owner has said so, or nothing of it was sent.
    pub settled: bool,
}

impl<T> Outcome<T> {
    pub(super) fn new(result: Result<T, TransferError>, reusable: bool, settled: bool) -> Outcome<T> {
        Outcome { result, reusable, settled }
    }
}

/// Bytes of a placement that a request is about: any, where an extent begins at a granule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub rid: Rid,
    pub offset: u64,
    pub len: u64,
}

/// A part of a tier's record that is to be read.
pub struct RecordRead<'r, 'a> {
    /// Of which record.
    pub record: RecordAddress,
    /// The first byte of it.
    pub from: u64,
    /// As many bytes as are wanted.
    pub pieces: &'r mut [Destination<'a>],
    /// CRC-32C that all of them together have.
    pub crc: Option<u32>,
}

impl RecordRead<'_, '_> {
    fn span(&self) -> Span {
        Span { rid: self.record.rid, offset: self.from, len: total_of_destinations(self.pieces) }
    }
}

impl Lane {
    /// Connects and shows the hello. The error is a reason to be printed.
    pub(super) fn open(
        address: SocketAddr,
        hello: &Hello,
        bytes: Option<u64>,
        segment: &Arc<str>,
        timeouts: (Duration, Duration),
        deadline: &Deadline<'_>,
    ) -> Result<Lane, TransferError> {
        Lane::open_from(None, address, hello, bytes, segment, timeouts, deadline)
    }

    /// The same, from an address of this host.
    pub(super) fn open_from(
        local: Option<IpAddr>,
        address: SocketAddr,
        hello: &Hello,
        bytes: Option<u64>,
        segment: &Arc<str>,
        timeouts: (Duration, Duration),
        deadline: &Deadline<'_>,
    ) -> Result<Lane, TransferError> {
        let (connect_timeout, stall_timeout) = timeouts;
        let deadline = &deadline.within(connect_timeout);
        let broken = |what| move |source| TransferError::Broken { segment: segment.to_string(), what, source };
        let cannot_connect = broken("connect to a data lane");
        let connected = connect_from(local, &[address], connect_timeout, deadline).map_err(|error| match error {
            // The caller's wish, and no failure of the owner that others are to be kept from.
            ConnectError::Interrupted => TransferError::Interrupted,
            ConnectError::Io(error) if error.kind() != io::ErrorKind::TimedOut => cannot_connect(error),
            ConnectError::Untried | ConnectError::Io(_) => {
                let silent = io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not answer"));
                cannot_connect(silent)
            }
        });
        let stream = connected?;
        let setup = (|| {
            unpace(&stream);
            stream.set_read_timeout(Some(Deadline::SLICE))?;
            stream.set_write_timeout(Some(Deadline::SLICE))
        })();
        setup.map_err(broken("prepare a data lane"))?;
        let (history, bounce) = (PollHistory::new(), Bounce::new());
        let within_host = stays_within_host(&stream);
        let segment = segment.clone();
        let lane = Lane { stream, address, segment, sequence: 0, stall_timeout, history, within_host, bounce };
        let mut stall = StallTimer::new(&lane, deadline);
        lane.send_bytes(&hello.encode(), &mut stall)?;
        let mut reply = [0; HELLO_LEN];
        lane.recv_bytes(&mut reply, &mut stall)?;
        let reply = HelloReply::decode(&reply).ok_or_else(|| lane.nonsense("its hello is not ours"))?;
        match reply.status {
            Status::Ok if reply.uuid == hello.uuid && bytes.is_none_or(|bytes| reply.bytes == bytes) => Ok(lane),
            Status::Ok => Err(lane.nonsense("it serves another memory under that address")),
            status => Err(TransferError::Refused { segment: lane.segment.to_string(), status }),
        }
    }

    /// Where it leads to.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the owner has not hung up since the last request.
    pub(super) fn is_alive(&self) -> bool {
        !is_readable(self.fd())
    }

    /// Reads into the pieces. Gives the checksum of what came if asked for.
    pub(super) fn read(
        &mut self,
        span: Span,
        pieces: &mut [Destination<'_>],
        checksum: bool,
        deadline: &Deadline<'_>,
    ) -> Outcome<u32> {
        let mut stall = StallTimer::new(self, deadline);
        let frame = self.request(Op::Read, span);
        match self.send_bytes(&frame.encode(), &mut stall) {
            Ok(()) => self.read_answer(&frame, span, pieces, checksum, &mut stall),
            Err(e) => Outcome::new(Err(e), false, true),
        }
    }

    /// What comes of a read that was asked for.
    pub(super) fn read_answer(
        &mut self,
        frame: &Frame,
        span: Span,
        pieces: &mut [Destination<'_>],
        checksum: bool,
        stall: &mut StallTimer<'_>,
    ) -> Outcome<u32> {
        let reply = match self.reply(frame, stall) {
            Ok(reply) => reply,
            Err(e) => return Outcome::new(Err(e), false, true),
        };
        if reply.status != Status::Ok {
            return Outcome::new(Err(self.refused(span.rid, &reply)), true, true);
        }
        if reply.len != span.len {
            return Outcome::new(Err(self.nonsense("it sends another length than asked for")), false, true);
        }
        let received = if Bounce::is_needed_for_destinations(pieces) {
            let mut bounce = std::mem::take(&mut self.bounce);
            let received = self.receive_by_bounce(span.len, pieces, checksum, &mut bounce, stall);
            self.bounce = bounce;
            received
        } else {
            self.receive(span.len, pieces, 0, checksum, stall)
        };
        let crc = match received {
            Ok(crc) => crc,
            Err(e) => return Outcome::new(Err(e), false, true),
        };
        let mut trailer = [0; TRAILER_LEN];
        if let Err(e) = self.recv_bytes(&mut trailer, stall) {
            return Outcome::new(Err(e), false, true);
        }
        match Trailer::decode(&trailer) {
            Some(trailer) if trailer.sequence != frame.sequence => {
                Outcome::new(Err(self.nonsense("it answers another request")), false, true)
            }
            Some(Trailer { status: Status::Ok, .. }) => Outcome::new(Ok(crc), true, true),
            Some(_) => Outcome::new(
                Err(TransferError::Stale { segment: self.segment.to_string(), rid: span.rid.0 }),
                true,
                true,
            ),
            None => Outcome::new(Err(self.nonsense("its bytes do not end as a read does")), false, true),
        }
    }

    /// Reads parts of a tier's records, in their order: while the first ones come, its owner reads those behind them.
    /// As many outcomes as there are, less those behind one that leaves the lane out of step.
    pub(super) fn read_records(
        &mut self,
        reads: &mut [RecordRead<'_, '_>],
        deadline: &Deadline<'_>,
    ) -> Vec<Outcome<u32>> {
        let records: Vec<RecordAddress> = reads.iter().map(|read| read.record).collect();
        let spans: Vec<Span> = reads.iter().map(RecordRead::span).collect();
        let mut ended: Vec<Outcome<u32>> = Vec::with_capacity(reads.len());
        let (mut asked, mut asked_bytes) = (VecDeque::new(), 0);
        for (nth, read) in reads.iter_mut().enumerate() {
            let mut frames = Vec::new();
            // Many at a time: the owner reads what lies side by side at once, and each message wakes it.
            let is_low = asked.len() <= 1 || asked.len() <= READS_ASKED / 2 && asked_bytes <= BYTES_ASKED / 2;
            while is_low
                && let Some(span) = spans.get(nth + asked.len())
                && (asked.is_empty() || asked.len() < READS_ASKED && asked_bytes + span.len <= BYTES_ASKED)
            {
                self.sequence += 1;
                frames.extend_from_slice(&records[nth + asked.len()].frame(self.sequence).encode());
                let frame = self.request(Op::Read, *span);
                frames.extend_from_slice(&frame.encode());
                asked_bytes += span.len;
                asked.push_back(frame);
            }
            // Of its own: what was asked for before has been waited for by others.
            let mut stall = StallTimer::new(self, deadline);
            if let Err(e) = self.send_bytes(&frames, &mut stall) {
                ended.push(Outcome::new(Err(e), false, true));
                break;
            }
            let frame = asked.pop_front().expect("one is asked for at least");
            asked_bytes -= spans[nth].len;
            let outcome = self.read_answer(&frame, spans[nth], read.pieces, read.crc.is_some(), &mut stall);
            let goes_on = outcome.reusable;
            ended.push(outcome);
            if !goes_on {
                break;
            }
        }
        ended
    }

    /// Receives a chunk at a time, and has the device fetch what is its own.
    fn receive_by_bounce(
        &self,
        len: u64,
        pieces: &mut [Destination<'_>],
        checksum: bool,
        bounce: &mut Bounce,
        stall: &mut StallTimer<'_>,
    ) -> Result<u32, TransferError> {
        let (mut got, mut crc) = (0, 0);
        while got < len {
            let now = (len - got).min(RECV_CHUNK);
            let mut chunk = split_destinations(pieces, got, got + now);
            crc = self.receive(now, &mut bounce.destinations(&mut chunk), crc, checksum, stall)?;
            bounce.deliver(&mut chunk)?;
            got += now;
        }
        Ok(crc)
    }

    /// Fills the pieces, and continues `crc` over what came if `checksum`.
    fn receive(
        &self,
        len: u64,
        pieces: &mut [Destination<'_>],
        mut crc: u32,
        checksum: bool,
        stall: &mut StallTimer<'_>,
    ) -> Result<u32, TransferError> {
        let (mut got, mut checked) = (0, 0);
        while got < len {
            match recv_destinations(self.fd(), pieces, got, (len - got).min(RECV_CHUNK)) {
                Ok(0) => return Err(self.hung_up()),
                Ok(count) => {
                    got += count as u64;
                    stall.moved();
                }
                Err(e) => stall.failed(e, "receive")?,
            }
            if checksum && (got - checked >= RECV_CHUNK || got == len) {
                crc = crc_of_destinations(crc, pieces, checked, got)?;
                checked = got;
            }
        }
        Ok(crc)
    }

    /// Writes the pieces; gives their checksum once they are in the owner's memory.
    pub(super) fn write(&mut self, span: Span, pieces: &[Source<'_>], deadline: &Deadline<'_>) -> Outcome<u32> {
        let splice = if self.within_host { Splice::of_sources(pieces) } else { None };
        let spliced = splice.is_some();
        let outcome = self.write_by(splice, span, pieces, deadline);
        if spliced && !outcome.reusable {
            // The caller has its memory again: what of it still waits in the socket, by reference, never leaves,
            // refused or not.
            let _ = socket2::SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO));
        }
        outcome
    }

    fn write_by(
        &mut self,
        splice: Option<Splice>,
        span: Span,
        pieces: &[Source<'_>],
        deadline: &Deadline<'_>,
    ) -> Outcome<u32> {
        let mut stall = StallTimer::new(self, deadline);
        let frame = self.request(Op::Write, span);
        let header = frame.encode();
        let mut begun = false;
        let mut bounce = std::mem::take(&mut self.bounce);
        let sent = self.send_all_of(&header, pieces, &mut bounce, splice, &mut stall, &mut begun);
        self.bounce = bounce;
        let crc = match sent {
            Ok(Sent::All(crc)) => crc,
            // Refused in mid-stream: the answer is there, the lane is out of step.
            Ok(Sent::Answered) => {
                return match self.reply(&frame, &mut stall) {
                    Ok(reply) => Outcome::new(Err(self.refused(span.rid, &reply)), false, reply.status != Status::Ok),
                    Err(e) => Outcome::new(Err(e), false, false),
                };
            }
            Err(e) => return Outcome::new(Err(e), !begun, !begun),
        };
        match self.reply(&frame, &mut stall) {
            Ok(Reply { status: Status::Ok, .. }) => Outcome::new(Ok(crc), true, true),
            Ok(reply) => Outcome::new(Err(self.refused(span.rid, &reply)), true, true),
            Err(e) => Outcome::new(Err(e), false, false),
        }
    }

    pub(super) fn send_all_of(
        &self,
        header: &[u8; FRAME_LEN],
        pieces: &[Source<'_>],
        bounce: &mut Bounce,
        mut splice: Option<Splice>,
        stall: &mut StallTimer<'_>,
        begun: &mut bool,
    ) -> Result<Sent, TransferError> {
        let (mut crc, mut done, len) = (0, 0, total_of_sources(pieces));
        let mut rest: Vec<Source<'_>>;
        let mut pieces = pieces;
        let mut header: &[u8] = header;
        loop {
            let cut;
            let now = (len - done).min(SEND_CHUNK);
            let chunk = if now == len - done {
                pieces
            } else {
                (cut, rest) = split_sources(pieces, now);
                pieces = &rest;
                &cut
            };
            let stand_ins;
            let chunk = if Bounce::is_needed_for_sources(chunk) {
                stand_ins = bounce.sources(chunk)?;
                &stand_ins
            } else {
                chunk
            };
            let total = header.len() as u64 + now;
            let mut sent = 0;
            let more = now < len - done;
            while sent < total {
                match self.send_some(header, chunk, sent, more, &mut splice) {
                    Ok(count) => {
                        sent += count as u64;
                        *begun = true;
                        stall.moved();
                    }
                    Err(e) => stall.failed(e, "send")?,
                }
            }
            // After the kernel's copy, while the owner still takes it in: checksumming first would leave it idle.
            crc = crc_of_sources(crc, chunk, 0, total_of_sources(chunk))?;
            done += now;
            header = &[];
            if done == len {
                return Ok(Sent::All(crc));
            }
            if self.has_answer() {
                return Ok(Sent::Answered);
            }
        }
    }

    /// Sends what of the header and the pieces the socket takes now, by reference as far as that goes.
    fn send_some(
        &self,
        header: &[u8],
        chunk: &[Source<'_>],
        sent: u64,
        more: bool,
        splice: &mut Option<Splice>,
    ) -> io::Result<usize> {
        let header_len = header.len() as u64;
        if let Some(splicing) = splice {
            if sent < header_len {
                let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
                return Ok(rustix::net::send(self.fd(), &header[sent as usize..], flags)?);
            }
            match splicing.send_sources(self.fd(), chunk, sent - header_len, more) {
                Err(e) if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => *splice = None,
                taken => return taken,
            }
        }
        // A copy works wherever a splice does not.
        send_sources(self.fd(), header, chunk, sent, u64::MAX)
    }

    pub(super) fn has_answer(&self) -> bool {
        rustix::net::recv(self.fd(), &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok()
    }

    pub(super) fn request(&mut self, op: Op, span: Span) -> Frame {
        self.sequence += 1;
        Frame {
            op,
            epoch: span.rid.epoch(),
            rid: span.rid.0,
            offset: span.offset,
            len: span.len,
            sequence: self.sequence,
        }
    }

    pub(super) fn reply(&self, frame: &Frame, stall: &mut StallTimer<'_>) -> Result<Reply, TransferError> {
        let mut bytes = [0; REPLY_LEN];
        self.recv_bytes(&mut bytes, stall)?;
        match Reply::decode(&bytes) {
            Some(reply) if reply.sequence == frame.sequence => Ok(reply),
            _ => Err(self.nonsense("its answer is not one")),
        }
    }

    pub(super) fn refused(&self, rid: Rid, reply: &Reply) -> TransferError {
        let segment = self.segment.to_string();
        match reply.status {
            Status::Stale => TransferError::Stale { segment, rid: rid.0 },
            Status::Superseded => TransferError::Superseded {
                segment,
                rid: rid.0,
                reason: format!("the extent carries {:#x}", reply.detail),
            },
            Status::OldEpoch => TransferError::Superseded {
                segment,
                rid: rid.0,
                reason: format!("the owner obeys epoch {}", reply.detail),
            },
            status => TransferError::Refused { segment, status },
        }
    }

    pub(super) fn send_bytes(&self, bytes: &[u8], stall: &mut StallTimer<'_>) -> Result<(), TransferError> {
        let mut sent = 0;
        while sent < bytes.len() {
            match rustix::net::send(self.fd(), &bytes[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => {
                    sent += count;
                    stall.moved();
                }
                Err(e) => stall.failed(e.into(), "send")?,
            }
        }
        Ok(())
    }

    fn recv_bytes(&self, bytes: &mut [u8], stall: &mut StallTimer<'_>) -> Result<(), TransferError> {
        let mut have = 0;
        while have < bytes.len() {
            match recv_busy_poll(&self.history, self.fd(), &mut bytes[have..]) {
                Ok(0) => return Err(self.hung_up()),
                Ok(count) => {
                    have += count;
                    stall.moved();
                }
                Err(e) => stall.failed(e.into(), "receive")?,
            }
        }
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn hung_up(&self) -> TransferError {
        let source = io::ErrorKind::UnexpectedEof.into();
        TransferError::Broken { segment: self.segment.to_string(), what: "the peer closed the data lane", source }
    }

    pub(super) fn late(&self, what: &'static str, waited: Duration) -> TransferError {
        TransferError::Timeout { segment: self.segment.to_string(), what, waited }
    }

    /// What stands for device memory; to be put back.
    pub(super) fn take_bounce(&mut self) -> Bounce {
        std::mem::take(&mut self.bounce)
    }

    pub(super) fn put_bounce(&mut self, bounce: Bounce) {
        self.bounce = bounce;
    }

    pub(super) fn nonsense(&self, what: &'static str) -> TransferError {
        TransferError::Broken { segment: self.segment.to_string(), what, source: io::ErrorKind::InvalidData.into() }
    }
}

pub(super) enum Sent {
    All(u32),
    /// The owner answered before it had everything.
    Answered,
}

/// Keeps a request's deadlines: the call's own, and the longest standstill.
pub(super) struct StallTimer<'a> {
    deadline: &'a Deadline<'a>,
    segment: Arc<str>,
    stall_timeout: Duration,
    /// Told of bytes that move.
    told: Option<(&'a Spread, usize)>,
    /// When the standstill began, once a slice has passed without a byte.
    still_since: Option<Instant>,
}

impl<'a> StallTimer<'a> {
    pub(super) fn new(lane: &Lane, deadline: &'a Deadline<'a>) -> StallTimer<'a> {
        let (segment, stall_timeout) = (lane.segment.clone(), lane.stall_timeout);
        StallTimer { deadline, segment, stall_timeout, told: None, still_since: None }
    }

    /// Of a lane of that number, of several that carry one request.
    pub(super) fn of_one(self, spread: &'a Spread, lane: usize) -> StallTimer<'a> {
        StallTimer { told: Some((spread, lane)), ..self }
    }

    fn moved(&mut self) {
        self.still_since = None;
        if let Some((spread, lane)) = self.told {
            spread.moved(lane);
        }
    }

    /// Looks at an error of the socket: goes on after the end of a slice or a signal, unless the call is interrupted,
    /// its deadline has passed, or no byte has moved for too long.
    fn failed(&mut self, error: io::Error, what: &'static str) -> Result<(), TransferError> {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
            _ => {
                if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) {
                    return Err(TransferError::CallerMemory { source: error });
                }
                return Err(TransferError::Broken { segment: self.segment.to_string(), what, source: error });
            }
        }
        if self.deadline.is_interrupted() {
            return Err(TransferError::Interrupted);
        }
        // The first slice without a byte began one slice ago.
        let now = Instant::now();
        let since = *self.still_since.get_or_insert_with(|| now.checked_sub(Deadline::SLICE).unwrap_or(now));
        let waited = now - since;
        let (over, what) = if waited >= self.stall_timeout {
            (true, "no byte moved")
        } else {
            (self.deadline.has_passed(), "the call's deadline passed")
        };
        if over { Err(TransferError::Timeout { segment: self.segment.to_string(), what, waited }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
