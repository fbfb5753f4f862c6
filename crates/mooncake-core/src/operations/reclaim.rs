//! A tier that is full: its oldest file is given up, but for what is worth to be written once more.

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{SegmentNo, Time};
use crate::request::{Origin, Refused, Verdict};
use crate::state::object::{Hold, Mark};
use crate::state::objects::ObjectSlot;
use crate::state::tier::{Mounted, Order, OrderSource, Tier};
use crate::work::Work;
use mooncake_ids::{Rid, SessionId, TIER_BLOCK, TierUuid};

/// Of what a file has, this part at most is written once more because it was read.
const KEPT_PART: u64 = 2;

/// Time that an owner has for an order.
const ORDER_MS: u64 = 30_000;

impl Core {
    /// Judges records of a file that its owner wants to give up, as the file's footer names them. What is kept of them
    /// is written to the tier `into`, which is the same one or, of one that is adopted, another one of its session.
    pub fn reclaim(
        &mut self,
        now: Time,
        origin: Origin,
        (uuid, into): (TierUuid, TierUuid),
        file: u64,
        records: &[(&[u8], Rid)],
        fx: &mut Effects,
    ) -> Result<Vec<Verdict>, Refused> {
        self.once(origin, records.len(), fx, |core, fx| {
            let number = core.live_tier_of(origin.session, uuid)?;
            let into = core.live_tier_of(origin.session, into).ok().filter(|into| core.is_written(*into));
            let into = into.ok_or(Refused::TierUnknown(uuid))?;
            core.tiers.get_mut(number).expect("it is Live").judged.insert(file);
            Ok(records.iter().map(|(key, rid)| core.judge(now, (number, into), file, key, *rid, fx)).collect())
        })
    }

    /// All records of a file have been judged: what objects still have there, and is not about to be moved, they have
    /// no more.
    pub fn reclaimed(&mut self, owner: SessionId, uuid: TierUuid, file: u64) -> Result<(), Refused> {
        let number = self.live_tier_of(owner, uuid)?;
        let tier = self.tiers.get_mut(number).expect("it is Live");
        tier.seal(file);
        (tier.kept_of, tier.kept_bytes) = (None, 0);
        if tier.files().contains_key(&file) {
            tier.given_up.insert(file, 0);
            tier.told.insert(file);
        }
        Ok(())
    }

    fn live_tier_of(&self, owner: SessionId, uuid: TierUuid) -> Result<SegmentNo, Refused> {
        let number = self.tier_of(owner, uuid).ok_or(Refused::TierUnknown(uuid))?;
        let is_live = self.tiers.get(number).is_some_and(|tier| matches!(tier.mounted, Mounted::Live));
        is_live.then_some(number).ok_or(Refused::TierUnknown(uuid))
    }

    /// Whether a tier's session writes it.
    fn is_written(&self, number: SegmentNo) -> bool {
        self.tiers.get(number).is_some_and(|tier| !tier.is_adopted)
    }

    fn judge(
        &mut self,
        now: Time,
        (number, into): (SegmentNo, SegmentNo),
        file: u64,
        key: &[u8],
        rid: Rid,
        fx: &mut Effects,
    ) -> Verdict {
        let found = self.objects.find(self.objects.hash(key), key);
        let Some(slot) = found.filter(|slot| self.lies_in(*slot, number, file, Some(rid))) else {
            return Verdict::Dead;
        };
        let object_id = self.objects.object(slot).id();
        // The owner asks once more: it has not heard that it was to move it.
        if let Some((former, order)) = self.tiers.move_of(number, slot, object_id) {
            self.tiers.end_order(former);
            self.not_moved(slot, &order);
        }
        let object = self.objects.object(slot);
        let size = object.size();
        let is_pinned = matches!(object.hold, Hold::Soft | Hold::Hard) || object.protected_until > now;
        let tier = self.tiers.get_mut(number).expect("it is Live");
        if tier.kept_of != Some(file) {
            (tier.kept_of, tier.kept_bytes) = (Some(file), 0);
        }
        let may_keep = tier.kept_bytes + size <= tier.spec.file_blocks * TIER_BLOCK / KEPT_PART;
        // One that is adopted gives all of its files up, the young ones too, of which no read was late.
        let read = if tier.is_adopted { Mark::Read } else { Mark::ReadLate };
        let is_kept = is_pinned || may_keep && object.marks.has(read);
        if !is_kept {
            self.counts.tier_dropped_objects += 1;
            self.counts.tier_dropped_bytes += size;
            self.drop_tier_place(now, slot, fx);
            return Verdict::Dropped;
        }
        if object.marks.has(Mark::Ordered) {
            // It is on its way from memory to another place already.
            return Verdict::Dead;
        }
        tier.kept_bytes += if is_pinned { 0 } else { size };
        let rid = self.next_order_rid(now, fx);
        let source = OrderSource::File(number);
        let order = Order { tier: into, slot, object_id, source, bytes: size, since: now };
        self.tiers.insert_order(rid, order);
        self.objects.set_mark(slot, Mark::Ordered, true);
        Verdict::Keep(rid)
    }

    /// An order came to nothing. What its object has in a file that is given up, it has no more.
    pub(crate) fn order_failed(&mut self, now: Time, order: &Order, fx: &mut Effects) {
        let slot = order.slot;
        self.not_moved(slot, order);
        let Some(place) = self.objects.object(slot).places.tier() else { return };
        let is_told = |tier: &Tier| tier.told.contains(&tier.file_of(place.address()));
        if self.tiers.get(place.tier).is_some_and(is_told) {
            self.drop_tier_place(now, slot, fx);
        }
    }

    /// What an object was to have by an order it does not have, and of what is kept of its file it is no part.
    fn not_moved(&mut self, slot: ObjectSlot, order: &Order) {
        self.objects.set_mark(slot, Mark::Ordered, false);
        let OrderSource::File(from) = order.source else { return };
        if let Some(tier) = self.tiers.get_mut(from) {
            tier.kept_bytes = tier.kept_bytes.saturating_sub(order.bytes);
        }
    }

    /// Orders that an owner has not answered for long are over: what it writes later leaves dead bytes.
    pub(crate) fn expire_orders(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while !work.is_used_up()
            && let Some((rid, order)) = self.tiers.oldest().filter(|(_, order)| order.since.plus_ms(ORDER_MS) < now)
        {
            work.did(1);
            self.counts.tier_orders_expired += 1;
            self.tiers.end_order(rid);
            if self.objects.get(order.slot).is_some_and(|object| object.id() == order.object_id) {
                self.order_failed(now, &order, fx);
            }
        }
    }

    /// Whether an object lies in a file of a tier, with that rid if one is given.
    fn lies_in(&self, slot: ObjectSlot, number: SegmentNo, file: u64, rid: Option<Rid>) -> bool {
        let place = self.objects.get(slot).and_then(|object| object.places.tier());
        let in_file = |tier: &Tier, address| tier.file_of(address) == file;
        place.is_some_and(|place| {
            let tier = self.tiers.get(number).filter(|_| place.tier == number);
            rid.is_none_or(|rid| rid == place.rid) && tier.is_some_and(|tier| in_file(tier, place.address()))
        })
    }

    /// Goes on dropping what is left in files that are given up.
    pub(crate) fn drop_given_up(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while !work.is_used_up()
            && let Some((number, file, next)) = self.tiers.given_up()
        {
            let stays_behind = |slot: u32| {
                let object = self.objects.get(ObjectSlot(slot));
                let moves = object.is_some_and(|object| object.marks.has(Mark::Ordered));
                !moves && self.lies_in(ObjectSlot(slot), number, file, None)
            };
            let (found, end) = work.look_through(next, self.objects.bound(), stays_behind);
            found.into_iter().for_each(|slot| self.drop_tier_place(now, ObjectSlot(slot), fx));
            let tier = self.tiers.get_mut(number).expect("it is there");
            match end < self.objects.bound() && tier.files().contains_key(&file) {
                true => _ = tier.given_up.insert(file, end),
                false => _ = tier.given_up.remove(&file),
            }
        }
    }
}
