//! The fences that are not proven yet. A store of small keys can have a hundred
//! thousand of them while one writer stands still: nothing that happens to one
//! of them looks at the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};

use super::Fence;

#[derive(Debug)]
pub(super) struct PendingFence {
    pub fence: Fence,
    /// Writes in the segment's gate.
    pub writing: Vec<u64>,
    /// Attached processes that have not answered.
    pub asked: Vec<u64>,
    /// Processes of earlier tenures may write there.
    pub elders: bool,
    pub cut_at: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct FenceList {
    pending: BTreeMap<u64, PendingFence>,
    placements: BTreeMap<(SegmentUuid, Rid), u64>,
    /// Fences that wait for a gate, which says no more than that a write has ended: to be looked at each time.
    writing: BTreeSet<u64>,
    /// Fences that wait for no write and no process any more.
    proven: Vec<u64>,
}

impl FenceList {
    /// Puts a fence that waits for a write or a process on the list.
    pub fn insert(&mut self, id: u64, pending: PendingFence) {
        self.placements.insert((pending.fence.uuid, pending.fence.rid), id);
        if !pending.writing.is_empty() {
            self.writing.insert(id);
        }
        self.pending.insert(id, pending);
    }

    /// Whether a placement's fence is pending. With the writer's own word no process is asked for it any more.
    pub fn is_pending(&mut self, fence: &Fence) -> bool {
        let Some(id) = self.placements.get(&(fence.uuid, fence.rid)).copied() else { return false };
        if fence.writer_done {
            self.change(id, |pending| {
                pending.asked.clear();
                pending.elders = false;
            });
        }
        true
    }

    /// What an attached process is to be asked for a fence: nothing if that is proven without its answer.
    pub fn question(&self, id: u64, attach_id: u64) -> Option<&Fence> {
        self.pending.get(&id).filter(|pending| pending.asked.contains(&attach_id)).map(|pending| &pending.fence)
    }

    /// An attached process has answered a fence.
    pub fn answered(&mut self, id: u64, attach_id: u64) {
        self.change(id, |pending| pending.asked.retain(|asked| *asked != attach_id));
    }

    /// An attachment is no more: whatever it was asked has become true.
    pub fn detached(&mut self, attach_id: u64) {
        let asked = self.pending.iter().filter(|(_, pending)| pending.asked.contains(&attach_id));
        let ids: Vec<u64> = asked.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.answered(id, attach_id));
    }

    /// No process of an earlier tenure writes a segment any more.
    pub fn elders_ended(&mut self, uuid: &SegmentUuid) {
        let waiting = self.pending.iter().filter(|(_, pending)| pending.elders && pending.fence.uuid == *uuid);
        let ids: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.change(id, |pending| pending.elders = false));
    }

    /// Takes out what has nothing left to guard, and gives the rids.
    pub fn remove_segment(&mut self, uuid: &SegmentUuid) -> Vec<Rid> {
        let of_it: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.fence.uuid == *uuid).map(|(id, _)| *id).collect();
        of_it.into_iter().filter_map(|id| self.take(id)).map(|fence| fence.rid).collect()
    }

    /// Looks at the writes that fences wait for; `ended` says whether none of one's is left.
    pub fn look_at_writes(&mut self, mut ended: impl FnMut(&mut PendingFence) -> bool) {
        let FenceList { pending, writing, proven, .. } = self;
        writing.retain(|id| {
            let Some(fence) = pending.get_mut(id) else { return false };
            if !ended(fence) {
                return true;
            }
            if fence.asked.is_empty() && !fence.elders {
                proven.push(*id);
            }
            false
        });
    }

    /// Takes out the fences that wait for no write and no process any more.
    pub fn take_proven(&mut self) -> Vec<Fence> {
        let ids = std::mem::take(&mut self.proven);
        ids.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// When a lane is to be cut next.
    pub fn next_cut(&self) -> Option<Duration> {
        self.writing.iter().filter_map(|id| self.pending.get(id)?.cut_at).min()
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut PendingFence)) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        change(pending);
        if pending.asked.is_empty() && pending.writing.is_empty() && !pending.elders {
            self.proven.push(id);
        }
    }

    fn take(&mut self, id: u64) -> Option<Fence> {
        let PendingFence { fence, .. } = self.pending.remove(&id)?;
        self.placements.remove(&(fence.uuid, fence.rid));
        self.writing.remove(&id);
        Some(fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(rid: Rid) -> Fence {
        Fence { uuid: SegmentUuid([1; 16]), rid, offset: 0, len: 1024, writer: 7, writer_done: false }
    }

    fn list(asked: &[u64], writing: &[u64]) -> FenceList {
        let mut list = FenceList::default();
        let (writing, asked) = (writing.into(), asked.into());
        let pending = PendingFence { fence: fence(Rid(2)), writing, asked, elders: false, cut_at: None };
        list.insert(1, pending);
        list
    }

    #[test]
    fn a_fence_is_proven_once_by_the_last_that_it_waits_for() {
        let mut waits = list(&[10, 11], &[5]);
        assert!(waits.is_pending(&fence(Rid(2))) && !waits.is_pending(&fence(Rid(4))));
        waits.answered(1, 10);
        waits.answered(1, 10);
        waits.detached(11);
        assert!(waits.take_proven().is_empty(), "a write is under way");
        waits.look_at_writes(|pending| {
            pending.writing.clear();
            true
        });
        waits.answered(1, 11);
        assert_eq!(waits.take_proven(), [fence(Rid(2))]);
        assert!(waits.take_proven().is_empty() && !waits.is_pending(&fence(Rid(2))));
    }

    #[test]
    fn the_writers_own_word_answers_what_others_were_asked() {
        let mut waits = list(&[10], &[]);
        assert!(waits.question(1, 10).is_some() && waits.question(1, 11).is_none());
        assert!(waits.is_pending(&Fence { writer_done: true, ..fence(Rid(2)) }));
        assert!(waits.question(1, 10).is_none(), "it need not be asked any more");
        assert_eq!(waits.take_proven(), [fence(Rid(2))]);
    }

    #[test]
    fn a_segment_that_is_removed_takes_its_fences_along() {
        let mut waits = list(&[10], &[5]);
        assert!(waits.remove_segment(&SegmentUuid([2; 16])).is_empty());
        assert_eq!(waits.remove_segment(&SegmentUuid([1; 16])), [Rid(2)]);
        waits.answered(1, 10);
        assert!(waits.take_proven().is_empty() && waits.next_cut().is_none());
    }
}
