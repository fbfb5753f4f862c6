//! What one connection does: bytes either way, and requests, to tell a slow peer from one that is stuck.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use mooncake_os::Guarded;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep, timeout};

/// Fewer bytes than this are no sign of life: a byte now and then costs a peer nothing.
const PROGRESS_BYTES_MIN: u64 = 4 << 10;

/// What a connection has done so far.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    /// Bytes either way.
    moved: AtomicU64,
    requests: AtomicU64,
    /// Requests whose answers are not over.
    answering: AtomicU32,
    /// Bytes moved at the last sign of life.
    stepped: AtomicU64,
    /// The last sign of life, nanoseconds after `began`.
    stepped_ns: AtomicU64,
    is_cut: AtomicBool,
    cut: Notify,
}

impl Progress {
    /// Begins with a sign of life.
    pub fn new() -> Progress {
        Progress {
            began: Instant::now(),
            moved: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            answering: AtomicU32::new(0),
            stepped: AtomicU64::new(0),
            stepped_ns: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            cut: Notify::new(),
        }
    }

    /// A request came; until what is returned is dropped it is being answered.
    pub fn asked(self: &Arc<Progress>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.step(self.moved.load(Ordering::Relaxed));
        self.answering.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > 0
    }

    fn moved(&self, bytes: usize) {
        let moved = self.moved.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if moved - self.stepped.load(Ordering::Relaxed) >= PROGRESS_BYTES_MIN {
            self.step(moved);
        }
    }

    fn step(&self, moved: u64) {
        self.stepped.store(moved, Ordering::Relaxed);
        self.stepped_ns.store(self.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// The last sign of life.
    pub fn alive_at(&self) -> Instant {
        self.began + Duration::from_nanos(self.stepped_ns.load(Ordering::Relaxed))
    }

    /// Ends [`Progress::while_moving`].
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.cut.notify_one();
    }

    /// Waits for the connection's work for as long as in each `window` a request comes or `least` bytes move; `None`
    /// when neither did, or when it is cut.
    pub async fn while_moving<F: Future>(&self, work: F, window: Duration, least: u64) -> Option<F::Output> {
        let work = async {
            tokio::pin!(work);
            loop {
                let (moved, requests) = (self.moved.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed));
                if let Ok(done) = timeout(window, &mut work).await {
                    return Some(done);
                }
                let still = self.requests.load(Ordering::Relaxed) == requests;
                if still && self.moved.load(Ordering::Relaxed) - moved < least {
                    self.is_cut.store(true, Ordering::Relaxed);
                    return None;
                }
            }
        };
        tokio::select! {
            done = work => done,
            () = self.cut.notified() => None,
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Progress>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections whose peers have not taken yet what was written for them.
#[derive(Debug, Default)]
pub struct Behind(AtomicUsize);

impl Behind {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that counts what moves over it, and does not wait for ever for its peer to read.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: Guarded<TcpStream>,
    progress: Arc<Progress>,
    unread: Duration,
    /// While the peer takes nothing: until when.
    overdue: Option<Pin<Box<Sleep>>>,
    behind: Arc<Behind>,
}

impl Counted {
    pub fn new(stream: Guarded<TcpStream>, progress: Arc<Progress>, unread: Duration, behind: Arc<Behind>) -> Counted {
        Counted { stream, progress, unread, overdue: None, behind }
    }

    fn keeps_up(&mut self) {
        if self.overdue.take().is_some() {
            self.behind.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What a write came to. One that waits does so for its time.
    fn wrote(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(result) => {
                self.keeps_up();
                self.progress.moved(*result.as_ref().unwrap_or(&0));
            }
            Poll::Pending => {
                let overdue = self.overdue.get_or_insert_with(|| {
                    self.behind.0.fetch_add(1, Ordering::Relaxed);
                    Box::pin(sleep(self.unread))
                });
                if overdue.as_mut().poll(cx).is_ready() {
                    // What it has not read is thrown away.
                    self.progress.is_cut.store(true, Ordering::Relaxed);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")));
                }
            }
        }
        written
    }
}

impl Drop for Counted {
    /// What a peer that is cut has not read yet is thrown away: the kernel would keep it for minutes.
    fn drop(&mut self) {
        self.keeps_up();
        if self.progress.is_cut.load(Ordering::Relaxed)
            && let Err(error) = SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO))
        {
            tracing::debug!(%error, "a connection that was cut lingers");
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut *self.stream).poll_read(cx, buf);
        self.progress.moved(buf.filled().len() - before);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write(cx, buf);
        self.wrote(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const WINDOW: Duration = Duration::from_millis(400);

    async fn pair() -> (Counted, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        // Small buffers: what is written is soon what was read.
        SockRef::from(&server).set_send_buffer_size(64 << 10).unwrap();
        SockRef::from(&client).set_recv_buffer_size(64 << 10).unwrap();
        (Counted::new(Guarded::new(server), Arc::new(Progress::new()), 10 * WINDOW, Arc::default()), client)
    }

    #[tokio::test]
    async fn a_slow_reader_gets_everything_and_one_that_is_stuck_is_cut() {
        const BYTES: usize = 4 << 20;
        let (mut counted, mut client) = pair().await;
        let progress = counted.progress.clone();
        let send = async move {
            counted.write_all(&vec![7; BYTES]).await.unwrap();
            counted
        };
        let read = tokio::spawn(async move {
            let mut got = vec![0; BYTES];
            for part in got.chunks_mut(BYTES / 10) {
                tokio::time::sleep(WINDOW / 4).await;
                client.read_exact(part).await.unwrap();
            }
            (client, got)
        });
        let counted = progress.while_moving(send, WINDOW, 1).await;
        let mut counted = counted.expect("it took more than two windows and moved in each of them");
        let (_client, got) = read.await.unwrap();
        assert_eq!(got, vec![7; BYTES]);
        let stuck = progress.while_moving(counted.write_all(&vec![7; BYTES]), WINDOW, BYTES as u64).await;
        assert!(stuck.is_none(), "nobody reads: only the buffers were filled");
    }

    #[tokio::test]
    async fn an_upload_that_moves_is_not_cut_and_one_that_stands_still_is() {
        let (mut counted, mut client) = pair().await;
        let progress = counted.progress.clone();
        let send = tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(WINDOW / 4).await;
                client.write_all(&[7; 100]).await.unwrap();
            }
            client
        });
        let mut got = [0; 1000];
        let read = progress.while_moving(counted.read_exact(&mut got), WINDOW, 100).await;
        assert_eq!(read.expect("it took more than two windows and moved in each of them").unwrap(), 1000);
        let _client = send.await.unwrap();
        assert!(progress.while_moving(counted.read_exact(&mut got), WINDOW, 100).await.is_none());
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_given_up_after_its_time() {
        let (mut counted, mut client) = pair().await;
        counted.unread = WINDOW;
        let (read, written) = tokio::join!(
            async {
                // Slower than the whole time allows, and never without a byte for that long.
                let mut got = vec![0; 64 << 10];
                for _ in 0..8 {
                    tokio::time::sleep(WINDOW / 4).await;
                    client.read_exact(&mut got).await.unwrap();
                }
            },
            async {
                counted.write_all(&vec![7; 512 << 10]).await.unwrap();
                Instant::now()
            }
        );
        let ((), _) = (read, written);
        let behind = counted.behind.clone();
        assert_eq!(behind.count(), 0);
        let (written, ()) = tokio::join!(counted.write_all(&[7; 4 << 20]), async {
            tokio::time::sleep(WINDOW / 2).await;
            assert_eq!(behind.count(), 1);
        });
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(counted);
        assert_eq!(behind.count(), 0);
    }

    #[test]
    fn a_trickle_is_no_sign_of_life_and_a_request_is() {
        let progress = Arc::new(Progress::new());
        let mark = Instant::now();
        progress.moved(PROGRESS_BYTES_MIN as usize - 1);
        assert!(progress.alive_at() < mark);
        progress.moved(1);
        assert!(progress.alive_at() >= mark);
        let mark = Instant::now();
        assert!(progress.alive_at() < mark);
        progress.asked();
        assert!(progress.alive_at() >= mark);
    }
}
