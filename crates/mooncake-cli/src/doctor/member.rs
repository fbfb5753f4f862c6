//! Processes of a pool, as the master tells of them.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

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
    /// Addresses of its name; none: it has none.
    pub addresses: Vec<IpAddr>,
    /// The master hears of it; what it does not hear of is a problem of its own.
    pub is_present: bool,
    /// It runs on this host, as far as its names tell.
    pub is_here: bool,
}

/// Clients of a status, seen from a host of that name.
pub fn members(status: &Value, own_host: &str) -> Vec<Member> {
    let clients = status["clients"].as_array().map_or(&[][..], |all| all);
    let of = |client: &Value| {
        let text = |name: &str| client[name].as_str().unwrap_or("").to_owned();
        let number = |name: &str| client[name].as_f64().unwrap_or(0.0);
        let (name, host, lent) = (text("name"), text("host"), number("lent_bytes"));
        let addresses = literal(&name).into_iter().collect();
        let mut member = Member {
            user: text("user"),
            program: text("program"),
            pid: number("pid") as u32,
            software: text("software"),
            lends: lent + number("tiers") > 0.0,
            segments: number("segments") as u64,
            lent,
            offers_memory: client["paths"].as_array().is_some_and(|paths| paths.iter().any(|path| path == "shm")),
            addresses,
            is_present: !matches!(client["state"].as_str(), Some("away" | "waits_for_heir")),
            is_here: false,
            name,
            host,
        };
        member.is_here = is_here(&member, own_host);
        member
    };
    clients.iter().map(of).collect()
}

/// An address of this host tells more than a name: hosts may have one name, and containers of one host have several.
fn is_here(member: &Member, own_host: &str) -> bool {
    match member.addresses.first() {
        Some(address) if !address.is_loopback() && !address.is_unspecified() => is_of_this_host(*address),
        // A session that a master has from its log alone does not say its host yet.
        _ => member.host == own_host || member.host.is_empty(),
    }
}

/// Whether it can be bound here, which sends nothing.
pub fn is_of_this_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The address that a `host:port` has without a name service.
fn literal(name: &str) -> Option<IpAddr> {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
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
        ]});
        let members = members(&status, "me");
        let here: Vec<bool> = members.iter().map(|member| member.is_here).collect();
        assert_eq!(here, [true, false, false, true, false, true]);
        assert!(members.iter().all(|member| member.lends && member.offers_memory));
        assert_eq!(members[3].addresses, ["::1".parse::<IpAddr>().unwrap()]);
        assert!(members[4].addresses.is_empty());
    }

    #[test]
    fn a_status_of_another_version_has_members_with_what_it_says_of_them() {
        assert!(super::members(&json!({}), "me").is_empty());
        let odd = json!({"clients": [{"name": 7, "pid": "x"}, null]});
        assert_eq!(
            super::members(&odd, "me"),
            vec![Member { is_here: true, is_present: true, ..Member::default() }; 2]
        );
    }
}
