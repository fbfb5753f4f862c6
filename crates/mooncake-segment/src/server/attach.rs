//! The processes that map a segment: how each is let in, heard, and seen to end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mooncake_os::{Guarded, ProcessIdentity, has_exited, peer_credentials, peer_pidfd, send_fds};

use super::Shared;
use super::acceptor::{Of, refuse};
use crate::local::Served;
use crate::machine::Newcomer;
use crate::protocol::attach_stream::AttachPipe;
use crate::protocol::frames::{
    FEATURE_INTRODUCTIONS, FEATURE_KNOWN_PINS, FEATURE_LOCKS, HELLO_LEN, Hello, HelloReply, LANE_VERSION, Status,
};
use crate::readiness::{Readiness, Ready, Watch, words_and};

/// The process of an attachment, as long as the owner's book has that.
pub(super) struct Attached {
    session: u64,
    pid: u32,
    process: Watch<OwnedFd>,
    pub(super) pipe: Option<AttachPipe>,
    /// As long as the pipe.
    stream: Option<Watch<UnixStream>>,
}

impl Attached {
    /// This very process, over that stream.
    #[cfg(test)]
    pub(super) fn of_this_process(session: u64, stream: UnixStream) -> Attached {
        stream.set_nonblocking(true).unwrap();
        let own = ProcessIdentity::current().unwrap();
        let (stream, pidfd) = (Arc::new(Guarded::new(stream)), own.pidfd().unwrap().unwrap());
        Attached::new(&Arc::new(Readiness::new().unwrap()), 1, session, own.pid, pidfd, &stream).unwrap()
    }

    fn new(
        readiness: &Arc<Readiness>,
        id: u64,
        session: u64,
        pid: u32,
        pidfd: OwnedFd,
        stream: &Arc<Guarded<UnixStream>>,
    ) -> io::Result<Attached> {
        Ok(Attached {
            session,
            pid,
            process: readiness.watch(Arc::new(Guarded::new(pidfd)), Of::Process(id).number(), Ready::IN)?,
            pipe: Some(AttachPipe::new(stream.clone())),
            stream: Some(readiness.watch(stream.clone(), Of::Stream(id).number(), Ready::IN)?),
        })
    }

    /// Something was sent, or waits to be.
    pub(super) fn has_sent(&mut self) {
        if let (Some(pipe), Some(stream)) = (&self.pipe, &mut self.stream) {
            stream.want(words_and(pipe.is_waiting()));
        }
    }

    pub(super) fn hang_up(&mut self, why: &io::Error) {
        self.stream = None;
        if self.pipe.take().is_some() && why.kind() != io::ErrorKind::UnexpectedEof {
            tracing::warn!(pid = self.pid, session = self.session, "attach connection closed: {why}");
        }
    }
}

impl Shared {
    /// Gives the segment's descriptors to a process of our user whose end can be proven.
    pub(super) fn attach(
        &self,
        stream: Guarded<UnixStream>,
        hello: &Hello,
        served: &Arc<Served>,
    ) -> Result<(), Status> {
        let stream = Arc::new(stream);
        self.try_attach(&stream, hello, served).or_else(|status| refuse(&**stream, hello, status))
    }

    fn try_attach(&self, stream: &Arc<Guarded<UnixStream>>, hello: &Hello, served: &Arc<Served>) -> Result<(), Status> {
        let credentials = peer_credentials(&***stream).map_err(|_| Status::NotTrusted)?;
        if !credentials.is_own_user() {
            return Err(Status::NotTrusted);
        }
        if !served.memory.is_sealed() {
            // A process that truncates it could kill a peer that maps it (docs/safety.md, rule 21).
            return Err(Status::NotTrusted);
        }
        let pidfd = pidfd_of(stream, credentials.pid, hello.start_time).ok_or(Status::NotTrusted)?;
        let mut state = self.state.lock();
        if served.is_removed() {
            return Err(Status::UnknownSegment);
        }
        if state.owner.is_full() {
            return Err(Status::Overloaded);
        }
        let tenure = state.owner.tenure(&hello.uuid);
        if tenure != 0 && hello.features & FEATURE_LOCKS == 0 {
            // The next owner could not tell that it is still there (docs/safety.md, rule 26).
            return Err(Status::Version);
        }
        let reply = HelloReply {
            version: LANE_VERSION,
            status: Status::Ok,
            // A newcomer has nothing older to swear off.
            epoch: served.insiders.epoch(),
            bytes: served.memory.bytes(),
            uuid: hello.uuid,
            features: FEATURE_INTRODUCTIONS,
            tenure,
        };
        let knows_pins = hello.features & FEATURE_KNOWN_PINS != 0;
        let id = state.owner.attach(Newcomer { session: hello.session, uuid: hello.uuid, knows_pins });
        let attached =
            Attached::new(&self.readiness, id, hello.session, credentials.pid, pidfd, stream).and_then(|attached| {
                let fds = [served.memory.data_fd(), served.memory.control_fd()];
                // A fresh connection has room for 64 bytes: less means that it is dead.
                let sent = send_fds(stream.as_fd(), &reply.encode(), &fds)?;
                if sent == HELLO_LEN { Ok(attached) } else { Err(io::ErrorKind::WriteZero.into()) }
            });
        if let Ok(attached) = attached {
            state.attached.insert(id, attached);
        } else {
            // It was given nothing.
            let mut out = Vec::new();
            state.owner.process_ended(id, &mut out);
            let later = state.carry_out(out);
            drop(state);
            self.report(later);
        }
        Ok(())
    }

    /// Whether the process of an attachment has ended.
    pub(super) fn has_ended(&self, id: u64) -> bool {
        let state = self.state.lock();
        state.attached.get(&id).is_some_and(|attached| matches!(has_exited(attached.process.of().as_fd()), Ok(true)))
    }

    /// The process is gone.
    pub(super) fn process_gone(&self, id: u64) {
        let later = {
            let mut state = self.state.lock();
            let mut out = Vec::new();
            state.owner.process_ended(id, &mut out);
            state.carry_out(out)
        };
        self.report(later);
    }

    /// Reads what an attached process has to say.
    pub(super) fn attach_readable(&self, id: u64) {
        let mut later = Vec::new();
        let mut state = self.state.lock();
        while let Some(pipe) = state.attached.get_mut(&id).and_then(|attached| attached.pipe.as_mut()) {
            match pipe.receive() {
                Ok(Some(frame)) => {
                    let mut out = Vec::new();
                    state.owner.heard(id, &frame, &mut out);
                    later.extend(state.carry_out(out));
                }
                Ok(None) => break,
                Err(e) => state.lost(id, &e),
            }
        }
        drop(state);
        self.report(later);
    }

    pub(super) fn attach_writable(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(attached) = state.attached.get_mut(&id) else { return };
        let Some(pipe) = &mut attached.pipe else { return };
        let later = match pipe.flush() {
            Ok(()) => {
                let (has_room, mut out) = (!pipe.is_waiting(), Vec::new());
                attached.has_sent();
                state.owner.room(id, has_room, &mut out);
                state.carry_out(out)
            }
            Err(e) => {
                let mut out = Vec::new();
                state.broken(id, &e, &mut out);
                state.carry_out(out)
            }
        };
        drop(state);
        self.report(later);
    }
}

/// The pidfd of the process that connected: from the kernel, or by pid and start time on
/// kernels that cannot say (before 6.5).
fn pidfd_of(stream: &UnixStream, pid: u32, start_time: u64) -> Option<OwnedFd> {
    if let Ok(pidfd) = peer_pidfd(stream) {
        return Some(pidfd);
    }
    let own = ProcessIdentity::current().ok()?;
    let peer = ProcessIdentity { pid, start_time, ..own };
    if pid == 0 { None } else { peer.pidfd().ok().flatten() }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use mooncake_os::recv_fds;
    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::*;
    use crate::epoch::Epoch;
    use crate::link::fixture::{Quiet, hello, owner};
    use crate::machine::{Fence, Output, ProcessGone};
    use crate::protocol::frames::{FRAME_LEN, Frame, Op, Purpose};
    use crate::server::{ServerEvents, State};
    use mooncake_ids::{Rid, SegmentUuid};

    /// What a caller is answered, and the descriptors that it gets.
    fn answer(caller: &UnixStream) -> (Status, usize) {
        let (mut reply, mut fds) = ([0; HELLO_LEN], Vec::new());
        assert_eq!(recv_fds(caller, &mut reply, &mut fds).unwrap(), reply.len());
        (HelloReply::decode(&reply).unwrap().status, fds.len())
    }

    #[test]
    fn who_is_not_put_on_record_gets_no_descriptors_and_who_gets_none_is_not_put_on_record() {
        let (server, memory, _) = owner(1 << 20, Quiet);
        let (shared, hello) = (&server.shared, hello(Purpose::Attach, memory.uuid()));
        let served = shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
        let attach = || {
            let (caller, stream) = UnixStream::pair().unwrap();
            (shared.attach(Guarded::new(stream), &hello, &served), answer(&caller), caller)
        };
        // It hung up while it waited.
        let (gone, stream) = UnixStream::pair().unwrap();
        drop(gone);
        assert_eq!(shared.attach(Guarded::new(stream), &hello, &served), Ok(()));
        assert_eq!(server.attached(), 0, "it would be waited for until its process ends");

        let (attached, answered, _caller) = attach();
        assert_eq!((attached, answered, server.attached()), (Ok(()), (Status::Ok, 2), 1));

        let mut state = shared.state.lock();
        let before = state.owner.attached();
        while !state.owner.is_full() {
            state.owner.attach(Newcomer { session: 3, uuid: memory.uuid(), knows_pins: true });
        }
        let full = state.owner.attached();
        drop(state);
        let (attached, answered, _caller) = attach();
        assert_eq!((attached, answered), (Err(Status::Overloaded), (Status::Overloaded, 0)));
        assert!(server.attached() == full && full > before);

        // Removed between its hello and this.
        assert!(server.remove(memory.uuid()));
        let (attached, answered, _caller) = attach();
        assert_eq!((attached, answered), (Err(Status::UnknownSegment), (Status::UnknownSegment, 0)));
        assert_eq!(server.attached(), 0);
    }

    #[test]
    fn a_process_that_read_slowly_is_asked_for_an_epoch_once_it_has_read_all() {
        let (server, memory, _) = owner(1 << 20, Quiet);
        let (shared, hello) = (&server.shared, hello(Purpose::Attach, memory.uuid()));
        let served = shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
        let (mut caller, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        set_socket_send_buffer_size(&stream, 1).unwrap();
        assert_eq!(shared.attach(Guarded::new(stream), &hello, &served), Ok(()));
        assert_eq!(answer(&caller), (Status::Ok, 2));
        let waits = || {
            let state = shared.state.lock();
            state.attached.values().any(|attached| attached.pipe.as_ref().is_some_and(AttachPipe::is_waiting))
        };
        shared.waker.wake();
        caller.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = [0; FRAME_LEN];
        caller.write_all(&Frame::plain(Op::Upgrade, 0).encode()).unwrap();
        caller.read_exact(&mut bytes).expect("it may write");
        for counter in 1.. {
            if waits() {
                break;
            }
            assert!(counter < 1000, "there is room for all of them");
            let (uuid, rid) = (memory.uuid(), Rid::new(1, counter));
            server.fence(Fence { uuid, rid, offset: 0, len: 1, writer: hello.session, writer_done: false });
        }
        server.take_epoch(Epoch::numbered(2)).unwrap();
        while Frame::decode(&bytes).is_none_or(|frame| frame.op != Op::TakeEpoch) {
            caller.read_exact(&mut bytes).expect("it is asked");
        }
    }

    struct Ends(Sender<ProcessGone>);

    impl ServerEvents for Ends {
        fn fenced(&self, _: SegmentUuid, _: Rid) {}
        fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
        fn process_gone(&self, gone: ProcessGone) {
            let _ = self.0.send(gone);
        }
    }

    #[test]
    fn all_that_a_process_said_before_it_ended_is_heard_before_its_end() {
        let (sender, ends) = channel();
        let (server, memory, _) = owner(1 << 20, Ends(sender));
        let (shared, uuid) = (&server.shared, memory.uuid());
        let mut state = shared.state.lock();
        let id = state.owner.attach(Newcomer { session: 3, uuid, knows_pins: true });
        let (mut caller, stream) = UnixStream::pair().unwrap();
        state.attached.insert(id, Attached::of_this_process(3, stream));
        drop(state);
        // The acceptor sleeps, and knows nothing of it: both its ways from here are taken by hand.
        for frame in [Frame::plain(Op::Upgrade, 0), Frame { rid: 99, ..Frame::plain(Op::Introduce, 0) }] {
            caller.write_all(&frame.encode()).unwrap();
        }
        shared.attach_readable(id);
        shared.process_gone(id);
        assert_eq!(ends.try_recv(), Ok(ProcessGone { session: 3, uuid, mark: 99 }));
        assert_eq!((server.attached(), shared.state.lock().attached.len()), (0, 0));
    }

    #[test]
    fn a_detached_is_heard_though_the_process_takes_nothing_any_more() {
        for detached in [false, true] {
            let (server, memory, _) = owner(1 << 20, Quiet);
            let (shared, uuid) = (&server.shared, memory.uuid());
            let mut state = shared.state.lock();
            let id = state.owner.attach(Newcomer { session: 3, uuid, knows_pins: true });
            let (mut caller, stream) = UnixStream::pair().unwrap();
            set_socket_send_buffer_size(&stream, 1).unwrap();
            state.attached.insert(id, Attached::of_this_process(3, stream));
            let waits = |state: &State| state.attached[&id].pipe.as_ref().unwrap().is_waiting();
            for counter in 1.. {
                assert!(counter < 1000, "there is room for all of them");
                let out = vec![Output::Send { to: id, frame: Frame::plain(Op::Upgraded, counter) }];
                state.carry_out(out);
                if waits(&state) {
                    break;
                }
            }
            caller.write_all(&Frame::plain(Op::Upgrade, 0).encode()).unwrap();
            if detached {
                caller.write_all(&Frame::plain(Op::Detached, 0).encode()).unwrap();
            }
            drop(caller);
            drop(state);
            shared.attach_writable(id);
            let state = shared.state.lock();
            assert_eq!((state.owner.attached(), state.attached.len()), if detached { (0, 0) } else { (1, 1) });
            assert!(detached || state.attached[&id].pipe.is_none(), "it is not waited for any more");
        }
    }
}
