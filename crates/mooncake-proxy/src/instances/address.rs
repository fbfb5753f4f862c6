//! Where an instance is: `host:port`, and for a prefill instance the port of its bootstrap service.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// `host:port` or `host:port:bootstrap_port`. IPv6 addresses stand in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceAddress {
    host: String,
    port: u16,
    bootstrap_port: Option<u16>,
}

/// A text that names no instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no instance: {why}; it is written host:port, or host:port:bootstrap_port for a prefill instance")]
pub struct NoAddress {
    text: String,
    why: &'static str,
}

impl InstanceAddress {
    /// `host:port`, as requests name it and as pages show it.
    pub fn authority(&self) -> String {
        bracketed(&self.host, self.port)
    }

    /// Where the prefill instance says which engine it is; none if its KV cache goes through the pool.
    pub fn bootstrap(&self) -> Option<String> {
        self.bootstrap_port.map(|port| bracketed(&self.host, port))
    }

    /// The same with a bootstrap port, unless it has one.
    pub fn or_bootstrap(mut self, port: Option<u16>) -> InstanceAddress {
        self.bootstrap_port = self.bootstrap_port.or(port);
        self
    }
}

fn bracketed(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for InstanceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority())
    }
}

impl FromStr for InstanceAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<InstanceAddress, NoAddress> {
        let no = |why| NoAddress { text: text.to_owned(), why };
        if text.starts_with("https://") {
            return Err(no("the proxy speaks no TLS to instances"));
        }
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, rest) = match bare.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(|| no("its bracket is not closed"))?;
                host.parse::<Ipv6Addr>().map_err(|_| no("what stands in brackets is no IPv6 address"))?;
                (host, rest.strip_prefix(':').ok_or_else(|| no("it has no port"))?)
            }
            None => bare.split_once(':').ok_or_else(|| no("it has no port"))?,
        };
        if !is_host(host) {
            return Err(no("its host is neither a name nor an address"));
        }
        let (port, bootstrap) = match rest.split_once(':') {
            Some((port, bootstrap)) => (port, Some(bootstrap)),
            None => (rest, None),
        };
        let number = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
            _ => Err(no("a port is a number from 1 to 65535")),
        };
        let (port, bootstrap_port) = (number(port)?, bootstrap.map(number).transpose()?);
        Ok(InstanceAddress { host: host.to_owned(), port, bootstrap_port })
    }
}

fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    host.parse::<IpAddr>().is_ok() || (host.len() <= 253 && host.trim_end_matches('.').split('.').all(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_written_as_people_write_them() {
        let read = |text: &str| {
            let address: InstanceAddress = text.parse().unwrap();
            (address.authority(), address.bootstrap())
        };
        assert_eq!(read("127.0.0.1:8100"), ("127.0.0.1:8100".into(), None));
        assert_eq!(read("http://gpu-7.rack:8100/"), ("gpu-7.rack:8100".into(), None));
        assert_eq!(read("gpu7:8100:8998"), ("gpu7:8100".into(), Some("gpu7:8998".into())));
        assert_eq!(read("[::1]:8100:8998"), ("[::1]:8100".into(), Some("[::1]:8998".into())));
        let address: InstanceAddress = "a:1:2".parse().unwrap();
        assert_eq!(address.clone().or_bootstrap(Some(3)), address);
    }

    #[test]
    fn what_is_none_is_named_with_the_reason() {
        for text in
            ["", "a", "a:", "a:0", "a:65536", "a:+1", "a:1:x", "::1:80", "[::1", "[::1]80", "[a]:1", "a b:1", "a/b:1"]
        {
            let error = text.parse::<InstanceAddress>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
