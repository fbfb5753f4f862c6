//! Metadata services that say what cannot be: an error in time, of little memory, and no panic.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mooncake_transfer_engine::{Engine, EngineOptions};

/// An engine refuses a service that handles each request so.
fn meet(name: &str, answer: fn(&mut TcpStream) -> std::io::Result<()>) {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", service.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in service.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]).and_then(|_| answer(&mut stream));
            });
        }
    });
    let (began, before) = (Instant::now(), resident());
    let options = EngineOptions { connect_timeout: Duration::from_secs(1), ..EngineOptions::default() };
    Engine::connect(&url, name, options, "").expect_err(name);
    assert!(began.elapsed() < Duration::from_secs(16), "{name}: {:?}", began.elapsed());
    assert!(resident() < before + (128 << 20), "{name}: {} MiB more", (resident() - before) >> 20);
}

fn resident() -> u64 {
    let said = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib =
        said.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap() << 10
}

fn say(stream: &mut TcpStream, document: &[u8]) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", document.len())?;
    stream.write_all(document)
}

#[test]
fn documents_that_mean_nothing() {
    for (name, answer) in [
        ("garbage", (|stream| say(stream, b"\xff\xfe{")) as fn(&mut TcpStream) -> _),
        ("nothing", |stream| say(stream, b"")),
        ("another type", |stream| say(stream, b"[null]")),
        ("depth", |stream| say(stream, &b"[".repeat(200_000))),
        ("no port", |stream| say(stream, br#"{"ip_or_host_name": "127.0.0.1", "rpc_port": 70000}"#)),
        ("another engine, whatever is written", |stream| {
            say(stream, br#"{"ip_or_host_name": "127.0.0.1", "rpc_port": 1}"#)
        }),
        ("a name without an address", |stream| {
            say(stream, br#"{"ip_or_host_name": "no.such.host.invalid", "rpc_port": 9}"#)
        }),
    ] {
        meet(name, answer);
    }
}

#[test]
fn answers_without_an_end() {
    for (name, answer) in [
        (
            "a body",
            (|stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                loop {
                    write!(stream, "10000\r\n{}\r\n", "x".repeat(1 << 16))?;
                }
            }) as fn(&mut TcpStream) -> _,
        ),
        ("a header", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            loop {
                write!(stream, "A: {}\r\n", "b".repeat(10_000))?;
            }
        }),
        ("what comes before an answer", |stream| {
            loop {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
        }),
        ("drops", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
            loop {
                stream.write_all(b"x")?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }),
    ] {
        meet(name, answer);
    }
}

#[test]
fn answers_that_lead_elsewhere_or_are_none() {
    for (name, answer) in [
        (
            "another place",
            (|stream| {
                stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
            }) as fn(&mut TcpStream) -> _,
        ),
        ("the end", |_| Ok(())),
        ("an error", |stream| stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno")),
        ("no HTTP", |stream| stream.write_all(b"220 mail.example.com ESMTP\r\n")),
        ("a length that is none", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nx")
        }),
    ] {
        meet(name, answer);
    }
}
