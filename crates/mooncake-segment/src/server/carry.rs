//! Carries out what the owner's book says.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid};

use super::{ProcessGone, Shared, State};
use crate::epoch::Epoch;
use crate::local::Insider;
use crate::machine::{Fence, Frame, Output};

/// What is told without the lock.
pub(super) enum Later {
    Ask(Vec<Arc<Insider>>, Epoch),
    Fenced(SegmentUuid, Rid),
    EpochTaken(u16, SegmentUuid),
    ProcessGone(ProcessGone),
}

impl State {
    /// Does at once what needs the lock, and gives the rest to [`Shared::report`].
    pub(super) fn carry_out(&mut self, mut out: Vec<Output>) -> Vec<Later> {
        let mut later = Vec::new();
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    Output::Send { to, frame } => self.send(to, &frame, &mut out),
                    Output::HangUp { attachment } => {
                        let why = "it sent a message that is not its";
                        self.lost(attachment, &io::Error::new(io::ErrorKind::InvalidData, why));
                    }
                    Output::Forget { attachment } => drop(self.attached.remove(&attachment)),
                    Output::Cut { uuid, writes } => {
                        if let Some(served) = self.owner.segment(&uuid) {
                            served.gate.cut(&writes);
                        }
                    }
                    Output::AskInsiders { uuid, epoch } => {
                        let below = self.owner.segment(&uuid).map(|served| served.insiders.below(epoch));
                        later.extend(below.map(|below| Later::Ask(below, epoch)));
                    }
                    Output::Fenced { uuid, rid } => later.push(Later::Fenced(uuid, rid)),
                    Output::EpochTaken { epoch, uuid } => later.push(Later::EpochTaken(epoch, uuid)),
                    Output::ProcessGone(gone) => later.push(Later::ProcessGone(gone)),
                    Output::Outside(fence) => log_outside(&fence),
                    Output::Marred { fence, found } => log_marred(&fence, found),
                }
            }
        }
        later
    }

    /// No answer comes over a connection any more.
    pub(super) fn lost(&mut self, id: u64, why: &io::Error) {
        if let Some(attached) = self.attached.get_mut(&id) {
            attached.hang_up(why);
        }
        self.owner.connection_lost(id);
    }

    /// Sends if there is a connection left to send on.
    fn send(&mut self, to: u64, frame: &Frame, out: &mut Vec<Output>) {
        let Some(attached) = self.attached.get_mut(&to) else { return };
        let Some(pipe) = &mut attached.pipe else { return };
        match pipe.send(frame) {
            Ok(()) => {
                let has_room = !pipe.is_waiting();
                attached.has_sent();
                self.owner.room(to, has_room, out);
            }
            Err(e) => self.broken(to, &e, out),
        }
    }

    /// A connection takes nothing any more. What the process has said before that is still to be heard: a `Detached`
    /// may be among it, and without that the end of the process would be waited for.
    pub(super) fn broken(&mut self, id: u64, why: &io::Error, out: &mut Vec<Output>) {
        while let Some(pipe) = self.attached.get_mut(&id).and_then(|attached| attached.pipe.as_mut())
            && let Ok(Some(frame)) = pipe.receive()
        {
            self.owner.heard(id, &frame, out);
        }
        self.lost(id, why);
    }
}

impl Shared {
    /// The owner's time.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Looks at every unfinished promise again and reports the kept ones.
    pub(super) fn check_promises(&self) {
        let later = {
            let mut state = self.state.lock();
            let mut out = Vec::new();
            state.owner.check_promises(self.now(), &mut out);
            state.carry_out(out)
        };
        self.report(later);
    }

    /// When to do that again whatever happens: lanes are to be cut then.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.state.lock().owner.next_cut().map(|at| self.started + at)
    }

    pub(super) fn report(&self, later: Vec<Later>) {
        for later in later {
            match later {
                Later::Ask(insiders, epoch) => insiders.iter().for_each(|insider| insider.ask(epoch)),
                Later::Fenced(uuid, rid) => self.events.fenced(uuid, rid),
                Later::EpochTaken(epoch, uuid) => self.events.epoch_taken(epoch, uuid),
                Later::ProcessGone(gone) => self.events.process_gone(gone),
            }
        }
    }
}

fn log_outside(&Fence { uuid, rid, offset, len, .. }: &Fence) {
    tracing::error!(%uuid, rid = rid.0, offset, len, "fence of an extent that is not in the segment");
}

fn log_marred(&Fence { uuid, rid, offset, len, .. }: &Fence, found: u64) {
    tracing::warn!(
        %uuid,
        rid = rid.0,
        offset,
        len,
        found = format_args!("{found:#x}"),
        "an extent carries a newer stamp; if it is in quarantine it stays there for this epoch"
    );
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use mooncake_memory::{SegmentMemory, SegmentOptions};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::sockopt::set_socket_send_buffer_size;

    use crate::link::SegmentAddress;
    use crate::local::Served;
    use crate::machine::Newcomer;
    use crate::protocol::frames::{FRAME_LEN, Op};
    use crate::server::attach::Attached;
    use crate::server::{SegmentServer, ServerEvents, ServerOptions};
    use crate::{LinkEvents, LinkOptions, Links, Path, Paths};
    use mooncake_os::{Deadline, ProcessIdentity, Waker};

    use super::*;

    struct Quiet;

    impl ServerEvents for Quiet {
        fn fenced(&self, _: SegmentUuid, _: Rid) {}
        fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
    }

    impl LinkEvents for Quiet {
        fn owner_gone(&self, _: SegmentUuid, _: Option<ProcessIdentity>) {}
        fn take_epoch(&self, _: crate::EpochQuestion) {}
    }

    #[test]
    fn a_process_that_unmaps_while_it_is_being_asked_is_not_waited_for() {
        let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
        let server = SegmentServer::start(options, Box::new(Quiet)).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        let address = SegmentAddress {
            uuid: memory.uuid(),
            bytes: memory.bytes(),
            name: "owner".into(),
            boot_id: mooncake_os::boot_id().unwrap(),
            unix_socket: server.unix_name().into(),
            tcp: Vec::new(),
            access_key: 1,
            process: None,
            tier_file_blocks: 0,
        };
        let options = LinkOptions { paths: Paths::only(Path::SharedMemory), ..LinkOptions::new(1) };
        let links = Links::new(options, Box::new(Quiet)).unwrap();
        drop(links.link(&address, &Deadline::at(Instant::now() + Duration::from_secs(5))).unwrap());
        {
            let mut state = server.shared.state.lock();
            let stream = state.attached.values().next().unwrap().pipe.as_ref().unwrap().stream().clone();
            // Its `Detached` is on its way, and the owner's thread waits for the lock.
            links.close();
            let closed = || {
                let mut fds = [PollFd::new(&**stream, PollFlags::empty())];
                poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap();
                fds[0].revents().contains(PollFlags::HUP)
            };
            let until = Instant::now() + Duration::from_secs(5);
            while !closed() {
                assert!(Instant::now() < until, "it is still mapped");
                std::thread::yield_now();
            }
            let mut out = Vec::new();
            assert_eq!(state.owner.take_epoch(Duration::ZERO, Epoch::numbered(2), &mut out), Ok(Vec::new()));
            state.carry_out(out);
        }
        server.shared.check_promises();
        assert_eq!((server.taken(memory.uuid()), server.attached()), (2, 0));
    }

    /// An owner of one segment in epoch 1, and one process that may write it for session 7.
    fn attached() -> (State, SegmentUuid, u64, UnixStream) {
        let (mut state, mut out) = (State::default(), Vec::new());
        assert_eq!(state.owner.take_epoch(Duration::ZERO, Epoch::numbered(1), &mut out), Ok(vec![]));
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        let uuid = memory.uuid();
        state.owner.add(uuid, Arc::new(Served::new(memory, 1, Epoch::numbered(1), Arc::new(Waker::new().unwrap()))));
        let id = state.owner.attach(Newcomer { session: 7, uuid, knows_pins: true });
        let (process, stream) = UnixStream::pair().unwrap();
        state.attached.insert(id, Attached::of_this_process(7, stream));
        state.owner.heard(id, &Frame::plain(Op::Upgrade, 0), &mut out);
        state.carry_out(out);
        (state, uuid, id, process)
    }

    fn fence(uuid: SegmentUuid, counter: u64) -> Fence {
        let rid = Rid::new(1, counter);
        Fence { uuid, rid, offset: counter << 10, len: 1024, writer: 7, writer_done: false }
    }

    /// Asks for a fence, and gives the answer of the process to what it is asked for that.
    fn asked(state: &mut State, fence: Fence) -> Option<Frame> {
        let mut out = Vec::new();
        assert!(!state.owner.fence(Duration::ZERO, fence, &mut out));
        let answer = out.iter().find_map(|output| match output {
            Output::Send { frame, .. } => Some(Frame { op: Op::Quiesced, ..*frame }),
            _ => None,
        });
        state.carry_out(out);
        answer
    }

    fn kept_promises(state: &mut State) -> Vec<Output> {
        let mut out = Vec::new();
        state.owner.check_promises(Duration::ZERO, &mut out);
        out
    }

    #[test]
    fn all_that_a_process_said_before_its_connection_broke_is_heard_and_nothing_behind_it() {
        for (answers, detached) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
            let (mut state, uuid, id, mut process) = attached();
            let fences = [fence(uuid, 1), fence(uuid, 2), fence(uuid, 3)];
            let asked_for = fences.map(|fence| asked(&mut state, fence).unwrap());
            for answer in &asked_for[..answers] {
                process.write_all(&answer.encode()).unwrap();
            }
            if detached {
                process.write_all(&Frame::plain(Op::Detached, 0).encode()).unwrap();
            }
            drop(process);
            // The owner finds out when it has something to say.
            assert!(asked(&mut state, fence(uuid, 4)).is_some());
            let heard = if detached { 4 } else { answers as u64 };
            let kept: Vec<u64> = kept_promises(&mut state).iter().map(fenced).collect();
            let (answered, rest) = kept.split_at(answers);
            assert_eq!(answered, (1..=answers as u64).collect::<Vec<u64>>(), "in the order of its answers");
            assert_eq!((answered.len() + rest.len()) as u64, heard);
            assert_eq!((state.owner.attached(), state.attached.len()), if detached { (0, 0) } else { (1, 1) });
            if detached {
                continue;
            }

            // It may write on, unseen: its end is waited for. Until then nothing more is put down for it to be asked.
            assert!(state.attached[&id].pipe.is_none(), "the connection is not waited for any more");
            assert_eq!(asked(&mut state, fence(uuid, 5)), None);
            let mut out = Vec::new();
            state.owner.heard(id, &asked_for[2], &mut out);
            assert_eq!((out, kept_promises(&mut state)), (vec![], vec![]));
            let mut out = Vec::new();
            state.owner.process_ended(id, &mut out);
            state.carry_out(out);
            assert_eq!(kept_promises(&mut state).len(), 5 - answers);
            assert_eq!((state.owner.attached(), state.attached.len()), (0, 0));
        }
    }

    fn fenced(output: &Output) -> u64 {
        let Output::Fenced { rid, .. } = output else { panic!("{output:?}") };
        rid.counter()
    }

    #[test]
    fn a_connection_that_ended_is_not_asked_any_more() {
        let (mut state, uuid, id, process) = attached();
        drop(process);
        state.lost(id, &io::ErrorKind::UnexpectedEof.into());
        assert!(state.attached[&id].pipe.is_none());
        assert_eq!(asked(&mut state, fence(uuid, 1)), None, "a list of questions would grow until its process ends");
        assert_eq!((kept_promises(&mut state), state.owner.attached()), (vec![], 1), "that it hung up proves nothing");
    }

    #[test]
    fn a_process_that_does_not_read_is_not_asked_for_one_epoch_after_another() {
        let (mut state, uuid, id, process) = attached();
        set_socket_send_buffer_size(&**state.attached[&id].pipe.as_ref().unwrap().stream().clone(), 1).unwrap();
        let mut counter = 1;
        while !state.attached[&id].pipe.as_ref().unwrap().is_waiting() {
            assert!(counter < 1000, "there is room for all of them");
            asked(&mut state, fence(uuid, counter)).unwrap();
            counter += 1;
        }
        let room = |state: &State| state.attached[&id].pipe.as_ref().unwrap().room();
        let before = room(&state);
        for epoch in [2, 3] {
            let mut out = Vec::new();
            assert_eq!(state.owner.take_epoch(Duration::ZERO, Epoch::numbered(epoch), &mut out), Ok(vec![]));
            state.carry_out(out);
        }
        assert_eq!(room(&state), before);
        // It goes on. What is sent to it next goes all the way, and with that the question.
        let mut read = 0;
        process.set_nonblocking(true).unwrap();
        while state.attached[&id].pipe.as_ref().unwrap().is_waiting() {
            read += (&process).read(&mut [0; 4096]).unwrap();
            state.attached.get_mut(&id).unwrap().pipe.as_mut().unwrap().flush().unwrap();
        }
        asked(&mut state, fence(uuid, counter)).unwrap();
        let mut bytes = Vec::new();
        assert_eq!((&process).read_to_end(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        bytes.drain(..(FRAME_LEN - read % FRAME_LEN) % FRAME_LEN);
        let frames: Vec<Frame> =
            bytes.chunks(FRAME_LEN).map(|frame| Frame::decode(frame.try_into().unwrap()).unwrap()).collect();
        let epochs: Vec<u16> =
            frames.iter().filter(|frame| frame.op == Op::TakeEpoch).map(|frame| frame.epoch).collect();
        assert_eq!(epochs, [3]);
    }
}
