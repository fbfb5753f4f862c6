//! Reports by which path bytes go to each peer, and why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_os::forked;
use mooncake_rdma::Topology;

use crate::engine::Engine;
use crate::peers::peer::Peer;

/// How bytes go to a peer, and what has gone.
#[derive(Debug, Clone)]
pub struct LinkReport {
    /// Name of the peer.
    pub peer: String,
    /// The path that bytes took last: `same host` or `tcp`; `untried` if none have, and it is not known which they will
    /// take.
    pub path: &'static str,
    /// Why that one.
    pub reason: String,
    /// Bytes moved by requests that succeeded.
    pub bytes: u64,
    /// The same by each path that has carried any.
    pub by_path: Vec<(&'static str, u64)>,
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
        let (peers, node) = (self.initiator.peers(), &self.initiator.node);
        let report = |peer: Arc<Peer>| {
            let (path, reason) = peer.link().path(node);
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (requests, failed) = (count(&peer.traffic.requests), count(&peer.traffic.failed));
            let all = node.transports.iter().zip(&peer.traffic.bytes).map(|(by, bytes)| (by.name(), count(bytes)));
            let by_path: Vec<_> = all.filter(|(_, bytes)| *bytes > 0).collect();
            let bytes = by_path.iter().map(|(_, bytes)| bytes).sum();
            LinkReport { peer: peer.name.clone(), path, reason, bytes, by_path, requests, failed }
        };
        peers.into_iter().map(report).collect()
    }

    /// From now on these are the devices near memory, in place of what was discovered or given before.
    pub fn set_topology(&self, topology: Topology) {
        *self.initiator.node.topology.lock() = Some(topology);
    }

    /// The same as a text: JSON in Mooncake's shape with a list of `peers`, or a table.
    pub fn show_links(&self, json: bool) -> String {
        let links = self.links();
        if json {
            let peer = |link: &LinkReport| {
                serde_json::json!({
                    "peer": link.peer, "path": link.path, "reason": link.reason,
                    "bytes": link.bytes, "bytes_by_path": BTreeMap::from_iter(link.by_path.iter().copied()),
                    "requests": link.requests, "failed": link.failed,
                })
            };
            let topology = self.initiator.node.topology.lock().clone().unwrap_or_else(|| Topology::discover(&[]));
            let peers: Vec<_> = links.iter().map(peer).collect();
            return serde_json::json!({ "local_nics": [], "topology": topology, "peers": peers }).to_string();
        }
        let mut out =
            format!("{:<32} {:<10} {:>14} {:>10} {:>7}  why\n", "peer", "path", "bytes", "requests", "failed");
        for LinkReport { peer, path, reason, bytes, by_path, requests, failed } in links {
            let others = by_path.iter().filter(|(by, _)| *by != path);
            let reason = others.fold(reason, |reason, (by, bytes)| format!("{reason}; {bytes} bytes by {by}"));
            out.push_str(&format!("{peer:<32} {path:<10} {bytes:>14} {requests:>10} {failed:>7}  {reason}\n"));
        }
        out
    }
}
