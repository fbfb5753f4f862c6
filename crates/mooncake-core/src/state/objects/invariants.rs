//! What must hold of the objects by themselves.

use std::collections::BTreeMap;

use super::{ObjectSlot, Objects};
use crate::ensure::ensure;
use crate::ids::SegmentNo;
use crate::state::object::{Hold, ListedIn, Object, Places};
use crate::state::segment::Segments;
use crate::state::writers::Stored;

impl Objects {
    /// Each object is found by its key, is in the list that it says, and that is the right one; the counts are right.
    pub fn check_invariants(&self, segments: &Segments) -> Result<(), String> {
        self.slab.check_invariants()?;
        self.check_index()?;
        self.check_lists()?;
        self.check_soft_pins()?;
        self.check_counts(segments)?;
        self.groups.check_invariants(&self.slab)
    }

    /// All objects with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectSlot, &Object)> {
        self.slab.iter().map(|(slot, object)| (ObjectSlot(slot), object))
    }

    fn check_index(&self) -> Result<(), String> {
        for (slot, object) in self.iter() {
            let key = self.key(slot);
            let found = self.find(self.hash(key), key);
            let found = found.map(|found| found.0);
            ensure!(
                found == Some(slot.0),
                "{} in slot {} is found by its key in {found:?}",
                key.escape_ascii(),
                slot.0
            );
            ensure!(object.places.rids().next().is_some(), "{} lies nowhere", key.escape_ascii());
        }
        let (indexed, all) = (self.index.len(), self.slab.len());
        ensure!(indexed == all, "there are {all}, and {indexed} in the index");
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        // How many say that they are in which list; that they are in it follows, as it holds so many that say so.
        let mut said = [0; 4];
        for (slot, object) in self.iter() {
            let key = self.key(slot).escape_ascii();
            let (readers, replacing, hold, listed_in) =
                (object.readers, object.is_replaced(), object.hold, object.listed_in);
            let held = self.is_held(object);
            ensure!(
                held == (listed_in == ListedIn::None),
                "{key} is listed in {listed_in:?} with {readers} readers, replaced: {replacing}, pin {hold:?}"
            );
            let fits = match listed_in {
                ListedIn::Policy => matches!(hold, Hold::None | Hold::Lapsed),
                ListedIn::Soft => hold == Hold::Soft,
                ListedIn::None | ListedIn::Protected | ListedIn::SetAside => true,
            };
            ensure!(fits, "{key} is listed in {listed_in:?} with pin {hold:?}");
            match listed_in {
                ListedIn::None => {}
                ListedIn::Policy => said[0] += 1,
                ListedIn::Protected => said[1] += 1,
                ListedIn::Soft => said[2] += 1,
                ListedIn::SetAside => said[3] += 1,
            }
        }
        self.check_policy(said[0])?;
        let lists = [
            (&self.protected, ListedIn::Protected),
            (&self.soft, ListedIn::Soft),
            (&self.set_aside, ListedIn::SetAside),
        ];
        for ((list, which), said) in lists.into_iter().zip(&said[1..]) {
            let is_of_it = |slot: u32, object: &Object| {
                ensure!(object.listed_in == which, "slot {slot} is in it and says {:?}", object.listed_in);
                Ok(())
            };
            list.check_invariants(&self.slab, is_of_it).map_err(|wrong| format!("list {which:?}: {wrong}"))?;
            ensure!(list.len() == *said, "list {which:?} has {}, and {said} say that they are in it", list.len());
        }
        let (retry_set_aside, set_aside) = (self.retry_set_aside, self.set_aside.len());
        ensure!(
            retry_set_aside <= set_aside,
            "{retry_set_aside} are to be tried again of {set_aside} that are set aside"
        );
        Ok(())
    }

    /// A walk that comes to an end has met no slot twice.
    fn check_policy(&self, said: u32) -> Result<(), String> {
        let len = self.policy.len();
        let (mut next, mut count) = (self.policy.victim(&self.slab), 0);
        while let Some(slot) = next {
            let listed_in = self.slab.get(slot).map(|object| object.listed_in);
            ensure!(listed_in == Some(ListedIn::Policy), "slot {slot} is in the policy's order and says {listed_in:?}");
            ensure!(count < len, "the policy's order goes on behind {len}");
            count += 1;
            next = self.policy.after(&self.slab, slot);
        }
        ensure!(
            count == len && count == said as usize,
            "the policy's order has {count}, it counted {len}, and {said} say that they are in it"
        );
        Ok(())
    }

    fn check_soft_pins(&self) -> Result<(), String> {
        let has_one = |object: &Object| matches!(object.hold, Hold::Soft | Hold::Lapsed);
        let pinned = self.slab.iter().filter(|(_, object)| has_one(object)).count();
        self.soft_pins.check_invariants(pinned, |slot| match self.slab.get(slot) {
            Some(object) => (has_one(object), object.hold == Hold::Soft),
            None => (false, false),
        })
    }

    #[cfg(test)]
    pub fn miscount_unwritten(&mut self, segment: SegmentNo) {
        super::on_segment(&mut self.on_segments, segment).unwritten += 1;
    }

    fn check_counts(&self, segments: &Segments) -> Result<(), String> {
        let (mut hard, mut replaced) = (0, 0);
        let mut singles: Vec<SegmentNo> = Vec::new();
        for (_, object) in self.slab.iter() {
            hard += u64::from(object.hold == Hold::Hard);
            replaced += if object.is_replaced() { object.bytes() } else { 0 };
            if let Places::One(place) = &object.places {
                singles.push(place.segment);
            }
        }
        ensure!(hard == self.hard_pinned, "{hard} are pinned hard, and counted {}", self.hard_pinned);
        ensure!(replaced == self.replaced_bytes, "{replaced} bytes are replaced, and counted {}", self.replaced_bytes);
        singles.sort_unstable();
        for number in segments.numbers().chain(segments.gone().iter().map(|gone| gone.number)) {
            let (below, above) = (|other: &SegmentNo| *other < number, |other: &SegmentNo| *other <= number);
            let there = (singles.partition_point(above) - singles.partition_point(below)) as u64;
            let counted = self.on_segments.get(number.0 as usize).map_or(0, |on| on.singles);
            ensure!(there == counted, "{there} lie on {number:?} alone, and counted {counted}");
        }
        self.check_several(segments)?;
        self.check_unwritten()?;
        self.check_writers()
    }

    fn check_writers(&self) -> Result<(), String> {
        let mut stored: BTreeMap<u16, Stored> = BTreeMap::new();
        for (_, object) in self.slab.iter() {
            let of = stored.entry(object.writer().0).or_default();
            of.objects += 1;
            of.bytes += object.size();
        }
        for number in self.writers.numbers() {
            let (there, counted) = (stored.remove(&number.0).unwrap_or_default(), self.writers.stored(number));
            ensure!(there == counted, "{number:?} has stored {there:?}, and is counted {counted:?}");
        }
        ensure!(stored.is_empty(), "{stored:?} were stored, and are counted nowhere");
        Ok(())
    }

    fn check_unwritten(&self) -> Result<(), String> {
        let mut unwritten: BTreeMap<SegmentNo, u64> = BTreeMap::new();
        for (_, object) in self.slab.iter().filter(|(_, object)| object.places.tier().is_none()) {
            for place in object.places.memory() {
                *unwritten.entry(place.segment).or_default() += object.size();
            }
        }
        for (nth, on) in self.on_segments.iter().enumerate() {
            let there = unwritten.remove(&SegmentNo(nth as u32)).unwrap_or(0);
            let counted = on.unwritten;
            ensure!(there == counted, "{there} bytes on segment {nth} are on no tier, and counted {counted}");
        }
        ensure!(unwritten.is_empty(), "{unwritten:?} bytes are on no tier, and counted nowhere");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Time;
    use crate::slab::Link;
    use crate::state::object::{Place, Places};
    use mooncake_ids::Rid;

    const KEPT: u64 = 2_000;

    fn object(hold: Hold) -> Object {
        Object::new(1, 0, Places::of_new(&[Place::new(Rid::new(1, 1), SegmentNo(0), 0)]), hold)
    }

    /// Two in the policy's order, two protected, two set aside, the last with a soft pin, which lapses.
    fn objects() -> Objects {
        let mut objects = Objects::new(true);
        for slot in 0..6 {
            let soft = super::super::SoftPin { ttl_ms: 1, until: Time(9) };
            let (hold, soft) = if slot == 5 { (Hold::Soft, Some(soft)) } else { (Hold::None, None) };
            let key = format!("k{slot}");
            let hash = objects.hash(key.as_bytes());
            let at = objects.insert(Time(0), hash, key.as_bytes(), object(hold), soft, &Segments::default());
            assert_eq!(at, ObjectSlot(slot));
            objects.join(at, b"g");
        }
        objects.protect_one(Time(0), 2, KEPT);
        objects.protect_one(Time(0), 3, KEPT);
        for slot in [4, 5] {
            objects.unlist(slot);
            objects.slab[slot].listed_in = ListedIn::SetAside;
            objects.set_aside.push_back(&mut objects.slab, slot);
        }
        objects
    }

    #[track_caller]
    fn names(damage: impl FnOnce(&mut Objects), wrong: &str) {
        let (mut objects, segments) = (objects(), Segments::default());
        objects.check_invariants(&segments).unwrap();
        damage(&mut objects);
        let found = objects.check_invariants(&segments).expect_err("it was damaged");
        assert!(found.contains(wrong), "{found}");
    }

    #[test]
    fn an_object_that_is_not_found_is_named() {
        names(|objects| objects.slab[1].spare += 1, "k in slot 1 is found by its key in None");
        names(|objects| objects.index.clear(), "k0 in slot 0 is found by its key");
        names(
            |objects| {
                let slot = objects.slab.insert_with(object(Hold::None), b"k0");
                objects.slab[slot].spare = 6;
            },
            "k0 in slot 6 is found by its key in Some(0)",
        );
    }

    #[test]
    fn an_object_in_a_wrong_list_is_named() {
        names(|objects| objects.slab[0].listed_in = ListedIn::Soft, "is listed in Soft with pin None");
        names(|objects| objects.slab[0].listed_in = ListedIn::SetAside, "says Some(SetAside)");
        names(|objects| objects.slab[0].readers = 1, "is listed in Policy with 1 readers");
        names(|objects| objects.slab[0].listed_in = ListedIn::None, "is listed in None with 0 readers");
        let push = |objects: &mut Objects| {
            objects.slab[4].listed_in = ListedIn::Protected;
        };
        names(push, "list Protected has 2, and 3 say that they are in it");
        let unlinked = |objects: &mut Objects| objects.slab[3].link = Link::default();
        names(unlinked, "list Protected: slot 3 is behind 2 and says behind");
        names(|objects| objects.retry_set_aside = 3, "3 are to be tried again of 2 that are set aside");
        let pinned = |objects: &mut Objects| {
            objects.unlist(5);
            objects.slab[5].listed_in = ListedIn::Policy;
            objects.policy.insert_coldest(&mut objects.slab, 5);
        };
        names(pinned, "k5 is listed in Policy with pin Soft");
    }

    #[test]
    fn a_soft_pin_that_does_not_lapse_is_named() {
        names(
            |objects| _ = objects.soft_pins.pop_lapsed(Time(1_000_000)),
            "slot 5 is to lapse: false, and should: true",
        );
        names(|objects| objects.soft_pins.remove(5), "1 have soft pins, there are 0");
        let soft = super::super::SoftPin { ttl_ms: 1, until: Time(9) };
        names(|objects| objects.soft_pins.insert(0, soft, true), "slot 0 is to lapse: true, and should: false");
    }

    #[test]
    fn a_wrong_count_of_segments_or_groups_is_named() {
        let one_segment = |objects: &mut Objects| {
            let two = [0, 1].map(|segment| Place::new(Rid::new(1, 1), SegmentNo(segment), 0));
            objects.slab[0].places = Places::of_new(&two);
        };
        names(one_segment, "k0 on several segments can be seen: false");
        names(|objects| objects.several.add(0, 2, false), "k0 lies on one segment, and counts as one on several");
        names(
            |objects| objects.several.add(99, 2, true),
            "(0, 0, 0) lie on several segments, with one owner at most and unseen, and counted (1, 0, 0)",
        );
        let strange = |objects: &mut Objects| objects.groups.join(b"h", 0);
        names(strange, "slot 0 is a member of");
    }
}
