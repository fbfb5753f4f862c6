//! Connections that have not said hello yet: no thread, 64 bytes, one second each.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mooncake_os::Guarded;
use mooncake_wire::{CONTROL_PREFACE, PREFACE_LEN};

use crate::protocol::frames::{HELLO_LEN, Hello, begins_as_hello};

/// Time for the whole hello.
const HELLO_TIMEOUT: Duration = Duration::from_millis(900);

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
    /// It takes this owner for a master.
    ForMaster,
    Garbage(&'static str),
}

impl Pending {
    /// Takes a fresh connection in; its stream must be non-blocking.
    pub(super) fn new(caller: Caller, now: Instant) -> Pending {
        Pending { caller, hello: [0; HELLO_LEN], have: 0, deadline: now + HELLO_TIMEOUT }
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
        match &self.hello[..self.have.min(PREFACE_LEN)] {
            preface if preface == CONTROL_PREFACE => return Progress::ForMaster,
            beginning if CONTROL_PREFACE.starts_with(beginning) => return Progress::Waiting,
            _ => {}
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::link::fixture::hello;
    use crate::protocol::frames::Purpose;
    use mooncake_ids::SegmentUuid;

    fn caller() -> (UnixStream, Pending) {
        let (caller, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        (caller, Pending::new(Caller::Unix(Guarded::new(stream)), Instant::now()))
    }

    #[test]
    fn a_hello_may_come_in_parts_and_rubbish_is_told_from_its_first_bytes() {
        let hello = hello(Purpose::Lane, SegmentUuid([7; 16]));
        for part in [1, 7, 63, 64] {
            let (mut caller, mut pending) = caller();
            assert!(matches!(pending.advance(), Progress::Waiting), "nothing has come");
            let bytes = hello.encode();
            let (parts, last) = bytes.split_at((HELLO_LEN - 1) / part * part);
            for part in parts.chunks(part) {
                caller.write_all(part).unwrap();
                assert!(matches!(pending.advance(), Progress::Waiting));
            }
            // What a caller says behind its hello is not part of that.
            caller.write_all(last).unwrap();
            caller.write_all(&[1; 8]).unwrap();
            let Progress::Complete(found) = pending.advance() else { panic!("it is all there") };
            assert_eq!(found, hello);
        }
        let mut damaged = hello.encode();
        damaged[HELLO_LEN - 1] ^= 1;
        for (bytes, why) in [
            (&b"GET / HTTP/1.1"[..], "its first bytes are not ours"),
            (b"x", "its first bytes are not ours"),
            (&[&hello.encode()[..1], b"x"].concat(), "its first bytes are not ours"),
            (&damaged, "its hello is damaged"),
        ] {
            let (mut caller, mut pending) = caller();
            caller.write_all(bytes).unwrap();
            assert!(matches!(pending.advance(), Progress::Garbage(found) if found == why), "{bytes:?}");
        }
        for cut in 1..PREFACE_LEN {
            let (mut caller, mut pending) = caller();
            let (first, last) = CONTROL_PREFACE.split_at(cut);
            caller.write_all(first).unwrap();
            assert!(matches!(pending.advance(), Progress::Waiting));
            caller.write_all(&[last, b"a hello"].concat()).unwrap();
            assert!(matches!(pending.advance(), Progress::ForMaster));
        }
        let (caller, mut pending) = caller();
        drop(caller);
        assert!(matches!(pending.advance(), Progress::Garbage("it hung up before its hello")));
    }
}
