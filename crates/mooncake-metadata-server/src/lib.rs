//! The HTTP metadata server: a small store in which transfer engines publish
//! how to reach them. `GET`, `PUT` and `DELETE` of `/metadata?key=...`, values
//! as opaque bytes, in memory only.
//!
//! An engine's address (a key with `rpc_meta` in it) is not overwritten while
//! the engine that published it still listens there: two engines of one name
//! would be told apart by chance. One that has gone is replaced, so that a
//! crashed engine can come back under its name.
#![forbid(unsafe_code)]

mod pages;
mod table;

use std::net::SocketAddr;

use mooncake_http::{BindError, Limits, accept, bind};
use mooncake_os::Guarded;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its listener does not say where it is.
    #[error("the metadata server: {0}")]
    Listener(std::io::Error),
}

/// A metadata server that runs until it is dropped.
#[derive(Debug)]
pub struct MetadataServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl MetadataServer {
    /// Listens at an address, inside a tokio runtime. Port 0 is any free one.
    pub fn open(address: SocketAddr) -> Result<MetadataServer, StartError> {
        let listener = bind("the metadata server", "port", address.ip(), address.port())?;
        MetadataServer::start(listener).map_err(StartError::Listener)
    }

    /// Serves on a listener, inside a tokio runtime.
    pub fn start(listener: TcpListener) -> std::io::Result<MetadataServer> {
        let address = listener.local_addr()?;
        let router = pages::router();
        let pages = move || (router.clone(), true);
        let task = tokio::spawn(accept(pages, Guarded::new(listener), Limits::default()));
        Ok(MetadataServer { address, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
