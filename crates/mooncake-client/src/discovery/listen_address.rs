//! This client's own name: which address and port it listens on for data.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mooncake_net::{check_addresses, join_host_port, split_host_port};
use mooncake_os::Deadline;

use crate::connection_error::ConnectionError;
use crate::discovery::resolver;
use crate::error::{Cause, StoreError};
use crate::options::StoreOptions;

/// Longest wait for the name service to know this machine.
const RESOLVING: Duration = Duration::from_secs(5);

/// The name of a client.
#[derive(Debug)]
pub(crate) struct ListenAddress {
    /// "host:port": the client's name and its segment's.
    pub name: String,
    /// What peers connect to.
    pub advertised: Advertised,
}

/// The addresses that peers are told.
#[derive(Debug, Clone)]
pub(crate) enum Advertised {
    /// These, as the host name resolves.
    Addresses(Vec<SocketAddr>),
    /// Whatever address of this machine the master sees: the name is a wildcard.
    TowardsMaster {
        /// Port of the listener.
        port: u16,
    },
}

impl Advertised {
    /// "ip:port" texts, given the local address of a connection to the master.
    pub fn texts(&self, towards_master: IpAddr) -> Vec<String> {
        match self {
            Advertised::Addresses(addresses) => addresses.iter().map(SocketAddr::to_string).collect(),
            Advertised::TowardsMaster { port } => vec![SocketAddr::new(towards_master, *port).to_string()],
        }
    }
}

/// Takes the name that the options ask for. `listen` binds an address and
/// says so with whatever keeps the port taken.
pub(crate) fn claim<T>(
    options: &StoreOptions,
    mut listen: impl FnMut(SocketAddr) -> io::Result<T>,
) -> Result<(ListenAddress, T), StoreError> {
    let given = options.local_hostname.trim();
    let (host, port) = split_host_port(given).ok_or_else(|| {
        StoreError::from(Cause::InvalidParams(format!(
            "local_hostname {given:?} is neither host nor host:port (IPv6 in brackets, [::1]:12345)"
        )))
    })?;
    let port = port.filter(|port| *port != 0);
    let resolved = resolve(&host, options)?;
    let told = &options.tcp_addresses;
    let bind = match (options.bind_address, told.first()) {
        (Some(address), _) => vec![address],
        (None, Some(first)) => {
            check(told)?;
            vec![*first]
        }
        (None, None) => resolved.clone(),
    };
    let mut last = None;
    for address in &bind {
        match take_port(*address, port, options.ports, &mut listen) {
            Ok((bound, listener)) => {
                // As given where a port is given: callers compare this string.
                let name = match port {
                    Some(_) => given.to_owned(),
                    None => join_host_port(&host, bound.port()),
                };
                return Ok((ListenAddress { name, advertised: advertised(&resolved, options, bound) }, listener));
            }
            Err(error) => last = Some((*address, error)),
        }
    }
    let (address, error) = last.ok_or_else(|| not_here(&host, &resolved, "it has no address"))?;
    let reason = error.to_string();
    Err(match (error.kind(), port) {
        (io::ErrorKind::AddrNotAvailable, _) => not_here(&host, &bind, &reason),
        (io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied, Some(port)) => {
            Cause::PortTaken { address: SocketAddr::new(address, port), reason }.into()
        }
        (io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied, None) => {
            let (min, max) = options.ports;
            Cause::NoPort { address, min, max, reason }.into()
        }
        // No descriptor or thread is to be had.
        _ => Cause::Setup { what: "serving data to other clients", reason }.into(),
    })
}

/// Keeps a port taken without listening on it: for clients that give no memory.
pub(crate) fn reserve(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn resolve(host: &str, options: &StoreOptions) -> Result<Vec<IpAddr>, StoreError> {
    let interrupted = || options.interrupted.as_ref().is_some_and(|interrupted| interrupted());
    let found = resolver::resolve(host, 0, &Deadline::after(RESOLVING, &interrupted)).map_err(|error| match error {
        ConnectionError::Interrupted => Cause::Interrupted.into(),
        error => not_here(host, &[], &error.to_string()),
    })?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.into_iter().map(|found| found.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn not_here(host: &str, resolved: &[IpAddr], reason: &str) -> StoreError {
    let resolved = match resolved {
        [] => "it does not resolve".to_owned(),
        some => some.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    };
    Cause::NotThisMachine { name: host.to_owned(), resolved, reason: reason.to_owned() }.into()
}

/// Takes the port asked for, or a free one of the range.
fn take_port<T>(
    address: IpAddr,
    port: Option<u16>,
    (min, max): (u16, u16),
    listen: &mut impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<(SocketAddr, T)> {
    if let Some(port) = port {
        let address = SocketAddr::new(address, port);
        return Ok((address, listen(address)?));
    }
    let count = u32::from(max - min) + 1;
    // Many clients start at once on one machine: each begins somewhere else.
    let start = (RandomState::new().hash_one(address) % u64::from(count)) as u32;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for step in 0..count {
        let address = SocketAddr::new(address, min + ((start + step) % count) as u16);
        match listen(address) {
            Ok(listener) => return Ok((address, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// An error if one of them is not of this machine.
pub(crate) fn check(told: &[IpAddr]) -> Result<(), StoreError> {
    check_addresses(told).map_err(|error| {
        let list = told.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        let problem = format!(
            "MC_TCP_ADDRESSES (--tcp_addresses) {list}: {error}. MC_STORE_CLIENT_BIND_ADDRESS says what to listen on \
             if another machine forwards connections to this one"
        );
        Cause::InvalidParams(problem).into()
    })
}

fn advertised(resolved: &[IpAddr], options: &StoreOptions, bound: SocketAddr) -> Advertised {
    let at = |ips: &[IpAddr]| Advertised::Addresses(ips.iter().map(|ip| SocketAddr::new(*ip, bound.port())).collect());
    if !options.tcp_addresses.is_empty() {
        return at(&options.tcp_addresses);
    }
    if resolved.iter().any(IpAddr::is_unspecified) {
        return Advertised::TowardsMaster { port: bound.port() };
    }
    // Only the address that is listened on, unless another one is told on purpose.
    match resolved.contains(&bound.ip()) {
        true => at(&[bound.ip()]),
        false => at(resolved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn options(name: &str) -> StoreOptions {
        StoreOptions::new(name, "localhost:50051")
    }

    #[test]
    fn a_name_without_a_port_gets_a_free_one_of_the_range() {
        let one = claim(&options("127.0.0.1"), reserve).unwrap();
        let two = claim(&options("127.0.0.1"), reserve).unwrap();
        assert_ne!(one.0.name, two.0.name);
        for (host, _) in [&one, &two] {
            let port: u16 = host.name.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
            assert!((12300..=14300).contains(&port));
        }
    }

    #[test]
    fn a_name_with_a_port_is_kept_verbatim_and_its_port_is_not_shared() {
        let free = claim(&options("127.0.0.1"), reserve).unwrap();
        let name = free.0.name.replace("127.0.0.1", "localhost");
        let error = claim(&options(&name), reserve).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Setup);
        drop(free);
        assert_eq!(claim(&options(&name), reserve).unwrap().0.name, name);
    }

    #[test]
    fn what_has_nothing_to_do_with_ports_is_not_put_down_to_them() {
        for name in ["127.0.0.1", "127.0.0.1:12345"] {
            let error = claim(&options(name), |_| Err::<(), _>(io::Error::from_raw_os_error(24))).unwrap_err();
            assert!(error.to_string().starts_with("serving data to other clients: Too many open files"), "{error}");
        }
        let error = claim(&options("127.0.0.1"), |_| Err::<(), _>(io::ErrorKind::AddrInUse.into())).unwrap_err();
        assert!(error.to_string().starts_with("no free port"), "{error}");
    }

    #[test]
    fn another_machines_address_is_said_clearly() {
        let error = claim(&options("192.0.2.1"), reserve).unwrap_err();
        assert!(error.to_string().contains("not an address of this machine"), "{error}");
        let mut elsewhere = options("192.0.2.1");
        elsewhere.bind_address = Some("127.0.0.1".parse().unwrap());
        let (host, _) = claim(&elsewhere, reserve).unwrap();
        assert!(host.name.starts_with("192.0.2.1:"));
        assert!(host.advertised.texts("10.0.0.1".parse().unwrap())[0].starts_with("192.0.2.1:"));
    }

    #[test]
    fn of_several_networks_every_address_is_told_and_another_machines_is_refused() {
        let mut several = options("127.0.0.1");
        several.tcp_addresses = vec!["127.0.0.2".parse().unwrap(), "127.0.0.3".parse().unwrap()];
        let (host, _) = claim(&several, reserve).unwrap();
        let port = host.name.strip_prefix("127.0.0.1:").unwrap();
        let texts = host.advertised.texts("10.0.0.1".parse().unwrap());
        assert_eq!(texts, [format!("127.0.0.2:{port}"), format!("127.0.0.3:{port}")]);
        several.tcp_addresses.push("192.0.2.1".parse().unwrap());
        let error = claim(&several, reserve).unwrap_err();
        let (kind, text) = (error.kind(), error.to_string());
        let parts = ["MC_TCP_ADDRESSES", "192.0.2.1 is not an address of this machine", "MC_STORE_CLIENT_BIND_ADDRESS"];
        assert!(kind == ErrorKind::InvalidParams && parts.iter().all(|part| text.contains(part)), "{text}");
        // Behind another machine, which has them.
        several.bind_address = Some("127.0.0.1".parse().unwrap());
        let (host, _) = claim(&several, reserve).unwrap();
        assert_eq!(host.advertised.texts("10.0.0.1".parse().unwrap()).len(), 3);
    }

    #[test]
    fn a_wildcard_is_told_as_the_address_towards_the_master() {
        let (host, _) = claim(&options("0.0.0.0"), reserve).unwrap();
        let texts = host.advertised.texts("10.1.2.3".parse().unwrap());
        assert!(texts[0].starts_with("10.1.2.3:"), "{texts:?}");
    }
}
