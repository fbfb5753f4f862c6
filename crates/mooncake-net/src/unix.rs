//! Unix sockets with abstract names: no file, and gone with the last that holds them.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use mooncake_os::Guarded;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

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
