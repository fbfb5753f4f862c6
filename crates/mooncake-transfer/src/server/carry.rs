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
            Err(e) => self.lost(to, &e),
        }
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
