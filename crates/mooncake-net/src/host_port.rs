//! `host:port`, as addresses are written.

use std::net::Ipv6Addr;

/// `host:port`, with brackets where the host needs them.
pub fn join_host_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Splits `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
pub fn split_host_port(text: &str) -> Option<(String, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':')?.parse().ok()?),
        };
        return Some((host.to_owned(), port));
    }
    match text.split_once(':') {
        None => (!text.is_empty()).then(|| (text.to_owned(), None)),
        Some((_, rest)) if rest.contains(':') => text.parse::<Ipv6Addr>().ok().map(|_| (text.to_owned(), None)),
        Some((host, port)) if !host.is_empty() => Some((host.to_owned(), Some(port.parse().ok()?))),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_brackets() {
        for (text, host, port) in [
            ("a", "a", None),
            ("a:1", "a", Some(1)),
            ("10.0.0.1:50051", "10.0.0.1", Some(50051)),
            ("[::1]:50051", "::1", Some(50051)),
            ("[fe80::1]", "fe80::1", None),
            ("::1", "::1", None),
        ] {
            assert_eq!(split_host_port(text), Some((host.to_owned(), port)), "{text}");
        }
        for text in ["", ":1", "a:", "a:x", "a:70000", "[::1", "[::1]50051", "1:2:3:zz"] {
            assert_eq!(split_host_port(text), None, "{text}");
        }
    }

    #[test]
    fn a_host_with_colons_is_put_in_brackets() {
        assert_eq!((join_host_port("::1", 5), join_host_port("h", 5)), ("[::1]:5".to_owned(), "h:5".to_owned()));
    }
}
