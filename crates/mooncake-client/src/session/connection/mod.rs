//! One connection to the master: bytes, frames and the hello, with a deadline
//! on everything.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mooncake_net::{PollHistory, busy_poll_behind, connect, connect_abstract_until, has_hung_up};
use mooncake_os::{AboutProcess, Deadline, Guarded, peer_credentials};
use mooncake_wire::message::request::Body;
use mooncake_wire::message::{Hello, HelloReply, LogPosition, hello};
use mooncake_wire::{
    CONTROL_PREFACE, FEATURES, Feature, FrameError, HELLO_FRAME_BYTES_MAX, LANE_PREFACE, VERSION, encode_frame,
};
use prost::Message;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::connection_error::{ConnectionError, WrongPort};
use crate::discovery::storage_node::NodeInfo;
use crate::process::client_info;

/// Bytes of a request, most of them keys, for which the master of a slow host takes a microsecond: it looks a thousand
/// short keys up in 60 to 120.
const ASKED_IN_A_MICROSECOND: u64 = 100;

/// A master waits awake no longer than this for a client that copies, and takes so long to wake up then.
const MASTER_AWAKE: Duration = Duration::from_micros(300);
const MASTER_WAKES: Duration = Duration::from_micros(60);

/// Room kept for a reply between calls.
const KEPT_BUFFER: usize = 256 << 10;

/// Room for a reply that is read at a time.
const READ_SIZE: usize = 16 << 10;

/// When it was idle for so long it is looked whether the master is still there.
const LOOKED_AT: Duration = Duration::from_millis(100);

const HEADER: usize = 4;

/// What the answers of other servers than masters begin with, taken for the length of a frame.
const HTTP: usize = length_of(b"HTTP/1.1");
const DATA: usize = length_of(&LANE_PREFACE);
const NODE: usize = length_of(NodeInfo::BEGINNING);

const fn length_of(beginning: &[u8; 8]) -> usize {
    let [a, b, c, d, ..] = *beginning;
    u32::from_le_bytes([a, b, c, d]) as usize
}

#[cfg(test)]
mod tests;

/// Where a master listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    /// Abstract name.
    Unix(String),
}

/// A connection that speaks frames.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Guarded<OwnedFd>,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that have been taken.
    taken: usize,
    /// Whether this master answers soon enough to be waited for awake.
    history: PollHistory,
    /// What the master does before it answers what was sent last, as far as it is not waited for yet.
    work: Duration,
    answered_at: Option<Instant>,
    /// What the master said that it knows.
    features: u64,
    /// What the master said that it is.
    software: String,
    /// Which process of it answered.
    instance: [u8; 16],
    /// Since when no call has it; none before its first.
    idle_since: Option<Instant>,
}

impl Connection {
    /// Connects, says hello and hears the answer.
    pub fn open(
        address: &Address,
        role: hello::Role,
        highest: LogPosition,
        deadline: &Deadline<'_>,
    ) -> Result<(Self, HelloReply), ConnectionError> {
        // Before the master waits for it.
        let is_anchor = matches!(role, hello::Role::Open(_) | hello::Role::Resume(_));
        let client = is_anchor.then(|| client_info(AboutProcess::this()));
        let mut connection = Self::dial(address, deadline)?;
        connection.output.extend_from_slice(&CONTROL_PREFACE);
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: FEATURES,
            software: concat!("mooncake-client ", env!("CARGO_PKG_VERSION")).into(),
            token: Default::default(),
            highest: Some(highest),
            role: Some(role),
            client,
        };
        encode_frame(&hello, &mut connection.output);
        connection.flush(deadline)?;
        let reply: HelloReply = connection.receive(HELLO_FRAME_BYTES_MAX, deadline).map_err(|error| match error {
            ConnectionError::Frame(FrameError::TooLong { length, limit }) => match length {
                HTTP => ConnectionError::Wrong(WrongPort::Http),
                DATA => ConnectionError::Wrong(WrongPort::Data),
                NODE => ConnectionError::Wrong(WrongPort::Node),
                _ => FrameError::TooLong { length, limit }.into(),
            },
            error => error,
        })?;
        connection.features = reply.features;
        connection.software.clone_from(&reply.software);
        connection.instance = reply.instance[..].try_into().unwrap_or_default();
        Ok((connection, reply))
    }

    /// Which process answers.
    pub fn instance(&self) -> [u8; 16] {
        self.instance
    }

    fn dial(address: &Address, deadline: &Deadline<'_>) -> Result<Self, ConnectionError> {
        // A peer that is there at once would hide it.
        deadline.check()?;
        let socket = match address {
            Address::Tcp(address) => connect(&[*address], deadline.left(), deadline)?.into_owned_fd(),
            Address::Unix(name) => {
                let socket = connect_abstract_until(name, deadline)?.into_owned_fd();
                check_user(&socket, name)?;
                socket
            }
        };
        // Blocking, in slices: one system call per send and receive.
        for which in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&*socket, which, Some(Deadline::SLICE))?;
        }
        Ok(Self {
            socket,
            output: Vec::new(),
            input: Vec::new(),
            taken: 0,
            history: PollHistory::new(),
            work: Duration::ZERO,
            answered_at: None,
            features: 0,
            software: String::new(),
            instance: [0; 16],
            idle_since: None,
        })
    }

    /// What a request asks for that the master at the other end does not know: the feature, and what that master is.
    pub fn lacks(&self, body: &Body) -> Option<(Feature, String)> {
        let missing = Feature::missing(self.features, body)?;
        let software = match self.software.as_str() {
            "" => "an older version that does not say which".to_owned(),
            software => software.to_owned(),
        };
        Some((missing, software))
    }

    /// Sends one message.
    pub fn send(&mut self, message: &impl Message, deadline: &Deadline<'_>) -> Result<(), ConnectionError> {
        encode_frame(message, &mut self.output);
        self.flush(deadline)
    }

    fn flush(&mut self, deadline: &Deadline<'_>) -> Result<(), ConnectionError> {
        let mut sent = 0;
        while sent < self.output.len() {
            match send(&*self.socket, &self.output[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN | Errno::INTR) => {
                    deadline.check()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.work = Duration::from_micros(sent as u64 / ASKED_IN_A_MICROSECOND);
        if self.answered_at.is_some_and(|at| at.elapsed() > MASTER_AWAKE) {
            self.work += MASTER_WAKES;
        }
        self.output.clear();
        self.output.shrink_to(KEPT_BUFFER);
        Ok(())
    }

    /// Receives one message.
    pub fn receive<M: Message + Default>(
        &mut self,
        limit: usize,
        deadline: &Deadline<'_>,
    ) -> Result<M, ConnectionError> {
        loop {
            if let Some(message) = self.next(limit)? {
                return Ok(message);
            }
            match self.fill(false) {
                Err(ConnectionError::Deadline) => {
                    deadline.check()?;
                }
                other => other?,
            }
        }
    }

    /// A whole message that has arrived, if there is one.
    pub fn next<M: Message + Default>(&mut self, limit: usize) -> Result<Option<M>, ConnectionError> {
        let arrived = &self.input[self.taken..];
        let Some((header, body)) = arrived.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes(*header) as usize;
        if length > limit {
            return Err(FrameError::TooLong { length, limit }.into());
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let message = M::decode(body).map_err(FrameError::from)?;
        self.taken += HEADER + length;
        self.answered_at = Some(Instant::now());
        if self.taken == self.input.len() {
            self.taken = 0;
            self.input.clear();
            self.input.shrink_to(KEPT_BUFFER);
        }
        Ok(Some(message))
    }

    /// Reads what there is; [`ConnectionError::Deadline`] when nothing came
    /// within a slice (or at once, with `now`).
    pub fn fill(&mut self, now: bool) -> Result<(), ConnectionError> {
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
        self.input.reserve(READ_SIZE);
        let Self { socket, input, history, work, .. } = self;
        let mut read = |flags| recv(&**socket, spare_capacity(&mut *input), flags).map(|(_, count)| count);
        let outcome = if now {
            read(RecvFlags::DONTWAIT)
        } else {
            busy_poll_behind(history, std::mem::take(work), || match read(RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => None,
                outcome => Some(outcome),
            })
            .unwrap_or_else(|| read(RecvFlags::empty()))
        };
        match outcome {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the master closed the connection").into()),
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::INTR) => Err(ConnectionError::Deadline),
            Err(error) => Err(error.into()),
        }
    }

    /// A call has ended that had it.
    pub fn goes_idle(&mut self) {
        self.idle_since = Some(Instant::now());
    }

    /// For how long no call has had it.
    pub fn idle_for(&self) -> Duration {
        self.idle_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether a master that needs its place has closed it meanwhile. It is not looked at when it was idle for a short
    /// time: a master closes those that are idle for longest.
    pub fn was_closed_while_idle(&self) -> bool {
        self.idle_for() > LOOKED_AT && self.was_closed()
    }

    /// Whether the master has closed it.
    pub fn was_closed(&self) -> bool {
        has_hung_up(self.socket.as_fd())
    }

    /// It has been idle for so long already.
    #[cfg(test)]
    pub fn was_idle_for(&mut self, time: Duration) {
        self.idle_since = Instant::now().checked_sub(time);
    }

    /// Whether what broke it says that the master closed it while it was idle, perhaps while the request was on its
    /// way.
    pub fn is_closed_by(&self, error: &ConnectionError) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let is_cut = |error: &io::Error| matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        self.idle_since.is_some() && matches!(error, ConnectionError::Io(error) if is_cut(error))
    }

    /// Local address of a TCP connection.
    pub fn local_ip(&self) -> Option<IpAddr> {
        let address = rustix::net::getsockname(&*self.socket).ok()?;
        SocketAddr::try_from(address).ok().map(|address| address.ip())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Any process may take an abstract name that is free, also that of a master that has ended, and what the client says
/// there first is the session's secret. A master hears its own user alone there.
fn check_user(socket: &Guarded<OwnedFd>, name: &str) -> Result<(), ConnectionError> {
    let peer = peer_credentials(&**socket)?;
    if peer.is_own_user() {
        return Ok(());
    }
    let text = format!(
        "the Unix socket {name:?} is of process {} of user {}, who is not known to be the user of this process",
        peer.pid, peer.uid
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text).into())
}
