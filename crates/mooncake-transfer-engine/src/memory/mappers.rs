//! Peers that map memory of this engine, and access it without asking.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mooncake_memory::{AccessPage, MemoryError, OngoingAccess, PeerProcess};
use parking_lot::Mutex;

use crate::memory::active_access::ActiveAccess;
use crate::memory::buffers::Buffer;
use crate::memory::peer_identity::is_there;
use crate::protocol::same_host::Secret;

/// The peers that have been let in, by the access page that each connection of theirs shares with this engine.
#[derive(Debug, Default)]
pub(crate) struct Mappers {
    list: Mutex<Vec<Arc<Mapper>>>,
}

/// One connection of a peer.
#[derive(Debug)]
struct Mapper {
    access_page: AccessPage,
    process: Arc<PeerProcess>,
    /// In its memory as long as the program runs that was let in.
    secret: Secret,
}

/// An access of a peer, as it was when it was looked for.
#[derive(Debug, Clone)]
pub(crate) struct MapperAccess {
    mapper: Arc<Mapper>,
    access: OngoingAccess,
}

impl ActiveAccess for MapperAccess {
    /// An access is to a whole block, of which a buffer may be a part: it waits for the others' accesses, too.
    fn touches(&self, buffer: &Buffer) -> bool {
        buffer.block.is_some_and(|block| self.access.touches(block.id))
    }

    /// A process that exited or called `exec` holds no access.
    fn lasts(&self) -> bool {
        let now = self.mapper.access_page.visit();
        now.is_some_and(|now| now.number == self.access.number) && is_there(&self.mapper.process, &self.mapper.secret)
    }
}

/// Lets a peer in, as long as this lives.
pub(crate) struct MapGrant {
    mappers: Arc<Mappers>,
    mapper: Arc<Mapper>,
}

impl MapGrant {
    /// The page that this engine and the peer share.
    pub fn access_page(&self) -> &AccessPage {
        &self.mapper.access_page
    }
}

impl Drop for MapGrant {
    /// A peer whose access is active stays listed: the end of its connection does not prove the end of its copy.
    fn drop(&mut self) {
        self.mapper.access_page.close();
        if self.mapper.active().is_none_or(|access| !access.lasts()) {
            self.mappers.list.lock().retain(|other| !Arc::ptr_eq(other, &self.mapper));
        }
    }
}

impl Mappers {
    /// Lets a peer in from now on. The descriptor is that of the access page, for the peer.
    pub fn admit(
        self: &Arc<Self>,
        process: Arc<PeerProcess>,
        secret: Secret,
    ) -> Result<(MapGrant, OwnedFd), MemoryError> {
        let (access_page, fd) = AccessPage::new()?;
        let mapper = Arc::new(Mapper { access_page, process, secret });
        let mut list = self.list.lock();
        // Forgets those whose access outlived their connection and is over by now.
        list.retain(|other| Arc::strong_count(other) > 1 || other.active().is_some_and(|access| access.lasts()));
        list.push(mapper.clone());
        Ok((MapGrant { mappers: self.clone(), mapper }, fd))
    }

    /// All accesses that are active now.
    pub fn active(&self) -> Vec<MapperAccess> {
        self.list.lock().iter().filter_map(Mapper::active).collect()
    }
}

impl Mapper {
    fn active(self: &Arc<Self>) -> Option<MapperAccess> {
        self.access_page.visit().map(|access| MapperAccess { mapper: self.clone(), access })
    }
}
