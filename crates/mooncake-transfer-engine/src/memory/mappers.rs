//! Peers that map memory of this engine, and touch it without asking.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mooncake_memory::{AccessPage, MemoryError, OngoingAccess, PeerProcess};
use parking_lot::Mutex;

use crate::memory::peer_identity::is_there;
use crate::protocol::same_host::Secret;

/// The ways in that have been given out.
#[derive(Debug, Default)]
pub(crate) struct Mappers {
    list: Mutex<Vec<Arc<Mapper>>>,
}

/// One connection of a peer.
#[derive(Debug)]
struct Mapper {
    access_page: AccessPage,
    process: Arc<PeerProcess>,
    /// What it holds as long as it is the program that was let in.
    secret: Secret,
}

/// A peer that was inside when it was looked for.
#[derive(Debug, Clone)]
pub(crate) struct ActiveAccess {
    visitor: Arc<Mapper>,
    visit: OngoingAccess,
}

impl ActiveAccess {
    /// It may be in that block.
    pub fn touches(&self, block: u64) -> bool {
        self.visit.touches(block)
    }

    /// It still is inside. A process that has ended is nowhere, and neither is a program that made way for another one.
    pub fn lasts(&self) -> bool {
        let now = self.visitor.access_page.visit();
        now.is_some_and(|now| now.number == self.visit.number) && is_there(&self.visitor.process, &self.visitor.secret)
    }
}

/// A peer may come in, as long as this lasts.
pub(crate) struct MapGrant {
    mappers: Arc<Mappers>,
    visitor: Arc<Mapper>,
}

impl MapGrant {
    /// The page that both share.
    pub fn access_page(&self) -> &AccessPage {
        &self.visitor.access_page
    }
}

impl Drop for MapGrant {
    /// While the peer is inside it is remembered: the end of a connection is no proof of anything.
    fn drop(&mut self) {
        self.visitor.access_page.close();
        if self.visitor.inside().is_none_or(|inside| !inside.lasts()) {
            self.mappers.list.lock().retain(|other| !Arc::ptr_eq(other, &self.visitor));
        }
    }
}

impl Mappers {
    /// Lets a peer in from now on, with what it needs for that.
    pub fn admit(
        self: &Arc<Self>,
        process: Arc<PeerProcess>,
        secret: Secret,
    ) -> Result<(MapGrant, OwnedFd), MemoryError> {
        let (access_page, fd) = AccessPage::new()?;
        let visitor = Arc::new(Mapper { access_page, process, secret });
        let mut list = self.list.lock();
        // Those who were inside when their connection ended, and are not any more.
        list.retain(|other| Arc::strong_count(other) > 1 || other.inside().is_some_and(|inside| inside.lasts()));
        list.push(visitor.clone());
        Ok((MapGrant { mappers: self.clone(), visitor }, fd))
    }

    /// All that are inside now.
    pub fn inside(&self) -> Vec<ActiveAccess> {
        self.list.lock().iter().filter_map(Mapper::inside).collect()
    }
}

impl Mapper {
    fn inside(self: &Arc<Self>) -> Option<ActiveAccess> {
        self.access_page.visit().map(|visit| ActiveAccess { visitor: self.clone(), visit })
    }
}
