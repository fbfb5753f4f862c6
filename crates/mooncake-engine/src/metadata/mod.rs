//! Where engines find each other by name: a service that keeps documents, or nobody at all.
//!
//! Without a service the name is the address: `host:port` of the peer's handshakes, which give its document. With one, two
//! documents stand under keys that Mooncake's engines use too: where an engine's handshakes are answered, and its segment.

mod http;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::address;
use crate::error::EngineError;
use crate::handshake::{self, Kind, Message};
use crate::peer::Patience;
pub use http::HttpMetadata;

/// A live engine answers a probe within this time.
const ALIVE: Duration = Duration::from_secs(2);

/// A service that keeps JSON documents by key.
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
    service: Box<dyn Metadata>,
    /// `mooncake/`, and what keeps clusters apart.
    prefix: String,
}

/// Where an engine's handshakes are answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RpcMeta {
    ip_or_host_name: String,
    rpc_port: u16,
}

impl Registry {
    pub fn new(service: Box<dyn Metadata>, cluster: &str) -> Registry {
        let prefix = if cluster.is_empty() { "mooncake/".to_owned() } else { format!("mooncake/{cluster}/") };
        Registry { service, prefix }
    }

    pub fn own_address(&self) -> Result<IpAddr, EngineError> {
        self.service.own_address()
    }

    /// Says where the handshakes of `name` are answered. An entry of an engine that does not answer any more, as one that
    /// crashed leaves it, is replaced; one that does keeps its name.
    pub fn announce(&self, name: &str, ip: IpAddr, port: u16) -> Result<(), EngineError> {
        let key = self.rpc_key(name);
        let ours = RpcMeta { ip_or_host_name: ip.to_string(), rpc_port: port };
        if let Some(before) = self.service.get(&key)? {
            if let Ok(before) = serde_json::from_str::<RpcMeta>(&before)
                && before != ours
                && is_alive(&before)
            {
                let RpcMeta { ip_or_host_name, rpc_port } = before;
                let at = address::join(&ip_or_host_name, rpc_port);
                return Err(EngineError::Metadata(format!("{name:?} is the name of a running engine at {at}")));
            }
            self.service.remove(&key)?;
        }
        let document = serde_json::to_string(&ours).expect("strings and numbers are JSON");
        match self.service.put(&key, &document)? {
            true => Ok(()),
            false => Err(EngineError::Metadata(format!("{name:?} was taken by another engine meanwhile"))),
        }
    }

    /// Where the handshakes of a peer are answered.
    pub fn handshake(&self, name: &str) -> Result<(String, u16), EngineError> {
        let found = self.service.get(&self.rpc_key(name))?.ok_or_else(|| unknown(name))?;
        read_rpc_meta(name, &found)
    }

    pub fn publish(&self, name: &str, document: &str) -> Result<(), EngineError> {
        match self.service.put(&self.segment_key(name), document)? {
            true => Ok(()),
            false => Err(EngineError::Metadata(format!("the service refuses the segment document of {name:?}"))),
        }
    }

    pub fn segment(&self, name: &str) -> Result<String, EngineError> {
        self.service.get(&self.segment_key(name))?.ok_or_else(|| unknown(name))
    }

    /// Removes what there is of an engine.
    pub fn withdraw(&self, name: &str) -> Result<(), EngineError> {
        let segment = self.service.remove(&self.segment_key(name));
        self.service.remove(&self.rpc_key(name)).and(segment)
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

fn unknown(name: &str) -> EngineError {
    EngineError::Metadata(format!("no engine is known by the name {name:?}"))
}

fn is_alive(at: &RpcMeta) -> bool {
    let Ok(addresses) = address::resolve(&at.ip_or_host_name, at.rpc_port) else { return false };
    let probe = Message::new(Kind::Probe, "{}".into());
    let began = Instant::now();
    let patience = Patience { began, deadline: began + ALIVE, interrupted: &|| false };
    handshake::ask("the engine of that name", &addresses, &probe, ALIVE, &patience, 1 << 20).is_ok()
}

/// The local address of a connection to there; no packet is sent.
pub(crate) fn address_towards(there: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if there.is_ipv4() { ([0_u8; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(there)?;
    Ok(socket.local_addr()?.ip())
}
