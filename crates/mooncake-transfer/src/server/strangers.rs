//! Says who knocks without being able to say hello, and does not let them
//! write the log full.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(10);
const MAX_PEERS: usize = 1024;

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
        if self.last.len() >= MAX_PEERS {
            self.last.retain(|_, seen| now.duration_since(seen.at) < QUIET);
        }
        if self.last.len() >= MAX_PEERS {
            // More peers than the table holds: one line for all of them.
            if self.overflow.is_some_and(|at| now.duration_since(at) < QUIET) {
                return false;
            }
            self.overflow = Some(now);
            tracing::warn!(%peer, "data lanes of more than {MAX_PEERS} strangers closed, last: {why}");
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
        assert!(strangers.last.len() <= MAX_PEERS);
    }
}
