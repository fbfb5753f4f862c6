//! Log lines about peers that misbehave: one a peer in ten seconds, and no
//! more peers remembered than the table holds.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const INTERVAL: Duration = Duration::from_secs(10);
const TABLE_MAX: usize = 1024;

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

/// When each peer was last written about.
#[derive(Debug, Default)]
pub struct PeerLog {
    table: Mutex<HashMap<Peer, Entry>>,
    faults: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    last: Instant,
    suppressed: u64,
}

impl PeerLog {
    /// Writes a warning unless this peer had one a moment ago.
    pub fn warn(&self, peer: Peer, message: impl FnOnce() -> String) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.admit(peer, Instant::now()) {
            let message = message();
            if suppressed == 0 {
                tracing::warn!(%peer, "{message}");
            } else {
                tracing::warn!(%peer, suppressed, "{message}");
            }
        }
    }

    /// How often there was something to warn of.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// How many lines were left out since the last, or `None` to leave this one out too.
    fn admit(&self, peer: Peer, now: Instant) -> Option<u64> {
        let mut table = self.table.lock();
        if let Some(entry) = table.get_mut(&peer) {
            if now.duration_since(entry.last) < INTERVAL {
                entry.suppressed += 1;
                return None;
            }
            entry.last = now;
            return Some(std::mem::take(&mut entry.suppressed));
        }
        if table.len() >= TABLE_MAX {
            table.retain(|_, entry| now.duration_since(entry.last) < INTERVAL);
            if table.len() >= TABLE_MAX {
                return None;
            }
        }
        table.insert(peer, Entry { last: now, suppressed: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_peer_in_ten_seconds() {
        let log = PeerLog::default();
        let start = Instant::now();
        let peer = Peer::Process(1);
        assert_eq!(log.admit(peer, start), Some(0));
        for ms in 1..100 {
            assert_eq!(log.admit(peer, start + Duration::from_millis(ms)), None);
        }
        assert_eq!(log.admit(peer, start + INTERVAL), Some(99));
        assert_eq!(log.admit(Peer::Process(2), start), Some(0));
    }

    #[test]
    fn the_table_is_bounded() {
        let log = PeerLog::default();
        let start = Instant::now();
        let admitted = (0..10_000).filter(|pid| log.admit(Peer::Process(*pid), start).is_some()).count();
        assert_eq!(admitted, TABLE_MAX);
        assert_eq!(log.admit(Peer::Process(u32::MAX), start + INTERVAL), Some(0));
    }
}
