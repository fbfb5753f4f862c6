//! Clients and instances that keep to no rules: each is answered, or cut, within its time and its memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mooncake_proxy::ProxyOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::mock_instances;
use crate::mock_instances::raw::{Raw, RawInstance};
use crate::mock_instances::{Behaviour, Instance, Proxy, all_events, options, prompt};

const SHORT: Duration = Duration::from_millis(300);
/// What has to happen soon happens before that, on a slow machine too.
const LONG: Duration = Duration::from_secs(20);

/// All that a server says to these bytes, until it closes.
async fn said(proxy: &Proxy, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(proxy.address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    rest(&mut socket).await
}

async fn rest(socket: &mut TcpStream) -> String {
    let mut got = Vec::new();
    // One that is cut ends with an error.
    let _ = timeout(LONG, socket.read_to_end(&mut got)).await.expect("it is closed");
    String::from_utf8_lossy(&got).into_owned()
}

fn head(length: usize) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
}

#[tokio::test]
async fn a_header_that_comes_byte_by_byte_ends_with_its_time() {
    let proxy = Proxy::start(ProxyOptions { header_timeout: SHORT, ..options() }, vec![], vec![]).await;
    let mut socket = TcpStream::connect(proxy.address).await.unwrap();
    let begun = Instant::now();
    for byte in std::iter::repeat_n(b"GET / HTTP/1.1\r\nx-a: ".as_slice(), 1).flatten().chain(std::iter::repeat(&b'a'))
    {
        if socket.write_all(&[*byte]).await.is_err() {
            break;
        }
        assert!(begun.elapsed() < LONG, "it is still listened to");
        tokio::time::sleep(SHORT / 10).await;
    }
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_answered_so() {
    let proxy = Proxy::start(ProxyOptions { body_timeout: SHORT, ..options() }, vec![], vec![]).await;
    for path in ["/v1/completions", "/instances/add"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: 9\r\n\r\n{{",
            mock_instances::KEY
        );
        let mut socket = TcpStream::connect(proxy.address).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut got = [0; 12];
        timeout(LONG, socket.read_exact(&mut got)).await.unwrap().unwrap();
        assert_eq!(&got, b"HTTP/1.1 408");
    }
}

#[tokio::test]
async fn giant_bodies_and_headers_are_refused_before_they_are_there() {
    let few = ProxyOptions { body_max: 100_000, body_timeout: SHORT, ..options() };
    let proxy = Proxy::start(few, vec![], vec![]).await;
    // Says how long it is and sends nothing.
    assert!(said(&proxy, head(1 << 40).as_bytes()).await.starts_with("HTTP/1.1 413"));
    // Sends more than it may without a word of how much there is.
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let chunked = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let whole = format!("{chunked}{}0\r\n\r\n", chunk.repeat(4));
    assert!(said(&proxy, whole.as_bytes()).await.starts_with("HTTP/1.1 413"));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x-more: and more\r\n".repeat(1_000));
    assert!(said(&proxy, many.as_bytes()).await.starts_with("HTTP/1.1 431"));
    let wide = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    let answer = said(&proxy, wide.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 4") || answer.is_empty(), "{answer}");
    assert_eq!(proxy.get("/status").await.0, 200);
}

#[tokio::test]
async fn bodies_that_are_no_json_are_said_to_be_none() {
    let proxy = Proxy::start(options(), vec![], vec![]).await;
    let deep = "[".repeat(1 << 20);
    let bad: [&[u8]; 5] = [b"\xff\xfe", b"{\"prompt\":\"\xff\"}", deep.as_bytes(), b"{\"a\":1}{", b"\0"];
    for body in bad {
        let (status, said) = proxy.post("/v1/completions", &[], body.to_vec()).await;
        assert_eq!(status, 400, "{said}");
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["error"]["type"], json!("invalid_request_error"));
    }
    // As deep inside of an object: it is no one's business but the instance's.
    let inside = format!("{{\"prompt\":{}1{}}}", "[".repeat(1 << 16), "]".repeat(1 << 16));
    assert_eq!(proxy.post("/v1/completions", &[], inside).await.0, 503);
}

#[tokio::test]
async fn an_instance_that_speaks_no_http_is_left_for_another() {
    for does in [Raw::Close, Raw::HalfClose, Raw::Garbage, Raw::EndlessHead] {
        let (bad, prefill, good) = (RawInstance::start(does).await, Instance::start().await, Instance::start().await);
        let proxy = Proxy::start(options(), vec![prefill.named()], vec![bad.named(), good.named()]).await;
        for _ in 0..2 {
            assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()), "{does:?}");
        }
        assert!(bad.asked.load(Ordering::SeqCst) > 0 && bad.sent.load(Ordering::SeqCst) < 8 << 20, "{does:?}");
        // Where there is no other: an error, in the words of the API.
        let proxy = Proxy::start(options(), vec![bad.named()], vec![bad.named()]).await;
        let (status, said) = proxy.ask(&prompt(true)).await;
        assert_eq!(status, 502, "{does:?} {said}");
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["error"]["type"], json!("upstream_error"));
    }
}

#[tokio::test]
async fn a_stream_that_turns_to_garbage_or_stands_still_ends_with_an_error() {
    for does in [Raw::BadChunk, Raw::Stall] {
        let bad = RawInstance::start(does).await;
        let patient = ProxyOptions { stall_timeout: SHORT, ..options() };
        let proxy = Proxy::start(patient, vec![], vec![bad.named()]).await;
        let (status, said) = timeout(LONG, proxy.ask(&prompt(true))).await.unwrap();
        let rest = said.strip_prefix("data: 0\n\n").unwrap();
        assert!(status == 200 && rest.contains("upstream_error") && rest.ends_with("data: [DONE]\n\n"), "{said}");
        assert!(proxy.get("/metrics").await.1.contains("\nmooncake_proxy_broken_answers_total 1\n"));
    }
}

#[tokio::test]
async fn an_answer_that_is_shorter_than_it_says_is_not_taken_for_whole() {
    let bad = RawInstance::start(Raw::Short).await;
    let proxy = Proxy::start(options(), vec![], vec![bad.named()]).await;
    assert_eq!(proxy.ask(&prompt(false)).await, (200, "broke off".to_owned()));
}

#[tokio::test]
async fn a_connection_that_was_just_closed_is_no_reason_to_give_up_the_only_instance() {
    let only = RawInstance::start(Raw::CloseFirst).await;
    let proxy = Proxy::start(options(), vec![], vec![only.named()]).await;
    assert_eq!(proxy.ask(&prompt(false)).await, (200, "{}".to_owned()));
    assert_eq!(only.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_client_that_reads_nothing_holds_up_the_instance_and_is_cut() {
    let endless = RawInstance::start(Raw::Endless).await;
    let proxy =
        Proxy::start(ProxyOptions { stall_timeout: SHORT * 3, ..options() }, vec![], vec![endless.named()]).await;
    let body = prompt(true).to_string();
    let mut socket = TcpStream::connect(proxy.address).await.unwrap();
    socket.write_all((head(body.len()) + &body).as_bytes()).await.unwrap();
    proxy.until(|status| status["instances"][0]["in_flight"] == json!(1)).await;
    proxy.until(|status| status["instances"][0]["in_flight"] == json!(0)).await;
    // The kernel's buffers, and not much more.
    let sent = endless.sent.load(Ordering::SeqCst);
    assert!(sent < 32 << 20, "{sent}");
    assert!(proxy.get("/metrics").await.1.contains("\nmooncake_proxy_cancelled_total 1\n"));
}

#[tokio::test]
async fn a_crowd_that_does_nothing_does_not_end_a_request_that_waits() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let few = ProxyOptions { connections_max: 6, ..options() };
    let proxy = Arc::new(Proxy::start(few, vec![prefill.named()], vec![decode.named()]).await);
    let words = Arc::new(Semaphore::new(0));
    decode.does(Behaviour::Slowly(words.clone()));
    let waits = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.ask(&prompt(true)).await }
    });
    while decode.had().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut crowd = Vec::new();
    for _ in 0..50 {
        let mut socket = TcpStream::connect(proxy.address).await.unwrap();
        socket.write_all(b"G").await.unwrap();
        crowd.push(socket);
    }
    proxy.until(|status| status["instances"][1]["in_flight"] == json!(1)).await;
    words.add_permits(100);
    assert_eq!(waits.await.unwrap(), (200, all_events()));
}
