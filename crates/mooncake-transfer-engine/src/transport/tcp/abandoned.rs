//! Connections that ended with a write under way. What the network or the target still holds of it may land at any
//! time, over newer bytes: so before anything else is written, the initiator has the target take no more from them.

use parking_lot::Mutex;

use crate::protocol::ids::ConnectionName;

/// Those to one process of a peer. At most as many as writes are under way to it at once: no write begins before the
/// peer has confirmed those that there are.
#[derive(Debug, Default)]
pub(crate) struct AbandonedConnections {
    names: Mutex<Vec<ConnectionName>>,
}

impl AbandonedConnections {
    pub fn is_empty(&self) -> bool {
        self.names.lock().is_empty()
    }

    pub fn note(&self, name: ConnectionName) {
        self.names.lock().push(name);
    }

    /// All that the peer has not confirmed. They stay listed until it has: of several callers none may write before.
    pub fn all(&self) -> Vec<ConnectionName> {
        self.names.lock().clone()
    }

    pub fn confirmed(&self, names: &[ConnectionName]) {
        self.names.lock().retain(|name| !names.contains(name));
    }
}
