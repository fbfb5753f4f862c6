//! Fences and epochs: proof that nothing of an old writer can still land.

use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_mutant::mutant;

use super::elders::Inheritance;
use super::fence_list::PendingFence;
use super::{Fence, Held, Output, Owner, Segment};
use crate::epoch::Epoch;
use crate::error::TwoEpochs;

/// How long a lane in mid-write may finish by itself.
pub(super) const GRACE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct PendingEpoch {
    pub uuid: SegmentUuid,
    number: u16,
    writing: Vec<u64>,
    cut_at: Option<Duration>,
}

impl<S: Segment> Owner<S> {
    /// Shuts the writer of a placement out. True when that is done now;
    /// otherwise [`Output::Fenced`] follows when it is. It never
    /// does where the extent carries a stamp that is newer than the placement:
    /// memory that turned, and the writer of the next placement there could not begin.
    pub fn fence(&mut self, now: Duration, fence: Fence, out: &mut Vec<Output>) -> bool {
        let Some(Held { segment, inheritance, .. }) = self.segments.get(&fence.uuid) else {
            // No memory, nothing that could land.
            return true;
        };
        let Ok(mut writing) = segment.fence(fence.rid, fence.offset, fence.len) else {
            out.push(Output::Outside(fence));
            return true;
        };
        if mutant!(FenceWaitsForNoWrite) {
            writing.clear();
        }
        // Asked a second time (the master restarted): one answer is enough.
        if self.fences.is_pending(&fence) {
            return mutant!(AskedAgainCountsAsDone);
        }
        let writers = self.attached.iter_mut().filter(|(_, attached)| attached.writes_for(fence.writer, &fence.uuid));
        let mut writers: Vec<_> =
            if fence.writer_done || mutant!(FenceAsksNobody) { Vec::new() } else { writers.collect() };
        let asked: Vec<u64> = writers.iter().map(|(attachment, _)| **attachment).collect();
        let elders = !fence.writer_done && inheritance.as_ref().is_some_and(Inheritance::may_be_written);
        if writing.is_empty() && asked.is_empty() && !elders {
            return !is_marred(segment, &fence, out);
        }
        self.next += 1;
        let id = self.next;
        let cut_at = (!writing.is_empty()).then(|| now + GRACE);
        self.fences.insert(id, PendingFence { fence, writing, asked, elders, cut_at });
        for (attachment, attached) in &mut writers {
            attached.ask_fence(id);
            attached.put_questions(**attachment, &self.fences, self.epoch.number, out);
        }
        false
    }

    /// Obeys an epoch: refuses writes of older epochs from now on. Gives the
    /// segments that have nothing older under way; for the others
    /// [`Output::EpochTaken`] follows, once their lanes are
    /// drained or cut and every process that maps them, and every store of this one that reads them, has confirmed or
    /// is gone. May be asked again.
    ///
    /// Asked for another epoch of the number that it obeys already it takes nothing, and reports nothing of that number
    /// any more: a report says the number only, and either master would take it for its own.
    pub fn take_epoch(
        &mut self,
        now: Duration,
        asked: Epoch,
        out: &mut Vec<Output>,
    ) -> Result<Vec<SegmentUuid>, TwoEpochs> {
        let number = asked.number;
        if asked.clashes_with(self.epoch) && !mutant!(BothEpochsAreTaken) {
            self.epochs.retain(|pending| pending.number != number);
            return Err(TwoEpochs { asked, obeyed: self.epoch });
        }
        self.epoch = self.epoch.or_later(asked);
        let mut done = Vec::new();
        for (uuid, Held { segment, taken, inheritance }) in &mut self.segments {
            let writing = segment.raise_epoch(number);
            let mut open = !writing.is_empty() || keeps_from(inheritance, number);
            for (id, attached) in self.attached.iter_mut().filter(|(_, attached)| attached.uuid == *uuid) {
                open |= attached.ask_epoch(*id, asked, out);
            }
            if !segment.raise_insiders(asked) && !mutant!(InsidersAreNotAsked) {
                open = true;
                out.push(Output::AskInsiders { uuid: *uuid, epoch: asked });
            }
            self.epochs.retain(|pending| pending.uuid != *uuid || pending.number > number);
            if open && !mutant!(EpochIsTakenWhenAsked) {
                let cut_at = (!writing.is_empty()).then(|| now + GRACE);
                self.epochs.push(PendingEpoch { uuid: *uuid, number, writing, cut_at });
            } else {
                *taken = number.max(*taken);
                done.push(*uuid);
            }
        }
        Ok(done)
    }

    /// Looks at every unfinished promise again, and reports the kept ones. To be called after each input, when a
    /// write that is waited for has ended, and at [`Self::next_cut`].
    pub fn check_promises(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Owner { next, segments, attached, fences, epochs, .. } = self;
        fences.look_at_writes(|pending| {
            let Some(Held { segment, .. }) = segments.get(&pending.fence.uuid) else { return true };
            segment.retain_active(&mut pending.writing);
            cut_when_due(pending.fence.uuid, &pending.writing, &mut pending.cut_at, now, out);
            pending.writing.is_empty()
        });
        for fence in fences.take_proven() {
            let Fence { uuid, rid, offset, len, .. } = fence;
            if let Some(Held { segment, .. }) = segments.get(&uuid)
                && !mutant!(TombstonesStayStampedOver)
            {
                // A write that was waited for may have stamped over the first tombstone, and so let others begin. The
                // next tombstone waits for these as the first one did (docs/safety.md, rule 7).
                match segment.fence(rid, offset, len) {
                    Ok(writing) if !writing.is_empty() => {
                        *next += 1;
                        fences.insert(
                            *next,
                            PendingFence {
                                fence,
                                writing,
                                asked: Vec::new(),
                                elders: false,
                                cut_at: Some(now + GRACE),
                            },
                        );
                        continue;
                    }
                    Ok(_) => {}
                    Err(_) => out.push(Output::Outside(fence)),
                }
                if is_marred(segment, &fence, out) {
                    continue;
                }
            }
            out.push(Output::Fenced { uuid, rid });
        }
        epochs.retain_mut(|PendingEpoch { uuid, number, writing, cut_at }| {
            let Some(Held { segment, taken, inheritance }) = segments.get_mut(uuid) else { return false };
            segment.retain_active(writing);
            cut_when_due(*uuid, writing, cut_at, now, out);
            let elders = keeps_from(inheritance, *number);
            let silent = attached.values().any(|attached| attached.uuid == *uuid && attached.epoch < *number);
            if !writing.is_empty()
                || elders
                || silent
                || (!segment.insiders_obey(*number) && !mutant!(InsidersAreNotAsked))
            {
                return true;
            }
            *taken = (*number).max(*taken);
            out.push(Output::EpochTaken { epoch: *number, uuid: *uuid });
            false
        });
    }

    /// When lanes are to be cut next.
    pub fn next_cut(&self) -> Option<Duration> {
        let epochs = self.epochs.iter().filter_map(|pending| pending.cut_at);
        epochs.chain(self.fences.next_cut()).min()
    }
}

fn keeps_from(inheritance: &Option<Inheritance>, epoch: u16) -> bool {
    inheritance.as_ref().is_some_and(|inheritance| inheritance.keeps_from(epoch))
}

/// Whether a stamp is newer than the tombstone. Within an epoch an extent that is being fenced belongs to no other
/// placement, so no writer has written that (docs/safety.md, rule 7). An extent that was released long ago, and is
/// asked for again, needs no second answer. An extent that another placement had when the log lost its end comes back
/// with the epoch.
fn is_marred(segment: &impl Segment, fence: &Fence, out: &mut Vec<Output>) -> bool {
    match segment.max_stamp(fence.offset, fence.len) {
        Ok(found) if found > fence.rid.tombstone() => {
            out.push(Output::Marred { fence: *fence, found });
            true
        }
        _ => false,
    }
}

fn cut_when_due(
    uuid: SegmentUuid,
    writing: &[u64],
    cut_at: &mut Option<Duration>,
    now: Duration,
    out: &mut Vec<Output>,
) {
    if writing.is_empty() {
        *cut_at = None;
    } else if cut_at.is_some_and(|at| at <= now) {
        // Once is enough: the lane ends as soon as its thread sees it.
        out.push(Output::Cut { uuid, writes: writing.to_vec() });
        *cut_at = None;
    }
}
