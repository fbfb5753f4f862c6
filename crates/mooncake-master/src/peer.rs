//! Processes at the other end of the control port's connections.

use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use mooncake_net::PeerLog;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// By TCP, from this address.
    Ip(IpAddr),
    /// By the Unix socket, with this pid.
    Process(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Ip(ip) => ip.to_canonical().fmt(f),
            Peer::Process(pid) => write!(f, "process {pid}"),
        }
    }
}

impl Peer {
    /// Writes a warning about it, unless there was one a moment ago.
    pub fn warn(self, log: &PeerLog<Peer>, message: impl FnOnce() -> String) {
        if let Some(due) = log.due(self, Instant::now()) {
            tracing::warn!(peer = %self, suppressed = due.suppressed, "{}{due}", message());
        }
    }
}
