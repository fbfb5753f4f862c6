//! A list of this machine's addresses, as settings give it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

/// Most addresses of a list.
pub const ADDRESSES_MAX: usize = 16;

/// What is wrong with a list of addresses.
#[derive(Debug, thiserror::Error)]
pub enum AddressListError {
    /// It is no address.
    #[error("{value:?} is no IP address; write 10.0.0.5, or [fd00::5] or fd00::5, with commas between several")]
    NotAnAddress {
        /// As given.
        value: String,
    },
    /// An address that peers cannot reach, as it says nothing of which network it is of.
    #[error("{value} is no address of one network; name the address that this machine has in each network")]
    NotOneNetwork {
        /// As given.
        value: IpAddr,
    },
    /// An address is there more than once.
    #[error("{value} is there twice; name each address once")]
    Twice {
        /// Which one.
        value: IpAddr,
    },
    /// More than anybody has networks.
    #[error("{count} addresses; a list has at most {ADDRESSES_MAX}: one of each network is enough")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// Another machine's address.
    #[error("{value} is not an address of this machine ({source}); `ip address` lists those that it has")]
    NotHere {
        /// Which one.
        value: IpAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Reads a list with commas between its addresses, IPv6 in brackets or without.
pub fn parse_addresses(text: &str) -> Result<Vec<IpAddr>, AddressListError> {
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let bare = part.strip_prefix('[').and_then(|part| part.strip_suffix(']'));
        let parsed = match bare {
            Some(bare) => bare.parse().ok().map(|ip: Ipv6Addr| IpAddr::V6(ip)),
            None => part.parse().ok(),
        };
        let ip = parsed.ok_or_else(|| AddressListError::NotAnAddress { value: part.to_owned() })?;
        // Without the number of a device, which means nothing elsewhere, a link-local one leads nowhere.
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if ip.is_unspecified() || ip.is_multicast() || is_link_local {
            return Err(AddressListError::NotOneNetwork { value: ip });
        }
        if addresses.contains(&ip) {
            return Err(AddressListError::Twice { value: ip });
        }
        addresses.push(ip);
    }
    if addresses.len() > ADDRESSES_MAX {
        return Err(AddressListError::TooMany { count: addresses.len() });
    }
    Ok(addresses)
}

/// An error if one of them is not of this machine.
pub fn check_addresses(addresses: &[IpAddr]) -> Result<(), AddressListError> {
    for address in addresses {
        if let Err(source) = UdpSocket::bind(SocketAddr::new(*address, 0))
            && source.kind() == ErrorKind::AddrNotAvailable
        {
            return Err(AddressListError::NotHere { value: *address, source });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds_are_read_with_brackets_and_without() {
        let read =
            |text: &str| -> Vec<String> { parse_addresses(text).unwrap().iter().map(IpAddr::to_string).collect() };
        assert_eq!(read("10.0.0.5, 10.1.0.5"), ["10.0.0.5", "10.1.0.5"]);
        assert_eq!(read("[fd00::5],fd01::5 ,127.0.0.1,"), ["fd00::5", "fd01::5", "127.0.0.1"]);
        assert!(read("").is_empty() && read(" , ").is_empty());
    }

    #[test]
    fn what_is_no_list_of_addresses_is_refused_by_the_value_that_is_wrong() {
        let refused = |text: &str| parse_addresses(text).unwrap_err().to_string();
        for (text, wrong) in [
            ("10.0.0.5,host", "\"host\" is no IP address"),
            ("10.0.0.5:80", "\"10.0.0.5:80\" is no IP"),
            ("[10.0.0.5]", "\"[10.0.0.5]\" is no IP"),
            ("[::1", "\"[::1\" is no IP"),
            ("10.0.0.5 10.0.0.6", "\"10.0.0.5 10.0.0.6\" is no IP"),
            ("10.0.0.5,10.1.0.5,10.0.0.5", "10.0.0.5 is there twice"),
            ("::1,[::1]", "::1 is there twice"),
            ("0.0.0.0", "0.0.0.0 is no address of one network"),
            ("fe80::1", "fe80::1 is no address of one network"),
            ("224.0.0.1", "224.0.0.1 is no address of one network"),
        ] {
            assert!(refused(text).contains(wrong), "{text}: {}", refused(text));
        }
        let many: Vec<String> = (0..=ADDRESSES_MAX).map(|nth| format!("10.0.0.{nth}")).collect();
        assert!(refused(&many.join(",")).starts_with("17 addresses"));
    }

    #[test]
    fn another_machines_address_is_named() {
        check_addresses(&parse_addresses("127.0.0.1,127.0.0.2").unwrap()).unwrap();
        let error = check_addresses(&parse_addresses("127.0.0.1,192.0.2.1").unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("192.0.2.1 is not an address of this machine"), "{error}");
    }
}
