//! What TCP connections are told, and which of them never leave the host.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Turns congestion control that paces off for a connection inside this host.
///
/// There is no network to be kind to, and BBR, a common system-wide choice,
/// spreads packets out by timers: it halves the throughput of a loopback
/// stream. Reno sends as soon as the window allows, is part of every kernel and
/// needs no privilege. Connections to other hosts keep the system's choice.
pub fn unpace(stream: &TcpStream) {
    if stays_within_host(stream) {
        // Slower without, that is all.
        let _ = SockRef::from(stream).set_tcp_congestion(b"reno");
    }
}

/// Whether both ends of a connection are inside this host.
pub fn stays_within_host(stream: &TcpStream) -> bool {
    let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    own.ip() == peer.ip() || peer.ip().is_loopback()
}

/// A connection has been without a byte for so long when the kernel asks whether its peer's host is there.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// Ends connections that only wait when their peer's host vanishes without a word: the kernel asks three times, at this
/// interval.
pub fn keep_alive(stream: &impl AsFd, interval: Duration) -> io::Result<()> {
    let options = TcpKeepalive::new().with_time(IDLE_TIME).with_interval(interval).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&options)
}
