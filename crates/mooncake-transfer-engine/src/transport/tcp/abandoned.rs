//! Connections that were given up with a write under way. What the network, or the peer, still holds of it may land at
//! any time, over newer bytes: so before anything else is written the peer is told to take no more from them.

use parking_lot::Mutex;

use crate::protocol::ids::LaneName;

/// Those of one life of a peer.
#[derive(Debug, Default)]
pub(crate) struct AbandonedConnections {
    names: Mutex<Vec<LaneName>>,
}

impl AbandonedConnections {
    pub fn is_empty(&self) -> bool {
        self.names.lock().is_empty()
    }

    pub fn note(&self, name: LaneName) {
        self.names.lock().push(name);
    }

    /// All that the peer has not been told of. They remain until it has confirmed them: of several callers none may
    /// write before that.
    pub fn all(&self) -> Vec<LaneName> {
        self.names.lock().clone()
    }

    pub fn confirmed(&self, names: &[LaneName]) {
        self.names.lock().retain(|name| !names.contains(name));
    }
}
