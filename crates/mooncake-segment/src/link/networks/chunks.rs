//! A request cut into chunks, and the lanes that carry them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use mooncake_memory::{Destination, Source, crc32c_combine};
use mooncake_net::{CHUNK_BYTES, Spread};
use mooncake_os::{Deadline, WaitError};
use parking_lot::Mutex;

use super::super::tcp_lane::{Lane, Outcome, Sent, Span, StallTimer};
use crate::error::TransferError;
use crate::protocol::frames::{Frame, Op, Reply, Status};

/// A request's bytes, and the caller's pieces of each chunk.
pub(super) struct Cut<P> {
    whole: Span,
    chunks: Vec<P>,
}

impl<P> Cut<Vec<P>> {
    pub fn new(
        whole: Span,
        pieces: impl Iterator<Item = P>,
        len: impl Fn(&P) -> usize,
        split: impl Fn(P, usize) -> (P, P),
    ) -> Cut<Vec<P>> {
        let (mut chunks, mut room) = (Vec::<Vec<P>>::new(), 0);
        for mut piece in pieces {
            while len(&piece) > 0 {
                if room == 0 {
                    chunks.push(Vec::new());
                    room = CHUNK_BYTES as usize;
                }
                let step = room.min(len(&piece));
                let (head, rest) = split(piece, step);
                chunks.last_mut().expect("one was begun").push(head);
                (piece, room) = (rest, room - step);
            }
        }
        Cut { whole, chunks }
    }
}

impl<P> Cut<P> {
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// The bytes of a chunk. Its first one is that of a granule if the request's is.
    fn span(&self, chunk: usize) -> Span {
        let at = chunk as u64 * CHUNK_BYTES;
        Span { offset: self.whole.offset + at, len: (self.whole.len - at).min(CHUNK_BYTES), ..self.whole }
    }
}

/// The checksums of the chunks.
pub(super) struct Sums(Vec<AtomicU32>);

impl Sums {
    pub fn new(chunks: usize) -> Sums {
        Sums((0..chunks).map(|_| AtomicU32::new(0)).collect())
    }

    /// The checksum of the whole.
    pub fn of_all<P>(&self, cut: &Cut<P>) -> u32 {
        let sums = self.0.iter().enumerate();
        sums.fold(0, |sum, (chunk, next)| crc32c_combine(sum, next.load(Ordering::Relaxed), cut.span(chunk).len))
    }
}

impl<P> Cut<Vec<P>> {
    /// For lanes that fill the pieces: one has a chunk at a time.
    pub fn shared(self) -> Cut<Mutex<Vec<P>>> {
        Cut { whole: self.whole, chunks: self.chunks.into_iter().map(Mutex::new).collect() }
    }
}

/// What one lane carries, as it draws it.
pub(super) struct Drawing<'a, P> {
    pub spread: &'a Spread,
    pub lane: usize,
    pub cut: &'a Cut<P>,
    pub sums: &'a Sums,
}

impl<P> Drawing<'_, P> {
    /// A chunk for a lane that has none under way; none at the end.
    fn wait(&self, over: &Lane, deadline: &Deadline<'_>) -> Result<Option<usize>, TransferError> {
        self.spread.wait(self.lane, deadline).map_err(|error| match error {
            WaitError::Interrupted => TransferError::Interrupted,
            WaitError::Expired(waited) => over.late("the call's deadline passed", waited),
        })
    }

    fn done(&self, chunk: usize, sum: u32) {
        self.sums.0[chunk].store(sum, Ordering::Relaxed);
        self.spread.done(self.lane);
    }
}

impl Lane {
    /// Reads chunks until there are none. While one comes, the owner has been asked for the next ones.
    pub(super) fn read_drawn(
        &mut self,
        drawing: &Drawing<'_, Mutex<Vec<Destination<'_>>>>,
        checksum: bool,
        deadline: &Deadline<'_>,
    ) -> Outcome<()> {
        let mut asked: VecDeque<(usize, Frame)> = VecDeque::new();
        loop {
            let before = asked.len();
            while let Some(chunk) = drawing.spread.take(drawing.lane) {
                asked.push_back((chunk, self.request(Op::Read, drawing.cut.span(chunk))));
            }
            if asked.is_empty() {
                match drawing.wait(self, deadline) {
                    Ok(Some(chunk)) => asked.push_back((chunk, self.request(Op::Read, drawing.cut.span(chunk)))),
                    Ok(None) => return Outcome::new(Ok(()), true, true),
                    Err(error) => return Outcome::new(Err(error), true, true),
                }
            }
            let frames: Vec<u8> = asked.range(before..).flat_map(|(_, frame)| frame.encode()).collect();
            let mut stall = StallTimer::new(self, deadline).of_one(drawing.spread, drawing.lane);
            if let Err(error) = self.send_bytes(&frames, &mut stall) {
                return Outcome::new(Err(error), false, true);
            }
            let (chunk, frame) = asked.pop_front().expect("one is asked for");
            let mut pieces = drawing.cut.chunks[chunk].lock();
            let outcome = self.read_answer(&frame, drawing.cut.span(chunk), &mut pieces, checksum, &mut stall);
            match outcome.result {
                Ok(sum) => drawing.done(chunk, sum),
                // Answers to what was asked for behind it are on their way.
                Err(error) => return Outcome::new(Err(error), outcome.reusable && asked.is_empty(), true),
            }
        }
    }

    /// Writes chunks until there are none. While one is answered, the next ones are on their way. After a refusal it
    /// hears what became of those.
    pub(super) fn write_drawn(
        &mut self,
        drawing: &Drawing<'_, Vec<Source<'_>>>,
        deadline: &Deadline<'_>,
    ) -> Outcome<()> {
        let mut unanswered: VecDeque<(usize, Frame, u32)> = VecDeque::new();
        let mut refused = None;
        loop {
            let mut next = if refused.is_none() { drawing.spread.take(drawing.lane) } else { None };
            if next.is_none() && unanswered.is_empty() {
                if let Some(error) = refused {
                    return Outcome::new(Err(error), true, true);
                }
                match drawing.wait(self, deadline) {
                    Ok(Some(chunk)) => next = Some(chunk),
                    Ok(None) => return Outcome::new(Ok(()), true, true),
                    Err(error) => return Outcome::new(Err(error), true, true),
                }
            }
            let mut stall = StallTimer::new(self, deadline).of_one(drawing.spread, drawing.lane);
            if let Some(chunk) = next {
                match self.send_chunk(drawing.cut, chunk, &mut stall) {
                    Ok((frame, sum)) => unanswered.push_back((chunk, frame, sum)),
                    Err((error, begun)) => {
                        return Outcome::new(Err(error), false, !begun && unanswered.is_empty());
                    }
                }
            }
            // Answers are taken as they come, and waited for when there is nothing to be sent.
            while let Some((chunk, frame, sum)) = unanswered.front()
                && (next.is_none() || self.has_answer())
            {
                match self.reply(frame, &mut stall) {
                    Ok(Reply { status: Status::Ok, .. }) => drawing.done(*chunk, *sum),
                    Ok(reply) => {
                        refused.get_or_insert_with(|| self.refused(drawing.cut.whole.rid, &reply));
                        drawing.spread.stop();
                    }
                    Err(error) => return Outcome::new(Err(error), false, false),
                }
                unanswered.pop_front();
                if next.is_none() {
                    break;
                }
            }
        }
    }

    /// Sends a chunk; an error with whether a byte of it has gone out.
    fn send_chunk(
        &mut self,
        cut: &Cut<Vec<Source<'_>>>,
        chunk: usize,
        stall: &mut StallTimer<'_>,
    ) -> Result<(Frame, u32), (TransferError, bool)> {
        let frame = self.request(Op::Write, cut.span(chunk));
        let (mut begun, mut bounce) = (false, self.take_bounce());
        let sent = self.send_all_of(&frame.encode(), &cut.chunks[chunk], &mut bounce, None, stall, &mut begun);
        self.put_bounce(bounce);
        match sent {
            Ok(Sent::All(sum)) => Ok((frame, sum)),
            Ok(Sent::Answered) => Err((self.nonsense("it answers what it was not sent"), begun)),
            Err(error) => Err((error, begun)),
        }
    }
}
