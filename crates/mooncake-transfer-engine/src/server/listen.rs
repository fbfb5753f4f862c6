//! Where an engine listens: two ports, on the address that it was told, or on all of them and with a warning; for data,
//! on one address of each network, if it was told several.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use mooncake_net::{AddressListError, check_addresses};
use mooncake_os::Guarded;

use crate::error::EngineError;
use crate::options::{EngineOptions, bad_addresses};

/// Most ports of the range that are tried before it is said that none is free.
const PORTS_TRIED_MAX: u32 = 500;

/// An engine's listeners.
pub(crate) struct Listeners {
    pub handshake: Guarded<TcpListener>,
    /// One, or one for each network.
    pub data: Vec<Guarded<TcpListener>>,
    /// Of handshakes.
    pub port: u16,
    /// The first one's.
    pub data_port: u16,
    /// Where peers find them, if they are told more than the port.
    pub data_at: Vec<SocketAddr>,
}

/// Opens them. `host` is what peers are told to reach the engine by, if that is known; `port` is the one of its
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
    let told = &options.tcp_addresses;
    let (data, ports) = match options.bind {
        None if !told.is_empty() => listen_on_each(told, &options.ports)?,
        _ => {
            let (data, port) = listen(on, &options.ports)?;
            (vec![Guarded::new(data)], vec![port; told.len().max(1)])
        }
    };
    let data_at = told.iter().zip(&ports).map(|(ip, port)| SocketAddr::new(*ip, *port)).collect();
    let data_port = ports[0];
    warn_once(on, host, [port, data_port]);
    Ok(Listeners { handshake: Guarded::new(handshake), data, port, data_port, data_at })
}

/// Listens on each of these addresses, on one port of the range that is free on all of them; or on one of its own each,
/// if there is none.
fn listen_on_each(
    addresses: &[IpAddr],
    ports: &RangeInclusive<u16>,
) -> Result<(Vec<Guarded<TcpListener>>, Vec<u16>), EngineError> {
    let list = || addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    check_addresses(addresses).map_err(|error| match error {
        AddressListError::NotHere { .. } => EngineError::InvalidArgument(format!(
            "{}. MC_TE_BIND_ADDRESS says what to listen on if another machine forwards connections to this one",
            bad_addresses(&list(), &error)
        )),
        error => bad_addresses(&list(), &error),
    })?;
    for port in ports_in_turn(ports) {
        let listeners = addresses.iter().map(|ip| listen_on(Some(*ip), port).map(Guarded::new));
        if let Ok(listeners) = listeners.collect::<std::io::Result<Vec<_>>>() {
            return Ok((listeners, vec![port; addresses.len()]));
        }
    }
    let each = addresses.iter().map(|ip| listen(Some(*ip), ports));
    let each = each.map(|opened| opened.map(|(listener, port)| (Guarded::new(listener), port)));
    Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
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
    let mut last = None;
    for port in ports_in_turn(ports) {
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

/// Ports to be tried, from a random one on, so that many processes that start at once seldom try the same.
fn ports_in_turn(ports: &RangeInclusive<u16>) -> impl Iterator<Item = u16> {
    let (first, count) = (u32::from(*ports.start()), u32::from(ports.end() - ports.start()) + 1);
    let start = mooncake_os::random_bytes::<4>().map_or(0, u32::from_le_bytes) % count;
    (0..count.min(PORTS_TRIED_MAX)).map(move |step| (first + (start + step) % count) as u16)
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
    fn several_addresses_have_one_port_where_it_is_free_on_all_and_one_of_their_own_otherwise() {
        let both: Vec<IpAddr> = ["127.0.0.1", "127.0.0.2"].iter().map(|ip| ip.parse().unwrap()).collect();
        let (listeners, ports) = listen_on_each(&both, &(20_500..=20_900)).unwrap();
        assert!(listeners.len() == 2 && ports[0] == ports[1]);
        drop(listeners);
        let _first = listen_on(Some(both[0]), 20_901).unwrap();
        let _second = listen_on(Some(both[1]), 20_902).unwrap();
        let (_listeners, ports) = listen_on_each(&both, &(20_901..=20_902)).unwrap();
        assert_eq!(ports, [20_902, 20_901]);
        let error = listen_on_each(&[both[0], "192.0.2.1".parse().unwrap()], &(20_500..=20_900)).unwrap_err();
        let (error, code) = (error.to_string(), error.code());
        let parts = ["MC_TCP_ADDRESSES", "192.0.2.1 is not an address of this machine", "MC_TE_BIND_ADDRESS"];
        assert!(code == -1 && parts.iter().all(|part| error.contains(part)), "{error}");
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
