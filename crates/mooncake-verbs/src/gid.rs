//! Addresses of ports.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::abi::IbvGid;

/// The 16 bytes that a port is reached by, in network order. With RoCE an IPv6 address, or an IPv4 one mapped into it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// No address at all: an entry of the table that is not in use.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// As an address of the internet protocol.
    pub fn address(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }
}

/// 16 two-digit numbers joined by colons, as engines' documents have them.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, byte) in self.0.iter().enumerate() {
            let colon = if nth == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", self.address())
    }
}

/// Text that is no [`Gid`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no GID: 16 two-digit hexadecimal numbers joined by colons")]
pub struct NotAGid(pub String);

/// The form of [`Display`](fmt::Display) alone: that of the kernel's files has groups of two bytes.
impl FromStr for Gid {
    type Err = NotAGid;

    fn from_str(text: &str) -> Result<Self, NotAGid> {
        let no = || NotAGid(text.chars().take(64).collect());
        let mut bytes = [0; 16];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+')).ok_or_else(no)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| no())?;
        }
        if parts.next().is_some() {
            return Err(no());
        }
        Ok(Gid(bytes))
    }
}

impl From<IbvGid> for Gid {
    fn from(gid: IbvGid) -> Self {
        Gid(gid.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_that_of_documents_and_comes_back() {
        let text = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01";
        let gid: Gid = text.parse().unwrap();
        assert_eq!(gid.to_string(), text);
        assert_eq!(gid.address().to_ipv4_mapped(), Some("10.77.0.1".parse().unwrap()));
        assert!(!gid.is_zero());
    }

    #[test]
    fn other_text_is_refused() {
        let good = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01";
        let short = &good[3..];
        for text in ["", "fe80::1", short, &format!("{good}:00"), &good.replace("0a", "+a"), &good.replace("4d", "4")] {
            assert!(text.parse::<Gid>().is_err(), "{text}");
        }
    }
}
