//! Processes that map a segment: who they are, and what they have promised.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mooncake_memory::{Guarded, ProcessIdentity, peer_credentials, peer_pidfd, send_fds};

use super::door::refuse;
use super::fence_list::FenceList;
use super::{Fence, ProcessGone, Shared, State};
use crate::Uuid;
use crate::attach_pipe::AttachPipe;
use crate::local::Served;
use crate::reign::Reign;
use crate::wire::{FEATURE_INTRODUCTIONS, FEATURE_KNOWN_PINS, Frame, Hello, HelloReply, LANE_VERSION, Op, Status};

/// Most attachments at a time, all segments together.
const MAX_ATTACHED: usize = 4096;

/// Fences that an attached process is asked about before it has answered the first of them. Their frames lie in the
/// memory of its connection while it stands still.
const MOST_UNANSWERED: usize = 1024;

/// One process's attachment to one segment. The record outlives the
/// connection: only a farewell or the process's end removes it.
pub(super) struct Attach {
    session: u64,
    uuid: Uuid,
    pid: u32,
    /// Number by which the master knows that this is the session's process, once it has shown it; 0 = none.
    mark: u64,
    pidfd: Arc<Guarded<OwnedFd>>,
    pipe: Option<AttachPipe>,
    writable: bool,
    epoch: u16,
    /// Latest reign that it is to be asked to obey, and the epoch that it has been asked for.
    reign_wanted: Reign,
    epoch_asked: u16,
    /// Fences that it is still to be asked about: by their ids, so that one who stands still costs no more than the
    /// fences themselves.
    questions: VecDeque<u64>,
    /// Asked and not answered.
    unanswered: usize,
    /// Its word that it has taken an epoch covers its views.
    knows_pins: bool,
}

impl Attach {
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Highest epoch whose elders it has sworn off.
    pub(super) fn epoch(&self) -> u16 {
        self.epoch
    }

    pub(super) fn pidfd(&self) -> &Arc<Guarded<OwnedFd>> {
        &self.pidfd
    }

    pub(super) fn pipe(&self) -> Option<&AttachPipe> {
        self.pipe.as_ref()
    }

    pub(super) fn writes_for(&self, session: u64, uuid: &Uuid) -> bool {
        self.writable && self.session == session && self.uuid == *uuid
    }

    /// Sends if there is a connection left to send on. Without one the answer
    /// never comes, and the end of the process is the proof.
    pub(super) fn send(&mut self, frame: &Frame) {
        if let Some(pipe) = &mut self.pipe
            && let Err(e) = pipe.send(frame)
        {
            self.hang_up(&e);
        }
    }

    fn flush(&mut self) {
        if let Some(pipe) = &mut self.pipe
            && let Err(e) = pipe.flush()
        {
            self.hang_up(&e);
        }
    }

    /// Asks to obey a reign, unless it does; true when an answer is needed.
    /// Readers are asked too: their views are pins that the new epoch's master
    /// must hear of before it gives space out.
    pub(super) fn ask_epoch(&mut self, asked: Reign) -> bool {
        if self.epoch >= asked.epoch {
            return false;
        }
        self.reign_wanted = self.reign_wanted.or_later(asked);
        self.put_epoch();
        true
    }

    /// It is to be asked about a fence when its turn comes.
    pub(super) fn ask_fence(&mut self, fence_id: u64) {
        self.questions.push_back(fence_id);
    }

    /// Puts the questions that have their turn. A process that stands still is not asked more than its connection
    /// holds, so that the connection lasts until it goes on.
    pub(super) fn put_questions(&mut self, attach_id: u64, fences: &FenceList, epoch: u16) {
        if self.pipe.is_none() {
            // Nobody is there to answer: its end is the proof.
            self.questions.clear();
        }
        self.put_epoch();
        while self.unanswered < MOST_UNANSWERED
            && let Some(id) = self.questions.pop_front()
        {
            let Some(Fence { rid, offset, len, .. }) = fences.question(id, attach_id).copied() else { continue };
            self.send(&Frame { op: Op::Quiesce, epoch, rid, offset, len, sequence: id });
            self.unanswered += 1;
        }
    }

    /// The highest one is enough, and one on the way at a time.
    fn put_epoch(&mut self) {
        if self.epoch_asked < self.reign_wanted.epoch && self.pipe.as_ref().is_some_and(|pipe| !pipe.is_waiting()) {
            self.epoch_asked = self.reign_wanted.epoch;
            self.send(&Frame::take_epoch(self.reign_wanted));
        }
    }

    pub(super) fn hang_up(&mut self, why: &io::Error) {
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
            // A peer that maps it could be killed by whoever truncates it.
            return Err(Status::NotTrusted);
        }
        let pidfd = pidfd_of(stream, credentials.pid, hello.start_time).ok_or(Status::NotTrusted)?;
        let mut state = self.state.lock();
        if served.is_removed() {
            return Err(Status::UnknownSegment);
        }
        if state.attached.len() >= MAX_ATTACHED {
            return Err(Status::Overloaded);
        }
        let reply = HelloReply {
            version: LANE_VERSION,
            status: Status::Ok,
            // A newcomer has nothing older to swear off.
            reign: served.insiders.reign(),
            bytes: served.memory.bytes(),
            uuid: hello.uuid,
            features: FEATURE_INTRODUCTIONS,
        };
        let fds = [served.memory.data_fd(), served.memory.control_fd()];
        // A fresh connection has room for 64 bytes: less means that it is dead.
        match send_fds(stream.as_fd(), &reply.encode(), &fds) {
            Ok(sent) if sent == reply.encode().len() => {}
            _ => return Ok(()),
        }
        let knows_pins = hello.features & FEATURE_KNOWN_PINS != 0;
        // While an epoch is being taken, an older version may come with pins that only the former reign knew.
        let is_silent = !knows_pins && state.epochs.iter().any(|pending| pending.uuid() == hello.uuid);
        let id = state.next_id();
        let attach = Attach {
            session: hello.session,
            uuid: hello.uuid,
            pid: credentials.pid,
            mark: 0,
            pidfd: Arc::new(Guarded::new(pidfd)),
            pipe: Some(AttachPipe::new(stream.clone())),
            writable: false,
            epoch: if is_silent { 0 } else { state.reign.epoch },
            reign_wanted: Reign::default(),
            epoch_asked: 0,
            questions: VecDeque::new(),
            unanswered: 0,
            knows_pins,
        };
        state.attached.insert(id, attach);
        Ok(())
    }

    /// The process is gone: whatever it was asked has become true.
    pub(super) fn process_gone(&self, attach_id: u64) {
        let gone = self.state.lock().detach(attach_id);
        // What the hello said of the session anybody could have said.
        if let Some(Attach { session, uuid, mark, .. }) = gone
            && mark != 0
        {
            self.events.process_gone(ProcessGone { session, uuid, mark });
        }
    }

    /// Reads what an attached process has to say.
    pub(super) fn attach_readable(&self, attach_id: u64) {
        let mut state = self.state.lock();
        loop {
            let State { attached, fences, reign, .. } = &mut *state;
            let Some(attach) = attached.get_mut(&attach_id) else { return };
            let Some(pipe) = &mut attach.pipe else { return };
            let frame = match pipe.receive() {
                Ok(Some(frame)) => frame,
                Ok(None) => return attach.put_questions(attach_id, fences, reign.epoch),
                Err(e) => return attach.hang_up(&e),
            };
            match frame.op {
                Op::Upgrade => {
                    // On record before the answer allows the first store.
                    attach.writable = true;
                    attach.send(&Frame::plain(Op::Upgraded, reign.epoch));
                }
                // An older version says so although it may hold views that the master does not know.
                Op::EpochTaken if !attach.knows_pins => {}
                Op::EpochTaken => attach.epoch = attach.epoch.max(frame.epoch),
                Op::Quiesced => {
                    attach.unanswered = attach.unanswered.saturating_sub(1);
                    fences.answered(frame.sequence, attach_id);
                }
                Op::Detached => drop(state.detach(attach_id)),
                Op::Introduce => attach.mark = frame.rid,
                _ => attach.hang_up(&io::Error::new(io::ErrorKind::InvalidData, "it sent a message that is not its")),
            }
        }
    }

    pub(super) fn attach_writable(&self, attach_id: u64) {
        let mut state = self.state.lock();
        let State { attached, fences, reign, .. } = &mut *state;
        if let Some(attach) = attached.get_mut(&attach_id) {
            attach.flush();
            attach.put_questions(attach_id, fences, reign.epoch);
        }
    }
}

impl State {
    /// An attachment is no more.
    fn detach(&mut self, attach_id: u64) -> Option<Attach> {
        self.fences.detached(attach_id);
        self.attached.remove(&attach_id)
    }
}

/// The pidfd of whoever connected: from the kernel, or by pid and start time on
/// kernels that cannot say (before 6.5).
fn pidfd_of(stream: &UnixStream, pid: u32, start_time: u64) -> Option<OwnedFd> {
    if let Ok(pidfd) = peer_pidfd(stream) {
        return Some(pidfd);
    }
    let own = ProcessIdentity::current().ok()?;
    let peer = ProcessIdentity { pid, start_time, ..own };
    if pid == 0 { None } else { peer.pidfd().ok().flatten() }
}
