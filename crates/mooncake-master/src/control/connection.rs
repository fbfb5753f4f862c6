//! One control connection: frames in, bytes out, nothing without a limit.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_net::{MOMENT, PollHistory, busy_polls_max};
use mooncake_wire::{FRAME_BYTES_MAX, FrameReader};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::log::LogClosed;

/// For the rest of a frame once it has begun, and for a peer to take a reply.
const STUCK: Duration = Duration::from_secs(10);

const READ_MIN: usize = 4 << 10;
const READ_MAX: usize = 1 << 20;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum WhyClosed {
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The peer did not speak the protocol.
    #[error("{0}")]
    Garbage(String),
    /// Of an anchor: it is not the one that counts.
    #[error("another connection is the session's anchor by now")]
    Replaced,
    /// Of a connection for calls: all so many places are taken by others that are not idle.
    #[error("{0} connections for calls are busy already")]
    Crowded(usize),
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

/// Longest work of a peer that is waited for awake, as long as a slow host takes: a wake-up takes a fifth of what
/// others do.
const WORK_MAX: Duration = Duration::from_micros(300);

/// Clients of which one was answered so long ago, and another one is, work at the same time: they take the processors,
/// and one of them asks sooner than each.
const BESIDE: Duration = Duration::from_millis(1);

/// Looks at one socket between two at all of a runtime, of which each takes several times as long.
const ASKS: u32 = 4;

/// Bytes of a request that are read while its reader is awake; the rest of a longer one is there by then.
const READ_AWAKE: usize = 8 << 10;

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The connection that this thread's runtime has answered last.
    static ANSWERED: Cell<Option<(u64, Instant)>> = const { Cell::new(None) };
}

/// Whether it is worth waiting for a peer awake: a client that sends its bytes by TCP needs the processor, and longer
/// than for a copy, but asks again at once after its put's end.
#[derive(Debug, Default)]
struct Habits {
    at_once: PollHistory,
    behind_work: PollHistory,
}

impl Habits {
    fn behind(&self, copying: Duration) -> &PollHistory {
        if copying.is_zero() { &self.at_once } else { &self.behind_work }
    }
}

/// How long a peer is waited for that copies and packs; beside others no copy counts. Awake behind half of each, the
/// master took a seventh of the rate of four threads that read a mebibyte each on two processors.
fn awake_for(copying: Duration, packing: Duration, is_beside: bool) -> Duration {
    let work = if is_beside { packing / 2 } else { copying + packing };
    work.min(WORK_MAX) + MOMENT
}

/// A stream of bytes both ways, which can leave the runtime that reads it.
pub trait Stream: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    /// The socket by itself.
    type Socket: Send;

    /// Leaves its runtime.
    fn leave(self) -> io::Result<Self::Socket>;

    /// Joins the runtime that this is called in.
    fn join(socket: Self::Socket) -> io::Result<Self>
    where
        Self: Sized;
}

impl Stream for TcpStream {
    type Socket = std::net::TcpStream;

    fn leave(self) -> io::Result<Self::Socket> {
        self.into_std()
    }

    fn join(socket: Self::Socket) -> io::Result<Self> {
        TcpStream::from_std(socket)
    }
}

impl Stream for UnixStream {
    type Socket = std::os::unix::net::UnixStream;

    fn leave(self) -> io::Result<Self::Socket> {
        self.into_std()
    }

    fn join(socket: Self::Socket) -> io::Result<Self> {
        UnixStream::from_std(socket)
    }
}

/// A stream with its read buffer.
#[derive(Debug)]
pub struct Connection<S> {
    /// Its own in this process.
    number: u64,
    stream: S,
    reader: FrameReader,
    read_size: usize,
    /// Whether the next request tends to come at once.
    habits: Habits,
}

impl<S: Stream> Connection<S> {
    /// A connection that has not said anything yet.
    pub fn new(stream: S) -> Connection<S> {
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Connection { number, stream, reader: FrameReader::default(), read_size: READ_MIN, habits: Habits::default() }
    }

    /// Compares the connection's first bytes as they come, so that a stranger is cut at the first wrong one.
    pub async fn expect(&mut self, preface: &[u8]) -> Result<(), WhyClosed> {
        loop {
            let have = self.reader.buffer_mut();
            let seen = have.len().min(preface.len());
            if have[..seen] != preface[..seen] {
                return Err(WhyClosed::Garbage("does not speak the control protocol".to_owned()));
            }
            if seen == preface.len() {
                let _ = have.split_to(seen);
                return Ok(());
            }
            self.read().await?;
        }
    }

    /// The next frame, of at most `limit` bytes; waits as long as it takes.
    pub async fn frame(&mut self, limit: usize) -> Result<Bytes, WhyClosed> {
        loop {
            match self.reader.next_frame(limit) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => self.read().await?,
                Err(error) => return Err(WhyClosed::Garbage(error.to_string())),
            }
        }
    }

    /// The next frame: its first byte may take for ever, its rest may not.
    pub async fn next_frame(&mut self) -> Result<Bytes, WhyClosed> {
        if !self.reader.is_partial() {
            if self.reader.buffer_mut().capacity() > READ_MAX {
                // One large batch must not keep its memory while the connection idles.
                *self.reader.buffer_mut() = bytes::BytesMut::new();
            }
            self.read_size = READ_MIN;
            // No timer on this path: idle connections end with their session.
            self.read().await?;
        }
        match self.reader.next_frame(FRAME_BYTES_MAX) {
            Ok(Some(frame)) => Ok(frame),
            _ => timeout(STUCK, self.frame(FRAME_BYTES_MAX)).await.map_err(|_| WhyClosed::Stuck)?,
        }
    }

    /// Leaves its runtime for another one.
    pub fn leave(self) -> io::Result<Leaving<S>> {
        let Connection { number, stream, reader, read_size, habits } = self;
        Ok(Leaving { number, socket: stream.leave()?, reader, read_size, habits })
    }

    /// Reads what comes within a moment, awake, if a peer's next request tends to come at once: to be woken up for it
    /// costs more. The peer copies bytes first, and packs its request. Only in a runtime of one thread, whose other
    /// connections are looked after meanwhile.
    pub async fn read_busy_poll(&mut self, copying: Duration, packing: Duration) -> Result<(), WhyClosed> {
        let history = self.habits.behind(copying);
        let now = Instant::now();
        let before = ANSWERED.replace(Some((self.number, now)));
        let is_beside = before.is_some_and(|(number, at)| number != self.number && now - at < BESIDE);
        if self.reader.is_partial() || copying > WORK_MAX || busy_polls_max() == 0 || history.skips() {
            return Ok(());
        }
        let until = now + awake_for(copying, packing, is_beside);
        loop {
            for _ in 0..ASKS {
                if self.read_now()? {
                    self.habits.behind(copying).helped();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                self.habits.behind(copying).was_in_vain();
                return Ok(());
            }
            // Behind a look at every socket of this runtime.
            tokio::task::yield_now().await;
        }
    }

    /// Reads what is there, past the runtime, which learns of it later. False: nothing is.
    fn read_now(&mut self) -> Result<bool, WhyClosed> {
        let mut bytes = [MaybeUninit::uninit(); READ_AWAKE];
        match rustix::net::recv(self.stream.as_fd(), &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(WhyClosed::Closed),
            Ok(((bytes, _), _)) => {
                self.reader.buffer_mut().extend_from_slice(bytes);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(WhyClosed::Io(errno.into())),
        }
    }

    /// Sends bytes; a peer that does not take them is cut.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), WhyClosed> {
        timeout(STUCK, self.stream.write_all(bytes)).await.map_err(|_| WhyClosed::Stuck)??;
        Ok(())
    }

    /// Waits for something else, but no longer than the connection lives.
    pub async fn until_closed<T>(&mut self, what: impl Future<Output = T>) -> Result<T, WhyClosed> {
        tokio::pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return Ok(done),
                read = self.read() => {
                    read?;
                    // One request at a time: whoever sends more than a little ahead is not a client of ours.
                    if self.reader.buffer_mut().len() > READ_MAX {
                        return Err(WhyClosed::Garbage("sends on while a request is under way".to_owned()));
                    }
                }
            }
        }
    }

    /// Splits into the reading half and the stream's writing half.
    pub fn split(self) -> (Connection<tokio::io::ReadHalf<S>>, tokio::io::WriteHalf<S>) {
        let (read, write) = tokio::io::split(self.stream);
        let Connection { number, reader, read_size, habits, .. } = self;
        (Connection { number, stream: read, reader, read_size, habits }, write)
    }
}

impl<S: AsyncRead + Unpin> Connection<S> {
    /// Reads what is there, at least one byte.
    async fn read(&mut self) -> Result<(), WhyClosed> {
        let buffer = self.reader.buffer_mut();
        buffer.reserve(self.read_size);
        let room = buffer.capacity() - buffer.len();
        let count = self.stream.read_buf(buffer).await?;
        if count == 0 {
            return Err(WhyClosed::Closed);
        }
        if count == room {
            self.read_size = (self.read_size * 8).min(READ_MAX);
        }
        Ok(())
    }

    /// [`Connection::frame`] for the reading half of an anchor.
    pub async fn half_frame(&mut self) -> Result<Bytes, WhyClosed> {
        loop {
            match self.reader.next_frame(FRAME_BYTES_MAX) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => self.read().await?,
                Err(error) => return Err(WhyClosed::Garbage(error.to_string())),
            }
        }
    }
}

/// A connection between two runtimes.
pub struct Leaving<S: Stream> {
    number: u64,
    socket: S::Socket,
    reader: FrameReader,
    read_size: usize,
    habits: Habits,
}

impl<S: Stream> Leaving<S> {
    /// In the runtime that this is called in.
    pub fn arrive(self) -> io::Result<Connection<S>> {
        let Leaving { number, socket, reader, read_size, habits } = self;
        Ok(Connection { number, stream: S::join(socket)?, reader, read_size, habits })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use mooncake_wire::{CONTROL_PREFACE, encode_frame};

    use super::*;

    fn pair() -> (Connection<UnixStream>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (Connection::new(near), far)
    }

    #[test]
    fn a_copy_is_waited_for_awake_unless_others_work_beside_it() {
        let us = Duration::from_micros;
        assert_eq!(awake_for(us(200), us(20), false), us(220) + MOMENT);
        assert_eq!(awake_for(us(200), us(20), true), us(10) + MOMENT);
        assert_eq!(awake_for(us(250), us(100), false), WORK_MAX + MOMENT);
        assert_eq!(awake_for(us(0), us(2_000), true), WORK_MAX + MOMENT);
    }

    /// A frame of at least so many bytes.
    fn frame(bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let reason = "x".repeat(bytes);
        encode_frame(&mooncake_wire::message::Refusal { kind: 0, reason }, &mut out);
        out
    }

    #[tokio::test]
    async fn a_stranger_is_cut_at_its_first_wrong_byte() {
        let (mut connection, mut stranger) = pair();
        stranger.write_all(&CONTROL_PREFACE[..2]).await.unwrap();
        stranger.write_all(b"?").await.unwrap();
        let told = timeout(STUCK, connection.expect(&CONTROL_PREFACE)).await.expect("nothing more is waited for");
        assert!(matches!(told, Err(WhyClosed::Garbage(_))));
    }

    #[tokio::test]
    async fn what_follows_the_preface_is_kept() {
        let (mut connection, mut peer) = pair();
        peer.write_all(&[&CONTROL_PREFACE[..], &frame(3)].concat()).await.unwrap();
        connection.expect(&CONTROL_PREFACE).await.unwrap();
        assert_eq!(connection.frame(100).await.unwrap().len(), frame(3).len() - 4);
    }

    #[tokio::test]
    async fn a_frame_beyond_the_limit_is_refused_before_it_is_read() {
        let (mut connection, mut peer) = pair();
        peer.write_all(&frame(1000)[..8]).await.unwrap();
        assert!(matches!(connection.frame(1000).await, Err(WhyClosed::Garbage(_))));
    }

    // In these the clock goes on when nothing else does.

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_stops_in_the_middle_of_a_frame_is_stuck_and_one_that_says_nothing_is_not() {
        let (mut connection, mut peer) = pair();
        assert!(timeout(100 * STUCK, connection.next_frame()).await.is_err(), "it may be silent for ever");
        peer.write_all(&frame(100)[..50]).await.unwrap();
        let began = tokio::time::Instant::now();
        assert!(matches!(connection.next_frame().await, Err(WhyClosed::Stuck)));
        assert_eq!(began.elapsed().as_secs(), STUCK.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_stuck() {
        let (mut connection, _peer) = pair();
        let began = tokio::time::Instant::now();
        assert!(matches!(connection.send(&vec![0; 8 << 20]).await, Err(WhyClosed::Stuck)));
        assert_eq!(began.elapsed().as_secs(), STUCK.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_batch_does_not_keep_its_memory_while_its_connection_idles() {
        let (mut connection, mut peer) = pair();
        let large = frame(4 << 20);
        let (sent, got) = tokio::join!(peer.write_all(&large), connection.next_frame());
        sent.unwrap();
        drop(got.unwrap());
        // As one that waits for the next request.
        assert!(timeout(STUCK, connection.next_frame()).await.is_err());
        assert!(connection.reader.buffer_mut().capacity() <= READ_MAX);
    }

    #[tokio::test]
    async fn a_peer_that_sends_on_while_its_request_waits_is_cut_and_a_little_is_kept() {
        let (mut connection, mut peer) = pair();
        peer.write_all(&frame(1000)).await.unwrap();
        let done = connection.until_closed(tokio::time::sleep(Duration::from_millis(50))).await;
        assert!(done.is_ok() && connection.next_frame().await.is_ok());
        let bytes = vec![0; 2 * READ_MAX];
        let (_, told) = tokio::join!(timeout(STUCK, peer.write_all(&bytes)), async {
            let told = connection.until_closed(pending::<()>()).await;
            // Nobody takes the rest.
            drop(connection);
            told
        });
        assert!(matches!(told, Err(WhyClosed::Garbage(_))));
    }

    #[tokio::test]
    async fn a_peer_that_hangs_up_ends_what_is_waited_for() {
        let (mut connection, peer) = pair();
        drop(peer);
        assert!(matches!(connection.until_closed(pending::<()>()).await, Err(WhyClosed::Closed)));
    }
}
