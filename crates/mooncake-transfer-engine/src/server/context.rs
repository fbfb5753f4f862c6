//! What the connections of a server share.

use std::sync::Arc;

use super::handshake::HandshakeBudget;
use super::writers::Writers;
use crate::local_node::LocalNode;
use crate::memory::buffers::Buffers;
use crate::memory::mappable::Mappable;
use crate::options::EngineOptions;

/// The engine that is served, and what its connections have in common.
pub(crate) struct ServerContext {
    pub node: Arc<LocalNode>,
    /// What peers of this host may map.
    pub mappable: Arc<Mappable>,
    /// The connections of peers that have a name.
    pub writers: Arc<Writers>,
    /// Memory for handshakes that are coming in.
    pub handshake_budget: Arc<HandshakeBudget>,
}

impl ServerContext {
    pub fn new(node: Arc<LocalNode>, mappable: Arc<Mappable>) -> ServerContext {
        ServerContext { node, mappable, writers: Arc::default(), handshake_budget: Arc::default() }
    }

    pub fn options(&self) -> &EngineOptions {
        &self.node.context.options
    }

    pub fn buffers(&self) -> &Buffers {
        &self.node.context.buffers
    }
}
