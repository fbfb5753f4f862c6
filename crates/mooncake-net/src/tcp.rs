//! What a connection that never leaves the host needs to be told, and can do.

use std::net::TcpStream;

/// Turns congestion control that paces off for a connection inside this host.
///
/// There is no network to be kind to, and BBR, a common system-wide choice,
/// spreads packets out by timers: it halves the throughput of a loopback
/// stream. Reno sends as soon as the window allows, is part of every kernel and
/// needs no privilege. Connections to other hosts keep the system's choice.
pub fn unpace(stream: &TcpStream) {
    if stays_within_host(stream) {
        // Slower without, that is all.
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"reno");
    }
}

/// Whether both ends of a connection are inside this host.
pub fn stays_within_host(stream: &TcpStream) -> bool {
    let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    own.ip() == peer.ip() || peer.ip().is_loopback()
}
