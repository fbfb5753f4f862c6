//! What cards know of an engine's memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mooncake_memory::{ForeignRange, Source};
use mooncake_rdma::{Nic, Registered};
use mooncake_verbs::Access;
use parking_lot::{Mutex, RwLock};

use crate::memory::active_access::ActiveAccess;
use crate::memory::buffers::Buffer;

/// Ranges by their first address, each of a buffer.
pub(crate) struct WorkingMemory {
    nics: Arc<[Arc<Nic>]>,
    known: RwLock<BTreeMap<usize, Known>>,
}

/// A range, and near which memory it is: `cpu:0`, `cuda:1`, `*`.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub registered: Arc<Registered>,
    pub location: Arc<str>,
}

impl WorkingMemory {
    pub fn new(nics: Arc<[Arc<Nic>]>) -> WorkingMemory {
        WorkingMemory { nics, known: RwLock::default() }
    }

    /// Has all cards know of buffers. What one of them cannot know goes by other transports, and is told once.
    pub fn register(&self, buffers: &[Arc<Buffer>]) {
        for buffer in buffers {
            if Source::unregistered(buffer.range).is_on_device() {
                continue;
            }
            let access = Access {
                local_write: true,
                remote_read: buffer.lent,
                remote_write: buffer.lent,
                relaxed_ordering: false,
            };
            match Registered::new(&self.nics, buffer.range, access) {
                Ok(registered) => {
                    let known = Known { registered: Arc::new(registered), location: buffer.location.as_str().into() };
                    self.known.write().insert(buffer.range.addr(), known);
                }
                Err(error) => tracing::warn!(
                    %error, bytes = buffer.range.len(), "memory is not registered for RDMA; TCP carries it"
                ),
            }
        }
    }

    /// What cards know of a buffer.
    pub fn of(&self, buffer: &Buffer) -> Option<Arc<Registered>> {
        self.known.read().get(&buffer.range.addr()).map(|known| known.registered.clone())
    }

    /// The registered range that a request's end lies in.
    pub fn find(&self, range: ForeignRange) -> Option<Known> {
        let known = self.known.read();
        let (_, before) = known.range(..=range.addr()).next_back()?;
        before.registered.holds(range).then(|| before.clone())
    }

    /// Cards are told to forget buffers, once no request of this side uses them any more.
    pub fn unregister(&self, buffers: &[Arc<Buffer>]) -> Vec<Arc<dyn ActiveAccess>> {
        let mut known = self.known.write();
        let leaving =
            buffers.iter().filter_map(|buffer| known.remove(&buffer.range.addr()).map(|known| known.registered));
        let leaving = leaving.map(|registered| {
            Arc::new(Leaving {
                addr: registered.range().addr(),
                nic: self.nics[0].clone(),
                registered: Mutex::new(Some(registered)),
                is_free: Arc::default(),
            })
        });
        let leaving: Vec<Arc<dyn ActiveAccess>> = leaving.map(|leaving| leaving as _).collect();
        drop(known);
        // The first look has the card begin with it where nothing uses it.
        for one in &leaving {
            one.lasts();
        }
        leaving
    }
}

/// A range that cards still know.
#[derive(Debug)]
struct Leaving {
    addr: usize,
    /// Whose thread waits for it.
    nic: Arc<Nic>,
    /// Until its unregistration begins.
    registered: Mutex<Option<Arc<Registered>>>,
    is_free: Arc<AtomicBool>,
}

impl ActiveAccess for Leaving {
    fn touches(&self, buffer: &Buffer) -> bool {
        buffer.range.addr() == self.addr
    }

    /// Begins with the unregistration when no request of this side uses it any more.
    fn lasts(&self) -> bool {
        let mut registered = self.registered.lock();
        if let Some(last) = registered.take() {
            match Arc::try_unwrap(last) {
                Ok(last) => {
                    let is_free = self.is_free.clone();
                    let begun = self.nic.give(move || match last.give_up() {
                        Ok(()) => is_free.store(true, Ordering::SeqCst),
                        Err(error) => tracing::error!(%error, "memory stays registered until this process ends"),
                    });
                    if let Err(error) = begun {
                        tracing::error!(%error, "memory stays registered until this process ends");
                    }
                }
                Err(in_use) => *registered = Some(in_use),
            }
        }
        !self.is_free.load(Ordering::SeqCst)
    }
}
