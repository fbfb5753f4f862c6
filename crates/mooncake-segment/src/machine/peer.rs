//! A peer's side of an attachment: what its owner has asked, and what may be answered when.
//!
//! A question about a fence is answered when no write of this process can touch the extent any more; one about an
//! epoch when besides the master of that epoch knows all pins of this process.

use mooncake_ids::Rid;
use mooncake_mutant::mutant;

use super::Writes;
use crate::epoch::Epoch;
use crate::protocol::frames::{Frame, Op};

/// What a peer says last, when the memory is unmapped or never will be mapped.
pub const DETACHED: Frame = Frame::plain(Op::Detached, 0);

/// One attachment of this process to a segment of another one. Its writes pass a [`super::Gate`] of their own.
#[derive(Debug)]
pub struct Peer {
    /// Of the owner that let it in, where the memory outlives that; else 0.
    tenure: u32,
    /// That owner knows that views may be here, or needs not to.
    is_viewable: bool,
    /// Writes that began before the owner ended, once it has.
    leaving: Option<Vec<u64>>,
    upgrade: Upgrade,
    quiesces: Vec<Quiesce>,
    /// Latest epoch that this process said that it obeys; first the one that the segment was mounted in, or its owner
    /// asked for, when it let this process in.
    obeyed: Epoch,
    epochs: Vec<EpochAsked>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upgrade {
    No,
    Asked,
    Granted,
}

#[derive(Debug)]
struct Quiesce {
    writing: Vec<u64>,
    frame: Frame,
}

#[derive(Debug)]
struct EpochAsked {
    epoch: Epoch,
    writing: Vec<u64>,
    confirmed: bool,
}

/// Whether the memory may be mapped writable. It may with the owner's consent: from then on the owner waits for this
/// process when it fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePermission {
    /// It may.
    Granted,
    /// Not before this is sent, and [`Peer::has_asked`].
    Ask(Frame),
    /// The owner has been asked.
    Awaited,
}

/// What follows from what the owner said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// [`Peer::answer`] may have something to say.
    Question,
    /// A writer that waits to write may.
    Granted,
    /// As with a question; and the master is to be asked whether it is in that epoch, and knows all pins of this
    /// process. If it does, [`Peer::confirm`] follows.
    AskMaster(Epoch),
    /// Nothing: a later version's message that needs no answer.
    Nothing,
}

impl Peer {
    /// A peer that was let in, and what its owner obeyed by then.
    pub fn new(obeyed: Epoch) -> Peer {
        Peer::of_tenure(obeyed, 0)
    }

    /// The same in memory that outlives its owner. Its process takes the viewers' lock of the tenure before it sends
    /// [`Self::view_question`] and the writers' lock before [`WritePermission::Ask`]. It has each by an open file of
    /// its own, as long as anything is mapped for that.
    pub fn of_tenure(obeyed: Epoch, tenure: u32) -> Peer {
        Peer {
            tenure,
            is_viewable: tenure == 0 || mutant!(ViewsNeedNoLock),
            leaving: None,
            upgrade: Upgrade::No,
            quiesces: Vec::new(),
            obeyed,
            epochs: Vec::new(),
        }
    }

    // ------------------------------------------------------ this process's side

    /// Whether this process may write, and what is to be done for it: [`Op::Upgrade`] asks for that, [`Op::Upgraded`]
    /// grants it.
    pub fn write_permission(&self) -> WritePermission {
        match self.upgrade {
            Upgrade::No if mutant!(WritersNeedNoPermission) => WritePermission::Granted,
            Upgrade::No => WritePermission::Ask(self.question(Op::Upgrade)),
            Upgrade::Asked => WritePermission::Awaited,
            Upgrade::Granted => WritePermission::Granted,
        }
    }

    /// What is to be sent before the first view. `None`: nothing, the owner has this process on record in any case.
    pub fn view_question(&self) -> Option<Frame> {
        (!self.is_viewable).then(|| self.question(Op::View))
    }

    fn question(&self, op: Op) -> Frame {
        Frame { rid: self.tenure.into(), ..Frame::plain(op, 0) }
    }

    /// The owner has ended, or hung up: an heir may have the memory. The gate of this process is closed, and these
    /// writes are under way.
    pub fn leave(&mut self, writing: Vec<u64>) {
        self.leaving.get_or_insert(writing);
    }

    /// Whether the memory is to be mapped writable no more, and then the writers' lock to be given up.
    pub fn has_left(&mut self, writes: &impl Writes) -> bool {
        let Some(writing) = &mut self.leaving else { return false };
        writes.retain_active(writing);
        writing.is_empty() || mutant!(WritersUnlockEarly)
    }

    /// The owner has been asked for that.
    pub fn has_asked(&mut self) {
        if self.upgrade == Upgrade::No {
            self.upgrade = Upgrade::Asked;
        }
    }

    /// See [`crate::Link::is_waited_for_in`].
    pub fn is_waited_for_in(&self, epoch: Epoch) -> bool {
        let asked = self.epochs.iter().map(|asked| asked.epoch);
        let is_known = std::iter::once(self.obeyed).chain(asked).any(|owners| epoch.knows_what_is_known_in(owners));
        self.is_viewable && is_known || mutant!(NewcomerIsNotWaitedFor)
    }

    /// This process obeys the epoch. What it was asked for before that needs no answer of its own: an owner that asks
    /// for a higher epoch waits for that one only.
    pub fn confirm(&mut self, epoch: Epoch) {
        self.obeyed = self.obeyed.or_later(epoch);
        for asked in self.epochs.iter_mut().filter(|asked| asked.epoch.number <= epoch.number) {
            asked.confirmed = true;
        }
    }

    /// Whether the owner asked for an epoch that this process's master has not shown: that one may not know of all
    /// views.
    pub fn is_asked_by_another(&self) -> bool {
        self.epochs.iter().any(|asked| !asked.confirmed)
    }

    // ---------------------------------------------------------- the owner's side

    /// The owner has sent this.
    pub fn heard(&mut self, frame: &Frame, writes: &impl Writes) -> Heard {
        match frame.op {
            Op::Upgraded => {
                self.upgrade = Upgrade::Granted;
                Heard::Granted
            }
            Op::Viewable => {
                self.is_viewable = true;
                Heard::Nothing
            }
            Op::Quiesce => {
                // Outside of the segment nothing can be under way.
                let writing = writes.fence(Rid(frame.rid), frame.offset, frame.len).unwrap_or_default();
                self.quiesces.push(Quiesce { writing, frame: *frame });
                Heard::Question
            }
            Op::TakeEpoch => {
                let (epoch, writing) = (frame.epoch_asked(), writes.raise_epoch(frame.epoch));
                self.epochs.push(EpochAsked { epoch, writing, confirmed: mutant!(PeerAnswersUnasked) });
                Heard::AskMaster(epoch)
            }
            _ => Heard::Nothing,
        }
    }

    /// Says what has become true, as far as there is room for so many messages.
    pub fn answer(&mut self, writes: &impl Writes, room: usize, out: &mut Vec<Frame>) {
        self.quiesces.retain_mut(|Quiesce { writing, frame }| {
            writes.retain_active(writing);
            if (!writing.is_empty() && !mutant!(PeerAnswersWhileItWrites)) || out.len() >= room {
                return true;
            }
            // The writes that were waited for may have stamped over the owner's tombstone: a later one must still find
            // it, and what began before there is another one is waited for as they were.
            *writing = writes.fence(Rid(frame.rid), frame.offset, frame.len).unwrap_or_default();
            if !writing.is_empty() && !mutant!(PeerAnswersWhileItWrites) {
                return true;
            }
            out.push(Frame { op: Op::Quiesced, ..*frame });
            false
        });
        self.epochs.retain_mut(|asked| {
            writes.retain_active(&mut asked.writing);
            if !asked.confirmed || !asked.writing.is_empty() || out.len() >= room {
                return true;
            }
            out.push(Frame::plain(Op::EpochTaken, asked.epoch.number));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::super::fixture::{KIB, Memory, rid};
    use super::super::{Denied, Segment};
    use super::*;

    const ROOM: usize = 16;
    const ONE: Epoch = Epoch { number: 1, id: 5 };
    const A2: Epoch = Epoch { number: 2, id: 7 };
    const B2: Epoch = Epoch { number: 2, id: 8 };
    const A3: Epoch = Epoch { number: 3, id: 9 };

    fn quiesce(counter: u64) -> Frame {
        Frame { op: Op::Quiesce, epoch: 1, rid: rid(1, counter).0, offset: counter * KIB, len: KIB, sequence: counter }
    }

    fn answers(peer: &mut Peer, writes: &impl Writes) -> Vec<Frame> {
        let mut out = Vec::new();
        peer.answer(writes, ROOM, &mut out);
        out
    }

    #[test]
    fn a_fence_is_answered_behind_the_last_write_of_its_extent_and_tombstoned_again() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
        let (write, elsewhere) = (memory.admit(rid(1, 3), 3 * KIB, KIB), memory.admit(rid(1, 4), 4 * KIB, KIB));
        assert_eq!(peer.heard(&quiesce(3), &memory), Heard::Question);
        assert_eq!(answers(&mut peer, &memory), []);
        memory.stamps.stamp(rid(1, 3), 3 * KIB, KIB);
        memory.ended(write);
        assert_eq!(answers(&mut peer, &memory), [Frame { op: Op::Quiesced, ..quiesce(3) }]);
        assert_eq!(memory.max_stamp(3 * KIB, KIB).unwrap(), rid(1, 3).tombstone());
        assert_eq!(answers(&mut peer, &memory), [], "{elsewhere} is not its matter, and one answer is enough");
        assert_eq!(peer.heard(&quiesce(64), &memory), Heard::Question);
        assert_eq!(answers(&mut peer, &memory).len(), 1, "nothing is under way outside of the segment");
    }

    #[test]
    fn a_write_that_begins_while_the_tombstone_is_stamped_over_is_waited_for_too() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
        let first = memory.admit(rid(1, 3), 3 * KIB, KIB);
        peer.heard(&quiesce(3), &memory);
        memory.stamps.stamp(rid(1, 3), 3 * KIB, KIB);
        memory.ended(first);
        let second = memory.admit(rid(1, 3), 3 * KIB, KIB);
        assert_eq!(answers(&mut peer, &memory), []);
        memory.ended(second);
        assert_eq!(answers(&mut peer, &memory).len(), 1);
    }

    #[test]
    fn an_epoch_is_answered_when_its_master_knows_all_and_older_writes_have_ended() {
        for confirmed_first in [false, true] {
            let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
            let write = memory.admit(rid(1, 1), KIB, KIB);
            assert_eq!(peer.heard(&Frame::take_epoch(A2), &memory), Heard::AskMaster(A2));
            let late = memory.gate.borrow_mut().admit(&*memory.stamps, rid(1, 2), 2 * KIB, KIB, ());
            assert!(matches!(late, Err(Denied::OldEpoch { least: 2 })));
            memory.admit(rid(2, 3), 3 * KIB, KIB);
            if confirmed_first {
                peer.confirm(A2);
                assert_eq!(answers(&mut peer, &memory), []);
            }
            memory.ended(write);
            if !confirmed_first {
                assert_eq!(answers(&mut peer, &memory), []);
                peer.confirm(A2);
            }
            assert_eq!(answers(&mut peer, &memory), [Frame::plain(Op::EpochTaken, 2)]);
            assert_eq!(answers(&mut peer, &memory), []);
        }
    }

    #[test]
    fn the_word_about_an_epoch_answers_earlier_ones_and_no_later_one() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
        for epoch in [A2, A3] {
            peer.heard(&Frame::take_epoch(epoch), &memory);
        }
        peer.confirm(A2);
        assert!(peer.is_asked_by_another());
        assert_eq!(answers(&mut peer, &memory), [Frame::plain(Op::EpochTaken, 2)]);
        peer.heard(&Frame::take_epoch(A2), &memory);
        peer.confirm(A3);
        assert!(!peer.is_asked_by_another());
        assert_eq!(answers(&mut peer, &memory), [3, 2].map(|epoch| Frame::plain(Op::EpochTaken, epoch)));
    }

    #[test]
    fn it_is_waited_for_in_the_epoch_that_it_obeys_and_in_those_that_it_is_asked_for() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
        assert!(peer.is_waited_for_in(ONE) && !peer.is_waited_for_in(A2));
        peer.heard(&Frame::take_epoch(A2), &memory);
        assert!(peer.is_waited_for_in(ONE) && peer.is_waited_for_in(A2) && !peer.is_waited_for_in(B2));
        peer.confirm(A2);
        answers(&mut peer, &memory);
        assert!(!peer.is_waited_for_in(ONE) && peer.is_waited_for_in(A2));
    }

    #[test]
    fn the_owner_is_asked_once_before_the_memory_is_written() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
        let ask = WritePermission::Ask(Frame::plain(Op::Upgrade, 0));
        assert_eq!((peer.write_permission(), peer.write_permission()), (ask, ask), "it has not been sent yet");
        peer.has_asked();
        assert_eq!(peer.write_permission(), WritePermission::Awaited);
        assert_eq!(peer.heard(&Frame::plain(Op::Upgraded, 1), &memory), Heard::Granted);
        peer.has_asked();
        assert_eq!(peer.write_permission(), WritePermission::Granted);
        assert_eq!(peer.heard(&DETACHED, &memory), Heard::Nothing, "an owner that says so is of a later version");
    }

    #[test]
    fn of_memory_that_outlives_its_owner_the_locks_are_shown_before_views_begin_and_bytes_are_stored() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::of_tenure(ONE, 3));
        assert!(!peer.is_waited_for_in(ONE), "its owner may have ended before it had the lock");
        let shown = |op| Frame { rid: 3, ..Frame::plain(op, 0) };
        assert_eq!(peer.view_question(), Some(shown(Op::View)));
        assert_eq!(peer.write_permission(), WritePermission::Ask(shown(Op::Upgrade)));
        assert_eq!(peer.heard(&Frame::plain(Op::Viewable, 1), &memory), Heard::Nothing);
        assert!(peer.is_waited_for_in(ONE) && peer.view_question().is_none());
    }

    #[test]
    fn the_writers_lock_is_held_until_the_last_write_has_ended() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::of_tenure(ONE, 1));
        let write = memory.admit(rid(1, 1), KIB, KIB);
        assert!(!peer.has_left(&memory));
        peer.leave(memory.gate.borrow_mut().close());
        peer.leave(Vec::new());
        assert!(!peer.has_left(&memory), "it is told twice, and writes");
        let late = memory.gate.borrow_mut().admit(&*memory.stamps, rid(1, 2), 2 * KIB, KIB, ());
        assert!(matches!(late, Err(Denied::Closed)));
        memory.ended(write);
        assert!(peer.has_left(&memory));
    }

    #[test]
    fn no_more_is_answered_at_a_time_than_there_is_room_for() {
        let (memory, mut peer) = (Memory::new(64, 1), Peer::new(ONE));
        for counter in 1..=3 {
            peer.heard(&quiesce(counter), &memory);
        }
        peer.heard(&Frame::take_epoch(A2), &memory);
        peer.confirm(A2);
        for (room, sequences) in [(0, &[][..]), (2, &[1, 2]), (1, &[3]), (0, &[]), (5, &[0])] {
            let mut out = Vec::new();
            peer.answer(&memory, room, &mut out);
            assert_eq!(out.iter().map(|frame| frame.sequence).collect::<Vec<_>>(), sequences);
        }
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::NewcomerIsNotWaitedFor,
            it_is_waited_for_in_the_epoch_that_it_obeys_and_in_those_that_it_is_asked_for
        ));
    }
}
