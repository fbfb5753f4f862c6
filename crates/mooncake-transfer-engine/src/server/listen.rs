//! Where an engine listens: two ports, on the address that it was told, or on all of them and with a warning.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use mooncake_os::Guarded;

use crate::error::EngineError;
use crate::options::EngineOptions;

/// Most ports of the range that are tried before it is said that none is free.
const PORTS_TRIED_MAX: u32 = 500;

/// An engine's two listeners.
pub(crate) struct Listeners {
    pub handshake: Guarded<TcpListener>,
    pub data: Guarded<TcpListener>,
    /// Of handshakes.
    pub port: u16,
    pub data_port: u16,
}

/// Opens both. `host` is what peers are told to reach the engine by, if that is known; `port` is the one of its
/// handshakes, if it is not to be a free one.
pub(crate) fn begin(options: &EngineOptions, host: &str, port: Option<u16>) -> Result<Listeners, EngineError> {
    let reached_by = options.bind_if_told.filter(|ip| host.parse() == Ok(*ip));
    let told = options.bind.or(reached_by);
    let handshakes = port.map_or(options.ports.clone(), |port| port..=port);
    let first = match (listen(told, &handshakes), reached_by) {
        // The address that peers are told may be of a machine that forwards to this one.
        (Err(EngineError::Socket { source, .. }), Some(ip))
            if options.bind.is_none() && source.kind() == ErrorKind::AddrNotAvailable =>
        {
            tracing::warn!(%ip, "this host has no such address, though peers are told it; the engine listens on all");
            (None, listen(None, &handshakes)?)
        }
        (opened, _) => (told, opened?),
    };
    let (on, (handshake, port)) = first;
    let (data, data_port) = listen(on, &options.ports)?;
    warn_once(on, host, [port, data_port]);
    Ok(Listeners { handshake: Guarded::new(handshake), data: Guarded::new(data), port, data_port })
}

/// Warns a user whose engine is open to a network: the protocol has no authentication, so that any process that reaches
/// the ports reads and writes what is lent.
fn warn_once(on: Option<IpAddr>, host: &str, ports: [u16; 2]) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if let Some(warning) = warning(on, host, ports)
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!("{warning}");
    }
}

fn warning(on: Option<IpAddr>, host: &str, [handshakes, data]: [u16; 2]) -> Option<String> {
    let on = on.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    if on.is_loopback() {
        return None;
    }
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let (wide, named) = match on.is_unspecified() {
        true if is_local => ("all addresses", format!(", though its name, {host}, is of this host alone")),
        true => ("all addresses", String::new()),
        false => ("the network", String::new()),
    };
    Some(format!(
        "the transfer engine listens on {wide}{named}, without authentication: whoever reaches its ports, {handshakes} \
         and {data}, reads and writes all memory that it lends. MC_TE_BIND_ADDRESS is the address that it listens on, \
         a firewall keeps others out"
    ))
}

/// Listens on a free port of the range; `bind` is where, all addresses if it is none.
fn listen(bind: Option<IpAddr>, ports: &RangeInclusive<u16>) -> Result<(TcpListener, u16), EngineError> {
    let count = u32::from(ports.end() - ports.start()) + 1;
    // From a random port on, so that many processes that start at once seldom try the same.
    let start = mooncake_os::random_bytes::<4>().map_or(0, u32::from_le_bytes) % count;
    let mut last = None;
    for step in 0..count.min(PORTS_TRIED_MAX) {
        let port = (u32::from(*ports.start()) + (start + step) % count) as u16;
        match listen_on(bind, port) {
            Ok(listener) => return Ok((listener, port)),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::Error::other("an empty range of ports"));
    let on = bind.map_or_else(|| "all addresses".to_owned(), |ip| ip.to_string());
    let peer = format!("{on}, ports {}-{}", ports.start(), ports.end());
    Err(EngineError::Socket { peer, what: "listen", source })
}

fn listen_on(bind: Option<IpAddr>, port: u16) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let open = |address: SocketAddr, dual: bool| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if dual {
            socket.set_only_v6(false)?;
        }
        // Old connections of the port are no hindrance then; on Linux a second listener still is.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(TcpListener::from(socket))
    };
    match bind {
        Some(ip) => open(SocketAddr::new(ip, port), false),
        None => match open(SocketAddr::from(([0_u16; 8], port)), true) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {
                open(SocketAddr::from(([0_u8; 4], port)), false)
            }
            listener => listener,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_passed_over() {
        let one = "127.0.0.1".parse().ok();
        let (first, port) = listen(one, &(20_000..=20_400)).unwrap();
        assert!(listen(one, &(port..=port)).is_err());
        drop(first);
        assert_eq!(listen(one, &(port..=port)).unwrap().1, port);
    }

    #[test]
    fn who_opens_an_engine_to_a_network_is_told_which_ports_and_how_to_close_them() {
        let told = |on: &str, host| warning(on.parse().ok(), host, [15_001, 15_002]);
        assert_eq!((told("127.0.0.2", "10.0.0.1"), told("::1", "h")), (None, None));
        for (on, host, what) in [
            ("", "10.0.0.1", "all addresses, without"),
            ("0.0.0.0", "localhost", "though its name, localhost,"),
            ("", "127.0.0.1", "though its name, 127.0.0.1,"),
            ("10.0.0.1", "10.0.0.1", "the network"),
        ] {
            let told = told(on, host).unwrap();
            assert!([what, "15001", "15002", "MC_TE_BIND_ADDRESS"].iter().all(|part| told.contains(part)), "{told}");
        }
    }
}
