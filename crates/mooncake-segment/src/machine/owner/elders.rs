//! Memory that outlives its owners: what a process that has it now knows of those that mapped it before.
//!
//! The owner of a segment has each process on record that maps it; its heir has none of these. A process that maps such
//! memory therefore holds locks on it, each of the *tenure* of the owner that let it in: one from before its first
//! write to behind the last, one for as long as it may have views. An owner lets nothing begin before it has heard of
//! the lock, and the kernel ends locks with their process. So no lock of an earlier tenure is taken once that owner has
//! ended, and where there is none, nothing of that tenure can still land, or is looked at.

use mooncake_ids::SegmentUuid;
use mooncake_mutant::mutant;

use super::{Held, Owner, Segment};
use crate::epoch::Epoch;

/// How a process comes to memory that outlives its owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// How manieth owner this is, from 1. The memory has it before any process is let in by it.
    pub number: u32,
    /// The epoch that the one before had taken. It wrote that down before it said so.
    pub taken: Epoch,
}

/// Which processes of earlier tenures there may still be, by their locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elders {
    /// Some that write.
    pub write: bool,
    /// Some that have views.
    pub view: bool,
}

#[derive(Debug)]
pub(super) struct Inheritance {
    tenure: Tenure,
    /// None is known to be gone before a look at the locks has shown it.
    elders: Elders,
}

impl Inheritance {
    pub fn tenure(&self) -> u32 {
        self.tenure.number
    }

    /// Whether a fence has to wait.
    pub fn may_be_written(&self) -> bool {
        self.elders.write && !mutant!(FenceForgetsElders)
    }

    /// Whether an epoch has to wait. Of the one that the predecessor had taken its master knows all views that
    /// processes of before have; of a later one none of them has said so.
    pub fn keeps_from(&self, epoch: u16) -> bool {
        let Inheritance { tenure, elders } = self;
        let views = elders.view && epoch > tenure.taken.number && !mutant!(EldersViewsAreNotAwaited);
        elders.write && !mutant!(EldersAreNotAwaited) || views
    }
}

impl<S: Segment> Owner<S> {
    /// Memory that outlives its owners. An heir has taken no epoch; of fresh memory there is nothing older.
    pub fn inherit(&mut self, uuid: SegmentUuid, segment: S, tenure: Tenure) {
        self.epoch = self.epoch.or_later(tenure.taken);
        let is_heir = tenure.number > 1;
        let inheritance = Some(Inheritance { tenure, elders: Elders { write: is_heir, view: is_heir } });
        let taken = if is_heir { 0 } else { tenure.taken.number };
        self.segments.insert(uuid, Held { segment, taken, inheritance });
    }

    /// The tenure that the locks of a segment's newcomers are of. 0: its memory ends with its owner, and needs none.
    pub fn tenure(&self, uuid: &SegmentUuid) -> u32 {
        self.inheritance(uuid).map_or(0, Inheritance::tenure)
    }

    /// Whether the locks of earlier tenures are to be looked at from time to time, until [`Self::elders_seen`] has
    /// heard that there are none.
    pub fn awaits_elders(&self, uuid: &SegmentUuid) -> bool {
        self.inheritance(uuid).is_some_and(|it| it.elders.write || it.elders.view)
    }

    /// What a look at the locks of earlier tenures has shown. [`Self::check_promises`] follows.
    pub fn elders_seen(&mut self, uuid: &SegmentUuid, seen: Elders) {
        let Some(inheritance) = self.segments.get_mut(uuid).and_then(|held| held.inheritance.as_mut()) else { return };
        let Elders { write, view } = &mut inheritance.elders;
        // None comes again.
        (*write, *view) = (*write && seen.write, *view && seen.view);
        if !inheritance.elders.write {
            self.fences.elders_ended(uuid);
        }
    }

    fn inheritance(&self, uuid: &SegmentUuid) -> Option<&Inheritance> {
        self.segments.get(uuid)?.inheritance.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use super::super::super::fixture::{KIB, Memory, rid};
    use super::super::{Fence, Newcomer, Output};
    use super::*;
    use crate::protocol::frames::{Frame, Op};

    const UUID: SegmentUuid = SegmentUuid([1; 16]);
    const ONE: Epoch = Epoch { number: 1, id: 5 };
    const TWO: Epoch = Epoch { number: 2, id: 7 };
    const VIEWERS: Elders = Elders { write: false, view: true };
    const NOBODY: Elders = Elders { write: false, view: false };

    fn heir() -> (Owner<Rc<Memory>>, Rc<Memory>) {
        let (mut owner, memory) = (Owner::default(), Memory::new(64, 1));
        owner.inherit(UUID, memory.clone(), Tenure { number: 2, taken: ONE });
        (owner, memory)
    }

    fn fence(writer_done: bool) -> Fence {
        Fence { uuid: UUID, rid: rid(1, 3), offset: KIB, len: KIB, writer: 7, writer_done }
    }

    fn seen(owner: &mut Owner<Rc<Memory>>, elders: Elders) -> Vec<Output> {
        let mut out = Vec::new();
        owner.elders_seen(&UUID, elders);
        owner.check_promises(Duration::ZERO, &mut out);
        out
    }

    fn taken(number: u16) -> Output {
        Output::EpochTaken { epoch: number, uuid: UUID }
    }

    #[test]
    fn the_epoch_of_before_is_taken_when_nothing_of_an_earlier_writer_can_land() {
        let (mut owner, _) = heir();
        let mut out = Vec::new();
        assert_eq!(owner.take_epoch(Duration::ZERO, ONE, &mut out), Ok(vec![]));
        assert_eq!((owner.taken(&UUID), out), (0, vec![]));
        assert_eq!(seen(&mut owner, Elders { write: true, view: true }), []);
        assert_eq!(seen(&mut owner, VIEWERS), [taken(1)], "its master knows their views");
        assert_eq!(owner.taken(&UUID), 1);
        assert!(owner.awaits_elders(&UUID), "a later epoch waits for these");
        assert_eq!(owner.take_epoch(Duration::ZERO, ONE, &mut Vec::new()), Ok(vec![UUID]));
    }

    #[test]
    fn a_later_epoch_waits_for_those_too_that_only_have_views() {
        let (mut owner, _) = heir();
        assert_eq!(owner.take_epoch(Duration::ZERO, TWO, &mut Vec::new()), Ok(vec![]));
        assert_eq!(seen(&mut owner, VIEWERS), []);
        assert_eq!(seen(&mut owner, NOBODY), [taken(2)]);
        assert!(!owner.awaits_elders(&UUID));
    }

    #[test]
    fn a_fence_waits_for_all_writers_of_before_unless_its_own_says_that_it_is_done() {
        let (mut owner, memory) = heir();
        assert!(!owner.fence(Duration::ZERO, fence(false), &mut Vec::new()));
        assert_eq!(seen(&mut owner, Elders { write: true, view: false }), []);
        memory.stamps.stamp(rid(1, 3), KIB, KIB);
        assert_eq!(seen(&mut owner, NOBODY), [Output::Fenced { uuid: UUID, rid: rid(1, 3) }]);
        assert_eq!(memory.max_stamp(KIB, KIB).unwrap(), rid(1, 3).tombstone(), "it had stamped over that");
        let (mut owner, _) = heir();
        assert!(owner.fence(Duration::ZERO, fence(true), &mut Vec::new()));
    }

    #[test]
    fn what_was_once_seen_to_have_ended_is_not_waited_for_again() {
        let (mut owner, _) = heir();
        seen(&mut owner, NOBODY);
        seen(&mut owner, Elders { write: true, view: true });
        assert_eq!(owner.take_epoch(Duration::ZERO, TWO, &mut Vec::new()), Ok(vec![UUID]));
    }

    #[test]
    fn the_first_owner_has_nobody_before_it() {
        let mut owner = Owner::default();
        owner.inherit(UUID, Memory::new(64, 1), Tenure { number: 1, taken: ONE });
        assert_eq!((owner.tenure(&UUID), owner.awaits_elders(&UUID)), (1, false));
        assert_eq!(owner.take_epoch(Duration::ZERO, ONE, &mut Vec::new()), Ok(vec![UUID]));
    }

    #[test]
    fn a_process_without_the_lock_of_this_tenure_gets_no_leave() {
        let (mut owner, _) = heir();
        for (tenure, op, granted) in [(2, Op::Upgrade, Op::Upgraded), (2, Op::View, Op::Viewable)] {
            let attachment = owner.attach(Newcomer { session: 7, uuid: UUID, knows_pins: true });
            let mut out = Vec::new();
            owner.heard(attachment, &Frame { rid: tenure, ..Frame::plain(op, 0) }, &mut out);
            assert_eq!(out, [Output::Send { to: attachment, frame: Frame::plain(granted, 1) }]);
        }
        for (tenure, op) in [(0, Op::Upgrade), (1, Op::Upgrade), (1, Op::View)] {
            let attachment = owner.attach(Newcomer { session: 7, uuid: UUID, knows_pins: true });
            let mut out = Vec::new();
            owner.heard(attachment, &Frame { rid: tenure, ..Frame::plain(op, 0) }, &mut out);
            assert_eq!(out, [Output::HangUp { attachment }]);
        }
    }
}
