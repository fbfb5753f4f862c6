//! Where engines find each other by name: a service that keeps documents, or none.
//!
//! Without a service the name is the address: `host:port` of the peer's handshakes, which give its document. With one,
//! two documents stand under keys that Mooncake's engines use too: where an engine answers handshakes, and its segment.

mod http;
pub(crate) mod publisher;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mooncake_net::join_host_port;
use mooncake_os::{BlockingPool, Deadline};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::options::blocking_pool;
use crate::protocol::handshake::{self, Kind, Message};
use crate::protocol::peer_name;
pub use http::HttpMetadata;

/// A live engine answers a probe within this time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Between writing an address and reading it again: engines that take the name at the same moment have written theirs
/// by then.
const CONTEST_WAIT: Duration = Duration::from_millis(100);

/// How often an engine tries to take a name, while others take it and lose it.
const CLAIMS_MAX: u32 = 10;

/// A service that keeps JSON documents by key. Each call ends by itself, within some seconds. The engine makes them in
/// threads, which it leaves at a deadline.
pub trait Metadata: Send + Sync {
    /// The document; `None` if there is none.
    fn get(&self, key: &str) -> Result<Option<String>, EngineError>;
    /// Sets it. `Ok(false)`: the service keeps the one that it has.
    fn put(&self, key: &str, document: &str) -> Result<bool, EngineError>;
    /// Removes it, if it is there.
    fn remove(&self, key: &str) -> Result<(), EngineError>;
    /// The address of this host towards the service: most likely the one that peers reach it by.
    fn own_address(&self) -> Result<IpAddr, EngineError>;
}

/// The documents of engines in a service.
pub(crate) struct EngineDirectory {
    service: Arc<dyn Metadata>,
    blocking_pool: BlockingPool,
    /// The address that this engine has announced, if it has.
    announced: Mutex<Option<RpcMeta>>,
    /// `mooncake/`, and the name of the cluster if there is one.
    prefix: String,
}

/// Where an engine answers handshakes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RpcMeta {
    ip_or_host_name: String,
    rpc_port: u16,
}

impl RpcMeta {
    fn has(self, name: &str) -> EngineError {
        EngineError::NameTaken { name: name.to_owned(), at: join_host_port(&self.ip_or_host_name, self.rpc_port) }
    }
}

impl EngineDirectory {
    pub fn new(service: Arc<dyn Metadata>, cluster: &str) -> EngineDirectory {
        let prefix = if cluster.is_empty() { "mooncake/".to_owned() } else { format!("mooncake/{cluster}/") };
        EngineDirectory { service, blocking_pool: blocking_pool(), announced: Mutex::default(), prefix }
    }

    /// The threads that ask the service.
    pub fn blocking_pool(&self) -> BlockingPool {
        self.blocking_pool.clone()
    }

    pub fn own_address(&self, deadline: &Deadline<'_>) -> Result<IpAddr, EngineError> {
        let service = self.service.clone();
        let found = self.blocking_pool.run(deadline, move || service.own_address());
        found.map_err(EngineError::blocking("the metadata service", "its name"))?
    }

    /// Announces where `name` answers handshakes. The entry of an engine that does not answer, as after a crash, is
    /// replaced; an engine that answers keeps its name.
    ///
    /// No service compares before it sets or removes. So the entry of a dead engine is read again right before it is
    /// removed, and this engine's own a while after it was written: of several that take a name at the same moment, the
    /// one whose entry is there in the end has it.
    pub fn announce(&self, name: &str, host: &str, port: u16) -> Result<(), EngineError> {
        let key = self.rpc_key(name);
        let ours = RpcMeta { ip_or_host_name: host.to_owned(), rpc_port: port };
        for _ in 0..CLAIMS_MAX {
            if let Some(before) = self.service.get(&key)? {
                if let Ok(other) = serde_json::from_str::<RpcMeta>(&before)
                    && other != ours
                    && self.is_alive(&other)
                {
                    return Err(other.has(name));
                }
                if self.service.get(&key)?.as_ref() != Some(&before) {
                    continue;
                }
                self.service.remove(&key)?;
            }
            self.claim(name, &ours)?;
            std::thread::sleep(CONTEST_WAIT);
            if self.is_ours(name)? {
                return Ok(());
            }
        }
        Err(EngineError::Metadata(format!("the entry of {name:?} changes all the time")))
    }

    fn claim(&self, name: &str, ours: &RpcMeta) -> Result<(), EngineError> {
        // Noted first: if the answer gets lost, the entry may have been written, and is to be withdrawn.
        *self.announced.lock() = Some(ours.clone());
        let document = serde_json::to_string(ours).expect("strings and numbers are JSON");
        if self.service.put(&self.rpc_key(name), &document)? || self.is_ours(name)? {
            return Ok(());
        }
        Err(EngineError::Metadata(format!("the service refuses the address of {name:?}")))
    }

    /// Whether the name's entry is this engine's; false if there is none, an error if it is another engine's: an engine
    /// that did not answer for a while may have been replaced, and the entry is its successor's.
    fn is_ours(&self, name: &str) -> Result<bool, EngineError> {
        let Some(found) = self.service.get(&self.rpc_key(name))? else { return Ok(false) };
        let (ip_or_host_name, rpc_port) = read_rpc_meta(name, &found)?;
        let found = RpcMeta { ip_or_host_name, rpc_port };
        if self.announced.lock().as_ref() == Some(&found) { Ok(true) } else { Err(found.has(name)) }
    }

    /// Where a peer answers handshakes.
    pub fn handshake(&self, name: &str, deadline: &Deadline<'_>) -> Result<(String, u16), EngineError> {
        let found = self.ask(name, self.rpc_key(name), deadline)?;
        read_rpc_meta(name, &found)
    }

    /// Writes the segment document, and the address again if the service has lost it.
    pub fn publish(&self, name: &str, document: &str) -> Result<(), EngineError> {
        if !self.is_ours(name)? {
            let announced = self.announced.lock().clone();
            if let Some(ours) = announced {
                self.claim(name, &ours)?;
            }
        }
        match self.service.put(&self.segment_key(name), document)? {
            true => Ok(()),
            false => Err(EngineError::Metadata(format!("the service refuses the segment document of {name:?}"))),
        }
    }

    pub fn segment(&self, name: &str, deadline: &Deadline<'_>) -> Result<String, EngineError> {
        self.ask(name, self.segment_key(name), deadline)
    }

    fn ask(&self, name: &str, key: String, deadline: &Deadline<'_>) -> Result<String, EngineError> {
        let service = self.service.clone();
        let found = self.blocking_pool.run(deadline, move || service.get(&key));
        let found = found.map_err(EngineError::blocking(name, "the metadata service"))??;
        found.ok_or_else(|| EngineError::Metadata(format!("no engine is known by the name {name:?}")))
    }

    /// Removes this engine's documents, and no other's.
    pub fn withdraw(&self, name: &str) -> Result<(), EngineError> {
        if self.announced.lock().is_none() {
            return Ok(());
        }
        let ours = match self.is_ours(name) {
            // Both documents are its successor's.
            Err(EngineError::NameTaken { .. }) => return Ok(()),
            ours => ours?,
        };
        let segment = self.service.remove(&self.segment_key(name));
        let address = if ours { self.service.remove(&self.rpc_key(name)) } else { Ok(()) };
        segment.and(address)
    }

    fn is_alive(&self, at: &RpcMeta) -> bool {
        let deadline = Deadline::after(PROBE_TIMEOUT, &|| false);
        let found = peer_name::resolve(&at.ip_or_host_name, at.rpc_port, &self.blocking_pool, &deadline);
        let Ok(addresses) = found else { return false };
        let probe = Message::new(Kind::Probe, "{}".into());
        handshake::ask("the engine of that name", &addresses, &probe, PROBE_TIMEOUT, &deadline, 1 << 20).is_ok()
    }

    fn rpc_key(&self, name: &str) -> String {
        format!("{}rpc_meta/{name}", self.prefix)
    }

    /// A name with a slash is a key of its own kind.
    fn segment_key(&self, name: &str) -> String {
        match name.contains('/') {
            true => format!("{}{name}", self.prefix),
            false => format!("{}ram/{name}", self.prefix),
        }
    }
}

/// The host and the port in the document of `name`.
pub(crate) fn read_rpc_meta(name: &str, document: &str) -> Result<(String, u16), EngineError> {
    let found: RpcMeta = serde_json::from_str(document)
        .map_err(|error| EngineError::malformed(name, format!("its address in the metadata: {error}")))?;
    Ok((found.ip_or_host_name, found.rpc_port))
}

/// The local address of a connection to there; no packet is sent.
pub(crate) fn address_towards(there: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if there.is_ipv4() { ([0_u8; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(there)?;
    Ok(socket.local_addr()?.ip())
}
