//! Names the peers whose connections the owner closes, and does not let them
//! write the log full.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(10);
const PEERS_MAX: usize = 1024;

/// One line a peer in ten seconds.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    last: HashMap<IpAddr, Seen>,
    overflow: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    since: u64,
}

impl Strangers {
    /// Reports a connection that was closed, if its peer is due. True if it was.
    pub(super) fn report(&mut self, peer: IpAddr, why: &str, now: Instant) -> bool {
        if let Some(seen) = self.last.get_mut(&peer) {
            if now.duration_since(seen.at) < QUIET {
                seen.since += 1;
                return false;
            }
            let more = std::mem::take(&mut seen.since);
            seen.at = now;
            tracing::warn!(%peer, more_since_last_line = more, "data lane closed: {why}");
            return true;
        }
        if self.last.len() >= PEERS_MAX {
            self.last.retain(|_, seen| now.duration_since(seen.at) < QUIET);
        }
        if self.last.len() >= PEERS_MAX {
            // More peers than the table holds: one line for all of them.
            if self.overflow.is_some_and(|at| now.duration_since(at) < QUIET) {
                return false;
            }
            self.overflow = Some(now);
            tracing::warn!(%peer, "data lanes of more than {PEERS_MAX} strangers closed, last: {why}");
            return true;
        }
        self.last.insert(peer, Seen { at: now, since: 0 });
        tracing::warn!(%peer, "data lane closed: {why}");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_gets_one_line_in_ten_seconds_and_the_table_stays_bounded() {
        let mut strangers = Strangers::default();
        let start = Instant::now();
        let peer = IpAddr::from([127, 0, 0, 1]);
        let lines = (0..100).filter(|i| strangers.report(peer, "x", start + Duration::from_millis(i * 50))).count();
        assert_eq!(lines, 1);
        assert!(strangers.report(peer, "x", start + Duration::from_secs(11)));
        for i in 0..10_000u32 {
            strangers.report(IpAddr::from(i.to_be_bytes()), "x", start);
        }
        assert!(strangers.last.len() <= PEERS_MAX);
    }

    #[test]
    fn a_stranger_that_goes_on_for_long_gets_a_line_for_each_ten_seconds() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        let peers = [1, 2].map(|last| IpAddr::from([127, 0, 0, last]));
        let seconds = |second| start + Duration::from_secs(second);
        for peer in peers {
            let told: Vec<u64> = (0..35).filter(|at| strangers.report(peer, "x", seconds(*at))).collect();
            assert_eq!(told, [0, 10, 20, 30], "{peer}");
        }
    }

    #[test]
    fn more_strangers_than_the_table_holds_share_a_line_until_the_first_are_forgotten() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        let peers = |count: usize| (0..count as u32).map(|i| IpAddr::from(i.to_be_bytes()));
        let mut told = |peers: &[IpAddr], at| peers.iter().filter(|peer| strangers.report(**peer, "x", at)).count();
        let all: Vec<IpAddr> = peers(PEERS_MAX + 300).collect();
        let (first, others) = all.split_at(PEERS_MAX);
        let (one, others) = others.split_at(100);
        assert_eq!(told(first, later(0)), PEERS_MAX);
        assert_eq!((told(one, later(1)), told(one, later(9))), (1, 0), "one line for all of them");
        // Half of those in the table are still at it.
        assert_eq!(told(&first[..PEERS_MAX / 2], later(10)), PEERS_MAX / 2);
        assert_eq!(told(others, later(11)), others.len(), "there is room for them where the others were");
        assert_eq!((told(others, later(12)), told(&first[..PEERS_MAX / 2], later(12))), (0, 0));
    }
}
