//! A listener that accepts no connection.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Its queue is full: who connects now waits for an answer, until it is dropped.
pub struct DeafListener {
    at: SocketAddr,
    _listener: OwnedFd,
    _waiting: Vec<TcpStream>,
}

impl DeafListener {
    /// One of this host.
    pub fn start() -> DeafListener {
        let flags = SocketFlags::CLOEXEC;
        let listener = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let at = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        let short = Duration::from_millis(200);
        let waiting: Vec<TcpStream> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&at, short).ok()).take(16).collect();
        assert!(waiting.len() < 16, "its queue has no end");
        DeafListener { at, _listener: listener, _waiting: waiting }
    }

    /// Where it listens.
    pub fn at(&self) -> SocketAddr {
        self.at
    }
}
