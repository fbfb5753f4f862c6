//! Peers that open connections and let them stand keep nobody else out, and nobody who works is cut for their sake.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, put};
use mooncake_os::Guarded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// More than a server keeps.
const CROWD: usize = 140;

/// Far more than an answer takes, far less than it takes to cut who stands still.
const SOON: Duration = Duration::from_secs(5);

async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let page = "x".repeat(20_000);
    let router = Router::new()
        .route("/health", get(async || "OK"))
        .route("/page", get(move || std::future::ready(page.clone())))
        .route("/upload", put(async |body: Bytes| body.len().to_string()));
    tokio::spawn(mooncake_http::accept(
        move || (router.clone(), true),
        Guarded::new(listener),
        mooncake_http::Limits::default(),
    ));
    address
}

async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.bind(SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// Connections that send something and then nothing more, and read nothing.
async fn crowd(from: &str, to: SocketAddr, count: usize, says: &str) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        let mut stream = connect(from, to).await;
        // The server may have cut it, or have as much as it takes.
        let _ = timeout(Duration::from_millis(10), stream.write_all(says.as_bytes())).await;
        crowd.push(stream);
    }
    crowd
}

async fn rest(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("an answer").expect("not cut");
    answer
}

async fn health(from: &str, to: SocketAddr) {
    let mut stream = connect(from, to).await;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let answer = rest(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_does_not_read_its_answers_locks_nobody_out() {
    let server = server().await;
    let asks = "GET /page HTTP/1.1\r\nHost: x\r\n\r\n".repeat(900);
    let _crowd = crowd("127.0.0.1", server, CROWD, &asks).await;
    for _ in 0..20 {
        health("127.0.0.1", server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_uploads_that_stand_still_locks_nobody_out() {
    let server = server().await;
    let begins = "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc";
    let _crowd = crowd("127.0.0.1", server, CROWD, begins).await;
    for _ in 0..20 {
        health("127.0.0.1", server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_moves_outlives_a_crowd_that_does_not() {
    let server = server().await;
    let mut upload = connect("127.0.0.1", server).await;
    upload
        .write_all(b"PUT /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n")
        .await
        .unwrap();
    let mut crowds = Vec::new();
    for _ in 0..10 {
        upload.write_all(&[7; 100_000]).await.unwrap();
        crowds.push(crowd("127.0.0.1", server, CROWD / 4, "PUT /upload HTTP/1.1\r\nHost: x\r\n").await);
    }
    let answer = rest(upload).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("1000000"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_opens_many_connections_costs_another_none_of_its_own() {
    let server = server().await;
    let mut upload = connect("127.0.0.2", server).await;
    upload
        .write_all(b"PUT /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\n")
        .await
        .unwrap();
    let _crowd =
        crowd("127.0.0.1", server, 2 * CROWD, "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n").await;
    upload.write_all(b"abc").await.unwrap();
    let answer = rest(upload).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with('3'), "{answer}");
}
