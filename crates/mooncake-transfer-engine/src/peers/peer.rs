//! A peer that was met: its link, and what has gone over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_os::Deadline;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::local_node::LocalNode;
use crate::peers::link::Link;
use crate::peers::links::Links;
use crate::request::Request;

/// A peer that was met.
pub(crate) struct Peer {
    pub name: String,
    /// Replaced when the peer turns out to be in another incarnation.
    link: Mutex<Arc<Link>>,
    /// Where its links are listed.
    links: Arc<Links>,
    pub traffic: Traffic,
}

/// What has gone to and from a peer.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// By each transport, in their order.
    pub bytes: Box<[AtomicU64]>,
    pub requests: AtomicU64,
    pub failed: AtomicU64,
}

impl Peer {
    /// Meets the peer: asks for its segment document, and makes the link.
    pub fn meet(
        node: &LocalNode,
        links: &Arc<Links>,
        name: &str,
        deadline: &Deadline<'_>,
    ) -> Result<Peer, EngineError> {
        let link = Mutex::new(links.keep(Link::meet(node, name, deadline)?));
        let bytes = node.transports.iter().map(|_| AtomicU64::new(0)).collect();
        let traffic = Traffic { bytes, requests: AtomicU64::new(0), failed: AtomicU64::new(0) };
        Ok(Peer { name: name.to_owned(), link, links: links.clone(), traffic })
    }

    pub fn link(&self) -> Arc<Link> {
        self.link.lock().clone()
    }

    /// Carries requests out, in the caller's thread: all of them, or an error, after which some may have been.
    pub fn transfer(&self, node: &LocalNode, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let mut link = self.link();
        let mut result = link.transfer(node, &self.name, requests, deadline);
        if let Err(error) = &result
            && error.is_perhaps_stale()
            && !deadline.has_passed()
        {
            // The peer may have restarted under its name. If its document is of another incarnation: once more.
            match Link::meet(node, &self.name, deadline) {
                Ok(fresh) if !fresh.is_same_incarnation(&link) => {
                    link = {
                        let mut kept = self.link.lock();
                        // Another call may have found it a moment before: there is one link, which knows what was
                        // begun.
                        if kept.is_same_incarnation(&link) {
                            tracing::info!(peer = self.name, %error, "the peer is another one than before");
                            *kept = self.links.keep(fresh);
                        }
                        kept.clone()
                    };
                    result = link.transfer(node, &self.name, requests, deadline);
                }
                Ok(_) => {}
                Err(_) => return result.map(drop),
            }
        }
        let bytes = requests.iter().map(|request| request.local.len() as u64).sum();
        match &result {
            Ok(transport) => self.traffic.bytes[*transport].fetch_add(bytes, Ordering::Relaxed),
            Err(_) => self.traffic.failed.fetch_add(1, Ordering::Relaxed),
        };
        self.traffic.requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
        result.map(drop)
    }
}
