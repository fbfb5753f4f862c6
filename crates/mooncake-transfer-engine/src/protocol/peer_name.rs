//! Names of engines, and the addresses behind them.

use std::net::{Ipv6Addr, SocketAddr};

use mooncake_net::ResolveError;
use mooncake_os::{BlockingPool, Deadline};

use crate::error::EngineError;

/// The host and the port of `host:port`, `[ip6]:port`, or a bare host.
pub(crate) fn split(name: &str) -> (&str, Option<u16>) {
    let bare = |host: &'_ str| host.len() >= 2 && host.starts_with('[') && host.ends_with(']');
    match name.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((host, port)) if !host.contains(':') || bare(host) => match port.parse() {
            Ok(port) => (host.trim_start_matches('[').trim_end_matches(']'), Some(port)),
            Err(_) => (name, None),
        },
        _ => (name.trim_start_matches('[').trim_end_matches(']'), None),
    }
}

/// The host and the port of a peer's name. It has both, so what follows the last colon is the port, behind an IPv6
/// address without brackets too: programs join what they are told.
pub(crate) fn split_peer(name: &str) -> Option<(&str, u16)> {
    let (host, port) = name.rsplit_once(':')?;
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = in_brackets.unwrap_or(host);
    let is_ip6 = || host.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    (!host.is_empty() && (!host.contains(':') || is_ip6())).then_some((host, port.parse().ok()?))
}

/// All addresses of a host, IPv4 first, found before the deadline.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    pool: &BlockingPool,
    deadline: &Deadline<'_>,
) -> Result<Vec<SocketAddr>, EngineError> {
    let found = mooncake_net::resolve(host, port, pool, deadline).map_err(|error| match error {
        ResolveError::Resolver(error) => unresolved(host, &error),
        ResolveError::Blocking(error) => EngineError::blocking(host, "the resolution of its name")(error),
    })?;
    Ok(ipv4_first(found))
}

/// The same, for as long as the resolver takes.
pub(crate) fn resolve_without_deadline(host: &str, port: u16) -> Result<Vec<SocketAddr>, EngineError> {
    let found = mooncake_net::resolve_without_deadline(host, port).map_err(|error| unresolved(host, &error))?;
    Ok(ipv4_first(found))
}

fn unresolved(host: &str, error: &std::io::Error) -> EngineError {
    EngineError::Dns { name: host.to_owned(), reason: error.to_string() }
}

/// In the resolver's order otherwise.
fn ipv4_first(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_where_their_users_mean_it() {
        let cases = [
            ("10.0.0.1:15000", "10.0.0.1", Some(15000)),
            ("host", "host", None),
            ("[fe80::1%eth0]:12", "fe80::1%eth0", Some(12)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("host:port", "host:port", None),
        ];
        for (name, host, port) in cases {
            assert_eq!(split(name), (host, port), "{name}");
        }
    }

    #[test]
    fn the_port_of_a_peer_is_what_follows_the_last_colon() {
        let cases = [
            ("10.0.0.1:15000", Some(("10.0.0.1", 15000))),
            ("host:1", Some(("host", 1))),
            ("[fe80::1%eth0]:12", Some(("fe80::1%eth0", 12))),
            ("[::1]:12", Some(("::1", 12))),
            ("::1:16261", Some(("::1", 16261))),
            ("fe80::1%eth0:16261", Some(("fe80::1%eth0", 16261))),
            ("2001:db8::5:1", Some(("2001:db8::5", 1))),
            ("1:2:3:4:5:6:7:8:9", Some(("1:2:3:4:5:6:7:8", 9))),
            ("1:2:3:4:5:6:7:8", None),
            ("::1", None),
            ("[::1]", None),
            ("host", None),
            ("host:port", None),
            ("host:65536", None),
            ("a:b:1", None),
            (":1", None),
            ("[]:1", None),
        ];
        for (name, parts) in cases {
            assert_eq!(split_peer(name), parts, "{name}");
        }
    }
}
