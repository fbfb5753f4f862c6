//! What is about to be looked at, brought from memory ahead of it.
//!
//! Of millions of objects few are in the processor's caches. An operation that looks at one waits for its place in the
//! index, for the object itself, for its key and for its neighbours in a list, one after the other. A few dozen
//! together wait hardly longer than one: so they are touched first, and read then.

use std::hint::black_box;

use smallvec::SmallVec;

use super::{ObjectSlot, Objects, Reach, key_of};

/// So many are touched together: what they take stays in the nearest caches until they are read.
pub(crate) const AHEAD: usize = 32;

/// Room for fewer objects than these, of a hundred bytes each and their keys, is in the last cache of a server: there
/// foreseeing costs a quarter of an existence query. It is not what is left of many.
const MANY_SLOTS: u32 = 1 << 16;

/// A key that is asked for.
pub(crate) struct Asked<'k> {
    pub key: &'k [u8],
    pub hash: u64,
    /// The slot that has it, most likely, once it is looked up.
    likely: Option<u32>,
}

impl Objects {
    /// A key, with its hash.
    #[inline]
    pub fn ask<'k>(&self, key: &'k [u8]) -> Asked<'k> {
        Asked { key, hash: self.hash(key), likely: None }
    }

    /// Looks keys up in the index, at most [`AHEAD`] of them, ahead of [`found`](Objects::found). Changes nothing.
    #[inline]
    pub fn look_up(&self, asked: &mut [Asked<'_>]) {
        for asked in &mut *asked {
            asked.likely = self.index.likely(asked.hash);
        }
        if self.slab.bound() > MANY_SLOTS && asked.len() > 1 {
            self.foresee_slots(asked.iter().filter_map(|asked| asked.likely));
        }
    }

    /// The object that has a key that was looked up. Others may have come and gone since.
    #[inline]
    pub fn found(&self, asked: &Asked<'_>) -> Option<ObjectSlot> {
        let slot = asked.likely?;
        match self.slab.get(slot).is_some() && key_of(&self.slab, slot) == asked.key {
            true => Some(ObjectSlot(slot)),
            // Another key of nearly the same hash was found first.
            false => self.find(asked.hash, asked.key),
        }
    }

    /// Keys are about to be asked for, at most [`AHEAD`] of them: their hashes. Changes nothing.
    #[inline]
    pub fn foresee(&self, hashes: impl ExactSizeIterator<Item = u64>) {
        if self.slab.bound() > MANY_SLOTS && hashes.len() > 1 {
            let slots: SmallVec<[u32; AHEAD]> = hashes.filter_map(|hash| self.index.likely(hash)).collect();
            self.foresee_slots(slots.into_iter());
        }
    }

    /// Objects are about to be moved or removed that lie in these slots, which may be free.
    fn foresee_slots(&self, slots: impl Iterator<Item = u32>) {
        let mut neighbours: SmallVec<[u32; 2 * AHEAD]> = SmallVec::new();
        for slot in slots {
            let Some(object) = self.slab.get(slot) else { continue };
            let key = self.slab.bytes(slot);
            black_box((key.first().copied(), key.last().copied()));
            neighbours.extend(object.link.neighbours());
        }
        for slot in neighbours {
            black_box(self.slab.get(slot).map(|object| object.link));
        }
    }

    /// The next ones that are evicted, most likely, are about to be, or to be set aside: so many at most. How many
    /// there are.
    pub fn foresee_victims(&self, most: usize, reach: Reach) -> usize {
        let first = self.policy.victim(&self.slab);
        let coldest = std::iter::successors(first, |slot| self.policy.after(&self.slab, *slot));
        let looked_up = self.protected.head().filter(|_| reach >= Reach::Protected);
        let looked_up = std::iter::successors(looked_up, |slot| self.protected.next(&self.slab, *slot));
        let slots: SmallVec<[ObjectSlot; AHEAD]> =
            coldest.chain(looked_up).take(most.min(AHEAD)).map(ObjectSlot).collect();
        if self.slab.bound() > MANY_SLOTS {
            self.foresee_removal(&slots);
        }
        slots.len()
    }

    /// Objects are about to be removed.
    pub fn foresee_removal(&self, slots: &[ObjectSlot]) {
        self.foresee_slots(slots.iter().map(|slot| slot.0));
        for slot in slots.iter().filter(|slot| self.get(**slot).is_some()) {
            black_box(self.index.likely(self.hash(self.key(*slot))));
        }
    }
}
