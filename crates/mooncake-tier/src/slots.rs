//! Slots: the only memory that a disk writes into. A slot goes into an operation and comes back with its end, whoever
//! gave up meanwhile, so that what a disk still writes lands in no memory that has another use by then.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use mooncake_memory::PrivatePages;
use parking_lot::Mutex;

/// Bytes of a slot: a megabyte of a value, and what an unaligned piece has around it.
pub const SLOT_BYTES: usize = (1 << 20) + (64 << 10);

/// Slots that are made at once, side by side: they fill 17 huge pages, each of which is taken when it is first used.
const MADE_AT_ONCE: usize = 32;

/// The slots of one process; made when they are first needed.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Home>);

#[derive(Debug)]
struct Home {
    count: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<PrivatePages>,
    made: usize,
}

impl Slots {
    /// Up to so many slots.
    pub fn new(count: usize) -> Slots {
        Slots(Arc::new(Home { count, state: Mutex::default() }))
    }

    /// A slot with any content; none while all are in use, or if there is no memory for another one.
    pub fn take(&self) -> Option<Slot> {
        let mut state = self.0.state.lock();
        let pages = match state.idle.pop() {
            Some(pages) => pages,
            None if state.made < self.0.count => {
                let count = MADE_AT_ONCE.min(self.0.count - state.made);
                let parts = PrivatePages::parts(count, SLOT_BYTES);
                // Where there is no room for all of them, one is enough to go on.
                state.idle = parts.or_else(|_| PrivatePages::parts(1, SLOT_BYTES)).ok()?;
                state.made += state.idle.len();
                // So that few that are in use at a time are the first ones.
                state.idle.reverse();
                state.idle.pop()?
            }
            None => return None,
        };
        Some(Slot { pages: Some(pages), home: Arc::downgrade(&self.0) })
    }

    /// How many there may be.
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// How many can be taken now.
    pub fn free(&self) -> usize {
        let state = self.0.state.lock();
        self.0.count - (state.made - state.idle.len())
    }
}

/// One slot. It goes back when it is dropped.
#[derive(Debug)]
pub struct Slot {
    pages: Option<PrivatePages>,
    home: Weak<Home>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let (Some(home), Some(pages)) = (self.home.upgrade(), self.pages.take()) {
            home.state.lock().idle.push(pages);
        }
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.pages.as_ref().expect("it is taken at the drop only")
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut().expect("it is taken at the drop only")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_slots_as_were_asked_for_and_each_comes_back() {
        let slots = Slots::new(2);
        let (one, two) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!((one.len(), slots.free()), (SLOT_BYTES, 0));
        assert!(slots.take().is_none());
        drop(one);
        assert_eq!(slots.free(), 1);
        let again = slots.take().unwrap();
        drop(slots);
        drop((two, again));
    }

    #[test]
    fn more_slots_than_are_made_at_once_are_as_many_as_were_asked_for() {
        let slots = Slots::new(MADE_AT_ONCE + 1);
        let mut taken: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!((taken.len(), slots.free()), (MADE_AT_ONCE + 1, 0));
        taken.iter_mut().enumerate().for_each(|(nth, slot)| slot.fill(nth as u8));
        drop(slots);
        // Each has what was written there, whoever has gone.
        assert!(taken.iter().enumerate().all(|(nth, slot)| slot.iter().all(|byte| *byte == nth as u8)));
    }
}
