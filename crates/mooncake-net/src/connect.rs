//! Connecting, until a deadline.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mooncake_os::{Deadline, Guarded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The caller's hook ended it.
    #[error("interrupted")]
    Interrupted,
    /// There was no time to try any address.
    #[error("no address was tried in time")]
    Untried,
    /// What became of the last address that was tried; [`ErrorKind::TimedOut`] if it did not answer.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A connection to the first of these addresses that answers, each within `timeout`. It sends small messages at once,
/// and forked children close it.
pub fn connect(
    addresses: &[SocketAddr],
    timeout: Duration,
    deadline: &Deadline<'_>,
) -> Result<Guarded<TcpStream>, ConnectError> {
    connect_from(None, addresses, timeout, deadline)
}

/// The same, from an address of this machine. If it has lost that one, from the one that the kernel's routes say.
pub fn connect_from(
    local: Option<IpAddr>,
    addresses: &[SocketAddr],
    timeout: Duration,
    deadline: &Deadline<'_>,
) -> Result<Guarded<TcpStream>, ConnectError> {
    let mut last = ConnectError::Untried;
    for address in addresses {
        let left = deadline.left().min(timeout);
        if left.is_zero() {
            break;
        }
        match connect_one(local, address, Instant::now() + left, deadline) {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_one(
    local: Option<IpAddr>,
    address: &SocketAddr,
    until: Instant,
    deadline: &Deadline<'_>,
) -> Result<Guarded<TcpStream>, ConnectError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
    // From here on: a child that is forked while this waits must not keep the connection open.
    let stream = Guarded::new(TcpStream::from(socket));
    if let Some(local) = local {
        let _ = rustix::net::bind(&*stream, &SocketAddr::new(local, 0));
    }
    match rustix::net::connect(&*stream, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(errno) => return Err(io::Error::from(errno).into()),
    }
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let slice = Timespec::try_from(left.min(Deadline::SLICE)).expect("50 ms at most");
        match poll(&mut [PollFd::new(&*stream, PollFlags::OUT)], Some(&slice)) {
            Ok(0) if left.is_zero() => return Err(io::Error::from(ErrorKind::TimedOut).into()),
            Ok(0) | Err(Errno::INTR) if deadline.is_interrupted() => return Err(ConnectError::Interrupted),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    rustix::net::sockopt::socket_error(&*stream).map_err(io::Error::from)?.map_err(io::Error::from)?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use mooncake_test_support::DeafListener;

    use super::*;

    #[test]
    fn a_connect_without_an_answer_ends_at_its_time_or_at_its_callers_wish() {
        let deaf = DeafListener::start();
        let at = deaf.at();
        let began = Instant::now();
        let wish = || began.elapsed() > Duration::from_millis(300);
        let ended = connect(&[at], Duration::from_secs(10), &Deadline::after(Duration::from_secs(20), &wish));
        assert!(matches!(ended, Err(ConnectError::Interrupted)), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());

        let began = Instant::now();
        let patient = Deadline::after(Duration::from_secs(20), &|| false);
        let ended = connect(&[at], Duration::from_millis(300), &patient);
        assert!(matches!(&ended, Err(ConnectError::Io(source)) if source.kind() == ErrorKind::TimedOut), "{ended:?}");
        assert!(began.elapsed() >= Duration::from_millis(300));
        drop(deaf);
        let ended = connect(&[at], Duration::from_secs(10), &patient);
        assert!(matches!(&ended, Err(ConnectError::Io(_))), "{ended:?}");
    }

    #[test]
    fn a_connection_comes_from_the_address_that_was_asked_for_if_this_machine_has_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let patient = Deadline::after(Duration::from_secs(20), &|| false);
        for (asked, seen) in [("127.0.0.3", "127.0.0.3"), ("192.0.2.1", "127.0.0.1")] {
            let from = asked.parse().ok();
            let _stream = connect_from(from, &[at], Duration::from_secs(10), &patient).unwrap();
            assert_eq!(listener.accept().unwrap().1.ip().to_string(), seen);
        }
    }

    #[test]
    fn one_address_that_answers_is_enough_and_none_is_tried_too_late() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let patient = Deadline::after(Duration::from_secs(20), &|| false);
        let stream = connect(&[closed, at], Duration::from_secs(10), &patient).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), at);
        let late = connect(&[at], Duration::from_secs(10), &Deadline::after(Duration::ZERO, &|| false));
        assert!(matches!(late, Err(ConnectError::Untried)), "{late:?}");
    }
}
