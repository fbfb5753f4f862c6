//! `mooncake metadata-server`: the HTTP metadata server in a process of its own.

use std::net::SocketAddr;

use mooncake_master::address;
use mooncake_metadata_server::{MetadataServer, StartError};
use mooncake_settings::{METADATA_SERVER, SettingError};
use tokio::signal::unix::{SignalKind, signal};

use crate::logging::{self, announce};
use crate::{flags, service};

/// Why it did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The port.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The runtime, signals or the log.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Runs until a signal says that it is over.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ServerError> {
    let Some(given) = flags::read(&METADATA_SERVER, args)? else { return Ok(()) };
    logging::start_at(given.text_or_default("log_level"));
    for note in &given.notes {
        tracing::info!("{note}");
    }
    let host = address(&given, "host")?;
    let at = SocketAddr::new(host, given.number("port").unwrap_or(8080));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let server = MetadataServer::open(at)?;
        announce(&format!("HTTP metadata server started on port {}", server.address().port()));
        service::is_ready();
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        Ok(())
    })
}
