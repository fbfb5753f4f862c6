//! TCP ports on which processes of this network namespace listen.

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;

/// The state LISTEN of `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Ports that are listened on, on whatever address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listeners(BTreeSet<u16>);

impl Listeners {
    /// As the kernel lists them; none where it does not.
    pub fn read() -> Listeners {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        Listeners::of(&tables.concat())
    }

    fn of(table: &str) -> Listeners {
        let port = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
            let (_, port) = local.rsplit_once(':').filter(|_| state == LISTEN)?;
            u16::from_str_radix(port, 16).ok()
        };
        Listeners(table.lines().filter_map(port).collect())
    }

    /// Whether a process listens on it.
    pub fn has(&self, port: u16) -> bool {
        self.0.contains(&port)
    }

    /// Those of a range that are listened on.
    pub fn taken(&self, ports: &RangeInclusive<u16>) -> Vec<u16> {
        self.0.iter().copied().filter(|port| ports.contains(port)).collect()
    }
}

#[cfg(test)]
impl<const N: usize> From<[u16; N]> for Listeners {
    fn from(ports: [u16; N]) -> Listeners {
        Listeners(ports.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ports_are_those_that_are_listened_on_and_no_connections() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:C384 00000000:0000 0A 00000000:00000000 00:00000000\n   \
                     1: 0100007F:303D 0100007F:C384 01 00000000:00000000 00:00000000\n   \
                     0: 00000000000000000000000001000000:303E 00000000000000000000000000000000:0000 0A 0 0\n   odd\n";
        let listeners = Listeners::of(table);
        assert_eq!(listeners, Listeners::from([50_052, 12_350]));
        assert_eq!((listeners.taken(&(12_300..=14_300)), listeners.taken(&(12_351..=14_300))), (vec![12_350], vec![]));
        #[allow(clippy::reversed_empty_ranges, reason = "a variable may say so")]
        let none = 2..=1;
        assert!(listeners.taken(&none).is_empty());
    }

    #[test]
    fn a_port_of_this_process_is_among_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Listeners::read().has(listener.local_addr().unwrap().port()));
    }
}
