//! Peers that map memory of this engine, and touch it without asking.

use std::sync::Arc;

use mooncake_memory::{MemoryError, Passage, PeerProcess};
use parking_lot::Mutex;

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
}

/// A peer that was inside when it was looked for.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    visitor: Arc<Visitor>,
    visit: u64,
}

impl Inside {
    /// It still is. A process that has ended is nowhere.
    pub fn lasts(&self) -> bool {
        self.visitor.passage.visit() == Some(self.visit) && !self.visitor.process.has_ended()
    }
}

/// A peer may come in, as long as this lasts.
pub(crate) struct Admission {
    visitors: Arc<Visitors>,
    visitor: Arc<Visitor>,
}

impl Admission {
    /// What the peer needs for it.
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
    /// Lets a peer in from now on.
    pub fn admit(self: &Arc<Self>, process: Arc<PeerProcess>) -> Result<Admission, MemoryError> {
        let visitor = Arc::new(Visitor { passage: Passage::new()?, process });
        let mut list = self.list.lock();
        // Those who were inside when their connection ended, and are not any more.
        list.retain(|other| Arc::strong_count(other) > 1 || other.inside().is_some_and(|inside| inside.lasts()));
        list.push(visitor.clone());
        Ok(Admission { visitors: self.clone(), visitor })
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
