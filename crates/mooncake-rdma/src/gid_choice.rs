//! Which address of a port its connections use.
//!
//! A port with RoCE has several: of each address of its network device one for RoCE v1, which is not routed, and one
//! for v2. The choice is Mooncake's: the address that most peers can reach.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use mooncake_verbs::{Context, Gid, LinkLayer, Port, VerbsError};

/// An entry of a port's table, and what the kernel tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its place in the table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Whether packets to it are routed as UDP, or go by InfiniBand.
    pub is_routed: bool,
    /// The network device that it belongs to, if any; none for one that is down.
    pub netdev: Option<String>,
}

/// Candidates of a port, the best first: to be tried in this order.
pub fn candidates(context: &Context, number: u8, port: &Port) -> Result<Vec<Candidate>, VerbsError> {
    let folder = context.device().path().join("ports").join(number.to_string()).join("gid_attrs");
    let mut found = Vec::new();
    for index in 0..port.gids.min(256) {
        let gid = context.gid(number, index)?;
        if gid.is_zero() {
            continue;
        }
        let told = |what: &str| text(&folder.join(what).join(index.to_string()));
        let netdev = told("ndevs").filter(|name| is_up(name));
        let is_routed = match port.link_layer {
            LinkLayer::InfiniBand => true,
            // Not told by old kernels: the odd ones are v2 by custom only, so that they come after all that is known.
            LinkLayer::Ethernet => told("types").is_some_and(|kind| kind.contains("v2")),
        };
        found.push(Candidate { index: index as u8, gid, is_routed, netdev });
    }
    found.retain(|candidate| candidate.is_routed);
    found.sort_by_key(rank);
    Ok(found)
}

/// Lower is better. Of equals the first of the table.
fn rank(candidate: &Candidate) -> u8 {
    let has_netdev = candidate.netdev.is_some();
    match (reach(candidate), has_netdev) {
        (Reach::Routable, true) => 0,
        (Reach::Routable, false) => 1,
        (Reach::Private, true) => 2,
        (Reach::Near, true) => 3,
        (Reach::Private, false) => 4,
        (Reach::Near, false) => 5,
    }
}

enum Reach {
    /// An address of the internet, or unique in its organisation.
    Routable,
    /// One of version 4 that is the organisation's own.
    Private,
    /// Of one link, or of a network that hosts make among containers.
    Near,
}

fn reach(candidate: &Candidate) -> Reach {
    const OVERLAYS: [&str; 6] = ["flannel", "cni", "calico", "cali", "vxlan", "docker"];
    let is_overlay = |name: &String| OVERLAYS.iter().any(|prefix| name.starts_with(prefix)) || name == "tunl0";
    if candidate.netdev.as_ref().is_some_and(is_overlay) {
        return Reach::Near;
    }
    let address = candidate.gid.address();
    match address.to_ipv4_mapped() {
        Some(v4) if v4.is_link_local() => Reach::Near,
        Some(v4) if v4.is_private() || is_shared(v4) => Reach::Private,
        Some(_) => Reach::Routable,
        None if address.is_unicast_link_local() => Reach::Near,
        None => Reach::Routable,
    }
}

/// 100.64.0.0/10: of carriers.
fn is_shared(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    first == 100 && (64..128).contains(&second)
}

fn is_up(netdev: &str) -> bool {
    // Below its own folder a fake card has no network device, whose state nothing tells.
    text(&Path::new("/sys/class/net").join(netdev).join("operstate")).is_none_or(|state| state != "down")
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: u8, address: &str, netdev: Option<&str>) -> Candidate {
        let address: std::net::IpAddr = address.parse().unwrap();
        let octets = match address {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(v6) => v6.octets(),
        };
        Candidate { index, gid: Gid(octets), is_routed: true, netdev: netdev.map(str::to_owned) }
    }

    #[test]
    fn the_address_that_most_peers_reach_comes_first() {
        let mut all = [
            candidate(0, "fe80::1", Some("eth0")),
            candidate(1, "10.1.2.3", None),
            candidate(2, "10.1.2.3", Some("eth0")),
            candidate(3, "8.8.8.8", Some("flannel.1")),
            candidate(4, "2001:db8::7", None),
            candidate(5, "100.64.0.1", Some("eth0")),
            candidate(6, "8.8.8.8", Some("eth0")),
            candidate(7, "169.254.1.1", None),
        ];
        all.sort_by_key(rank);
        let order: Vec<u8> = all.iter().map(|candidate| candidate.index).collect();
        assert_eq!(order, [6, 4, 2, 5, 0, 3, 1, 7]);
    }
}
