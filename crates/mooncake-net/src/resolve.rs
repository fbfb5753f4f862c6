//! Addresses of hosts by their names.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use mooncake_os::{BlockingError, BlockingPool, Deadline};

/// Why there are no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The resolver says so, or gives none.
    #[error(transparent)]
    Resolver(#[from] io::Error),
    /// The resolver was not asked, or not waited for.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}

/// All addresses of a host, one at least, in the resolver's order. The resolver has no deadline and cannot be ended:
/// a thread of the pool asks it.
pub fn resolve(
    host: &str,
    port: u16,
    pool: &BlockingPool,
    deadline: &Deadline<'_>,
) -> Result<Vec<SocketAddr>, ResolveError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    Ok(pool.run(deadline, move || resolve_without_deadline(&name, port))??)
}

/// The same in this thread, for as long as the resolver takes.
pub fn resolve_without_deadline(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it has no address"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn addresses_resolve_to_themselves_and_names_within_the_deadline() {
        let pool = BlockingPool::new(1, "resolve-test");
        let patient = Deadline::after(Duration::from_secs(20), &|| false);
        assert_eq!(resolve("::1", 7, &pool, &patient).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(resolve("localhost", 7, &pool, &patient).unwrap().iter().all(|address| address.ip().is_loopback()));
        assert!(resolve("::1", 7, &pool, &Deadline::after(Duration::ZERO, &|| true)).is_ok(), "needs no resolver");
    }
}
