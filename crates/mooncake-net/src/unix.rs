//! Unix sockets with abstract names: no file, and gone with the last that holds them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use mooncake_os::{Deadline, Guarded, WaitError, recv_fds};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::connect::ConnectError;

/// Between two tries of a listener whose queue is full: nothing tells that it no longer is.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Listens under an abstract name.
pub fn listen_abstract(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Connects to an abstract name at once or not at all: to a listener that has stopped accepting, a connect that waits
/// would wait for ever. A full queue is [`WouldBlock`](io::ErrorKind::WouldBlock). Forked children close it.
pub fn connect_abstract(name: &str) -> io::Result<Guarded<UnixStream>> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = Guarded::new(UnixStream::from(socket));
    rustix::net::connect(&*stream, &address)?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The same, tried again until the deadline while the listener's queue is full.
pub fn connect_abstract_until(name: &str, deadline: &Deadline<'_>) -> Result<Guarded<UnixStream>, ConnectError> {
    let mut connected = connect_abstract(name);
    let is_busy = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    while connected.as_ref().is_err_and(is_busy) {
        match deadline.check() {
            Ok(()) => std::thread::sleep(deadline.left().min(RETRY_PAUSE)),
            Err(WaitError::Interrupted) => return Err(ConnectError::Interrupted),
            Err(WaitError::Expired(_)) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
        connected = connect_abstract(name);
    }
    Ok(connected?)
}

/// Fills the buffer by a stream, with the descriptors that come along. [`io::ErrorKind::UnexpectedEof`] if the peer
/// hangs up before, [`io::ErrorKind::TimedOut`] if the deadline passes or its hook ends the wait.
pub fn receive_with_fds(
    stream: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    deadline: &Deadline<'_>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(Deadline::SLICE))?;
    let mut have = 0;
    while have < buffer.len() {
        match recv_fds(stream, &mut buffer[have..], fds) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => have += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                if deadline.has_passed() || deadline.is_interrupted() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_listener_whose_queue_is_full_is_tried_again_until_the_deadline_or_the_callers_wish() {
        let name = format!("mooncake-net-test-{}", std::process::id());
        let listener = listen_abstract(&name).unwrap();
        // One that nobody accepts fills it.
        rustix::net::listen(&listener, 0).unwrap();
        let _queued = connect_abstract(&name).unwrap();
        assert_eq!(connect_abstract(&name).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let short = Deadline::after(Duration::from_millis(50), &|| false);
        let late = connect_abstract_until(&name, &short);
        assert!(matches!(&late, Err(ConnectError::Io(e)) if e.kind() == io::ErrorKind::TimedOut), "{late:?}");
        let began = Instant::now();
        let wish = || began.elapsed() > Duration::from_millis(50);
        let ended = connect_abstract_until(&name, &Deadline::after(Duration::from_secs(20), &wish));
        assert!(matches!(ended, Err(ConnectError::Interrupted)), "{ended:?}");
        let accepting = std::thread::spawn(move || (listener.accept().unwrap(), listener.accept().unwrap()));
        connect_abstract_until(&name, &Deadline::after(Duration::from_secs(20), &|| false)).unwrap();
        accepting.join().unwrap();
        let gone = connect_abstract_until(&name, &Deadline::after(Duration::from_secs(20), &|| false));
        assert!(matches!(&gone, Err(ConnectError::Io(e)) if e.kind() == io::ErrorKind::ConnectionRefused), "{gone:?}");
    }
}
