//! A process that maps a segment: its session and mark, and what it has promised.

use std::collections::VecDeque;

use mooncake_ids::SegmentUuid;

use super::fence_list::FenceList;
use super::{Fence, Output};
use crate::epoch::Epoch;
use crate::protocol::frames::{Frame, Op};

/// Fences that an attached process is asked about before it has answered the first of them. Their frames lie in the
/// memory of its connection while it stands still.
pub(super) const UNANSWERED_MAX: usize = 1024;

/// What the hello of a process that is given a segment said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newcomer {
    /// Session that it maps it for.
    pub session: u64,
    /// The segment.
    pub uuid: SegmentUuid,
    /// Its word that it has taken an epoch covers its views.
    pub knows_pins: bool,
}

/// One process's attachment to one segment. The record outlives the
/// connection: only a `Detached` or the process's end removes it.
#[derive(Debug)]
pub(super) struct Attachment {
    pub session: u64,
    pub uuid: SegmentUuid,
    /// Number by which the master knows that this is the session's process, once it has shown it; 0 = none.
    pub mark: u64,
    pub writable: bool,
    /// Highest epoch whose elders it has sworn off.
    pub epoch: u16,
    connection: Connection,
    /// Latest epoch that it is to be asked to obey, and the number of the one that it has been asked for.
    wanted: Epoch,
    asked: u16,
    /// Fences that it is still to be asked about: by their ids, so that a process that stands still costs no more than
    /// the fences themselves.
    questions: VecDeque<u64>,
    /// Asked and not answered.
    unanswered: usize,
    knows_pins: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Free,
    /// Something still waits to be sent.
    Full,
    /// The answer never comes, and the end of the process is the proof.
    Lost,
}

impl Attachment {
    pub fn new(Newcomer { session, uuid, knows_pins }: Newcomer, epoch: u16) -> Attachment {
        Attachment {
            session,
            uuid,
            mark: 0,
            writable: false,
            epoch,
            connection: Connection::Free,
            wanted: Epoch::default(),
            asked: 0,
            questions: VecDeque::new(),
            unanswered: 0,
            knows_pins,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.connection != Connection::Lost
    }

    pub fn writes_for(&self, session: u64, uuid: &SegmentUuid) -> bool {
        self.writable && self.session == session && self.uuid == *uuid
    }

    /// It says that it has taken an epoch. An older version says so although it may hold views that the master does not
    /// know.
    pub fn has_taken(&mut self, epoch: u16) {
        if self.knows_pins {
            self.epoch = self.epoch.max(epoch);
        }
    }

    /// It has answered one question about a fence.
    pub fn has_answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    pub fn has_room(&mut self, has_room: bool) {
        if self.is_connected() {
            self.connection = if has_room { Connection::Free } else { Connection::Full };
        }
    }

    pub fn lost(&mut self) {
        self.connection = Connection::Lost;
        self.questions.clear();
    }

    /// Asks to obey an epoch, unless it does; true when an answer is needed.
    /// Readers are asked too: their views are pins that the new epoch's master
    /// must hear of before it gives space out.
    pub fn ask_epoch(&mut self, id: u64, asked: Epoch, out: &mut Vec<Output>) -> bool {
        if self.epoch >= asked.number {
            return false;
        }
        self.wanted = self.wanted.or_later(asked);
        self.put_epoch(id, out);
        true
    }

    /// It is to be asked about a fence when its turn comes.
    pub fn ask_fence(&mut self, fence_id: u64) {
        if self.is_connected() {
            self.questions.push_back(fence_id);
        }
    }

    /// Puts the questions that have their turn. A process that stands still is not asked more than its connection
    /// holds, so that the connection lasts until it goes on.
    pub fn put_questions(&mut self, id: u64, fences: &FenceList, epoch: u16, out: &mut Vec<Output>) {
        self.put_epoch(id, out);
        while self.unanswered < UNANSWERED_MAX
            && let Some(fence_id) = self.questions.pop_front()
        {
            let Some(Fence { rid, offset, len, .. }) = fences.question(fence_id, id).copied() else { continue };
            let frame = Frame { op: Op::Quiesce, epoch, rid: rid.0, offset, len, sequence: fence_id };
            out.push(Output::Send { to: id, frame });
            self.unanswered += 1;
        }
    }

    /// The highest one is enough, and one on the way at a time.
    fn put_epoch(&mut self, id: u64, out: &mut Vec<Output>) {
        if self.asked < self.wanted.number && self.connection == Connection::Free {
            self.asked = self.wanted.number;
            out.push(Output::Send { to: id, frame: Frame::take_epoch(self.wanted) });
        }
    }
}
