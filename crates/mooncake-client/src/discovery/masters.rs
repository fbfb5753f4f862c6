//! Where the masters are.

use std::fmt;
use std::net::SocketAddr;

use mooncake_net::{join_host_port, split_host_port};
use mooncake_os::Deadline;

use crate::connection_error::ConnectionError;
use crate::discovery::resolver;
use crate::error::{Cause, StoreError};

/// Masters in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MasterAddress {
    hosts: Vec<(String, u16)>,
}

/// Hosts and ports of the masters that `host:port` names, which is one: see `MasterAddress::alone`.
pub fn masters(text: &str) -> Result<Vec<(String, u16)>, StoreError> {
    MasterAddress::parse(text)?.alone().map(|address| address.hosts)
}

impl MasterAddress {
    /// Parses `host:port[,host:port...]`; IPv6 addresses stand in brackets.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(Cause::Unsupported(format!(
                "master address {text:?}: masters found through {scheme} are not part of this version; \
                 name it directly, host:port"
            ))
            .into());
        }
        let hosts: Result<Vec<_>, StoreError> = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| {
                split_host_port(part).and_then(|(host, port)| Some((host, port.filter(|port| *port != 0)?))).ok_or_else(
                    || {
                        Cause::InvalidParams(format!(
                            "master address {part:?} is not host:port (IPv6 in brackets, [::1]:50051)"
                        ))
                        .into()
                    },
                )
            })
            .collect();
        let hosts = hosts?;
        if hosts.is_empty() {
            return Err(Cause::InvalidParams("no master address given; it is host:port".into()).into());
        }
        Ok(Self { hosts })
    }

    /// Refused if there are several: each has a pool of its own as long as none stands by for another, and a client
    /// that changed over would find nothing.
    pub fn alone(self) -> Result<Self, StoreError> {
        match self.hosts.len() {
            1 => Ok(self),
            several => Err(Cause::InvalidParams(format!(
                "master address \"{self}\": {several} masters, each with a pool of its own, for this version has no \
                 standby; give one, host:port"
            ))
            .into()),
        }
    }

    /// Resolves one of them, counted from 0 and starting over after the last.
    pub fn resolve(&self, index: usize, deadline: &Deadline<'_>) -> Result<Vec<SocketAddr>, ConnectionError> {
        let (host, port) = &self.hosts[index % self.hosts.len()];
        resolver::resolve(host, *port, deadline).map_err(|error| match error {
            ConnectionError::Interrupted => error,
            error => ConnectionError::Io(std::io::Error::other(format!("{host}:{port} does not resolve: {error}"))),
        })
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Host of one of them, as it was named.
    pub fn host(&self, index: usize) -> &str {
        &self.hosts[index % self.hosts.len()].0
    }
}

impl fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(|(host, port)| join_host_port(host, *port)).collect();
        f.write_str(&hosts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn several_masters_are_kept_in_order() {
        let masters = MasterAddress::parse("127.0.0.1:1, [::1]:2").unwrap();
        assert_eq!(masters.to_string(), "127.0.0.1:1, [::1]:2");
        let soon = Deadline::at(Instant::now() + Duration::from_secs(5));
        let resolve = |index| masters.resolve(index, &soon).unwrap();
        assert_eq!(resolve(1), ["[::1]:2".parse::<SocketAddr>().unwrap()]);
        assert_eq!(resolve(2), resolve(0));
    }

    #[test]
    fn a_second_master_is_refused_with_its_reason() {
        let two = MasterAddress::parse("127.0.0.1:1,[::1]:2").unwrap().alone().unwrap_err();
        assert_eq!(two.kind(), ErrorKind::InvalidParams);
        assert!(two.to_string().contains("127.0.0.1:1, [::1]:2") && two.to_string().contains("standby"), "{two}");
        assert!(MasterAddress::parse("127.0.0.1:1,").unwrap().alone().is_ok());
    }

    #[test]
    fn what_cannot_be_reached_directly_is_refused_by_name() {
        for text in ["etcd://10.0.0.1:2379", "redis://x", "k8s://ns/name"] {
            let error = MasterAddress::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(text.split(':').next().unwrap()));
        }
        for text in ["", "host", "host:0", "host:1,other", ",,"] {
            assert_eq!(MasterAddress::parse(text).unwrap_err().kind(), ErrorKind::InvalidParams, "{text:?}");
        }
    }
}
