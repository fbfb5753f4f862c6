//! Segments as their owners and every process that maps them see them, and the promises that are kept there.
//!
//! A stamp and a word stand for each granule: what a value has in one of its granules is one word, written and read one at
//! a time, as a copy that may stop at any byte would.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use mooncake_core::GRANULE;

/// One segment's memory. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    uuid: [u8; 16],
    seed: u64,
    stamps: Vec<Cell<u64>>,
    words: Vec<Cell<u64>>,
    /// Views per granule.
    viewed: RefCell<BTreeMap<u64, u32>>,
    given_back: Cell<bool>,
}

/// What writes.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// The placement.
    pub rid: u64,
    /// What its value is made of.
    pub value: u64,
}

/// What a value has in one of its granules.
pub fn word(value: u64, index: u64) -> u64 {
    (value << 16 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What is read where memory has been given back.
const PUNCHED: u64 = 0;

impl Memory {
    /// Fresh memory of so many granules.
    pub fn new(seed: u64, uuid: [u8; 16], granules: u64) -> Memory {
        let cells = || (0..granules).map(|_| Cell::new(0)).collect();
        let inner = Inner {
            uuid,
            seed,
            stamps: cells(),
            words: cells(),
            viewed: RefCell::default(),
            given_back: Cell::new(false),
        };
        Memory { inner: Rc::new(inner) }
    }

    /// Its name.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.uuid
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.inner.stamps.len() as u64 * GRANULE
    }

    /// Granules of an extent.
    pub fn granules(offset: u64, len: u64) -> Range<u64> {
        offset / GRANULE..(offset + len).div_ceil(GRANULE)
    }

    fn stamps(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, &Cell<u64>)> {
        Memory::granules(offset, len).map(|granule| (granule, &self.inner.stamps[granule as usize]))
    }

    /// A writer stamps its whole extent before its first byte.
    ///
    /// # Panics
    ///
    /// Where a newer placement has this place, or a view lies under it: it was handed out twice.
    pub fn stamp(&self, rid: u64, offset: u64, len: u64) {
        for (granule, stamp) in self.stamps(offset, len) {
            let found = stamp.get();
            assert!(
                found <= rid | 1,
                "seed {}: {rid:#x} stamps over {found:#x}, granule {granule}: handed out twice",
                self.inner.seed
            );
            // The owner may have fenced a writer that is late: its stamp goes over the tombstone, which is written once more.
            stamp.set(rid);
            self.assert_not_viewed(granule, rid);
        }
    }

    /// Writes one granule of a value.
    ///
    /// # Panics
    ///
    /// Where another placement has this place, or a view lies under it.
    pub fn write(&self, Writer { rid, value }: Writer, granule: u64, index: u64) {
        let stamp = self.inner.stamps[granule as usize].get();
        assert_eq!(stamp & !1, rid, "seed {}: {rid:#x} writes into the place of {stamp:#x}", self.inner.seed);
        self.assert_not_viewed(granule, rid);
        self.inner.words[granule as usize].set(word(value, index));
    }

    fn assert_not_viewed(&self, granule: u64, rid: u64) {
        let viewed = self.inner.viewed.borrow().contains_key(&granule);
        assert!(!viewed, "seed {}: {rid:#x} writes under a view, granule {granule}", self.inner.seed);
    }

    /// One granule's word.
    pub fn read(&self, granule: u64) -> u64 {
        self.inner.words[granule as usize].get()
    }

    /// Whether an extent carries this placement throughout.
    pub fn is_stamped(&self, rid: u64, offset: u64, len: u64) -> bool {
        self.stamps(offset, len).all(|(_, stamp)| stamp.get() == rid)
    }

    /// Newest stamp of an extent.
    pub fn max_stamp(&self, offset: u64, len: u64) -> u64 {
        self.stamps(offset, len).map(|(_, stamp)| stamp.get()).max().unwrap_or(0)
    }

    /// The mark that a placement is no more. It never lowers a stamp: a fence that was asked for twice can come after its
    /// extent was handed out again.
    pub fn tombstone(&self, rid: u64, offset: u64, len: u64) {
        for (_, stamp) in self.stamps(offset, len) {
            stamp.set(stamp.get().max(rid | 1));
        }
    }

    /// The memory is given back, but for these extents.
    ///
    /// # Panics
    ///
    /// Where a view lies under what goes.
    pub fn give_back(&self, kept: &[(u64, u64)]) {
        self.inner.given_back.set(true);
        for stamp in &self.inner.stamps {
            stamp.set(stamp.get() | 1);
        }
        let is_kept = |granule: u64| {
            let byte = granule * GRANULE;
            kept.iter().any(|(offset, len)| *offset <= byte && byte < offset.saturating_add(*len))
        };
        for (granule, word) in (0..).zip(&self.inner.words).filter(|(granule, _)| !is_kept(*granule)) {
            let viewed = self.inner.viewed.borrow().contains_key(&granule);
            assert!(!viewed, "seed {}: granule {granule} is given back under a view", self.inner.seed);
            word.set(PUNCHED);
        }
    }

    /// A view begins.
    pub fn view(&self, offset: u64, len: u64) {
        for granule in Memory::granules(offset, len) {
            *self.inner.viewed.borrow_mut().entry(granule).or_default() += 1;
        }
    }

    /// A view ends.
    pub fn end_view(&self, offset: u64, len: u64) {
        let mut viewed = self.inner.viewed.borrow_mut();
        for granule in Memory::granules(offset, len) {
            let views = viewed.get_mut(&granule).expect("viewed");
            *views -= 1;
            if *views == 0 {
                viewed.remove(&granule);
            }
        }
    }
}
