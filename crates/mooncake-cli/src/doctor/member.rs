//! Processes of a pool, as the master tells of them.

use std::net::{IpAddr, ToSocketAddrs};

use mooncake_os::AboutProcess;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use serde_json::Value;

/// A process of the pool, as it calls itself. Nothing of that is proven.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Member {
    /// `host:port` that peers connect to.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Its user.
    pub user: String,
    /// Its program.
    pub program: String,
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// What it is, and of which version.
    pub software: String,
    /// It lends memory, or has a tier.
    pub lends: bool,
    /// Segments that it lends.
    pub segments: u64,
    /// Bytes that it lends.
    pub lent: f64,
    /// It gives its memory to processes of its host.
    pub offers_memory: bool,
    /// The address that it announces; none: it announces a name.
    pub address: Option<IpAddr>,
    /// The master hears of it; what it does not hear of is a problem of its own.
    pub is_present: bool,
    /// It runs on this host, as far as its names tell.
    pub is_here: bool,
}

/// This machine, as members name it.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Addresses of its interfaces; none: the kernel does not tell.
    pub addresses: Vec<IpAddr>,
}

impl Host {
    /// The one of this process, in its network namespace.
    pub fn this() -> Host {
        let interfaces = getifaddrs().map(|all| all.filter_map(|interface| interface.address).collect());
        let interfaces: Vec<SockaddrStorage> = interfaces.unwrap_or_default();
        let address = |one: &SockaddrStorage| {
            let v4 = one.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| one.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        Host { name: AboutProcess::this().host, addresses: interfaces.iter().filter_map(address).collect() }
    }

    /// An address of this host tells more than a name: hosts may have one name, and containers of one host have
    /// several.
    fn has(&self, member: &Member) -> bool {
        match member.address {
            Some(address) if !self.addresses.is_empty() && !address.is_loopback() && !address.is_unspecified() => {
                self.addresses.contains(&address)
            }
            // A session that a master has from its log alone does not say its host yet.
            _ => member.host == self.name || member.host.is_empty(),
        }
    }
}

/// Clients of a status, seen from a host.
pub fn members(status: &Value, from: &Host) -> Vec<Member> {
    let clients = status["clients"].as_array().map_or(&[][..], |all| all);
    let of = |client: &Value| {
        let text = |name: &str| client[name].as_str().unwrap_or("").to_owned();
        let number = |name: &str| client[name].as_f64().unwrap_or(0.0);
        let (name, host, lent) = (text("name"), text("host"), number("lent_bytes"));
        let mut member = Member {
            user: text("user"),
            program: text("program"),
            pid: number("pid") as u32,
            software: text("software"),
            lends: lent + number("tiers") > 0.0,
            segments: number("segments") as u64,
            lent,
            offers_memory: client["paths"].as_array().is_some_and(|paths| paths.iter().any(|path| path == "shm")),
            address: literal(&name),
            is_present: !matches!(client["state"].as_str(), Some("away" | "waits_for_heir")),
            is_here: false,
            name,
            host,
        };
        member.is_here = from.has(&member);
        member
    };
    clients.iter().map(of).collect()
}

/// The address that a host, or a `host:port`, has without a name service.
pub fn literal(name: &str) -> Option<IpAddr> {
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    let address = bare(name).or_else(|| bare(name.rsplit_once(':')?.0))?;
    // Sockets of both families name an IPv4 address so.
    Some(address.to_canonical())
}

/// Addresses of a `host:port`, by the name service where it takes one.
pub fn resolve(name: &str) -> Vec<IpAddr> {
    literal(name).map_or_else(
        || name.to_socket_addrs().map_or(Vec::new(), |found| found.map(|address| address.ip()).collect()),
        |address| vec![address],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_is_here_by_its_address_and_else_by_its_host() {
        let client = |name: &str, host: &str| json!({"name": name, "host": host, "lent_bytes": 4, "paths": ["shm"]});
        let status = json!({"clients": [
            client("127.0.0.1:1", "me"), client("127.0.0.1:1", "other"), client("192.0.2.1:1", "me"),
            client("[::1]:1", "me"), client("node-7:1", "node-7"), client("127.0.0.1:1", ""),
            client("10.0.0.1:1", "container"), client("[::ffff:10.0.0.1]:1", "container"),
        ]});
        let me = Host { name: "me".to_owned(), addresses: vec!["10.0.0.1".parse().unwrap()] };
        let members = members(&status, &me);
        let here: Vec<bool> = members.iter().map(|member| member.is_here).collect();
        assert_eq!(here, [true, false, false, true, false, true, true, true]);
        assert!(members.iter().all(|member| member.lends && member.offers_memory));
        assert_eq!(members[3].address, Some("::1".parse().unwrap()));
        assert_eq!(members[4].address, None);
        let unseen = Host { addresses: Vec::new(), ..me };
        let here = super::members(&status, &unseen).iter().map(|member| member.is_here).collect::<Vec<_>>();
        assert_eq!(here, [true, false, true, true, false, true, false, false], "by names alone");
    }

    #[test]
    fn an_address_is_read_with_and_without_a_port() {
        for name in ["::1", "[::1]", "[::1]:12300"] {
            assert_eq!(literal(name), Some("::1".parse().unwrap()), "{name}");
        }
        for name in ["10.0.0.1", "10.0.0.1:12300", "[::ffff:10.0.0.1]:12300"] {
            assert_eq!(literal(name), Some("10.0.0.1".parse().unwrap()), "{name}");
        }
        assert_eq!((literal("node-7:1"), literal("node-7"), literal("")), (None, None, None));
    }

    #[test]
    fn this_machine_has_its_loopback_address_and_not_all_that_could_be_bound() {
        let this = Host::this();
        assert!(this.addresses.contains(&"127.0.0.1".parse().unwrap()), "{this:?}");
        assert!(!this.addresses.contains(&"192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn a_status_of_another_version_has_members_with_what_it_says_of_them() {
        assert!(super::members(&json!({}), &Host::default()).is_empty());
        let odd = json!({"clients": [{"name": 7, "pid": "x"}, null]});
        assert_eq!(
            super::members(&odd, &Host::default()),
            vec![Member { is_here: true, is_present: true, ..Member::default() }; 2]
        );
    }
}
