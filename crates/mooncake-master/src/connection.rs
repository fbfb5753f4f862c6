//! One control connection: frames in, bytes out, nothing without a limit.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use mooncake_wire::{FrameReader, MAX_FRAME};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::log::LogClosed;

/// For the rest of a frame once it has begun, and for a peer to take a reply.
const STUCK: Duration = Duration::from_secs(10);

const READ_MIN: usize = 4 << 10;
const READ_MAX: usize = 1 << 20;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The peer did not speak the protocol.
    #[error("{0}")]
    Garbage(String),
    /// The peer stopped in the middle of something.
    #[error("the peer is stuck")]
    Stuck,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The master stops.
    #[error(transparent)]
    Stopping(#[from] LogClosed),
}

/// A stream with its read buffer.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    reader: FrameReader,
    read_size: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection that has not said anything yet.
    pub fn new(stream: S) -> Connection<S> {
        Connection { stream, reader: FrameReader::default(), read_size: READ_MIN }
    }

    /// Compares the connection's first bytes as they come, so that a stranger is cut at the first wrong one.
    pub async fn expect(&mut self, preface: &[u8]) -> Result<(), Ended> {
        loop {
            let have = self.reader.buffer_mut();
            let seen = have.len().min(preface.len());
            if have[..seen] != preface[..seen] {
                return Err(Ended::Garbage("does not speak the control protocol".to_owned()));
            }
            if seen == preface.len() {
                let _ = have.split_to(seen);
                return Ok(());
            }
            self.read().await?;
        }
    }

    /// The next frame, of at most `limit` bytes; waits as long as it takes.
    pub async fn frame(&mut self, limit: usize) -> Result<Bytes, Ended> {
        loop {
            match self.reader.next_frame(limit) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => self.read().await?,
                Err(error) => return Err(Ended::Garbage(error.to_string())),
            }
        }
    }

    /// The next frame: its first byte may take for ever, its rest may not.
    pub async fn next_frame(&mut self) -> Result<Bytes, Ended> {
        if !self.reader.is_partial() {
            if self.reader.buffer_mut().capacity() > READ_MAX {
                // One large batch must not keep its memory while the connection idles.
                *self.reader.buffer_mut() = bytes::BytesMut::new();
            }
            self.read_size = READ_MIN;
            // No timer on this path: idle connections end with their session.
            self.read().await?;
        }
        match self.reader.next_frame(MAX_FRAME) {
            Ok(Some(frame)) => Ok(frame),
            _ => timeout(STUCK, self.frame(MAX_FRAME)).await.map_err(|_| Ended::Stuck)?,
        }
    }

    /// Sends bytes; a peer that does not take them is cut.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        timeout(STUCK, self.stream.write_all(bytes)).await.map_err(|_| Ended::Stuck)??;
        Ok(())
    }

    /// Waits for something else, but no longer than the connection lives.
    pub async fn until_closed<T>(&mut self, what: impl Future<Output = T>) -> Result<T, Ended> {
        tokio::pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return Ok(done),
                read = self.read() => {
                    read?;
                    // One request at a time: whoever sends more than a little ahead is not a client of ours.
                    if self.reader.buffer_mut().len() > READ_MAX {
                        return Err(Ended::Garbage("sends on while a request is under way".to_owned()));
                    }
                }
            }
        }
    }

    /// Splits into the reading half and the stream's writing half.
    pub fn split(self) -> (Connection<tokio::io::ReadHalf<S>>, tokio::io::WriteHalf<S>) {
        let (read, write) = tokio::io::split(self.stream);
        (Connection { stream: read, reader: self.reader, read_size: self.read_size }, write)
    }
}

impl<S: AsyncRead + Unpin> Connection<S> {
    /// Reads what is there, at least one byte.
    async fn read(&mut self) -> Result<(), Ended> {
        let buffer = self.reader.buffer_mut();
        buffer.reserve(self.read_size);
        let room = buffer.capacity() - buffer.len();
        let count = self.stream.read_buf(buffer).await?;
        if count == 0 {
            return Err(Ended::Closed);
        }
        if count == room {
            self.read_size = (self.read_size * 8).min(READ_MAX);
        }
        Ok(())
    }

    /// [`Connection::frame`] for the reading half of an anchor.
    pub async fn half_frame(&mut self) -> Result<Bytes, Ended> {
        loop {
            match self.reader.next_frame(MAX_FRAME) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => self.read().await?,
                Err(error) => return Err(Ended::Garbage(error.to_string())),
            }
        }
    }
}
