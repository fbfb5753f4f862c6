//! Objects that are of use together: renewed together, evicted one after another.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::num::NonZeroU32;

use hashbrown::DefaultHashBuilder;

use crate::ensure::ensure;
use crate::ids::Time;
use crate::slab::{CHUNK, CHUNK_BITS, Slab};
use crate::state::index::{Index, SMALL};
use crate::state::object::Object;

/// Members that one renewal reaches: the bound of its work. Groups that engines make have a few.
const RENEWED_MAX: usize = 1_024;

/// Gets of one batch touch a group once.
const TOUCH_EVERY_MS: u64 = 100;

/// Number of a group, in four bytes with "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupNo(NonZeroU32);

impl GroupNo {
    fn of(slot: u32) -> GroupNo {
        GroupNo(NonZeroU32::MIN.saturating_add(slot))
    }

    fn slot(self) -> u32 {
        self.0.get() - 1
    }
}

struct Group {
    name: Box<[u8]>,
    /// Slots of objects.
    members: BTreeSet<u32>,
    /// When all of them were touched or protected last.
    touched: Option<Time>,
    protected: Option<Time>,
}

/// The groups of the slots of one chunk.
struct Page {
    groups: Box<[Option<GroupNo>]>,
    /// How many of them are in one.
    used: usize,
}

/// All groups with a member.
pub(crate) struct Groups {
    hasher: DefaultHashBuilder,
    slab: Slab<Group>,
    by_name: Index,
    /// Of each slot, by chunks of slots: those without a member take nothing.
    of: Vec<Option<Page>>,
}

impl Default for Groups {
    fn default() -> Self {
        let by_name = Index::new(SMALL);
        Groups { hasher: DefaultHashBuilder::default(), slab: Slab::new(), by_name, of: Vec::new() }
    }
}

impl Groups {
    pub fn name(&self, group: GroupNo) -> &[u8] {
        &self.slab[group.slot()].name
    }

    /// The group that the object in a slot is in.
    #[inline]
    pub fn of(&self, member: u32) -> Option<GroupNo> {
        self.of.get((member >> CHUNK_BITS) as usize)?.as_ref()?.groups[member as usize & (CHUNK - 1)]
    }

    /// Gives some memory back that nothing is in. False when there is none.
    pub fn give_back(&mut self) -> bool {
        self.slab.give_back()
    }

    fn set(&mut self, member: u32, group: Option<GroupNo>) {
        let (number, index) = ((member >> CHUNK_BITS) as usize, member as usize & (CHUNK - 1));
        if self.of.len() <= number {
            self.of.resize_with(number + 1, || None);
        }
        let page = self.of[number].get_or_insert_with(|| Page { groups: vec![None; CHUNK].into(), used: 0 });
        let before = std::mem::replace(&mut page.groups[index], group);
        page.used = page.used + usize::from(group.is_some()) - usize::from(before.is_some());
        if page.used == 0 {
            self.of[number] = None;
        }
    }

    /// Makes a slot that is in no group a member of the one of that name, which it may be the first of.
    pub fn join(&mut self, name: &[u8], member: u32) {
        let hash = self.hasher.hash_one(name);
        let Groups { slab, by_name, .. } = self;
        let found = by_name.find(hash, |slot| *slab[slot].name == *name);
        let slot = found.unwrap_or_else(|| {
            let slot =
                slab.insert(Group { name: name.into(), members: BTreeSet::new(), touched: None, protected: None });
            by_name.insert(hash, slot);
            slot
        });
        slab[slot].members.insert(member);
        self.set(member, Some(GroupNo::of(slot)));
    }

    /// Takes a slot out of the group that it is in, if any; the group is gone with the last.
    pub fn leave(&mut self, member: u32) {
        let Some(group) = self.of(member) else { return };
        self.set(member, None);
        let slot = group.slot();
        let entry = &mut self.slab[slot];
        entry.members.remove(&member);
        if !entry.members.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(&*entry.name);
        let was_there = self.by_name.remove(hash, slot);
        debug_assert!(was_there, "a group is in the index");
        self.slab.remove(slot);
    }

    /// The other members, those behind this one first.
    pub fn members_behind(&self, group: GroupNo, member: u32) -> impl Iterator<Item = u32> + '_ {
        let members = &self.slab[group.slot()].members;
        members.range(member + 1..).chain(members.range(..member)).copied()
    }

    /// The other members that are renewed with this one.
    pub fn renewed_with(&self, group: GroupNo, member: u32) -> Vec<u32> {
        self.members_behind(group, member).take(RENEWED_MAX).collect()
    }

    /// Whether its members are to be touched now, which is noted.
    pub fn is_to_be_touched(&mut self, group: GroupNo, now: Time) -> bool {
        Groups::is_due(&mut self.slab[group.slot()].touched, now, TOUCH_EVERY_MS)
    }

    /// Whether its members are to be protected now, which is noted.
    pub fn is_to_be_protected(&mut self, group: GroupNo, now: Time, every_ms: u64) -> bool {
        Groups::is_due(&mut self.slab[group.slot()].protected, now, every_ms)
    }

    /// Each group has a member and is found by its name; a member's object is of that group and the other way round.
    pub fn check_invariants(&self, objects: &Slab<Object>) -> Result<(), String> {
        self.slab.check_invariants().map_err(|wrong| format!("groups: {wrong}"))?;
        let mut members = 0;
        for (slot, group) in self.slab.iter() {
            let (name, number) = (group.name.escape_ascii(), GroupNo::of(slot));
            let hash = self.hasher.hash_one(&*group.name);
            let found = self.by_name.find(hash, |slot| self.slab[slot].name == group.name);
            ensure!(found == Some(slot), "group {name} in slot {slot} is found by its name in {found:?}");
            ensure!(!group.members.is_empty(), "group {name} has no member");
            for member in &group.members {
                let of = objects.get(*member).and_then(|_| self.of(*member));
                ensure!(of == Some(number), "slot {member} is a member of {name}, {number:?}, and says {of:?}");
            }
            members += group.members.len();
        }
        let (indexed, groups) = (self.by_name.len(), self.slab.len());
        ensure!(indexed == groups, "{groups} groups, and {indexed} in the index");
        let grouped = objects.iter().filter(|(slot, _)| self.of(*slot).is_some()).count();
        ensure!(members == grouped, "{members} members of groups, and {grouped} objects are in one");
        let noted: usize = self.of.iter().flatten().map(|page| page.used).sum();
        ensure!(noted == grouped, "{grouped} objects are in a group, and noted {noted}");
        Ok(())
    }

    fn is_due(last: &mut Option<Time>, now: Time, every_ms: u64) -> bool {
        let due = last.is_none_or(|last| last.plus_ms(every_ms) <= now);
        if due {
            *last = Some(now);
        }
        due
    }
}
