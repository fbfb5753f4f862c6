//! Names of engines, and the addresses in them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::errands::Errands;
use crate::error::EngineError;
use crate::transport::stall::Patience;

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

/// `host:port`, with brackets where the host needs them.
pub(crate) fn join(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// All addresses of a host, IPv4 first, found while the caller has patience.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    errands: &Errands,
    patience: &Patience<'_>,
) -> Result<Vec<SocketAddr>, EngineError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    errands.run(host, "the resolution of its name", patience, move || resolve_at_length(&name, port))?
}

/// The same, for as long as the resolver takes.
pub(crate) fn resolve_at_length(host: &str, port: u16) -> Result<Vec<SocketAddr>, EngineError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let failed = |reason: String| EngineError::Dns { name: host.to_owned(), reason };
    let mut found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| failed(error.to_string()))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    if found.is_empty() {
        return Err(failed("it has no address".into()));
    }
    Ok(found)
}

/// Now, as segment documents say it: `2026-01-31 23:59:59.000000`, UTC.
pub(crate) fn timestamp() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}.{:06}", second % 60, now.subsec_micros())
}

/// Year, month and day of so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
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
        assert_eq!((join("::1", 5), join("h", 5)), ("[::1]:5".to_owned(), "h:5".to_owned()));
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

    #[test]
    fn days_are_dates() {
        assert_eq!([0, 59, 11_016, 20_778].map(date), [(1970, 1, 1), (1970, 3, 1), (2000, 2, 29), (2026, 11, 21)]);
    }
}
