//! Frames over an attach connection, both ways, without ever blocking.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mooncake_memory::Guarded;

use crate::wire::{FRAME_LEN, Frame};

/// Most bytes that wait for a peer that does not read. Neither side puts a question, or gives an answer, that would not
/// fit: more than this is a mistake, which closes the connection.
const MAX_WAITING: usize = 4096 * FRAME_LEN;

/// One side of an attach connection after the hello. The stream is non-blocking.
#[derive(Debug)]
pub(crate) struct AttachPipe {
    stream: Arc<Guarded<UnixStream>>,
    inbox: [u8; FRAME_LEN],
    have: usize,
    outbox: VecDeque<u8>,
}

impl AttachPipe {
    pub(crate) fn new(stream: Arc<Guarded<UnixStream>>) -> AttachPipe {
        AttachPipe { stream, inbox: [0; FRAME_LEN], have: 0, outbox: VecDeque::new() }
    }

    pub(crate) fn stream(&self) -> &Arc<Guarded<UnixStream>> {
        &self.stream
    }

    /// The next whole frame, `None` until more bytes have come. An error, end
    /// of stream included, means that nothing more will.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Frame>> {
        while self.have < FRAME_LEN {
            let mut stream: &UnixStream = &self.stream;
            match stream.read(&mut self.inbox[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.have = 0;
        match Frame::decode(&self.inbox) {
            Some(frame) => Ok(Some(frame)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer sent something that is no message")),
        }
    }

    /// Sends a frame now or, if the peer is slow to read, in a later [`Self::flush`].
    pub(crate) fn send(&mut self, frame: &Frame) -> io::Result<()> {
        if self.room() == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"));
        }
        self.outbox.extend(frame.encode());
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            let mut stream: &UnixStream = &self.stream;
            match stream.write(self.outbox.as_slices().0) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends the last frame that there is, whatever waits before it. False: some of it is still to be flushed.
    pub(crate) fn send_last(&mut self, frame: &Frame) -> io::Result<bool> {
        self.outbox.extend(frame.encode());
        self.flush()?;
        Ok(!self.is_waiting())
    }

    /// Number of frames that [`Self::send`] takes now.
    pub(crate) fn room(&self) -> usize {
        MAX_WAITING.saturating_sub(self.outbox.len()).div_ceil(FRAME_LEN)
    }

    /// Whether to poll for room to write.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }
}
