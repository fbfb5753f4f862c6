//! How much a peer has taken of what it is sent, to tell a slow one from one that is stuck.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

/// A stream that counts what is written to it.
#[derive(Debug)]
pub struct TakenCount<S> {
    stream: S,
    taken: Arc<AtomicU64>,
}

/// Bytes that a peer has taken.
#[derive(Debug)]
pub struct Taken(Arc<AtomicU64>);

impl<S> TakenCount<S> {
    /// Counts for a stream.
    pub fn over(stream: S) -> (TakenCount<S>, Taken) {
        let taken = Arc::new(AtomicU64::new(0));
        (TakenCount { stream, taken: taken.clone() }, Taken(taken))
    }
}

impl Taken {
    /// Waits for something for as long as the peer takes `least` bytes in each `window`; `None` when it did not.
    pub async fn while_moving<F: Future>(&self, work: F, window: Duration, least: u64) -> Option<F::Output> {
        tokio::pin!(work);
        loop {
            let before = self.0.load(Ordering::Relaxed);
            if let Ok(done) = timeout(window, &mut work).await {
                return Some(done);
            }
            if self.0.load(Ordering::Relaxed) - before < least {
                return None;
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TakenCount<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TakenCount<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = written {
            self.taken.fetch_add(count as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(count)) = written {
            self.taken.fetch_add(count as u64, Ordering::Relaxed);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const WINDOW: Duration = Duration::from_millis(400);

    #[tokio::test]
    async fn a_slow_reader_gets_everything_and_one_that_is_stuck_is_cut() {
        let (server, mut client) = tokio::io::duplex(64);
        let (mut counted, taken) = TakenCount::over(server);
        let send = async move {
            counted.write_all(&[7; 1000]).await.unwrap();
            counted
        };
        let read = tokio::spawn(async move {
            let mut got = vec![0; 1000];
            for part in got.chunks_mut(100) {
                tokio::time::sleep(WINDOW / 4).await;
                client.read_exact(part).await.unwrap();
            }
            (client, got)
        });
        let counted = taken.while_moving(send, WINDOW, 1).await;
        let mut counted = counted.expect("it took more than two windows and moved in each of them");
        let (_client, got) = read.await.unwrap();
        assert_eq!(got, [7; 1000]);
        let stuck = taken.while_moving(counted.write_all(&[7; 1000]), WINDOW, 100).await;
        assert!(stuck.is_none(), "nobody reads: only the buffer was filled");
    }
}
