//! Addresses of hosts by their names, for whatever of this process looks for them.

use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;

use mooncake_net::ResolveError;
use mooncake_os::{BlockingError, BlockingPool, Deadline};

use crate::connection_error::ConnectionError;

/// Most look-ups of a process at a time. A look-up that its caller gave up counts
/// until the resolver ends it.
const LOOKUPS_MAX: usize = 8;

static LOOKUPS: LazyLock<BlockingPool> = LazyLock::new(|| BlockingPool::refusing(LOOKUPS_MAX, "mooncake-resolve"));

/// Addresses of a host, at least one.
pub(crate) fn resolve(host: &str, port: u16, deadline: &Deadline<'_>) -> Result<Vec<SocketAddr>, ConnectionError> {
    // A resolver that answers at once would hide it.
    deadline.check()?;
    mooncake_net::resolve(host, port, &LOOKUPS, deadline).map_err(|error| match error {
        ResolveError::Resolver(error) | ResolveError::Blocking(BlockingError::Start(error)) => error.into(),
        ResolveError::Blocking(BlockingError::Wait(error)) => error.into(),
        ResolveError::Blocking(BlockingError::Panicked) => io::Error::other("the look-up ended").into(),
        ResolveError::Blocking(BlockingError::Full(count)) => {
            let text = format!("{count} look-ups have had no answer yet: the name service is away");
            io::Error::new(io::ErrorKind::TimedOut, text).into()
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_caller_that_gives_up_is_not_kept() {
        let over = Deadline::after(Duration::from_secs(60), &|| true);
        assert!(matches!(resolve("name.invalid", 7, &over), Err(ConnectionError::Interrupted)));
    }
}
