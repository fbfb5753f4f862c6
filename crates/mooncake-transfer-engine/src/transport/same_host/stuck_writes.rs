//! Writes within the host that their callers gave up while the target was copying, and that it has not left yet: it
//! stands still in the midst of a copy.
//!
//! The target copies by itself, out of this process. When it goes on, even after minutes, its system call first puts
//! the rest of its bytes into its memory, over newer ones. So on no path does anything else go to that target before it
//! has come out or has ended; and the engine does not end, since the memory that the target reads is the caller's
//! again.

use std::sync::Arc;

use mooncake_memory::{AccessPageView, PeerProcess};
use mooncake_os::Deadline;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::memory::peer_identity::is_there;
use crate::protocol::ids::EngineId;
use crate::protocol::same_host::Secret;

/// The stuck writes of an engine.
#[derive(Debug, Default)]
pub(crate) struct StuckWrites {
    list: Mutex<Vec<StuckWrite>>,
}

/// A write that was withdrawn.
#[derive(Debug)]
pub(crate) struct StuckWrite {
    /// The target: one incarnation of an engine.
    peer: EngineId,
    access_page: AccessPageView,
    process: Arc<PeerProcess>,
    /// In the process's memory as long as the program runs that was asked.
    secret: Secret,
}

impl StuckWrite {
    /// Withdraws what was asked for with this access page: a target that is at no copy begins none any more.
    pub fn new(peer: EngineId, access_page: AccessPageView, process: Arc<PeerProcess>, secret: Secret) -> StuckWrite {
        access_page.withdraw();
        StuckWrite { peer, access_page, process, secret }
    }

    /// Whether the target may be at a copy still. It counts its copies on the access page, before it looks whether they
    /// are wanted: so after the withdrawal a page without a copy has none. The end of its process, or `exec`, proves it
    /// too; the end of its connection does not.
    pub fn lasts(&self) -> bool {
        self.access_page.is_copying() && is_there(&self.process, &self.secret)
    }
}

impl StuckWrites {
    pub(crate) fn note(&self, write: StuckWrite) {
        self.list.lock().push(write);
    }

    /// Waits until that target is at none of them.
    pub(crate) fn wait(&self, peer: EngineId, name: &str, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let left = || self.left(|write| write.peer == peer) == 0;
        if left() || deadline.wait_until(left) {
            return Ok(());
        }
        deadline.check().map_err(EngineError::waiting(name, "leaving a write that was given up"))
    }

    /// Waits until no target is at any.
    pub fn wait_for_all(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        match deadline.wait_until(|| self.left(|_| true) == 0) {
            true => Ok(()),
            false => Err(EngineError::CallsUnderWay { calls: self.left(|_| true), waited: deadline.waited() }),
        }
    }

    /// Counts those that are asked for, and forgets those of them that are over.
    fn left(&self, asked_for: impl Fn(&StuckWrite) -> bool) -> usize {
        let mut list = self.list.lock();
        list.retain(|write| !asked_for(write) || write.lasts());
        list.iter().filter(|write| asked_for(write)).count()
    }
}
