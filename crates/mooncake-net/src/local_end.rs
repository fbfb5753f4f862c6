//! From which of this machine's addresses a connection comes, where it has one in each of several networks.
//!
//! The kernel's routes choose the device, and the first address of it. That is right for networks apart. Where two of
//! the machine's addresses are in one network with the peer, the kernel would choose the same one for every connection.
//! There the connections take turns, so that answers come back by both, and rules that route by the source address
//! apply. In any other network than those of its addresses this machine says nothing: such an address may not be
//! answered there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The networks that this machine is directly part of.
#[derive(Debug, Clone, Default)]
pub struct LocalNetworks(Vec<Network>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    of: IpAddr,
    /// Bits that its addresses have in common.
    prefix: u32,
}

impl LocalNetworks {
    /// As the kernel knows them now; those that it does not tell are none.
    pub fn now() -> LocalNetworks {
        let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
        LocalNetworks::of(&read("/proc/thread-self/net/route"), &read("/proc/thread-self/net/if_inet6"))
    }

    /// Of the kernel's list of IPv4 routes, and that of IPv6 addresses.
    fn of(routes: &str, addresses: &str) -> LocalNetworks {
        let v4 = routes.lines().skip(1).filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |nth: usize| u32::from_str_radix(fields.get(nth)?, 16).ok().map(u32::from_be);
            // Those with a gateway lead to networks of others.
            let (to, gateway, mask) = (number(1)?, number(2)?, number(7)?);
            (gateway == 0 && mask != 0).then(|| Network { of: Ipv4Addr::from(to).into(), prefix: mask.leading_ones() })
        });
        let v6 = addresses.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let of = u128::from_str_radix(fields.next()?, 16).ok()?;
            let prefix = u32::from_str_radix(fields.nth(1)?, 16).ok()?;
            Some(Network { of: Ipv6Addr::from(of).into(), prefix })
        });
        LocalNetworks(v4.chain(v6).collect())
    }

    /// The address of `own` that a connection to the peer's `nth` address comes from. None: what the kernel's routes
    /// say.
    pub fn local_end(&self, own: &[IpAddr], nth: usize, peer: IpAddr) -> Option<IpAddr> {
        let near = |own: IpAddr| self.0.iter().any(|network| network.has(own) && network.has(peer));
        let near: Vec<IpAddr> = own.iter().copied().filter(|own| near(*own)).collect();
        near.get(nth % near.len().max(1)).copied()
    }
}

impl Network {
    fn has(&self, address: IpAddr) -> bool {
        let different = match (self.of, address) {
            (IpAddr::V4(of), IpAddr::V4(address)) => (u32::from(of) ^ u32::from(address)).leading_zeros(),
            (IpAddr::V6(of), IpAddr::V6(address)) => (u128::from(of) ^ u128::from(address)).leading_zeros(),
            _ => return false,
        };
        different >= self.prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default route, 10.1.0.0/16 and 10.2.3.0/24; and fd00::5/64.
    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100010A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth1\t0003020A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";
    const ADDRESSES: &str = "fd000000000000000000000000000005 02 40 00 80     eth0\n";

    fn end(own: &[&str], nth: usize, peer: &str) -> Option<String> {
        let own: Vec<IpAddr> = own.iter().map(|own| own.parse().unwrap()).collect();
        let networks = LocalNetworks::of(ROUTES, ADDRESSES);
        networks.local_end(&own, nth, peer.parse().unwrap()).map(|own| own.to_string())
    }

    #[test]
    fn a_connection_comes_from_the_address_in_the_peers_network() {
        let own = ["10.1.0.5", "10.2.3.5", "fd00::5"];
        assert_eq!(end(&own, 0, "10.2.3.9").unwrap(), "10.2.3.5");
        assert_eq!(end(&own, 1, "10.1.200.9").unwrap(), "10.1.0.5");
        assert_eq!(end(&own, 0, "fd00::9").unwrap(), "fd00::5");
    }

    #[test]
    fn two_addresses_in_one_network_take_turns() {
        let own = ["10.1.0.5", "10.1.0.6"];
        assert_eq!([0, 1, 2].map(|nth| end(&own, nth, "10.1.0.9").unwrap()), ["10.1.0.5", "10.1.0.6", "10.1.0.5"]);
    }

    #[test]
    fn routes_decide_where_no_address_is_in_the_peers_network() {
        assert_eq!(end(&["10.1.0.5"], 0, "10.2.3.9"), None, "the machine has another address there");
        assert_eq!(end(&["10.1.0.5"], 0, "192.0.2.1"), None, "behind the gateway");
        assert_eq!(end(&[], 0, "10.1.0.9"), None, "nothing is set");
        assert!(LocalNetworks::now().local_end(&["127.0.0.1".parse().unwrap()], 0, [192, 0, 2, 1].into()).is_none());
    }
}
