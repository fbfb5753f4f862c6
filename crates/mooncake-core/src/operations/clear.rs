//! Replicas that their users want no more: dropped by request, on one segment or on all, but of objects that are in
//! use.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{SegmentNo, Time};
use crate::record::Record;
use crate::request::{Origin, Refused, RemoveOutcome, Sight};
use crate::state::object::{Hold, Object};
use mooncake_ids::Rid;

impl Core {
    /// Drops the replicas that lie on segments of that name, or all of them where it is empty; an object leaves with
    /// its last one. [`RemoveOutcome::Protected`] are objects that were looked up a moment ago, have a pin, or are
    /// under a view;
    /// [`RemoveOutcome::Busy`] those of which a put or a replacement is under way.
    pub fn clear_replicas(
        &mut self,
        now: Time,
        origin: Origin,
        keys: &[&[u8]],
        segment: &str,
        fx: &mut Effects,
    ) -> Result<Vec<RemoveOutcome>, Refused> {
        self.remove_each(now, origin, keys, fx, |core, key, fx| core.clear_one(now, key, segment, fx))
    }

    fn clear_one(&mut self, now: Time, key: &[u8], segment: &str, fx: &mut Effects) -> RemoveOutcome {
        let unfinished = self.unfinished_by_key(now, key, fx).is_some();
        let slot = self.visible(self.objects.hash(key), key, Sight::Tiers);
        let Some(slot) = slot.filter(|_| !unfinished) else {
            return if unfinished { RemoveOutcome::Busy } else { RemoveOutcome::Missing };
        };
        let object = self.objects.object(slot);
        if object.is_replaced() {
            return RemoveOutcome::Busy;
        }
        let name_of = |number: SegmentNo| {
            let of_segment = self.segments.get(number).map(|it| &it.spec.name);
            of_segment.or_else(|| self.tiers.get(number).map(|it| &it.spec.name))
        };
        let is_on_it = |number: SegmentNo| segment.is_empty() || name_of(number).is_some_and(|name| name == segment);
        let places = || object.places.rids().zip(object.places.segments());
        let rids: SmallVec<[Rid; 2]> = places().filter(|(_, number)| is_on_it(*number)).map(|(rid, _)| rid).collect();
        match rids.len() {
            0 => return RemoveOutcome::Missing,
            _ if is_in_use(object, now) => return RemoveOutcome::Protected,
            all if all == places().count() => self.remove_object(now, slot, fx),
            _ => {
                for rid in rids {
                    self.log(now, Record::ReplicaDropped { key: key.into(), rid }, fx);
                }
            }
        }
        self.counts.cleared_objects += 1;
        RemoveOutcome::Removed
    }
}

fn is_in_use(object: &Object, now: Time) -> bool {
    object.readers > 0 || matches!(object.hold, Hold::Soft | Hold::Hard) || object.protected_until > now
}
