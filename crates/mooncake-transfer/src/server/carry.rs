//! Carries out what the owner's book says.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_memory::uuid_text;

use super::{ProcessGone, Shared, State};
use crate::Uuid;
use crate::local::Inside;
use crate::machine::{Fence, Frame, Output};
use crate::reign::Reign;

/// What is told without the lock.
pub(super) enum Later {
    Ask(Vec<Arc<Inside>>, Reign),
    Fenced(Uuid, u64),
    EpochTaken(u16, Uuid),
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
                    Output::AskInsiders { uuid, reign } => {
                        let below = self.owner.segment(&uuid).map(|served| served.insiders.below(reign));
                        later.extend(below.map(|below| Later::Ask(below, reign)));
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
        let Some(pipe) = self.attached.get_mut(&to).and_then(|attached| attached.pipe.as_mut()) else { return };
        match pipe.send(frame) {
            Ok(()) => {
                let has_room = !pipe.is_waiting();
                self.owner.room(to, has_room, out);
            }
            Err(e) => self.broken(to, &e, out),
        }
    }

    /// A connection takes nothing any more. What the process has said before that is still to be heard: its farewell may be
    /// among it, and without that the end of the process would be waited for.
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

    /// Looks at every unfinished promise again and reports those that are kept.
    pub(super) fn settle(&self) {
        let later = {
            let mut state = self.state.lock();
            let mut out = Vec::new();
            state.owner.settle(self.now(), &mut out);
            state.carry_out(out)
        };
        self.report(later);
    }

    /// When to do that again whatever happens: lanes are to be cut then.
    pub(super) fn next_settle(&self) -> Option<Instant> {
        self.state.lock().owner.next_cut().map(|at| self.started + at)
    }

    pub(super) fn report(&self, later: Vec<Later>) {
        for later in later {
            match later {
                Later::Ask(insiders, reign) => insiders.iter().for_each(|inside| inside.ask(reign)),
                Later::Fenced(uuid, rid) => self.events.fenced(uuid, rid),
                Later::EpochTaken(epoch, uuid) => self.events.epoch_taken(epoch, uuid),
                Later::ProcessGone(gone) => self.events.process_gone(gone),
            }
        }
    }
}

fn log_outside(&Fence { uuid, rid, offset, len, .. }: &Fence) {
    tracing::error!(uuid = uuid_text(&uuid), rid, offset, len, "fence of an extent that is not in the segment");
}

fn log_marred(&Fence { uuid, rid, offset, len, .. }: &Fence, found: u64) {
    tracing::warn!(
        uuid = uuid_text(&uuid),
        rid,
        offset,
        len,
        found = format_args!("{found:#x}"),
        "an extent carries a newer stamp; if it is in quarantine it stays there for this epoch"
    );
}

#[cfg(test)]
mod tests {
    use mooncake_memory::{SegmentMemory, SegmentOptions};
    use rustix::event::{PollFd, PollFlags, poll};

    use crate::link::SegmentAddress;
    use crate::server::{SegmentServer, ServerEvents, ServerOptions};
    use crate::{LinkEvents, LinkOptions, Links, Path, Paths, Wait};

    use super::*;

    struct Quiet;

    impl ServerEvents for Quiet {
        fn fenced(&self, _: Uuid, _: u64) {}
        fn epoch_taken(&self, _: u16, _: Uuid) {}
    }

    impl LinkEvents for Quiet {
        fn owner_gone(&self, _: Uuid) {}
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
            boot_id: mooncake_memory::boot_id().unwrap(),
            unix_socket: server.unix_name().into(),
            tcp: Vec::new(),
            access_key: 1,
            process: None,
        };
        let options = LinkOptions { paths: Paths::only(Path::SharedMemory), ..LinkOptions::new(1) };
        let links = Links::new(options, Box::new(Quiet)).unwrap();
        drop(links.link(&address, &Wait::until(Instant::now() + Duration::from_secs(5))).unwrap());
        {
            let mut state = server.shared.state.lock();
            let stream = state.attached.values().next().unwrap().pipe().unwrap().stream().clone();
            // Its farewell is on its way, and the owner's thread waits for the lock.
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
            assert_eq!(state.owner.take_epoch(Duration::ZERO, Reign::numbered(2), &mut out), Ok(Vec::new()));
            state.carry_out(out);
        }
        server.shared.settle();
        assert_eq!((server.taken(memory.uuid()), server.attached()), (2, 0));
    }
}
