//! The one thread that is not a lane: accepts, hears hellos, talks with
//! attached processes, watches them end and cuts lanes when it is time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_net::PeerLog;
use mooncake_os::Guarded;
use rustix::io::Errno;

use super::Shared;
use super::callers::Callers;
use super::pending::{Caller, Progress};
use super::record_files;
use super::record_lane::{self, ServedTier};
use super::tcp_lane;
use crate::epoch::Epoch;
use crate::local::Served;
use crate::protocol::frames::{HELLO_LEN, Hello, HelloReply, LANE_VERSION, Purpose, Status};
use crate::readiness::{Ready, Watch};

/// Most connections that may owe their hello.
const PENDING_MAX: usize = 512;

/// So many events are taken, and so many connections accepted, before the others have their turn.
const AT_ONCE: usize = 64;

/// Pause after the process ran out of descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// More than a client says to a master before it hears an answer.
const CONTROL_HELLO_MAX: usize = 4 << 10;

/// What an event is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Waker,
    /// The listener of that place among those for data.
    Tcp(usize),
    Unix,
    /// The process of that attachment.
    Process(u64),
    /// The connection of that attachment.
    Stream(u64),
    /// A connection that owes its hello.
    Caller(u64),
}

impl Of {
    /// How the kernel is told.
    pub(super) fn number(self) -> u64 {
        match self {
            Of::Waker => 0,
            Of::Unix => 4,
            Of::Tcp(nth) => 8 + nth as u64 * 4,
            Of::Process(id) => id * 4 + 1,
            Of::Stream(id) => id * 4 + 2,
            Of::Caller(id) => id * 4 + 3,
        }
    }

    fn numbered(number: u64) -> Of {
        match (number % 4, number / 4) {
            (0, 0) => Of::Waker,
            (0, 1) => Of::Unix,
            (0, number) => Of::Tcp(number as usize - 2),
            (1, id) => Of::Process(id),
            (2, id) => Of::Stream(id),
            (_, id) => Of::Caller(id),
        }
    }
}

pub(super) struct Acceptor {
    shared: Arc<Shared>,
    tcp: Vec<Watch<TcpListener>>,
    unix: Option<Watch<UnixListener>>,
    callers: Callers,
    faults: PeerLog<IpAddr>,
    /// The process is out of descriptors: none is taken before that.
    paused_until: Option<Instant>,
}

impl Acceptor {
    pub(super) fn new(shared: Arc<Shared>, tcp: Vec<TcpListener>, unix: Option<UnixListener>) -> io::Result<Acceptor> {
        let readiness = &shared.readiness;
        readiness.add(shared.waker.fd(), Of::Waker.number(), Ready::IN)?;
        let watch = |(nth, tcp)| readiness.watch(Arc::new(Guarded::new(tcp)), Of::Tcp(nth).number(), Ready::IN);
        let tcp = tcp.into_iter().enumerate().map(watch).collect::<io::Result<_>>()?;
        let unix = unix.map(|unix| readiness.watch(Arc::new(Guarded::new(unix)), Of::Unix.number(), Ready::IN));
        let unix = unix.transpose()?;
        Ok(Acceptor { shared, tcp, unix, callers: Callers::default(), faults: PeerLog::default(), paused_until: None })
    }

    pub(super) fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) {
            let overdue = self.callers.next_overdue().map(|(_, deadline)| deadline);
            let looks = self.shared.next_look();
            let soonest =
                overdue.into_iter().chain(self.shared.next_check()).chain(self.paused_until).chain(looks).min();
            let timeout = soonest.map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            match self.shared.readiness.wait::<AT_ONCE>(timeout) {
                Ok(ready) => ready.for_each(|(number, flags)| self.attend(Of::numbered(number), flags)),
                Err(e) => {
                    tracing::error!("segment server: epoll_wait: {e}");
                    std::thread::sleep(OUT_OF_DESCRIPTORS);
                }
            }
            self.shared.look_at_elders();
            self.shared.check_promises();
            self.keep_time(Instant::now());
        }
    }

    fn attend(&mut self, of: Of, flags: Ready) {
        match of {
            Of::Waker => self.shared.waker.clear(),
            Of::Tcp(nth) => self.accept_tcp(nth),
            Of::Unix => self.accept_unix(),
            Of::Process(id) => {
                // What it said before it ended still counts.
                self.shared.attach_readable(id);
                if self.shared.has_ended(id) {
                    self.shared.process_gone(id);
                }
            }
            Of::Stream(id) => {
                self.shared.attach_readable(id);
                if flags.contains(Ready::OUT) {
                    self.shared.attach_writable(id);
                }
            }
            Of::Caller(id) => self.hear(id),
        }
    }

    /// Shows those out whose time is over, and listens again when there may be descriptors.
    fn keep_time(&mut self, now: Instant) {
        while let Some((id, deadline)) = self.callers.next_overdue()
            && deadline <= now
        {
            self.show_out(id, "no hello in time");
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.listen(Ready::IN);
        }
    }

    fn listen(&mut self, wanted: Ready) {
        self.tcp.iter_mut().for_each(|tcp| tcp.want(wanted));
        if let Some(unix) = &mut self.unix {
            unix.want(wanted);
        }
    }

    fn hear(&mut self, id: u64) {
        match self.callers.advance(id) {
            Some(Progress::Complete(hello)) => self.let_in(id, &hello),
            Some(Progress::ForMaster) => self.turn_away(id),
            Some(Progress::Garbage(why)) => self.close(id, why),
            Some(Progress::Waiting) | None => {}
        }
    }

    /// Closes a connection, unless its hello has come meanwhile.
    fn show_out(&mut self, id: u64, why: &str) {
        match self.callers.advance(id) {
            Some(Progress::Complete(hello)) => self.let_in(id, &hello),
            _ => self.close(id, why),
        }
    }

    fn let_in(&mut self, id: u64, hello: &Hello) {
        let Some(caller) = self.callers.leave(id, &self.shared.readiness) else { return };
        let peer = caller.peer();
        if let Err(status) = admit(&self.shared, caller.into_caller(), hello) {
            self.report(peer, &status.to_string());
        }
    }

    /// Lets one that looks for a master know by the answer's first bytes that this is an owner.
    fn turn_away(&mut self, id: u64) {
        let Some(caller) = self.callers.leave(id, &self.shared.readiness) else { return };
        self.report(caller.peer(), "it looks for a master's control port");
        if let Caller::Tcp(mut stream, _) = caller.into_caller() {
            // What is left unread when a socket closes may cost its peer the answer.
            let _ = stream.read(&mut [0; CONTROL_HELLO_MAX]);
            let _ = stream.write(&refusal(Status::Unsupported, SegmentUuid([0; 16])));
        }
    }

    fn close(&mut self, id: u64, why: &str) {
        if let Some(caller) = self.callers.leave(id, &self.shared.readiness) {
            self.report(caller.peer(), why);
        }
    }

    fn report(&self, peer: IpAddr, why: &str) {
        if let Some(due) = self.faults.due(peer, Instant::now()) {
            tracing::warn!(%peer, suppressed = due.suppressed, "data lane closed: {why}{due}");
        }
    }

    fn accept_tcp(&mut self, nth: usize) {
        for _ in 0..AT_ONCE {
            let accepted = self.tcp[nth].of().accept();
            let Some((stream, peer)) = self.accepted(accepted) else { return };
            if stream.set_nonblocking(true).is_ok() {
                self.enter(Caller::Tcp(Guarded::new(stream), peer));
            }
        }
    }

    fn accept_unix(&mut self) {
        for _ in 0..AT_ONCE {
            let Some(accepted) = self.unix.as_ref().map(|unix| unix.of().accept()) else { return };
            let Some((stream, _)) = self.accepted(accepted) else { return };
            if stream.set_nonblocking(true).is_ok() {
                self.enter(Caller::Unix(Guarded::new(stream)));
            }
        }
    }

    fn enter(&mut self, caller: Caller) {
        let number = |id| Of::Caller(id).number();
        if let Err(e) = self.callers.enter(caller, Instant::now(), &self.shared.readiness, number) {
            tracing::warn!("segment server: a connection cannot be waited for: {e}");
        }
        self.show_out_all_but(PENDING_MAX, "too many connections without a hello");
    }

    fn show_out_all_but(&mut self, most: usize, why: &str) {
        while self.callers.len() > most
            && let Some(id) = self.callers.first_to_go()
        {
            self.show_out(id, why);
        }
    }

    /// The next connection; none when there is none, or no descriptor for it. Then strangers and idle lanes make room.
    fn accepted<T>(&mut self, accepted: io::Result<T>) -> Option<T> {
        let errno = match accepted {
            Ok(connection) => return Some(connection),
            Err(e) => Errno::from_io_error(&e),
        };
        if matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
            self.paused_until = Some(Instant::now() + OUT_OF_DESCRIPTORS);
            self.listen(Ready::empty());
            self.show_out_all_but(self.callers.len() / 2, "no descriptor is left");
            self.shared.lanes.make_room();
        }
        None
    }
}

/// Lets a caller with a good hello in; otherwise tells it why not.
fn admit(shared: &Arc<Shared>, caller: Caller, hello: &Hello) -> Result<(), Status> {
    let served = find(shared, hello);
    if matches!(served, Err(Status::UnknownSegment)) {
        let tier = shared.tiers.lock().get(&hello.uuid).cloned();
        if let Some(tier) = tier {
            return admit_to_tier(shared, caller, hello, tier);
        }
    }
    match (caller, hello.purpose, served) {
        (Caller::Tcp(stream, peer), Purpose::Lane, Ok(served)) => tcp_lane::open(shared, stream, peer, hello, served),
        (Caller::Unix(stream), Purpose::Attach, Ok(served)) => shared.attach(stream, hello, &served),
        (Caller::Tcp(stream, _), _, served) => refuse(&*stream, hello, served.err().unwrap_or(Status::Unsupported)),
        (Caller::Unix(stream), _, served) => refuse(&*stream, hello, served.err().unwrap_or(Status::Unsupported)),
    }
}

fn admit_to_tier(shared: &Arc<Shared>, caller: Caller, hello: &Hello, tier: Arc<ServedTier>) -> Result<(), Status> {
    let status = if tier.access_key == hello.access_key { Status::Unsupported } else { Status::WrongKey };
    match caller {
        Caller::Tcp(stream, _) if hello.purpose == Purpose::Lane && status == Status::Unsupported => {
            record_lane::open(stream, hello, tier, shared.options.stall_timeout)
        }
        Caller::Unix(stream) if hello.purpose == Purpose::Files && status == Status::Unsupported => {
            record_files::open(stream, hello, tier, shared.options.stall_timeout)
        }
        Caller::Tcp(stream, _) => refuse(&*stream, hello, status),
        Caller::Unix(stream) => refuse(&*stream, hello, status),
    }
}

fn find(shared: &Shared, hello: &Hello) -> Result<Arc<Served>, Status> {
    if hello.version != LANE_VERSION {
        return Err(Status::Version);
    }
    let served = shared.state.lock().owner.segment(&hello.uuid).cloned().ok_or(Status::UnknownSegment)?;
    if served.access_key == hello.access_key { Ok(served) } else { Err(Status::WrongKey) }
}

/// Answers a hello with a refusal. A fresh connection has room for it; if not,
/// closing it says enough.
pub(super) fn refuse(mut stream: impl Write, hello: &Hello, status: Status) -> Result<(), Status> {
    let _ = stream.write(&refusal(status, hello.uuid));
    Err(status)
}

fn refusal(status: Status, uuid: SegmentUuid) -> [u8; HELLO_LEN] {
    HelloReply { version: LANE_VERSION, status, epoch: Epoch::default(), bytes: 0, uuid, features: 0, tenure: 0 }
        .encode()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::link::fixture::{Quiet, hello, owner};

    #[test]
    fn a_hello_that_is_not_for_this_door_is_told_why() {
        let (server, memory, _) = owner(1 << 20, Quiet);
        let good = hello(Purpose::Attach, memory.uuid());
        for (hello, status) in [
            (Hello { version: LANE_VERSION + 1, ..good }, Status::Version),
            (Hello { uuid: SegmentUuid([1; 16]), ..good }, Status::UnknownSegment),
            (Hello { access_key: 2, ..good }, Status::WrongKey),
            (Hello { purpose: Purpose::Lane, ..good }, Status::Unsupported),
        ] {
            let (mut caller, stream) = UnixStream::pair().unwrap();
            assert_eq!(admit(&server.shared, Caller::Unix(Guarded::new(stream)), &hello), Err(status));
            let mut reply = [0; HELLO_LEN];
            caller.read_exact(&mut reply).unwrap();
            assert_eq!(HelloReply::decode(&reply).unwrap().status, status);
            assert_eq!(caller.read(&mut reply).unwrap(), 0, "and closed");
        }
    }

    #[test]
    fn a_caller_that_looks_for_a_master_hears_what_listens_here_instead() {
        let (server, _memory, _) = owner(1 << 20, Quiet);
        let mut caller = TcpStream::connect(server.tcp_addr()).unwrap();
        caller.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        caller.write_all(&[&mooncake_wire::CONTROL_PREFACE[..], &[7; 300]].concat()).unwrap();
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(&mooncake_wire::LANE_PREFACE), "{answer:?}");
    }

    fn connect_from(place: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((place, 0)).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    }

    #[test]
    fn a_flood_of_strangers_shows_no_member_out_that_is_about_to_say_hello() {
        mooncake_os::raise_descriptor_limit(4096).unwrap();
        let (server, memory, _) = owner(1 << 20, Quiet);
        let hello = hello(Purpose::Lane, memory.uuid()).encode();
        let (before, behind) = hello.split_at(HELLO_LEN / 2);
        for attempt in 0.. {
            let mut member = connect_from([127, 0, 0, 1], server.tcp_addr());
            let began = Instant::now();
            member.write_all(before).unwrap();
            let mut flood: Vec<TcpStream> =
                (0..PENDING_MAX + 100).map(|_| connect_from([127, 0, 0, 2], server.tcp_addr())).collect();
            flood[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(flood[0].read(&mut [0]).unwrap(), 0, "there are too many of them");
            if began.elapsed() > Duration::from_millis(500) && attempt < 20 {
                // Its time would soon be over by itself.
                continue;
            }
            member.write_all(behind).unwrap();
            member.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut reply = [0; HELLO_LEN];
            member.read_exact(&mut reply).expect("it was shown out");
            assert_eq!(HelloReply::decode(&reply).unwrap().status, Status::Ok);
            break;
        }
    }
}
