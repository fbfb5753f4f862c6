//! How a process that knows only the storage node of its host finds the pool.
//!
//! The node listens on its service port and on an abstract Unix socket of the
//! port's name. The first process that takes such a name has it. So a process asks
//! there only for a node of its own host, and believes only a process of its own
//! user. The node tells each process that connects, in one line of JSON, which master
//! it belongs to. That process then sets up a client of its own: with the node's
//! memory mapped it needs no process in between, and its end takes nothing of the pool
//! along.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_net::{connect, connect_abstract_until, split_host_port};
use mooncake_os::{Deadline, Guarded, peer_credentials};
use serde::{Deserialize, Serialize};

use crate::connection_error::ConnectionError;
use crate::discovery::resolver;
use crate::error::{Cause, StoreError};
use crate::options::InterruptHook;

/// Longest line that is read.
const LINE_MAX: u64 = 4 << 10;

/// Longest wait for a node to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for a node whose absence would explain something.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// A peer that does not take its line has so long.
const SENDING: Duration = Duration::from_millis(200);

/// Between two looks at whether a listener is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What a storage node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// "host:port" of the master.
    pub master: String,
    /// Name of the node and of its segment.
    pub segment: String,
    /// Version of the node.
    pub version: String,
}

impl NodeInfo {
    /// What a node's line begins with.
    pub(crate) const BEGINNING: &[u8; 8] = b"{\"master";

    /// What a node of this version says.
    pub fn new(master: impl Into<String>, segment: impl Into<String>) -> NodeInfo {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        NodeInfo { master: master.into(), segment: segment.into(), version }
    }

    /// Asks the storage node at `host:port`: over the Unix socket of this host if
    /// the node is here and runs as the same user, or else over TCP.
    pub fn ask(node: &str, interrupted: Option<&InterruptHook>) -> Result<NodeInfo, StoreError> {
        let wrong = || Cause::InvalidParams(format!("server address {node:?} is not host:port of a mooncake_client"));
        let (host, port) = host_and_port(node).ok_or_else(wrong)?;
        let interrupted = || interrupted.is_some_and(|interrupted| interrupted());
        ask_at(&host, port, &Deadline::after(TIMEOUT, &interrupted)).map_err(|error| match error {
            AskError::Interrupted => Cause::Interrupted.into(),
            AskError::Io(error) => Cause::Setup {
                what: "asking the storage node",
                reason: format!("{node}: {error}; is mooncake_client running there with --port={port}?"),
            }
            .into(),
        })
    }

    /// Whether no process listens at `host:port` any more. A node that listens and does not answer is there.
    pub fn has_gone(node: &str) -> bool {
        let Some((host, port)) = host_and_port(node) else { return false };
        let found = ask_at(&host, port, &Deadline::at(Instant::now() + SHORT_TIMEOUT));
        matches!(found, Err(AskError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

fn host_and_port(node: &str) -> Option<(String, u16)> {
    split_host_port(node.trim()).and_then(|(host, port)| Some((host, port?)))
}

fn ask_at(host: &str, port: u16, deadline: &Deadline<'_>) -> Result<NodeInfo, AskError> {
    let resolved = resolver::resolve(host, port, deadline);
    let here = match &resolved {
        Ok(addresses) => addresses.iter().any(|address| is_of_this_machine(address.ip())),
        // Without a name service the machine still knows its own name.
        Err(_) => own_name().is_ok_and(|name| name == host),
    };
    let stranger = match here.then(|| ask_here(port, deadline)) {
        None | Some(Err(AskError::Io(_))) => None,
        Some(Ok(Heard::Stranger(uid))) => Some(uid),
        Some(Ok(Heard::Node(found))) => return Ok(found),
        Some(Err(interrupted)) => return Err(interrupted),
    };
    let over_tcp = resolved.map_err(AskError::from).and_then(|addresses| ask_over_tcp(&addresses, deadline));
    match (over_tcp, stranger) {
        (Err(AskError::Io(error)), Some(uid)) => {
            let text = format!("{error}; the Unix socket of that port is user {uid}'s, who is not believed");
            Err(io::Error::new(error.kind(), text).into())
        }
        (other, _) => other,
    }
}

fn own_name() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned())
}

/// Whether it can be listened on here.
fn is_of_this_machine(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

/// What answered on the Unix socket.
enum Heard {
    Node(NodeInfo),
    /// A process of another user, by that user's number here.
    Stranger(u32),
}

enum AskError {
    Interrupted,
    Io(io::Error),
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        AskError::Io(error)
    }
}

impl From<ConnectionError> for AskError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Interrupted => AskError::Interrupted,
            ConnectionError::Io(error) => AskError::Io(error),
            other => AskError::Io(io::Error::other(other.to_string())),
        }
    }
}

fn ask_here(port: u16, deadline: &Deadline<'_>) -> Result<Heard, AskError> {
    let stream = connect_here(port, deadline)?;
    let peer = peer_credentials(&*stream)?;
    if !peer.is_own_user() {
        return Ok(Heard::Stranger(peer.uid));
    }
    stream.set_read_timeout(Some(POLL_INTERVAL / 2))?;
    hear(&*stream, deadline).map(Heard::Node)
}

/// A stopped node whose queue is full keeps others waiting: no longer than half of what is left, as there is TCP
/// besides.
fn connect_here(port: u16, deadline: &Deadline<'_>) -> Result<Guarded<UnixStream>, AskError> {
    let half = deadline.within(deadline.left() / 2);
    Ok(connect_abstract_until(&unix_name(port), &half).map_err(ConnectionError::from)?)
}

fn ask_over_tcp(addresses: &[SocketAddr], deadline: &Deadline<'_>) -> Result<NodeInfo, AskError> {
    deadline.check().map_err(ConnectionError::from)?;
    let stream = connect(addresses, deadline.left(), deadline).map_err(ConnectionError::from)?;
    stream.set_read_timeout(Some(POLL_INTERVAL / 2))?;
    hear(&*stream, deadline)
}

fn hear(mut stream: impl Read, deadline: &Deadline<'_>) -> Result<NodeInfo, AskError> {
    let mut line = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&chunk[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if line.ends_with(b"\n") {
            break;
        }
        if line.len() as u64 > LINE_MAX {
            return Err(io::Error::other("what listens there is no storage node").into());
        }
        deadline.check().map_err(ConnectionError::from)?;
    }
    serde_json::from_slice(&line).map_err(|_| {
        let why = "what listens there tells no pool, so it is no storage node; is it the master's port? A node's is \
            its --port, 50052";
        io::Error::other(why).into()
    })
}

/// Tells each process that connects, until it is dropped.
#[derive(Debug)]
pub struct NodeInfoServer {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

/// The port of a server, before it is known what to tell there: a process that asks waits.
#[derive(Debug)]
pub struct NodeInfoPort {
    tcp: TcpListener,
    unix: UnixListener,
    address: SocketAddr,
}

impl NodeInfoPort {
    /// Listens on a TCP address and on the Unix socket of its port. Port 0 is any free one.
    pub fn listen(address: SocketAddr) -> io::Result<NodeInfoPort> {
        let tcp = TcpListener::bind(address)?;
        let address = tcp.local_addr()?;
        let unix = UnixListener::bind_addr(&unix_address(address.port())?)?;
        tcp.set_nonblocking(true)?;
        unix.set_nonblocking(true)?;
        Ok(NodeInfoPort { tcp, unix, address })
    }
}

impl NodeInfoServer {
    /// Begins to tell at a port.
    pub fn start(port: NodeInfoPort, introduction: &NodeInfo) -> io::Result<NodeInfoServer> {
        let NodeInfoPort { tcp, unix, address } = port;
        let mut line = serde_json::to_vec(introduction).map_err(io::Error::other)?;
        line.push(b'\n');
        let ended = Arc::new(AtomicBool::new(false));
        let (line, inside) = (Arc::<[u8]>::from(line), ended.clone());
        mooncake_os::thread::start(std::thread::Builder::new().name("mooncake-introducer".into()), move || {
            while !inside.load(Ordering::Relaxed) {
                let told_tcp = tcp.accept().map(|(stream, _)| tell_tcp(stream, &line));
                let told_unix = unix.accept().map(|(stream, _)| tell_unix(stream, &line));
                if told_tcp.is_err() && told_unix.is_err() {
                    wait_for(&tcp, &unix);
                }
            }
        })?;
        Ok(NodeInfoServer { address, ended })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for NodeInfoServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn tell_tcp(mut stream: TcpStream, line: &[u8]) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_write_timeout(Some(SENDING));
    // A peer that does not read has asked for nothing.
    let _ = stream.write_all(line);
}

fn tell_unix(mut stream: UnixStream, line: &[u8]) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_write_timeout(Some(SENDING));
    let _ = stream.write_all(line);
}

fn wait_for(tcp: &TcpListener, unix: &UnixListener) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(tcp, PollFlags::IN), PollFd::new(unix, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.as_nanos() as _ };
    // An error shows itself at the next accept; this only saves processor time.
    let _ = poll(&mut fds, Some(&timeout));
}

fn unix_address(port: u16) -> io::Result<std::os::unix::net::SocketAddr> {
    std::os::unix::net::SocketAddr::from_abstract_name(unix_name(port))
}

fn unix_name(port: u16) -> String {
    format!("mooncake_client_{port}.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_over_either_socket() {
        let said = NodeInfo::new("127.0.0.1:1", "node:2");
        let introducer =
            NodeInfoServer::start(NodeInfoPort::listen("127.0.0.1:0".parse().unwrap()).unwrap(), &said).unwrap();
        let port = introducer.address().port();
        assert_eq!(NodeInfo::ask(&format!("127.0.0.1:{port}"), None).unwrap(), said);
        assert!(!NodeInfo::has_gone(&format!("127.0.0.1:{port}")));
        let soon = Deadline::at(Instant::now() + TIMEOUT);
        let Ok(heard) = ask_over_tcp(&[introducer.address()], &soon) else { panic!("no answer over TCP") };
        assert_eq!(heard, said);
    }

    #[test]
    fn a_node_of_another_host_is_not_looked_for_on_this_one() {
        let introducer = NodeInfoServer::start(
            NodeInfoPort::listen("127.0.0.1:0".parse().unwrap()).unwrap(),
            &NodeInfo::new("m:1", "n:2"),
        )
        .unwrap();
        let port = introducer.address().port();
        let error = NodeInfo::ask(&format!("192.0.2.1:{port}"), None).unwrap_err().to_string();
        assert!(error.contains(&format!("192.0.2.1:{port}")), "{error}");
        for name in ["127.0.0.1".into(), "localhost".into(), own_name().unwrap()] {
            assert!(NodeInfo::ask(&format!("{name}:{port}"), None).is_ok(), "{name} is this host");
        }
    }

    /// Needs a user that may become another one.
    #[test]
    fn nobody_of_another_user_is_believed() {
        let real = NodeInfoServer::start(
            NodeInfoPort::listen("127.0.0.1:0".parse().unwrap()).unwrap(),
            &NodeInfo::new("real:1", "n:2"),
        )
        .unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let (beside, alone) = (real.address().port(), free.local_addr().unwrap().port());
        drop(free);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let own_user = rustix::process::geteuid();
        std::thread::spawn(move || {
            let nobody = rustix::process::Uid::from_raw(65534);
            // Of this thread alone.
            if rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_err() || own_user == nobody {
                return;
            }
            let unix = UnixListener::bind_addr(&unix_address(alone).unwrap()).unwrap();
            ready.send(()).unwrap();
            for stream in unix.incoming().flatten() {
                tell_unix(stream, b"{\"master\":\"false:1\",\"segment\":\"n:2\",\"version\":\"1\"}\n");
            }
        });
        if is_ready.recv().is_err() {
            eprintln!("no right to become another user: nothing is tested");
            return;
        }
        let error = NodeInfo::ask(&format!("127.0.0.1:{alone}"), None).unwrap_err().to_string();
        assert!(error.contains("user 65534") && error.contains("refused"), "{error}");
        let over_tcp = TcpListener::bind(("127.0.0.1", alone)).unwrap();
        std::thread::spawn(move || {
            let line = serde_json::to_vec(&NodeInfo::new("real:1", "n:2")).unwrap();
            over_tcp.incoming().flatten().for_each(|stream| tell_tcp(stream, &[&line[..], b"\n"].concat()));
        });
        assert_eq!(NodeInfo::ask(&format!("127.0.0.1:{alone}"), None).unwrap().master, "real:1");
        assert_eq!(NodeInfo::ask(&format!("127.0.0.1:{beside}"), None).unwrap().master, "real:1");
    }

    #[test]
    fn a_node_that_stands_still_is_neither_gone_nor_waited_for() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let unix = UnixListener::bind_addr(&unix_address(port).unwrap()).unwrap();
        // One of those that nobody accepts fills the queue.
        rustix::net::listen(&unix, 0).unwrap();
        let _queued = UnixStream::connect_addr(&unix_address(port).unwrap()).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let node = format!("127.0.0.1:{port}");
            let gone = NodeInfo::has_gone(&node);
            done.send((gone, NodeInfo::ask(&node, None).map_err(|error| error.to_string()))).unwrap();
        });
        let (gone, asked) = is_done.recv_timeout(Duration::from_secs(20)).expect("it waits no longer than its timeout");
        assert!(!gone, "one that does not answer is there");
        assert!(asked.unwrap_err().contains(&port.to_string()));
    }

    #[test]
    fn a_node_that_has_ended_is_gone() {
        let introducer = NodeInfoServer::start(
            NodeInfoPort::listen("127.0.0.1:0".parse().unwrap()).unwrap(),
            &NodeInfo::new("m:1", "n:2"),
        )
        .unwrap();
        let node = introducer.address().to_string();
        assert!(!NodeInfo::has_gone(&node));
        drop(introducer);
        crate::scripted_master::wait_for("its sockets are closed", || NodeInfo::has_gone(&node));
    }

    #[test]
    fn what_never_comes_to_an_end_is_no_node() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let talking = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[b'x'; 2 * LINE_MAX as usize]).unwrap();
            // It would say more.
            let _ = stream.read(&mut [0]);
        });
        let long = Deadline::at(Instant::now() + Duration::from_secs(60));
        let Err(AskError::Io(error)) = ask_over_tcp(&[address], &long) else { panic!("it is taken for a node") };
        assert!(error.to_string().contains("no storage node"), "{error}");
        talking.join().unwrap();
    }

    #[test]
    fn nobody_there_and_nonsense_are_told_apart_from_interrupts() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        drop(silent);
        assert!(NodeInfo::has_gone(&format!("127.0.0.1:{port}")));
        let error = NodeInfo::ask(&format!("127.0.0.1:{port}"), None).unwrap_err().to_string();
        assert!(error.contains("is mooncake_client running") && error.contains(&port.to_string()), "{error}");
        assert!(NodeInfo::ask("nowhere", None).unwrap_err().to_string().contains("host:port"));
        let hook: InterruptHook = Arc::new(|| true);
        let error = NodeInfo::ask(&format!("localhost:{port}"), Some(&hook)).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Interrupted);
    }
}
