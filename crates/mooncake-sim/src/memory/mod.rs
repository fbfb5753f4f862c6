//! Segments as their owners and every process that maps them see them, and the promises that are kept there.
//!
//! A stamp and a word stand for each granule: what a value has in one of its granules is one word, written and read one
//! at a time, as a copy that may stop at any byte would.

pub(crate) mod ledger;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use mooncake_ids::{GRANULE, Rid, SegmentUuid};
use mooncake_memory::CopyError;
use mooncake_segment::machine::Stamps;

use crate::memory::ledger::{Ledger, checksum};
use crate::world::{ProcessId, World};

/// One segment's memory. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Rc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    uuid: SegmentUuid,
    ledger: Ledger,
    stamps: Vec<Cell<u64>>,
    words: Vec<Cell<u64>>,
    /// Views per granule.
    viewed: RefCell<BTreeMap<u64, u32>>,
    /// Nothing is to be written any more.
    given_back: Cell<bool>,
    /// Nothing of an epoch before this one is written any more.
    least_epoch: Cell<u16>,
    /// Processes that have it mapped beside its owner, once per attachment.
    mapped_by: RefCell<Vec<ProcessId>>,
}

/// Higher than any placement: writers find it where memory is given back.
const GIVEN_BACK: u64 = u64::MAX;

/// What is read where memory has been given back.
const PUNCHED: u64 = 0;

impl PartialEq for Memory {
    fn eq(&self, other: &Memory) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Memory {
    /// Fresh memory of so many granules.
    pub fn new(ledger: &Ledger, uuid: SegmentUuid, granules: u64) -> Memory {
        let cells = || (0..granules).map(|_| Cell::new(0)).collect();
        let inner = Inner {
            uuid,
            ledger: ledger.clone(),
            stamps: cells(),
            words: cells(),
            viewed: RefCell::default(),
            given_back: Cell::new(false),
            least_epoch: Cell::new(0),
            mapped_by: RefCell::default(),
        };
        let memory = Memory { inner: Rc::new(inner) };
        ledger.enter(uuid, Rc::downgrade(&memory.inner));
        memory
    }

    /// A master gives a place out.
    ///
    /// # Panics
    ///
    /// Where a view lies there, and the owner obeys that master or an earlier one.
    pub(crate) fn note_place_given(inner: &Rc<Inner>, rid: Rid, offset: u64, len: u64) {
        if rid.epoch() < inner.least_epoch.get() {
            return;
        }
        let viewed = inner.viewed.borrow();
        let found = Memory::granules(offset, len).find(|granule| viewed.contains_key(granule));
        let seed = inner.ledger.seed();
        assert_eq!(found, None, "seed {seed}: {:#x} is placed under a view", rid.0);
    }

    /// Its name.
    pub fn uuid(&self) -> SegmentUuid {
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

    fn stamps(&self, offset: u64, len: u64) -> Result<impl Iterator<Item = &Cell<u64>>, CopyError> {
        let bytes = self.bytes();
        let end = offset.checked_add(len).filter(|end| *end <= bytes);
        end.ok_or(CopyError::OutOfRange { offset, len, bytes })?;
        Ok(Memory::granules(offset, len).map(|granule| &self.inner.stamps[granule as usize]))
    }

    // ---------------------------------------------------------------- writers

    /// A writer stamps its whole extent before its first byte. It does so over whatever it finds: the gate has let it
    /// through.
    ///
    /// # Panics
    ///
    /// Where a newer placement has this place, a view lies under it, or the writer is shut out.
    pub fn stamp(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        if self.inner.given_back.get() {
            return Err(CopyError::Superseded { rid: rid.0, found: GIVEN_BACK });
        }
        for (granule, stamp) in Memory::granules(offset, len).zip(self.stamps(offset, len)?) {
            let (found, seed) = (stamp.get(), self.inner.ledger.seed());
            // The owner may have fenced a writer that is late: its stamp goes over the tombstone, which is written once
            // more.
            assert!(found <= rid.tombstone(), "seed {seed}: {:#x} stamps over {found:#x}, granule {granule}", rid.0);
            self.may_land(rid, granule);
            stamp.set(rid.0);
        }
        Ok(())
    }

    /// The same for a writer of another host: where anything newer is, tombstones included, it is refused.
    pub fn stamp_if_newest(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        if let Some(found) = self.stamps(offset, len)?.map(Cell::get).find(|found| *found > rid.0) {
            return Err(CopyError::Superseded { rid: rid.0, found });
        }
        self.stamp(rid, offset, len)
    }

    /// Writes one granule of a value.
    ///
    /// # Panics
    ///
    /// Where another placement has this place, a view lies under it, or the writer is shut out.
    pub fn write(&self, rid: Rid, granule: u64, word: u64) {
        let (viewed, seed) = (self.inner.viewed.borrow().contains_key(&granule), self.inner.ledger.seed());
        assert!(!viewed, "seed {seed}: {:#x} is written under a view, granule {granule}", rid.0);
        if self.inner.given_back.get() {
            // It makes pages that no reader reads.
            return;
        }
        let (stamp, seed) = (self.inner.stamps[granule as usize].get(), self.inner.ledger.seed());
        assert_eq!(stamp & !1, rid.0, "seed {seed}: {:#x} writes into the place of {stamp:#x}", rid.0);
        self.may_land(rid, granule);
        self.inner.words[granule as usize].set(word);
    }

    fn may_land(&self, rid: Rid, granule: u64) {
        let (seed, least) = (self.inner.ledger.seed(), self.inner.least_epoch.get());
        self.inner.ledger.assert_may_land(self.inner.uuid, rid);
        assert!(rid.epoch() >= least, "seed {seed}: {:#x} is written, and epoch {least} is taken", rid.0);
        let viewed = self.inner.viewed.borrow().contains_key(&granule);
        assert!(!viewed, "seed {seed}: {:#x} is written under a view, granule {granule}", rid.0);
    }

    /// Its owner says so of an epoch.
    pub fn has_taken(&self, epoch: u16) {
        self.inner.least_epoch.set(self.inner.least_epoch.get().max(epoch));
    }

    // ---------------------------------------------------------------- readers

    /// One granule's word.
    pub fn read(&self, granule: u64) -> u64 {
        self.inner.words[granule as usize].get()
    }

    /// Whether an extent carries this placement throughout.
    pub fn is_stamped(&self, rid: Rid, offset: u64, len: u64) -> bool {
        self.stamps(offset, len).is_ok_and(|mut stamps| stamps.all(|stamp| stamp.get() == rid.0))
    }

    /// The checksum of an extent.
    pub fn sum(&self, offset: u64, len: u64) -> u32 {
        checksum(Memory::granules(offset, len).map(|granule| self.read(granule)))
    }

    /// A view begins: what it is over does not change until it ends.
    pub fn view(&self, offset: u64, len: u64) -> Viewed {
        for granule in Memory::granules(offset, len) {
            *self.inner.viewed.borrow_mut().entry(granule).or_default() += 1;
        }
        Viewed { memory: self.clone(), offset, len }
    }

    // -------------------------------------------------------------- give back

    /// The memory is given back, but for these extents.
    ///
    /// # Panics
    ///
    /// Where a view lies under what goes.
    pub fn give_back(&self, kept: &[(u64, u64)]) {
        self.inner.given_back.set(true);
        let is_kept = |granule: u64| {
            let byte = granule * GRANULE;
            kept.iter().any(|(offset, len)| *offset <= byte && byte < offset.saturating_add(*len))
        };
        for (granule, word) in (0..).zip(&self.inner.words).filter(|(granule, _)| !is_kept(*granule)) {
            let (seed, viewed) = (self.inner.ledger.seed(), self.inner.viewed.borrow().contains_key(&granule));
            assert!(!viewed, "seed {seed}: granule {granule} is given back under a view");
            word.set(PUNCHED);
        }
        self.inner.stamps.iter().for_each(|stamp| stamp.set(PUNCHED));
    }

    /// A process maps it.
    pub(crate) fn map(&self, process: ProcessId) {
        self.inner.mapped_by.borrow_mut().push(process);
    }

    /// It does so no more.
    pub(crate) fn unmap(&self, process: ProcessId) {
        let mut mapped_by = self.inner.mapped_by.borrow_mut();
        if let Some(at) = mapped_by.iter().position(|other| *other == process) {
            mapped_by.swap_remove(at);
        }
    }

    /// Whether this attachment of a process is the only one left.
    pub(crate) fn is_alone(&self, world: &World) -> bool {
        self.inner.mapped_by.borrow().iter().filter(|process| world.is_present(**process)).count() < 2
    }
}

impl Stamps for Memory {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        let newest = self.stamps(offset, len)?.map(Cell::get).max().unwrap_or(0);
        Ok(if self.inner.given_back.get() { GIVEN_BACK } else { newest })
    }

    fn tombstone(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        if !self.inner.given_back.get() {
            self.stamps(offset, len)?.for_each(|stamp| stamp.set(stamp.get().max(rid.tombstone())));
        }
        Ok(())
    }
}

/// A view, until it is dropped.
#[derive(Debug)]
pub struct Viewed {
    memory: Memory,
    offset: u64,
    len: u64,
}

impl Drop for Viewed {
    fn drop(&mut self) {
        let mut viewed = self.memory.inner.viewed.borrow_mut();
        for granule in Memory::granules(self.offset, self.len) {
            if let Some(views) = viewed.get_mut(&granule) {
                *views -= 1;
                if *views == 0 {
                    viewed.remove(&granule);
                }
            }
        }
    }
}
