//! Peers that map memory of this engine, and touch it without asking.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mooncake_memory::{MemoryError, Passage, PeerProcess, Visiting};
use parking_lot::Mutex;

use crate::memory::peer_identity::is_there;
use crate::protocol::same_host::Secret;

/// The ways in that have been given out.
#[derive(Debug, Default)]
pub(crate) struct Visitors {
    list: Mutex<Vec<Arc<Visitor>>>,
}

/// One connection of a peer.
#[derive(Debug)]
struct Visitor {
    passage: Passage,
    process: Arc<PeerProcess>,
    /// What it holds as long as it is the program that was let in.
    secret: Secret,
}

/// A peer that was inside when it was looked for.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    visitor: Arc<Visitor>,
    visit: Visiting,
}

impl Inside {
    /// It may be in that block.
    pub fn touches(&self, block: u64) -> bool {
        self.visit.touches(block)
    }

    /// It still is inside. A process that has ended is nowhere, and neither is a program that made way for another one.
    pub fn lasts(&self) -> bool {
        let now = self.visitor.passage.visit();
        now.is_some_and(|now| now.number == self.visit.number) && is_there(&self.visitor.process, &self.visitor.secret)
    }
}

/// A peer may come in, as long as this lasts.
pub(crate) struct Admission {
    visitors: Arc<Visitors>,
    visitor: Arc<Visitor>,
}

impl Admission {
    /// The page that both share.
    pub fn passage(&self) -> &Passage {
        &self.visitor.passage
    }
}

impl Drop for Admission {
    /// While the peer is inside it is remembered: the end of a connection is no proof of anything.
    fn drop(&mut self) {
        self.visitor.passage.close();
        if self.visitor.inside().is_none_or(|inside| !inside.lasts()) {
            self.visitors.list.lock().retain(|other| !Arc::ptr_eq(other, &self.visitor));
        }
    }
}

impl Visitors {
    /// Lets a peer in from now on, with what it needs for that.
    pub fn admit(
        self: &Arc<Self>,
        process: Arc<PeerProcess>,
        secret: Secret,
    ) -> Result<(Admission, OwnedFd), MemoryError> {
        let (passage, fd) = Passage::new()?;
        let visitor = Arc::new(Visitor { passage, process, secret });
        let mut list = self.list.lock();
        // Those who were inside when their connection ended, and are not any more.
        list.retain(|other| Arc::strong_count(other) > 1 || other.inside().is_some_and(|inside| inside.lasts()));
        list.push(visitor.clone());
        Ok((Admission { visitors: self.clone(), visitor }, fd))
    }

    /// All that are inside now.
    pub fn inside(&self) -> Vec<Inside> {
        self.list.lock().iter().filter_map(Visitor::inside).collect()
    }
}

impl Visitor {
    fn inside(self: &Arc<Self>) -> Option<Inside> {
        self.passage.visit().map(|visit| Inside { visitor: self.clone(), visit })
    }
}
