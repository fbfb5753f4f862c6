//! What a segment that went, or an epoch that began, left behind. It counts for nothing from then on, and is cleared
//! away in steps.

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::Time;
use crate::record::Record;
use crate::state::objects::ObjectSlot;
use crate::state::pin::PinnedExtent;
use crate::state::reservation::ReservationSlot;
use crate::state::snapshot_walk::Unit;
use crate::work::{ENDED_AS, Work};
use mooncake_ids::Rid;

impl Core {
    /// The unfinished put of a key, if it is not over.
    pub(crate) fn unfinished_by_key(&mut self, now: Time, key: &[u8], fx: &mut Effects) -> Option<ReservationSlot> {
        let slot = self.reservations.by_key(key)?;
        self.is_unfinished(now, slot, fx).then_some(slot)
    }

    /// The unfinished put of a rid, if it is not over.
    pub(crate) fn unfinished_by_rid(&mut self, now: Time, rid: Rid, fx: &mut Effects) -> Option<ReservationSlot> {
        let slot = self.reservations.by_rid(rid)?;
        self.is_unfinished(now, slot, fx).then_some(slot)
    }

    /// Whether a put goes on. One that is over is cleared away, and of another one what has gone.
    pub(crate) fn is_unfinished(&mut self, now: Time, slot: ReservationSlot, fx: &mut Effects) -> bool {
        if !self.clear_lost(now, slot) {
            return false;
        }
        let rid = self.reservations.get(slot).rid();
        if rid.epoch() < self.epoch.number {
            self.drop_reservation(now, rid, fx);
            return false;
        }
        true
    }

    /// Takes the replicas on segments that are Gone out of an unfinished put. False when there was no other one, and it
    /// is over.
    pub(crate) fn clear_lost(&mut self, now: Time, slot: ReservationSlot) -> bool {
        if !self.reservations.has_lost(slot) {
            return true;
        }
        self.put_aside_cleared(Unit::Reserved(slot));
        let lost = self.reservations.lose(slot);
        if let Some(over) = &lost.ended {
            self.key_changed(over.key.as_slice());
            if over.terms.replaces {
                self.release_replaced(now, over.key.as_slice());
            }
            self.promotion_over(over);
        }
        if let Some(writer) = self.sessions.get_mut(lost.session) {
            *writer.reserved(lost.is_promotion) -= lost.bytes;
        }
        self.less_unfinished(lost.session);
        lost.ended.is_none()
    }

    /// The object under a view. On a segment that is Gone there is none any more, though it may be yet to be purged.
    pub(crate) fn object_under(&self, pin: &PinnedExtent) -> Option<ObjectSlot> {
        pin.object.filter(|_| self.segments.get(pin.extent.segment).is_some())
    }

    /// Goes on clearing away what lay on segments that are Gone.
    pub(crate) fn clear_gone(&mut self, now: Time, work: &mut Work) {
        while !work.is_used_up()
            && let Some(slot) = self.reservations.next_lost()
        {
            self.clear_lost(now, slot);
            work.did(1);
        }
        while !work.is_used_up()
            && let Some(rid) = self.quarantine.next_gone()
        {
            self.put_aside_cleared(Unit::Quarantined(rid));
            self.quarantine.forget(rid);
            work.did(1);
        }
    }

    /// Goes on with what is to be cleared away.
    pub(crate) fn clear_away(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        self.clear_gone(now, work);
        self.take_out_ended_views(now, work, fx);
        self.drop_older_puts(now, work, fx);
        self.release_older(now, work, fx);
    }

    /// Ends unfinished puts of earlier epochs.
    pub(crate) fn drop_older_puts(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some(next) = self.older_puts {
            if work.is_used_up() {
                return;
            }
            if let Some(put) =
                self.reservations.at(ReservationSlot(next)).filter(|put| put.rid().epoch() < self.epoch.number)
            {
                let rid = put.rid();
                self.drop_reservation(now, rid, fx);
                work.did(ENDED_AS - 1);
            }
            self.older_puts = (next + 1 < self.reservations.bound()).then_some(next + 1);
            work.did(1);
        }
    }

    /// What is in quarantine and older than the epoch that its segment obeys is free: nothing that old is written there
    /// any more, which proves as much as a fence.
    pub(crate) fn release_older(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some(number) = self.obeying.first().copied() {
            let epoch = self.segments.get(number).map_or(0, |segment| segment.epoch);
            let first = self.quarantine.on_segment(number, Rid(0)).next().map(|entry| entry.replica.rid);
            let Some(rid) = first.filter(|rid| rid.epoch() < epoch) else {
                self.obeying.pop_first();
                continue;
            };
            if work.is_used_up() {
                return;
            }
            self.counts.fences_done += 1;
            self.log(now, Record::Released(rid), fx);
            work.did(1);
        }
    }
}
