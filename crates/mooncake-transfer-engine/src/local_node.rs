//! An engine as its peers see it, and how it looks them up.

use std::net::SocketAddr;
use std::sync::Arc;

use mooncake_os::{Deadline, hex};
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::memory::buffers::Buffer;
use crate::metadata::EngineDirectory;
use crate::notify::Inbox;
use crate::protocol::handshake::{self, Kind, Message};
use crate::protocol::ids::EngineId;
use crate::protocol::peer_name;
use crate::protocol::segment_document::{self, Ours, Protocols, SegmentDocument};
use crate::topology::Topology;
use crate::transport::Transports;
use crate::transport::context::Context;

/// One engine: its memory and transports, what it says of itself, and how it looks peers up.
pub(crate) struct LocalNode {
    pub id: EngineId,
    pub name: String,
    pub context: Context,
    pub transports: Transports,
    pub inbox: Inbox,
    /// Which devices are near which memory; discovered if none is given.
    pub topology: Mutex<Option<Topology>>,
    /// The metadata service, if there is one.
    pub directory: Option<Arc<EngineDirectory>>,
    /// The message with the segment document, and the state of the buffers that it was made at.
    pub described: Mutex<Option<(u64, Arc<[u8]>)>>,
}

impl LocalNode {
    /// The segment document.
    pub fn describe(&self) -> String {
        self.describe_with(&self.context.buffers.lent())
    }

    /// The message with the segment document. All peers that ask for it share one.
    pub fn description(&self) -> Arc<[u8]> {
        // Read first: after a change meanwhile the next call makes the message anew.
        let state = self.context.buffers.changes();
        let mut described = self.described.lock();
        match &*described {
            Some((then, message)) if *then == state => message.clone(),
            _ => {
                let message: Arc<[u8]> = Message::new(Kind::Metadata, self.describe()).encode().into();
                *described = Some((state, message.clone()));
                message
            }
        }
    }

    fn describe_with(&self, lent: &[Arc<Buffer>]) -> String {
        let mut document = SegmentDocument {
            name: self.name.clone(),
            protocol: Protocols::NONE,
            tcp_data_host: String::new(),
            tcp_data_port: 0,
            tcp_proto_version: 1,
            timestamp: segment_document::timestamp(),
            buffers: Vec::new(),
            ours: Some(Ours { id: hex(&self.id), boot: String::new(), unix: String::new(), tcp_addresses: Vec::new() }),
        };
        self.transports.iter().for_each(|transport| transport.describe(lent, &mut document));
        document.encode()
    }

    /// Whether a peer's name is this engine's own.
    pub fn is_called(&self, name: &str) -> bool {
        let is_same_address =
            || peer_name::split_peer(name).is_some_and(|at| peer_name::split_peer(&self.name) == Some(at));
        name == self.name || (self.directory.is_none() && is_same_address())
    }

    /// The host and the addresses where a peer answers handshakes, by its name or by the metadata service.
    pub fn handshake_at(&self, name: &str, deadline: &Deadline<'_>) -> Result<(String, Vec<SocketAddr>), EngineError> {
        let (host, port) = match &self.directory {
            Some(directory) => directory.handshake(name, deadline)?,
            None => {
                let no_address = || EngineError::InvalidArgument(format!("{name:?} is no host:port"));
                peer_name::split_peer(name).map(|(host, port)| (host.to_owned(), port)).ok_or_else(no_address)?
            }
        };
        let addresses = peer_name::resolve(&host, port, &self.context.blocking_pool, deadline)?;
        Ok((host, addresses))
    }

    /// A peer's segment document and its host.
    pub fn document_of(&self, name: &str, deadline: &Deadline<'_>) -> Result<(SegmentDocument, String), EngineError> {
        let (host, addresses) = self.handshake_at(name, deadline)?;
        let json = match &self.directory {
            Some(directory) => directory.segment(name, deadline)?.into_bytes(),
            None => {
                // Without buffers: a peer does not read in the question what the asker lends.
                let ask = Message::new(Kind::Metadata, self.describe_with(&[]));
                let (connect, longest) = (self.context.options.connect_timeout, segment_document::DOCUMENT_BYTES_MAX);
                handshake::ask(name, &addresses, &ask, connect, deadline, longest)?
            }
        };
        Ok((SegmentDocument::decode(name, &json)?, host))
    }
}
