//! How bytes go to each peer and why, as others are told of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_memory::forked;

use crate::engine::Engine;
use crate::peer::Peer;
use crate::topology::Topology;

/// How bytes go to a peer, and what has gone.
#[derive(Debug, Clone)]
pub struct LinkReport {
    /// Name of the peer.
    pub peer: String,
    /// `same host`, `tcp`, or `untried`.
    pub path: &'static str,
    /// Why that one.
    pub reason: String,
    /// Bytes moved by requests that succeeded.
    pub bytes: u64,
    /// Requests, failed ones included.
    pub requests: u64,
    /// Calls that failed.
    pub failed: u64,
}

impl Engine {
    /// How bytes go to each peer; in a forked child to none.
    pub fn links(&self) -> Vec<LinkReport> {
        if forked() {
            return Vec::new();
        }
        let peers = self.core.peers();
        let report = |peer: Arc<Peer>| {
            let (path, reason) = peer.route().path();
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (bytes, requests) = (count(&peer.traffic.bytes), count(&peer.traffic.requests));
            let failed = count(&peer.traffic.failed);
            LinkReport { peer: peer.name.clone(), path, reason, bytes, requests, failed }
        };
        peers.into_iter().map(report).collect()
    }

    /// The same as a text: JSON in Mooncake's shape with a list of `peers`, or a table.
    pub fn show_links(&self, json: bool) -> String {
        let links = self.links();
        if json {
            let peer = |link: &LinkReport| {
                serde_json::json!({
                    "peer": link.peer, "path": link.path, "reason": link.reason,
                    "bytes": link.bytes, "requests": link.requests, "failed": link.failed,
                })
            };
            let topology = self.core.home.options.topology.clone().unwrap_or_else(|| Topology::discover(&[]));
            let peers: Vec<_> = links.iter().map(peer).collect();
            return serde_json::json!({ "local_nics": [], "topology": topology, "peers": peers }).to_string();
        }
        let mut out =
            format!("{:<32} {:<10} {:>14} {:>10} {:>7}  why\n", "peer", "path", "bytes", "requests", "failed");
        for LinkReport { peer, path, reason, bytes, requests, failed } in links {
            out.push_str(&format!("{peer:<32} {path:<10} {bytes:>14} {requests:>10} {failed:>7}  {reason}\n"));
        }
        out
    }
}
