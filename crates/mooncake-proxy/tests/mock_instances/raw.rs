//! An instance that keeps to no protocol.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mooncake_proxy::InstanceAddress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it does with a request; checks are answered as they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw {
    /// Closes the connection.
    Close,
    /// Closes its half, and keeps the other open.
    HalfClose,
    /// Sends what is no HTTP.
    Garbage,
    /// Sends headers for ever.
    EndlessHead,
    /// Begins a stream of events, and then sends what is no chunk.
    BadChunk,
    /// Begins a stream of events, and says nothing more.
    Stall,
    /// An answer shorter than it says.
    Short,
    /// Events for ever.
    Endless,
    /// As a client's keep-alive time runs out: the first request's connection is closed, the others are answered.
    CloseFirst,
}

pub struct RawInstance {
    pub address: SocketAddr,
    /// Bytes of answers that the proxy took.
    pub sent: Arc<AtomicUsize>,
    /// Requests that came.
    pub asked: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl RawInstance {
    pub async fn start(does: Raw) -> RawInstance {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (sent.clone(), asked.clone());
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (sent, asked) = counts.clone();
                tokio::spawn(async move { answer(socket, does, sent, asked).await });
            }
        });
        RawInstance { address, sent, asked, task }
    }

    pub fn named(&self) -> InstanceAddress {
        self.address.to_string().parse().unwrap()
    }
}

impl Drop for RawInstance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const EVENTS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
    9\r\ndata: 0\n\n\r\n";

async fn answer(mut socket: TcpStream, does: Raw, sent: Arc<AtomicUsize>, asked: Arc<AtomicUsize>) -> Option<()> {
    let head = head(&mut socket).await?;
    if head.starts_with("GET") {
        let models = r#"{"data":[{"id":"models/tiny"}]}"#;
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{models}", models.len());
        return socket.write_all(answer.as_bytes()).await.ok();
    }
    let nth = asked.fetch_add(1, Ordering::SeqCst);
    match does {
        Raw::Close => {}
        Raw::CloseFirst if nth == 0 => {}
        Raw::CloseFirst => {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            socket.write_all(answer).await.ok()?;
        }
        Raw::HalfClose => {
            socket.shutdown().await.ok()?;
            while socket.read(&mut [0; 1024]).await.ok()? > 0 {}
        }
        Raw::Garbage => socket.write_all(&[0xff, 0x00, b'\n', b'\r', 0x7f].repeat(100)).await.ok()?,
        Raw::EndlessHead => {
            socket.write_all(b"HTTP/1.1 200 OK\r\n").await.ok()?;
            pour(&mut socket, b"x-more: and more\r\n", &sent).await?;
        }
        Raw::BadChunk => {
            socket.write_all(EVENTS).await.ok()?;
            socket.write_all(b"no chunk at all\r\n").await.ok()?;
            std::future::pending().await
        }
        Raw::Stall => {
            socket.write_all(EVENTS).await.ok()?;
            std::future::pending().await
        }
        Raw::Short => {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"a\"";
            socket.write_all(answer).await.ok()?;
        }
        Raw::Endless => {
            socket.write_all(EVENTS).await.ok()?;
            let event = format!("data: {}\n\n", "x".repeat(8184));
            pour(&mut socket, format!("2000\r\n{event}\r\n").as_bytes(), &sent).await?;
        }
    }
    Some(())
}

async fn pour(socket: &mut TcpStream, bytes: &[u8], sent: &AtomicUsize) -> Option<()> {
    loop {
        socket.write_all(bytes).await.ok()?;
        sent.fetch_add(bytes.len(), Ordering::SeqCst);
    }
}

/// Reads a request's head and what of its body came with it.
async fn head(socket: &mut TcpStream) -> Option<String> {
    let mut got = Vec::new();
    while !got.windows(4).any(|four| four == b"\r\n\r\n") {
        let mut more = [0; 4096];
        match socket.read(&mut more).await.ok()? {
            0 => return None,
            count => got.extend_from_slice(&more[..count]),
        }
    }
    Some(String::from_utf8_lossy(&got).into_owned())
}
