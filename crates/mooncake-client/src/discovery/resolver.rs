//! Names of hosts, with a deadline: the C library's resolver has none and
//! cannot be interrupted.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use crate::patience::{ConnectionError, Patience};

/// Most look-ups of a process at a time. A look-up that its caller gave up counts
/// until the resolver ends it.
const LOOKUPS_MAX: usize = 8;

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// Addresses of a host, at least one.
pub(crate) fn resolve(host: &str, port: u16, patience: &Patience<'_>) -> Result<Vec<SocketAddr>, ConnectionError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let turn = Turn::take(&LOOKUPS)?;
    let name = host.to_owned();
    let (answer, answered) = sync_channel(1);
    std::thread::Builder::new().name("mooncake-resolve".into()).spawn(move || {
        let _turn = turn;
        // The caller may have given up meanwhile.
        let _ = answer.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    })?;
    loop {
        match answered.recv_timeout(patience.look()?) {
            Ok(Ok(addresses)) if addresses.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "it has no address").into());
            }
            Ok(answer) => return Ok(answer?),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the look-up ended").into()),
        }
    }
}

/// One of the look-ups that may be under way.
struct Turn(&'static AtomicUsize);

impl Turn {
    fn take(lookups: &'static AtomicUsize) -> io::Result<Turn> {
        if lookups.fetch_add(1, Ordering::Relaxed) < LOOKUPS_MAX {
            return Ok(Turn(lookups));
        }
        lookups.fetch_sub(1, Ordering::Relaxed);
        let text = format!("{LOOKUPS_MAX} look-ups have had no answer yet: the name service is away");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn addresses_resolve_to_themselves_and_names_within_the_deadline() {
        let patience = Patience { deadline: Instant::now() + Duration::from_secs(5), check: &|| Ok(()) };
        assert_eq!(resolve("::1", 7, &patience).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(resolve("localhost", 7, &patience).unwrap().iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn a_look_up_that_ends_makes_room_for_another_and_one_that_is_refused_takes_none() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let mut turns: Vec<Turn> = (0..LOOKUPS_MAX).map(|_| Turn::take(&LOOKUPS).unwrap()).collect();
        for _ in 0..2 {
            assert!(Turn::take(&LOOKUPS).is_err());
        }
        turns.pop();
        turns.push(Turn::take(&LOOKUPS).unwrap());
        assert!(Turn::take(&LOOKUPS).is_err());
        drop(turns);
        assert_eq!(LOOKUPS.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_caller_that_gives_up_is_not_kept() {
        let patience = Patience {
            deadline: Instant::now() + Duration::from_secs(60),
            check: &|| Err(ConnectionError::Interrupted),
        };
        assert!(matches!(resolve("name.invalid", 7, &patience), Err(ConnectionError::Interrupted)));
    }
}
