//! Which faults of peers get a line in the log: at most one line a peer in ten seconds, however often it misbehaves.
//! Peers beyond those that are remembered share one.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines about one peer.
const INTERVAL: Duration = Duration::from_secs(10);

/// Most peers that are remembered. Those beyond share a line.
const PEERS_MAX: usize = 1024;

/// When each peer was last written about.
#[derive(Debug)]
pub struct PeerLog<P> {
    table: Mutex<Table<P>>,
    faults: AtomicU64,
}

#[derive(Debug)]
struct Table<P> {
    peers: HashMap<P, Entry>,
    /// When those that have no entry were last written about.
    shared_line: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    last: Instant,
    suppressed: u64,
}

/// A line is due. Its `Display`, printed behind the line's text, says that the line is shared by peers that are not
/// remembered; `suppressed` is for a field of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Faults of this peer without a line since its last one, unless it was forgotten meanwhile; none if there are
    /// none.
    pub suppressed: Option<u64>,
    /// It stands for all peers that are not remembered.
    pub is_shared: bool,
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_shared {
            true => write!(f, "; more than {PEERS_MAX} peers misbehave, and those beyond share this line"),
            false => Ok(()),
        }
    }
}

impl<P> Default for PeerLog<P> {
    fn default() -> Self {
        let table = Table { peers: HashMap::new(), shared_line: None };
        PeerLog { table: Mutex::new(table), faults: AtomicU64::new(0) }
    }
}

impl<P: Eq + Hash> PeerLog<P> {
    /// Counts a fault of this peer. The caller writes a line if one is due.
    pub fn due(&self, peer: P, now: Instant) -> Option<Due> {
        self.faults.fetch_add(1, Ordering::Relaxed);
        let is_recent = |last: Instant| now.duration_since(last) < INTERVAL;
        let mut table = self.table.lock();
        if let Some(entry) = table.peers.get_mut(&peer) {
            if is_recent(entry.last) {
                entry.suppressed += 1;
                return None;
            }
            entry.last = now;
            let suppressed = std::mem::take(&mut entry.suppressed);
            return Some(Due { suppressed: (suppressed > 0).then_some(suppressed), is_shared: false });
        }
        if table.peers.len() >= PEERS_MAX {
            table.peers.retain(|_, entry| is_recent(entry.last));
        }
        let is_shared = table.peers.len() >= PEERS_MAX;
        if is_shared {
            if table.shared_line.is_some_and(is_recent) {
                return None;
            }
            table.shared_line = Some(now);
        } else {
            table.peers.insert(peer, Entry { last: now, suppressed: 0 });
        }
        Some(Due { suppressed: None, is_shared })
    }

    /// How many faults there were.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_LINE: Option<Due> = Some(Due { suppressed: None, is_shared: false });
    const SHARED_LINE: Option<Due> = Some(Due { suppressed: None, is_shared: true });

    #[test]
    fn a_peer_gets_one_line_in_ten_seconds_which_says_how_many_it_stands_for() {
        let (log, start) = (PeerLog::default(), Instant::now());
        assert_eq!(log.due(1, start), OWN_LINE);
        for ms in 1..100 {
            assert_eq!(log.due(1, start + Duration::from_millis(ms)), None);
        }
        assert_eq!(log.due(1, start + INTERVAL), Some(Due { suppressed: Some(99), is_shared: false }));
        assert_eq!(log.due(2, start), OWN_LINE);
        assert_eq!(log.faults(), 102);
    }

    #[test]
    fn a_peer_that_goes_on_for_long_gets_a_line_for_each_ten_seconds() {
        let (log, start) = (PeerLog::default(), Instant::now());
        for peer in [1, 2] {
            let is_due = |second: &u64| log.due(peer, start + Duration::from_secs(*second)).is_some();
            let told: Vec<u64> = (0..35).filter(is_due).collect();
            assert_eq!(told, [0, 10, 20, 30], "{peer}");
        }
    }

    #[test]
    fn more_peers_than_are_remembered_share_a_line_until_the_first_are_forgotten() {
        let (log, start) = (PeerLog::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        let told = |peers: std::ops::Range<usize>, at| -> Vec<Due> {
            peers.filter_map(|peer| log.due(peer, later(at))).collect()
        };
        let (first, one, others) = (0..PEERS_MAX, PEERS_MAX..PEERS_MAX + 100, PEERS_MAX + 100..PEERS_MAX + 300);
        let of_their_own = |count| vec![OWN_LINE.unwrap(); count];
        assert_eq!(told(first, 0), of_their_own(PEERS_MAX));
        assert_eq!((told(one.clone(), 1), told(one, 9)), (vec![SHARED_LINE.unwrap()], vec![]));
        // Half of those that are remembered are still at it.
        assert_eq!(told(0..PEERS_MAX / 2, 10).len(), PEERS_MAX / 2);
        assert_eq!(told(others.clone(), 11), of_their_own(200), "there is room for them where the others were");
        assert_eq!((told(others, 12), told(0..PEERS_MAX / 2, 12)), (vec![], vec![]));
        assert!(log.table.lock().peers.len() <= PEERS_MAX);
    }

    #[test]
    fn a_line_says_for_whom_else_it_stands() {
        assert_eq!(OWN_LINE.unwrap().to_string(), "");
        assert!(SHARED_LINE.unwrap().to_string().contains("1024 peers"));
    }
}
