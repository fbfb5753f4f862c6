//! Frames over an attach connection, both ways, without ever blocking.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mooncake_os::Guarded;

use crate::protocol::frames::{FRAME_LEN, Frame};

/// Most bytes that wait for a peer that does not read. Neither side puts a question, or gives an answer, that would not
/// fit: more than this is a mistake, which closes the connection.
const WAITING_BYTES_MAX: usize = 4096 * FRAME_LEN;

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
        WAITING_BYTES_MAX.saturating_sub(self.outbox.len()).div_ceil(FRAME_LEN)
    }

    /// Whether to poll for room to write.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frames::Op;

    #[test]
    fn as_many_frames_wait_as_there_is_room_for_and_come_whole_and_in_order() {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        mine.set_nonblocking(true).unwrap();
        let mut pipe = AttachPipe::new(Arc::new(Guarded::new(mine)));
        let frame = |number| Frame { rid: number, ..Frame::plain(Op::Quiesced, 1) };
        let mut sent = 0;
        let mut send = |pipe: &mut AttachPipe| pipe.send(&frame(sent)).map(|()| sent += 1);
        while !pipe.is_waiting() {
            send(&mut pipe).unwrap();
        }
        // A part of a frame may be on its way already: the rest of it takes the room of one.
        let room = pipe.room();
        assert!((4095..=4096).contains(&room), "{room}");
        for left in (0..room).rev() {
            send(&mut pipe).unwrap();
            assert_eq!(pipe.room(), left);
        }
        let full = send(&mut pipe).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::TimedOut);
        // The last word goes out all the same.
        assert!(!pipe.send_last(&frame(sent)).unwrap());
        let mut read = 0;
        while pipe.is_waiting() || read <= sent {
            let mut bytes = [0; FRAME_LEN];
            theirs.read_exact(&mut bytes).unwrap();
            assert_eq!(Frame::decode(&bytes), Some(frame(read)));
            read += 1;
            pipe.flush().unwrap();
        }
        assert_eq!(read, sent + 1);
    }

    #[test]
    fn a_frame_that_comes_in_parts_is_one_and_rubbish_is_an_error() {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        mine.set_nonblocking(true).unwrap();
        let mut pipe = AttachPipe::new(Arc::new(Guarded::new(mine)));
        let frame = Frame::plain(Op::Upgraded, 1);
        for _ in 0..2 {
            theirs.write_all(&frame.encode()[..10]).unwrap();
            assert!(pipe.receive().unwrap().is_none());
            theirs.write_all(&frame.encode()[10..]).unwrap();
            assert_eq!(pipe.receive().unwrap(), Some(frame));
        }
        theirs.write_all(&[5; FRAME_LEN]).unwrap();
        assert!(pipe.receive().is_err());
        drop(theirs);
        assert_eq!(pipe.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
