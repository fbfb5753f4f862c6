//! Writes within the host that were given up while the peer was copying, and that it has not left yet: it stands still
//! in the midst of a copy. Its next step may put bytes into its memory, over newer ones: so nothing else goes to it
//! before.

use std::sync::Arc;

use mooncake_memory::{PassageView, PeerProcess};
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::memory::peer_identity::is_there;
use crate::protocol::ids::EngineId;
use crate::protocol::same_host::Secret;
use crate::transport::stall::Patience;

/// Those of an engine.
#[derive(Debug, Default)]
pub(crate) struct Lingering {
    list: Mutex<Vec<GivenUp>>,
}

/// A write that was taken back.
#[derive(Debug)]
pub(crate) struct GivenUp {
    /// Which life of which peer.
    peer: EngineId,
    passage: PassageView,
    process: Arc<PeerProcess>,
    /// What the process holds as long as it is the program that was asked.
    secret: Secret,
}

impl GivenUp {
    /// Takes back what was asked for by this passage.
    pub fn new(peer: EngineId, passage: PassageView, process: Arc<PeerProcess>, secret: Secret) -> GivenUp {
        passage.withdraw();
        GivenUp { peer, passage, process, secret }
    }

    /// The peer may be at it.
    pub fn lasts(&self) -> bool {
        self.passage.is_copying() && is_there(&self.process, &self.secret)
    }
}

impl Lingering {
    pub(crate) fn note(&self, given_up: GivenUp) {
        self.list.lock().push(given_up);
    }

    /// Waits until that peer is at none of them.
    pub(crate) fn wait(&self, peer: EngineId, name: &str, patience: &Patience<'_>) -> Result<(), EngineError> {
        let left = || self.left(|given_up| given_up.peer == peer) == 0;
        if left() || patience.wait_until(left) {
            return Ok(());
        }
        patience.check(name, "leaving a write that was given up")
    }

    /// Waits until no peer is at any.
    pub fn wait_for_all(&self, patience: &Patience<'_>) -> Result<(), EngineError> {
        match patience.wait_until(|| self.left(|_| true) == 0) {
            true => Ok(()),
            false => Err(EngineError::CallsUnderWay { calls: self.left(|_| true), waited: patience.began.elapsed() }),
        }
    }

    /// How many there are of those that are asked for.
    fn left(&self, asked_for: impl Fn(&GivenUp) -> bool) -> usize {
        let mut list = self.list.lock();
        list.retain(|given_up| !asked_for(given_up) || given_up.lasts());
        list.iter().filter(|given_up| asked_for(given_up)).count()
    }
}
