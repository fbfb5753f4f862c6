//! Connections that have not said hello yet: no thread, 64 bytes, one second each.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mooncake_memory::Guarded;

use crate::wire::{HELLO_LEN, Hello, begins_as_hello};

/// Time for the whole hello.
const PATIENCE: Duration = Duration::from_millis(900);

#[derive(Debug)]
pub(super) enum Caller {
    Tcp(Guarded<TcpStream>, SocketAddr),
    Unix(Guarded<UnixStream>),
}

#[derive(Debug)]
pub(super) struct Pending {
    caller: Caller,
    hello: [u8; HELLO_LEN],
    have: usize,
    deadline: Instant,
}

/// How far a hello has come.
#[derive(Debug)]
pub(super) enum Progress {
    Waiting,
    Complete(Hello),
    Garbage(&'static str),
}

impl Pending {
    /// Takes a fresh connection in; its stream must be non-blocking.
    pub(super) fn new(caller: Caller, now: Instant) -> Pending {
        Pending { caller, hello: [0; HELLO_LEN], have: 0, deadline: now + PATIENCE }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.caller {
            Caller::Tcp(stream, _) => stream.as_fd(),
            Caller::Unix(stream) => stream.as_fd(),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Where it calls from; Unix callers are on this host.
    pub(super) fn peer(&self) -> IpAddr {
        match &self.caller {
            Caller::Tcp(_, peer) => peer.ip(),
            Caller::Unix(_) => IpAddr::from([127, 0, 0, 1]),
        }
    }

    pub(super) fn into_caller(self) -> Caller {
        self.caller
    }

    /// Takes in what has arrived.
    pub(super) fn advance(&mut self) -> Progress {
        let room = &mut self.hello[self.have..];
        let got = match &mut self.caller {
            Caller::Tcp(stream, _) => stream.read(room),
            Caller::Unix(stream) => stream.read(room),
        };
        match got {
            Ok(0) => return Progress::Garbage("it hung up before its hello"),
            Ok(count) => self.have += count,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Progress::Garbage("it broke before its hello"),
        }
        if !begins_as_hello(&self.hello[..self.have]) {
            return Progress::Garbage("its first bytes are not ours");
        }
        if self.have < HELLO_LEN {
            return Progress::Waiting;
        }
        Hello::decode(&self.hello).map_or(Progress::Garbage("its hello is damaged"), Progress::Complete)
    }
}
