//! Soft pins, found by their object, and by when they lapse.
//!
//! Those that lapse at nearly the same time are in one list, so that a pin that comes, is renewed or goes changes its
//! neighbours alone, however many there are.

use std::collections::BTreeMap;

use crate::ensure::ensure;
use crate::ids::Time;
use crate::slab::{Link, Linked, List, Slab};
use crate::state::index::{self, Index};

/// Pins whose ends are so close lapse together, at the end of that time, in us as [`Time`].
const TOGETHER: u64 = 64_000;

/// A soft pin, lapsed or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SoftPin {
    pub ttl_ms: u64,
    pub until: Time,
}

struct Entry {
    object: u32,
    /// False when it has lapsed, and is kept for the log.
    lapses: bool,
    pin: SoftPin,
    link: Link,
}

impl Linked for Entry {
    fn link(&self) -> Link {
        self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

pub(super) struct SoftPins {
    slab: Slab<Entry>,
    /// By object.
    index: Index,
    /// Those that are to lapse, by the time in which they do, counted in [`TOGETHER`].
    due: BTreeMap<u64, List>,
    lapsing: usize,
}

impl SoftPins {
    pub fn new() -> SoftPins {
        SoftPins { slab: Slab::new(), index: Index::new(index::LARGE), due: BTreeMap::new(), lapsing: 0 }
    }

    /// Those that are to lapse.
    pub fn lapsing(&self) -> usize {
        self.lapsing
    }

    /// Gives some memory back that nothing is in. False when there is none.
    pub fn give_back(&mut self) -> bool {
        self.slab.give_back()
    }

    pub fn get(&self, object: u32) -> Option<SoftPin> {
        Some(self.slab[self.find(object)?].pin)
    }

    /// Pins an object that has no pin; one that `lapses` not has lapsed.
    pub fn insert(&mut self, object: u32, pin: SoftPin, lapses: bool) {
        let entry = self.slab.insert(Entry { object, lapses: false, pin, link: Link::default() });
        self.index.insert(hash(object), entry);
        if lapses {
            self.list(entry);
        }
    }

    /// The pin of an object ends with it.
    pub fn remove(&mut self, object: u32) {
        let SoftPins { slab, index, .. } = self;
        let Some(entry) = index.take(hash(object), |entry| slab[entry].object == object) else { return };
        self.unlist(entry);
        self.slab.remove(entry);
    }

    /// An object whose pin has lapsed, which is told once.
    pub fn pop_lapsed(&mut self, now: Time) -> Option<u32> {
        let (due, list) = self.due.first_key_value()?;
        if Time((due + 1).saturating_mul(TOGETHER)) > now {
            return None;
        }
        let entry = list.head().expect("no list is empty");
        self.unlist(entry);
        Some(self.slab[entry].object)
    }

    /// All count from now on.
    pub fn restart(&mut self, now: Time) {
        self.due.clear();
        self.lapsing = 0;
        for entry in 0..self.slab.bound() {
            let Some(Entry { lapses, pin, link, .. }) = self.slab.get_mut(entry) else { continue };
            (*lapses, *link) = (false, Link::default());
            pin.until = now.plus_ms(pin.ttl_ms);
            self.list(entry);
        }
    }

    fn find(&self, object: u32) -> Option<u32> {
        self.index.find(hash(object), |entry| self.slab[entry].object == object)
    }

    fn list(&mut self, entry: u32) {
        self.slab[entry].lapses = true;
        let due = self.slab[entry].pin.until.0 / TOGETHER;
        self.due.entry(due).or_default().push_back(&mut self.slab, entry);
        self.lapsing += 1;
    }

    fn unlist(&mut self, entry: u32) {
        if !std::mem::replace(&mut self.slab[entry].lapses, false) {
            return;
        }
        let due = self.slab[entry].pin.until.0 / TOGETHER;
        let list = self.due.get_mut(&due).expect("it is to lapse");
        list.remove(&mut self.slab, entry);
        if list.is_empty() {
            self.due.remove(&due);
        }
        self.lapsing -= 1;
    }

    /// Each is found by its object, and in the list of its time if it is to lapse. `has` says whether an object has a
    /// pin, and whether that is to lapse; `objects` are those that have one.
    pub fn check_invariants(&self, objects: usize, has: impl Fn(u32) -> (bool, bool)) -> Result<(), String> {
        self.slab.check_invariants()?;
        for (entry, Entry { object, lapses, .. }) in self.slab.iter() {
            let found = self.find(*object);
            ensure!(found == Some(entry), "the soft pin {entry} of slot {object} is found in {found:?}");
            let (pinned, is_to_lapse) = has(*object);
            ensure!(
                pinned && *lapses == is_to_lapse,
                "the soft pin of slot {object} is to lapse: {lapses}, and should: {is_to_lapse}, pinned: {pinned}"
            );
        }
        let (pins, indexed) = (self.slab.len(), self.index.len());
        ensure!(pins == objects && indexed == pins, "{objects} have soft pins, there are {pins}, {indexed} by object");
        let mut lapsing = 0;
        for (due, list) in &self.due {
            ensure!(!list.is_empty(), "no soft pin lapses at {due}, and it is noted");
            list.check_invariants(&self.slab, |entry, Entry { lapses, pin, .. }| {
                let its = pin.until.0 / TOGETHER;
                ensure!(*lapses && its == *due, "soft pin {entry} is to lapse at {its}: {lapses}, and listed at {due}");
                Ok(())
            })?;
            lapsing += list.len() as usize;
        }
        ensure!(lapsing == self.lapsing, "{lapsing} soft pins are to lapse, and counted {}", self.lapsing);
        let said = self.slab.iter().filter(|(_, entry)| entry.lapses).count();
        ensure!(lapsing == said, "{lapsing} soft pins are to lapse, and {said} say so");
        Ok(())
    }
}

/// Spreads the numbers of objects.
fn hash(object: u32) -> u64 {
    (u64::from(object) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(ms: u64) -> SoftPin {
        SoftPin { ttl_ms: ms, until: Time(0).plus_ms(ms) }
    }

    fn lapsed(pins: &mut SoftPins, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| pins.pop_lapsed(Time(0).plus_ms(now))).collect()
    }

    #[test]
    fn pins_lapse_in_the_order_of_their_ends_never_early_and_soon_after() {
        let mut pins = SoftPins::new();
        for (object, end) in [(7, 5_000), (8, 100), (9, 5_001), (10, 300)] {
            pins.insert(object, until(end), true);
        }
        assert_eq!(lapsed(&mut pins, 100), [], "never early");
        assert_eq!(lapsed(&mut pins, 164), [8]);
        pins.remove(9);
        assert_eq!(lapsed(&mut pins, 5_064), [10, 7]);
        assert_eq!((pins.lapsing(), pins.get(7).map(|pin| pin.ttl_ms)), (0, Some(5_000)), "kept for the log");
        pins.check_invariants(3, |_| (true, false)).unwrap();
    }

    #[test]
    fn after_a_restart_all_count_anew() {
        let mut pins = SoftPins::new();
        for (object, lapses) in [(0, true), (1, false)] {
            pins.insert(object, until(1_000), lapses);
        }
        pins.restart(Time(0).plus_ms(50_000));
        pins.check_invariants(2, |_| (true, true)).unwrap();
        assert_eq!(lapsed(&mut pins, 51_000), []);
        assert_eq!(lapsed(&mut pins, 51_064), [0, 1]);
    }
}
