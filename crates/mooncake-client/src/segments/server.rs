//! The names that stores take, and the servers of data behind them.

use std::sync::Arc;

use mooncake_net::split_host_port;
use mooncake_os::Guarded;
use mooncake_segment::{SegmentServer, ServerError, ServerOptions};

use crate::discovery::listen_address::{self, Advertised, ListenAddress};
use crate::error::{Cause, StoreError};
use crate::kept::Beginning;
use crate::options::StoreOptions;
use crate::segments::owner_events::{OwnerEvents, Reporter};

/// Name, addresses for data, its server, and the socket that keeps the name of a store that gives no memory.
pub(crate) type Claimed = (String, Advertised, Option<Arc<SegmentServer>>, Option<Guarded<socket2::Socket>>);

/// Takes the name, with a data server behind it where memory is given.
pub(crate) fn claim(options: &StoreOptions, events: &Arc<OwnerEvents>) -> Result<Claimed, StoreError> {
    if options.global_segment_size == 0 {
        // It listens nowhere: its name is its host's, and its connections come from these.
        listen_address::check(&options.tcp_addresses)?;
        let bare = StoreOptions { tcp_addresses: Vec::new(), ..options.clone() };
        let (host, port) = listen_address::claim(&bare, listen_address::reserve)?;
        return Ok((host.name, host.advertised, None, Some(Guarded::new(port))));
    }
    let (server, host) = serve(options, events)?;
    Ok((host.name, host.advertised, Some(server), None))
}

/// The same of a process that may have taken memory over: with the port of its predecessor, where no other is asked
/// for, so that peers find it where that was.
pub(crate) fn claim_again(
    options: &StoreOptions,
    beginning: Option<&Beginning>,
    events: &Arc<OwnerEvents>,
) -> Result<Claimed, StoreError> {
    let former = beginning.filter(|it| it.is_heir).map(|it| it.kept.name()).unwrap_or_default();
    let (own, its) = (split_host_port(options.local_hostname.trim()), split_host_port(&former));
    if let (Some((own, None | Some(0))), Some((its, Some(_)))) = (own, its)
        && own == its
    {
        match claim(&StoreOptions { local_hostname: former.clone(), ..options.clone() }, events) {
            Err(error) if matches!(error.cause(), Cause::PortTaken { .. }) => {
                tracing::warn!(former, %error, "another process has the port of before; taking another one");
            }
            claimed => return claimed,
        }
    }
    claim(options, events)
}

/// Listens for data.
pub(crate) fn serve(
    options: &StoreOptions,
    events: &Arc<OwnerEvents>,
) -> Result<(Arc<SegmentServer>, ListenAddress), StoreError> {
    let (host, server) = listen_address::claim(options, |address| {
        // Fences name the writer's session; the owner's own is of no consequence.
        let mut server = ServerOptions::new(address.ip(), address.port(), 0);
        server.unix = options.shared_memory;
        server.stall_timeout = options.stall_timeout;
        if options.bind_address.is_none() {
            server.also = options.tcp_addresses.iter().skip(1).copied().collect();
        }
        SegmentServer::start(server, Box::new(Reporter(events.clone()))).map_err(|error| match error {
            ServerError::Bind { address: other, source } if other != address => {
                std::io::Error::new(source.kind(), format!("{other}: {source}"))
            }
            ServerError::Bind { source, .. } | ServerError::Os { source, .. } => source,
            other => std::io::Error::other(other.to_string()),
        })
    })?;
    Ok((server, host))
}
