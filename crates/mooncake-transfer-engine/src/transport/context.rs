//! What transports need of the engine that they carry bytes for.

use std::sync::{Arc, OnceLock, Weak};

use mooncake_memory::{Bounce, ForeignRange, PeerProcess};
use mooncake_os::BlockingPool;

use crate::error::EngineError;
use crate::memory::buffers::Buffers;
use crate::options::EngineOptions;
use crate::protocol::same_host::{SECRET_LEN, Secret};
use crate::transport::Directory;

/// An engine, as its transports and their paths know it.
pub(crate) struct Context {
    pub options: EngineOptions,
    pub buffers: Buffers,
    /// Threads that resolve names.
    pub blocking_pool: BlockingPool,
    /// Lies where peers of this host read it: proof that they reached this process.
    pub secret: Box<[u8; SECRET_LEN]>,
    /// Copies within this process by the kernel, which checks the addresses.
    pub own_process: PeerProcess,
    /// How peers are asked, by the engine that this is of; known once that is made.
    pub directory: OnceLock<Weak<dyn Directory>>,
}

impl Context {
    /// How peers are asked, as long as the engine is there.
    pub fn directory(&self) -> Result<Arc<dyn Directory>, EngineError> {
        self.directory.get().and_then(Weak::upgrade).ok_or(EngineError::Closed)
    }

    /// Copies bytes within this process, between memory of any kind. The kernel checks addresses of the host, a
    /// device's driver its own.
    pub fn copy(&self, from: ForeignRange, into: ForeignRange, bounce: &mut Bounce) -> Result<(), EngineError> {
        let (source, mut destination) = (self.buffers.source(from), self.buffers.destination(into));
        let copied = if source.is_on_device() || destination.is_on_device() {
            bounce.copy(&source, &mut destination).map_err(|error| error.to_string())
        } else {
            let from = from.addr() as u64;
            self.own_process.pull(from, &mut destination).map_err(|error| error.to_string())
        };
        copied.map_err(EngineError::Memory)
    }

    /// The secret with its address, as a hello tells it.
    pub fn secret(&self) -> Secret {
        Secret { addr: self.secret.as_ptr().expose_provenance() as u64, bytes: *self.secret }
    }
}
