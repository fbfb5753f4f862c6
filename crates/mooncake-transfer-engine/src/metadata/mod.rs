//! Where engines find each other by name: a service that keeps documents, or nobody at all.
//!
//! Without a service the name is the address: `host:port` of the peer's handshakes, which give its document. With one,
//! two documents stand under keys that Mooncake's engines use too: where an engine's handshakes are answered, and its
//! segment.

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
const ALIVE: Duration = Duration::from_secs(2);

/// Between saying an address and reading it again: others that begin at the same moment have said theirs by then.
const CONTEST: Duration = Duration::from_millis(100);

/// How often a name is tried to be taken, while others take it and lose it.
const CLAIMS: u32 = 10;

/// A service that keeps JSON documents by key. Each call ends by itself, within some seconds; calls that wait for a
/// peer leave one that takes longer than they may.
pub trait Metadata: Send + Sync {
    /// The document; `None` if there is none.
    fn get(&self, key: &str) -> Result<Option<String>, EngineError>;
    /// Sets it. `Ok(false)`: the service keeps the one that it has.
    fn put(&self, key: &str, document: &str) -> Result<bool, EngineError>;
    /// Removes it, if it is there.
    fn remove(&self, key: &str) -> Result<(), EngineError>;
    /// The address of this host by which the service is reached: by which peers reach it, most likely.
    fn own_address(&self) -> Result<IpAddr, EngineError>;
}

/// The documents of engines in a service.
pub(crate) struct Registry {
    service: Arc<dyn Metadata>,
    blocking_pool: BlockingPool,
    /// What was said of this engine, once it was.
    announced: Mutex<Option<RpcMeta>>,
    /// `mooncake/`, and what keeps clusters apart.
    prefix: String,
}

/// Where an engine's handshakes are answered.
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

impl Registry {
    pub fn new(service: Arc<dyn Metadata>, cluster: &str) -> Registry {
        let prefix = if cluster.is_empty() { "mooncake/".to_owned() } else { format!("mooncake/{cluster}/") };
        Registry { service, blocking_pool: blocking_pool(), announced: Mutex::default(), prefix }
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

    /// Says where the handshakes of `name` are answered. An entry of an engine that does not answer any more, as one
    /// that crashed leaves it, is replaced; one that does keeps its name.
    ///
    /// No service compares before it sets or removes. So what was found dead is looked at again right before it is
    /// removed, and what was said is read again after a while: of several that take a name at the same moment, the one
    /// whose entry stands in the end has it.
    pub fn announce(&self, name: &str, host: &str, port: u16) -> Result<(), EngineError> {
        let key = self.rpc_key(name);
        let ours = RpcMeta { ip_or_host_name: host.to_owned(), rpc_port: port };
        for _ in 0..CLAIMS {
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
            std::thread::sleep(CONTEST);
            if self.is_ours(name)? {
                return Ok(());
            }
        }
        Err(EngineError::Metadata(format!("the entry of {name:?} changes all the time")))
    }

    fn claim(&self, name: &str, ours: &RpcMeta) -> Result<(), EngineError> {
        // Said before it is done: of a request whose answer gets lost nobody knows whether it was.
        *self.announced.lock() = Some(ours.clone());
        let document = serde_json::to_string(ours).expect("strings and numbers are JSON");
        if self.service.put(&self.rpc_key(name), &document)? || self.is_ours(name)? {
            return Ok(());
        }
        Err(EngineError::Metadata(format!("the service refuses the address of {name:?}")))
    }

    /// Whether the name is still said to be this engine's; false if it is nobody's. One that did not answer for a while
    /// may have been replaced, and what is there then is its successor's.
    fn is_ours(&self, name: &str) -> Result<bool, EngineError> {
        let Some(found) = self.service.get(&self.rpc_key(name))? else { return Ok(false) };
        let (ip_or_host_name, rpc_port) = read_rpc_meta(name, &found)?;
        let found = RpcMeta { ip_or_host_name, rpc_port };
        if self.announced.lock().as_ref() == Some(&found) { Ok(true) } else { Err(found.has(name)) }
    }

    /// Where the handshakes of a peer are answered.
    pub fn handshake(&self, name: &str, deadline: &Deadline<'_>) -> Result<(String, u16), EngineError> {
        let found = self.ask(name, self.rpc_key(name), deadline)?;
        read_rpc_meta(name, &found)
    }

    /// Tells what this engine lends.
    pub fn publish(&self, name: &str, document: &str) -> Result<(), EngineError> {
        if !self.is_ours(name)? {
            let announced = self.announced.lock().clone();
            if let Some(ours) = announced {
                // The service has lost what it was told.
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

    /// Removes what there is of this engine.
    pub fn withdraw(&self, name: &str) -> Result<(), EngineError> {
        if self.announced.lock().is_none() {
            return Ok(());
        }
        let ours = match self.is_ours(name) {
            // All of it is its successor's.
            Err(EngineError::NameTaken { .. }) => return Ok(()),
            ours => ours?,
        };
        let segment = self.service.remove(&self.segment_key(name));
        let address = if ours { self.service.remove(&self.rpc_key(name)) } else { Ok(()) };
        segment.and(address)
    }

    fn is_alive(&self, at: &RpcMeta) -> bool {
        let deadline = Deadline::after(ALIVE, &|| false);
        let found = peer_name::resolve(&at.ip_or_host_name, at.rpc_port, &self.blocking_pool, &deadline);
        let Ok(addresses) = found else { return false };
        let probe = Message::new(Kind::Probe, "{}".into());
        handshake::ask("the engine of that name", &addresses, &probe, ALIVE, &deadline, 1 << 20).is_ok()
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
