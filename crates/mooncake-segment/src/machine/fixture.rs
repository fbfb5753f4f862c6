//! What the tests of the machines have in common.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mooncake_ids::Rid;
use mooncake_memory::CopyError;

use super::{Gate, Insiders, Segment, Stamps, Writes};
use crate::epoch::Epoch;

pub const KIB: u64 = 1024;

/// A rid.
pub const fn rid(epoch: u16, counter: u64) -> Rid {
    Rid::new(epoch, counter)
}

/// Plain stamps, one per KiB.
#[derive(Debug)]
pub struct Granules(Vec<Cell<u64>>);

impl Granules {
    pub fn new(count: u64) -> Granules {
        Granules(vec![Cell::new(0); count as usize])
    }

    /// As a writer does before its first byte.
    pub fn stamp(&self, rid: Rid, offset: u64, len: u64) {
        self.extent(offset, len).unwrap().iter().for_each(|stamp| stamp.set(rid.0));
    }

    fn extent(&self, offset: u64, len: u64) -> Result<&[Cell<u64>], CopyError> {
        let bytes = self.0.len() as u64 * KIB;
        let end = offset.checked_add(len).filter(|end| *end <= bytes);
        let end = end.ok_or(CopyError::OutOfRange { offset, len, bytes })?;
        Ok(&self.0[(offset / KIB) as usize..end.div_ceil(KIB) as usize])
    }
}

impl Stamps for Granules {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        Ok(self.extent(offset, len)?.iter().map(Cell::get).max().unwrap_or(0))
    }

    fn tombstone(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        self.extent(offset, len)?.iter().for_each(|stamp| stamp.set(stamp.get().max(rid.tombstone())));
        Ok(())
    }
}

/// A segment of one thread.
#[derive(Debug)]
pub struct Memory {
    pub stamps: Rc<Granules>,
    pub gate: RefCell<Gate<()>>,
    pub insiders: RefCell<Insiders>,
}

impl Memory {
    pub fn new(granules: u64, epoch: u16) -> Rc<Memory> {
        Memory::over(Rc::new(Granules::new(granules)), epoch)
    }

    /// The same one in another process, with a gate of its own.
    pub fn beside(other: &Memory, epoch: u16) -> Rc<Memory> {
        Memory::over(other.stamps.clone(), epoch)
    }

    fn over(stamps: Rc<Granules>, epoch: u16) -> Rc<Memory> {
        Rc::new(Memory {
            stamps,
            gate: RefCell::new(Gate::new(epoch)),
            insiders: RefCell::new(Insiders::new(Epoch::numbered(epoch))),
        })
    }

    /// A write that passes the gate.
    pub fn admit(&self, rid: Rid, offset: u64, len: u64) -> u64 {
        self.gate.borrow_mut().admit(&*self.stamps, rid, offset, len, ()).unwrap()
    }

    pub fn ended(&self, write: u64) {
        self.gate.borrow_mut().ended(write);
    }
}

impl Writes for Rc<Memory> {
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        self.gate.borrow_mut().fence(&*self.stamps, rid, offset, len)
    }

    fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.gate.borrow_mut().raise_epoch(epoch)
    }

    fn retain_active(&self, ids: &mut Vec<u64>) {
        self.gate.borrow().retain_active(ids);
    }
}

impl Segment for Rc<Memory> {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        self.stamps.max_stamp(offset, len)
    }

    fn raise_insiders(&self, asked: Epoch) -> bool {
        self.insiders.borrow_mut().raise(asked)
    }

    fn insiders_obey(&self, epoch: u16) -> bool {
        self.insiders.borrow().obey(epoch)
    }
}
