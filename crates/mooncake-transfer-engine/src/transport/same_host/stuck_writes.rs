//! Writes within the host that were given up while the peer was copying, and that it has not left yet: it stands still
//! in the midst of a copy. Its next step may put bytes into its memory, over newer ones: so nothing else goes to it
//! before.

use std::sync::Arc;

use mooncake_memory::{AccessPageView, PeerProcess};
use mooncake_os::Deadline;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::memory::peer_identity::is_there;
use crate::protocol::ids::EngineId;
use crate::protocol::same_host::Secret;

/// Those of an engine.
#[derive(Debug, Default)]
pub(crate) struct StuckWrites {
    list: Mutex<Vec<StuckWrite>>,
}

/// A write that was taken back.
#[derive(Debug)]
pub(crate) struct StuckWrite {
    /// Which life of which peer.
    peer: EngineId,
    access_page: AccessPageView,
    process: Arc<PeerProcess>,
    /// What the process holds as long as it is the program that was asked.
    secret: Secret,
}

impl StuckWrite {
    /// Takes back what was asked for by this access page.
    pub fn new(peer: EngineId, access_page: AccessPageView, process: Arc<PeerProcess>, secret: Secret) -> StuckWrite {
        access_page.withdraw();
        StuckWrite { peer, access_page, process, secret }
    }

    /// The peer may be at it.
    pub fn lasts(&self) -> bool {
        self.access_page.is_copying() && is_there(&self.process, &self.secret)
    }
}

impl StuckWrites {
    pub(crate) fn note(&self, given_up: StuckWrite) {
        self.list.lock().push(given_up);
    }

    /// Waits until that peer is at none of them.
    pub(crate) fn wait(&self, peer: EngineId, name: &str, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let left = || self.left(|given_up| given_up.peer == peer) == 0;
        if left() || deadline.wait_until(left) {
            return Ok(());
        }
        deadline.check().map_err(EngineError::waiting(name, "leaving a write that was given up"))
    }

    /// Waits until no peer is at any.
    pub fn wait_for_all(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        match deadline.wait_until(|| self.left(|_| true) == 0) {
            true => Ok(()),
            false => Err(EngineError::CallsUnderWay { calls: self.left(|_| true), waited: deadline.waited() }),
        }
    }

    /// How many there are of those that are asked for.
    fn left(&self, asked_for: impl Fn(&StuckWrite) -> bool) -> usize {
        let mut list = self.list.lock();
        list.retain(|given_up| !asked_for(given_up) || given_up.lasts());
        list.iter().filter(|given_up| asked_for(given_up)).count()
    }
}
