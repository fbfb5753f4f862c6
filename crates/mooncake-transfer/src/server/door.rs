//! The one thread that is not a lane: accepts, hears hellos, talks with
//! attached processes, watches them end and cuts lanes when it is time.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mooncake_memory::{Guarded, has_exited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Shared;
use super::attach::Attached;
use super::lane;
use super::pending::{Caller, Pending, Progress};
use super::strangers::Strangers;
use crate::local::Served;
use crate::reign::Reign;
use crate::wire::{Hello, HelloReply, LANE_VERSION, Purpose, Status};

/// Most connections that may owe their hello; the oldest goes first.
const MAX_PENDING: usize = 512;

/// Rest after the process ran out of descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

struct Watched {
    id: u64,
    pidfd: Arc<Guarded<OwnedFd>>,
    stream: Option<Arc<Guarded<UnixStream>>>,
    wants_room: bool,
}

pub(super) fn run(shared: &Arc<Shared>, tcp: &Guarded<TcpListener>, unix: Option<&Guarded<UnixListener>>) {
    let mut pending: Vec<Pending> = Vec::new();
    let mut strangers = Strangers::default();
    let mut rest_until: Option<Instant> = None;
    while !shared.stopping.load(Ordering::Acquire) {
        let now = Instant::now();
        if rest_until.is_some_and(|until| until <= now) {
            rest_until = None;
        }
        let watched = watched(shared);
        let soonest = pending.iter().map(Pending::deadline).chain(shared.next_settle()).chain(rest_until).min();
        let timeout = soonest.map(|at| timespec(at.saturating_duration_since(now) + Duration::from_millis(1)));

        let listening = if rest_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::from_borrowed_fd(shared.bell.fd(), PollFlags::IN)];
        fds.push(PollFd::new(&**tcp, listening));
        // The same descriptor twice does no harm where there is no Unix socket.
        fds.push(unix.map_or_else(|| PollFd::new(&**tcp, PollFlags::empty()), |unix| PollFd::new(&**unix, listening)));
        for attach in &watched {
            fds.push(PollFd::new(&**attach.pidfd, PollFlags::IN));
            let wanted = if attach.wants_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            match &attach.stream {
                Some(stream) => fds.push(PollFd::new(&***stream, wanted)),
                None => fds.push(PollFd::new(&**attach.pidfd, PollFlags::empty())),
            }
        }
        let first_pending = fds.len();
        fds.extend(pending.iter().map(|p| PollFd::from_borrowed_fd(p.fd(), PollFlags::IN)));
        if let Err(e) = poll(&mut fds, timeout.as_ref())
            && e != rustix::io::Errno::INTR
        {
            tracing::error!("segment server: poll: {e}");
            std::thread::sleep(OUT_OF_DESCRIPTORS);
            continue;
        }
        let heard: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);

        if !heard[0].is_empty() {
            shared.bell.hush();
        }
        for (attach, flags) in watched.iter().zip(heard[3..first_pending].chunks_exact(2)) {
            if !flags[1].is_empty() {
                // What it said before it ended still counts.
                shared.attach_readable(attach.id);
            }
            if flags[1].contains(PollFlags::OUT) {
                shared.attach_writable(attach.id);
            }
            if !flags[0].is_empty() && matches!(has_exited(attach.pidfd.as_fd()), Ok(true)) {
                shared.process_gone(attach.id);
            }
        }
        shared.settle();

        let now = Instant::now();
        let flags = &heard[first_pending..];
        let mut still = Vec::with_capacity(pending.len());
        for (mut caller, flags) in pending.drain(..).zip(flags) {
            let ready = !flags.is_empty();
            let progress = if ready { caller.advance() } else { Progress::Waiting };
            match progress {
                Progress::Waiting if caller.deadline() > now => still.push(caller),
                Progress::Waiting => drop(strangers.report(caller.peer(), "no hello in time", now)),
                Progress::Garbage(why) => drop(strangers.report(caller.peer(), why, now)),
                Progress::Complete(hello) => {
                    let peer = caller.peer();
                    if let Err(status) = admit(shared, caller.into_caller(), &hello) {
                        strangers.report(peer, &status.to_string(), now);
                    }
                }
            }
        }
        pending = still;

        let mut full = false;
        if heard[1].contains(PollFlags::IN) {
            while let Some(accepted) = accept_next(tcp.accept(), &mut full) {
                let (stream, peer) = accepted;
                if stream.set_nonblocking(true).is_ok() {
                    pending.push(Pending::new(Caller::Tcp(Guarded::new(stream), peer), now));
                }
            }
        }
        if let Some(unix) = unix
            && heard[2].contains(PollFlags::IN)
        {
            while let Some((stream, _)) = accept_next(unix.accept(), &mut full) {
                if stream.set_nonblocking(true).is_ok() {
                    pending.push(Pending::new(Caller::Unix(Guarded::new(stream)), now));
                }
            }
        }
        if full {
            rest_until = Some(now + OUT_OF_DESCRIPTORS);
            pending.clear();
            shared.lanes.make_room();
        }
        if pending.len() > MAX_PENDING {
            let surplus = pending.len() - MAX_PENDING;
            for oldest in pending.drain(..surplus) {
                strangers.report(oldest.peer(), "too many connections without a hello", now);
            }
        }
    }
}

fn watched(shared: &Shared) -> Vec<Watched> {
    let state = shared.state.lock();
    let watch = |(id, attached): (&u64, &Attached)| Watched {
        id: *id,
        pidfd: attached.pidfd().clone(),
        stream: attached.pipe().map(|pipe| pipe.stream().clone()),
        wants_room: attached.pipe().is_some_and(|pipe| pipe.is_waiting()),
    };
    state.attached.iter().map(watch).collect()
}

/// The next connection; none when there is none, or when the process is `full`.
fn accept_next<T>(accepted: std::io::Result<T>, full: &mut bool) -> Option<T> {
    match accepted {
        Ok(connection) => Some(connection),
        Err(e) => {
            let errno = rustix::io::Errno::from_io_error(&e);
            *full |=
                matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOBUFS));
            None
        }
    }
}

/// Lets a caller with a good hello in; otherwise tells it why not.
fn admit(shared: &Arc<Shared>, caller: Caller, hello: &Hello) -> Result<(), Status> {
    let served = find(shared, hello);
    match (caller, hello.purpose, served) {
        (Caller::Tcp(stream, peer), Purpose::Lane, Ok(served)) => lane::open(shared, stream, peer, hello, served),
        (Caller::Unix(stream), Purpose::Attach, Ok(served)) => shared.attach(stream, hello, &served),
        (Caller::Tcp(stream, _), _, served) => refuse(&*stream, hello, served.err().unwrap_or(Status::Unsupported)),
        (Caller::Unix(stream), _, served) => refuse(&*stream, hello, served.err().unwrap_or(Status::Unsupported)),
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
    let reply =
        HelloReply { version: LANE_VERSION, status, reign: Reign::default(), bytes: 0, uuid: hello.uuid, features: 0 };
    let _ = stream.write(&reply.encode());
    Err(status)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::link::fixture::{Quiet, hello, owner};
    use crate::wire::HELLO_LEN;

    #[test]
    fn a_hello_that_is_not_for_this_door_is_told_why() {
        let (server, memory, _) = owner(1 << 20, Quiet);
        let good = hello(Purpose::Attach, memory.uuid());
        for (hello, status) in [
            (Hello { version: LANE_VERSION + 1, ..good }, Status::Version),
            (Hello { uuid: [1; 16], ..good }, Status::UnknownSegment),
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
}
