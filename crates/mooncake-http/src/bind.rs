//! Ports that are listened on.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpListener;

/// Connections that may wait while a server that listens already gets ready to answer.
const BACKLOG: i32 = 4096;

/// A port that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {what}: {source}; {}", bind_remedy(source, flag))]
pub struct BindError {
    /// For what.
    pub what: &'static str,
    /// Where.
    pub address: SocketAddr,
    /// The flag with the port.
    pub flag: &'static str,
    /// What failed.
    pub source: io::Error,
}

/// What to do when a port cannot be listened on that a flag names.
pub fn bind_remedy(source: &io::Error, flag: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrNotAvailable => "name an address of this machine".to_owned(),
        _ => format!("choose another port with --{flag}"),
    }
}

/// Listens at an address, inside a tokio runtime. Port 0 is any free one. `what` and `flag` are for the error.
pub fn bind(what: &'static str, flag: &'static str, ip: IpAddr, port: u16) -> Result<TcpListener, BindError> {
    let address = SocketAddr::new(ip, port);
    let open = || {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() && ip.is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().map_err(|source| BindError { what, address, flag, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_machine_is_not_mended_by_another_port() {
        let error = |ip: [u8; 4], port| bind("metrics", "metrics_port", ip.into(), port).unwrap_err().to_string();
        // Of no machine (RFC 5737).
        let elsewhere = error([192, 0, 2, 1], 0);
        assert!(
            elsewhere.contains("name an address of this machine") && !elsewhere.contains("port with"),
            "{elsewhere}"
        );
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = error([127, 0, 0, 1], taken.local_addr().unwrap().port());
        assert!(taken.contains("choose another port with --metrics_port"), "{taken}");
    }
}
