//! An engine as target: it serves handshakes, its memory over TCP, and copies within the host.
//!
//! A few threads share one epoll. A connection is armed for one event at a time, so that one thread has it, which
//! carries its state a step further and arms it again. No connection costs a thread, and one that stands still keeps
//! none.

mod connection_table;
mod context;
mod handshake;
pub(crate) mod listen;
mod pull;
mod same_host;
mod tcp;
mod writers;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_net::{PollHistory, keep_alive};
use mooncake_os::{Guarded, Waker, forked};
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use connection_table::ConnectionTable;
pub(crate) use context::ServerContext;

use crate::error::EngineError;

/// Most connections of all kinds. For one more, the oldest that has not been served yet is cut, or else the one that
/// has been idle for longest between two requests.
const CONNECTIONS_MAX: usize = 4_096;

/// When descriptors run out, only connections that have been idle for so long are cut.
const GRACE_PERIOD: Duration = Duration::from_millis(100);

/// Requests that a thread serves of one connection, if the next one comes at once, before it looks at the others.
const REQUESTS_IN_A_ROW_MAX: u32 = 64;

/// How often stalled connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// How often the kernel asks whether the host of a peer that sends nothing is there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

const WAKER_TOKEN: u64 = u64::MAX;
const HANDSHAKE_TOKEN: u64 = u64::MAX - 1;
const SAME_HOST_TOKEN: u64 = u64::MAX - 2;
/// Of the first listener for data; those of the others lie below it.
const TCP_TOKEN: u64 = u64::MAX - 3;

/// The listeners of one engine. Guarded: a forked child that kept them would hide the engine's end from peers and keep
/// its ports taken.
pub(crate) struct Ports {
    pub handshake: Guarded<TcpListener>,
    /// One, or one for each network.
    pub data: Vec<Guarded<TcpListener>>,
    /// Under an abstract name; none where copies within the host are turned off.
    pub host: Option<Guarded<UnixListener>>,
}

impl Ports {
    /// The listener for data that has this token.
    fn data_listener(&self, token: u64) -> Option<&Guarded<TcpListener>> {
        self.data.get(usize::try_from(TCP_TOKEN.checked_sub(token)?).ok()?)
    }
}

/// What happens with a connection after a step.
enum Next {
    /// Armed until there is something to read.
    Read,
    /// Armed until there is room to write.
    Write,
    /// Armed for both: it has more to do and has had its turn.
    Again,
    Close,
}

/// One peer's connection, in any state.
enum PeerConnection {
    Handshake(handshake::Handshake),
    Tcp(Box<tcp::TcpPeerConnection>),
    SameHost(Box<same_host::SameHostPeerConnection>),
}

impl PeerConnection {
    fn step(&mut self, context: &ServerContext) -> Next {
        match self {
            PeerConnection::Handshake(peer) => peer.step(context),
            PeerConnection::Tcp(peer) => peer.step(context),
            PeerConnection::SameHost(peer) => peer.step(context),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            PeerConnection::Handshake(peer) => peer.fd(),
            PeerConnection::Tcp(peer) => peer.fd(),
            PeerConnection::SameHost(peer) => peer.fd(),
        }
    }

    /// Whether it has stood still for too long in the midst of something.
    fn is_overdue(&self, context: &ServerContext, now: Instant) -> bool {
        match self {
            PeerConnection::Handshake(peer) => peer.is_overdue(now),
            PeerConnection::Tcp(peer) => peer.is_overdue(context, now),
            PeerConnection::SameHost(peer) => peer.is_overdue(context, now),
        }
    }

    /// None if it is at work, so that it is not cut.
    fn idle_rank(&self) -> Option<IdleRank> {
        match self {
            PeerConnection::Handshake(peer) => Some(IdleRank { known: false, since: peer.since() }),
            PeerConnection::Tcp(peer) => peer.idle_rank(),
            PeerConnection::SameHost(peer) => peer.idle_rank(),
        }
    }

    /// Busy polls for its next request; whether there is one.
    fn is_asked_soon(&self, history: &PollHistory) -> bool {
        match self {
            PeerConnection::SameHost(peer) => peer.is_asked_soon(history),
            PeerConnection::Handshake(_) | PeerConnection::Tcp(_) => {
                let ready = || mooncake_net::is_readable(self.fd()).then_some(());
                mooncake_net::busy_poll(history, ready).is_some()
            }
        }
    }

    /// Since when it has been between two requests.
    fn idle_since(&self) -> Option<Instant> {
        match self {
            PeerConnection::Handshake(_) => None,
            PeerConnection::Tcp(peer) => peer.idle_since(),
            PeerConnection::SameHost(peer) => peer.idle_since(),
        }
    }
}

/// Which connection is cut first when there are too many: the least of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct IdleRank {
    /// It has been served before.
    known: bool,
    since: Instant,
}

struct Connection {
    peer: Mutex<PeerConnection>,
    /// Whether busy polling for its next request has been worth it.
    history: PollHistory,
}

/// What is done now and then beside serving peers.
pub(crate) type Housekeeping = Box<dyn Fn(Instant) + Send + Sync>;

struct Shared {
    context: ServerContext,
    housekeeping: Housekeeping,
    epoll: Guarded<OwnedFd>,
    waker: Waker,
    ports: Ports,
    connections: Mutex<ConnectionTable>,
    stop: AtomicBool,
    /// Connections that could not be accepted.
    turned_away: AtomicU64,
    swept: Mutex<Instant>,
}

/// The threads that serve peers; ended and joined when it is dropped.
pub(crate) struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves peers at these ports; `housekeeping` is called every half second.
    pub fn start(context: ServerContext, ports: Ports, housekeeping: Housekeeping) -> Result<Server, EngineError> {
        let threads = context.options().server_threads;
        let failed = EngineError::os;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from).map_err(failed("epoll"))?;
        let waker = Waker::new().map_err(failed("eventfd"))?;
        let swept = Mutex::new(Instant::now());
        let epoll = Guarded::new(epoll);
        let (connections, stop, turned_away) = (Mutex::default(), AtomicBool::new(false), AtomicU64::new(0));
        let shared =
            Arc::new(Shared { context, housekeeping, epoll, waker, ports, connections, stop, turned_away, swept });
        let listen = || -> io::Result<()> {
            let add =
                |fd: BorrowedFd<'_>, token, flags| epoll::add(&*shared.epoll, fd, EventData::new_u64(token), flags);
            add(shared.waker.fd(), WAKER_TOKEN, EventFlags::IN)?;
            shared.ports.handshake.set_nonblocking(true)?;
            add(shared.ports.handshake.as_fd(), HANDSHAKE_TOKEN, EventFlags::IN | EventFlags::ONESHOT)?;
            for (data, token) in shared.ports.data.iter().zip((0..=TCP_TOKEN).rev()) {
                data.set_nonblocking(true)?;
                add(data.as_fd(), token, EventFlags::IN | EventFlags::ONESHOT)?;
            }
            if let Some(host) = &shared.ports.host {
                host.set_nonblocking(true)?;
                add(host.as_fd(), SAME_HOST_TOKEN, EventFlags::IN | EventFlags::ONESHOT)?;
            }
            Ok(())
        };
        listen().map_err(failed("epoll"))?;
        let mut server = Server { shared, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = server.shared.clone();
            let builder = std::thread::Builder::new().name("mooncake-serve".into());
            let thread = mooncake_os::thread::start(builder, move || shared.serve());
            server.threads.push(thread.map_err(failed("start a thread"))?);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Finds the end of peers whose host has gone, and that send nothing.
fn with_keepalive((stream, from): (TcpStream, SocketAddr)) -> (TcpStream, SocketAddr) {
    // Fails if it has ended meanwhile, which a read finds, too.
    let _ = keep_alive(&stream, KEEPALIVE_INTERVAL);
    (stream, from)
}

fn has_pending(listener: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::from_borrowed_fd(listener, PollFlags::IN)], Some(&now));
    ready.is_ok_and(|ready| ready > 0)
}

impl Shared {
    fn serve(&self) {
        while !self.stop.load(Ordering::SeqCst) && !forked() {
            let mut ready = match self.next_ready(SWEEP_INTERVAL) {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "epoll; this engine serves no more peers");
                    return;
                }
            };
            while let Some(token) = ready {
                ready = match token {
                    WAKER_TOKEN => return,
                    HANDSHAKE_TOKEN | SAME_HOST_TOKEN => {
                        self.accept(token);
                        None
                    }
                    token if self.ports.data_listener(token).is_some() => {
                        self.accept(token);
                        None
                    }
                    token => self.serve_connection(token),
                };
            }
            self.sweep();
        }
    }

    /// The token of one ready connection: the others are for the other threads. `None`: there was none for so long.
    fn next_ready(&self, longest: Duration) -> Result<Option<u64>, Errno> {
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        let mut event = [Event { flags: EventFlags::empty(), data: EventData::new_u64(WAKER_TOKEN) }];
        match epoll::wait(&*self.epoll, &mut event, Some(&longest)) {
            Ok(0) | Err(Errno::INTR) => Ok(None),
            Ok(_) => Ok(Some(event[0].data.u64())),
            Err(error) => Err(error),
        }
    }

    fn accept(&self, token: u64) {
        let data = self.ports.data_listener(token);
        let listener = match (data, token, &self.ports.host) {
            (Some(data), ..) => data.as_fd(),
            (None, HANDSHAKE_TOKEN, _) => self.ports.handshake.as_fd(),
            (None, _, Some(host)) => host.as_fd(),
            (None, _, None) => return,
        };
        loop {
            let peer = match (data, token) {
                (None, HANDSHAKE_TOKEN) => {
                    let accepted = self.ports.handshake.accept().map(with_keepalive);
                    accepted.and_then(|(stream, _)| handshake::Handshake::accept(stream, &self.context))
                }
                (Some(data), _) => {
                    let accepted = data.accept().map(with_keepalive);
                    accepted.and_then(|(stream, from)| tcp::TcpPeerConnection::accept(stream, from))
                }
                (None, _) => match self.ports.host.as_ref().expect("it has accepted").accept() {
                    Ok((stream, _)) if !same_host::may_be_a_peer(&stream) => {
                        tracing::debug!("a process that is another user's, or that cannot be told, was sent away");
                        continue;
                    }
                    accepted => accepted.and_then(|(stream, _)| same_host::SameHostPeerConnection::accept(stream)),
                },
            };
            match peer {
                Ok(peer) => self.enter(peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Without a free descriptor `accept` fails whether or not a peer connects.
                Err(_) if !has_pending(listener) => break,
                Err(error) => {
                    let before = self.turned_away.fetch_add(1, Ordering::Relaxed);
                    if (before + 1).is_power_of_two() {
                        tracing::warn!(%error, so_far = before + 1, "no room for a peer that knocks");
                    }
                    // Cuts an idle connection for the new one. If there is none: tries again, and not at once.
                    let full = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
                    if !(full && self.connections.lock().cut_longest_idle(GRACE_PERIOD)) {
                        std::thread::sleep(Duration::from_millis(10));
                        break;
                    }
                }
            }
        }
        let rearmed =
            epoll::modify(&*self.epoll, listener, EventData::new_u64(token), EventFlags::IN | EventFlags::ONESHOT);
        if let Err(error) = rearmed {
            tracing::error!(%error, "epoll; this engine takes no more connections");
        }
    }

    fn enter(&self, peer: PeerConnection) {
        let connection = Arc::new(Connection { peer: Mutex::new(peer), history: PollHistory::new() });
        let token = {
            let mut connections = self.connections.lock();
            if connections.len() >= CONNECTIONS_MAX && !connections.cut_longest_idle(Duration::ZERO) {
                return;
            }
            connections.add(connection.clone())
        };
        let peer = connection.peer.lock();
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        if let Err(error) = epoll::add(&*self.epoll, peer.fd(), EventData::new_u64(token), flags) {
            tracing::warn!(%error, "a peer could not be let in");
            self.leave(token);
        }
    }

    /// Serves a connection for as long as it has something to do. Gives the token of another one if it stops for
    /// that one.
    fn serve_connection(&self, token: u64) -> Option<u64> {
        let connection = self.connections.lock().get(token)?;
        let mut peer = connection.peer.lock();
        let (mut in_a_row, mut other) = (0, None);
        loop {
            let flags = match peer.step(&self.context) {
                Next::Close => {
                    self.leave(token);
                    return None;
                }
                Next::Again => EventFlags::IN | EventFlags::OUT,
                Next::Write => EventFlags::OUT,
                Next::Read => {
                    in_a_row += 1;
                    if in_a_row % REQUESTS_IN_A_ROW_MAX == 0 {
                        // The next wait finds a failure, too.
                        other = self.next_ready(Duration::ZERO).unwrap_or_default();
                    }
                    // A caller that makes one request after the other makes the next at once.
                    let stays = || peer.idle_since().is_some() && peer.is_asked_soon(&connection.history);
                    if other.is_none() && stays() && !self.stop.load(Ordering::Relaxed) {
                        continue;
                    }
                    // A peer may have asked through the access page while this thread serves another one; no event
                    // tells of that, so OUT wakes a thread at once.
                    if other.is_some() { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
                }
            };
            let data = EventData::new_u64(token);
            if epoll::modify(&*self.epoll, peer.fd(), data, flags | EventFlags::ONESHOT).is_err() {
                self.leave(token);
            }
            return other;
        }
    }

    fn leave(&self, token: u64) {
        self.connections.lock().remove(token);
    }

    /// Cuts connections that stand still in the midst of something, and calls the engine's housekeeping.
    fn sweep(&self) {
        let now = Instant::now();
        {
            let Some(mut swept) = self.swept.try_lock() else { return };
            if now.duration_since(*swept) < SWEEP_INTERVAL {
                return;
            }
            *swept = now;
        }
        (self.housekeeping)(now);
        let all: Vec<(u64, Arc<Connection>)> = self.connections.lock().all().collect();
        for (token, connection) in all {
            // A thread that holds the lock serves it.
            let overdue = connection.peer.try_lock().is_some_and(|peer| peer.is_overdue(&self.context, now));
            if overdue {
                self.leave(token);
            }
        }
    }
}
