//! The memory that outlives its owners: words, stamps, locks and the state beside it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use mooncake_client::machine::inheritance::State;
use mooncake_ids::{GRANULE, Rid};
use mooncake_memory::CopyError;
use mooncake_segment::Epoch;
use mooncake_segment::machine::{Elders, Gate, Insiders, Segment, Stamps, Writes};

pub const GRANULES: usize = 8;
pub const BYTES: u64 = GRANULES as u64 * GRANULE;

/// What a lock on the memory says of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lock {
    Writes,
    Views,
}

/// A write that has passed a gate.
#[derive(Debug, Clone)]
pub struct Active {
    pub rid: Rid,
    pub granules: Range<usize>,
}

pub struct Memory {
    stamps: Vec<Cell<u64>>,
    words: Vec<Cell<u64>>,
    /// By kind, tenure, and the number of the attachment that holds it.
    locks: RefCell<BTreeSet<(Lock, u32, u64)>>,
    pub state: Cell<State>,
    /// The process that has the state locked.
    pub locked: Cell<Option<u32>>,
    pub given_back: Cell<bool>,
    /// Placement that owns each granule, as the log says.
    pub owners: RefCell<Vec<Option<Rid>>>,
    /// Writes under way, by any process.
    pub active: RefCell<BTreeMap<u64, Active>>,
    /// Views of processes that live.
    pub views: RefCell<BTreeMap<u64, Range<usize>>>,
}

pub fn granules(offset: u64, len: u64) -> Range<usize> {
    (offset / GRANULE) as usize..(offset + len).div_ceil(GRANULE) as usize
}

impl Memory {
    pub fn new(state: State) -> Memory {
        Memory {
            stamps: vec![Cell::new(0); GRANULES],
            words: vec![Cell::new(0); GRANULES],
            locks: RefCell::default(),
            state: Cell::new(state),
            locked: Cell::new(None),
            given_back: Cell::new(false),
            owners: RefCell::new(vec![None; GRANULES]),
            active: RefCell::default(),
            views: RefCell::default(),
        }
    }

    /// A writer's stamps, before its first byte.
    pub fn stamp(&self, rid: Rid, granules: Range<usize>) {
        granules.for_each(|granule| {
            self.check_writer(rid, granule);
            self.stamps[granule].set(rid.0);
        });
    }

    /// A word of a writer's bytes.
    pub fn store(&self, rid: Rid, granule: usize) {
        self.check_writer(rid, granule);
        self.words[granule].set(rid.0);
    }

    fn check_writer(&self, rid: Rid, granule: usize) {
        let owner = self.owners.borrow()[granule];
        assert_eq!(owner, Some(rid), "granule {granule} is written by another than the placement that owns it");
        let viewed = self.views.borrow().values().any(|view| view.contains(&granule));
        assert!(!viewed, "granule {granule} is written under a view");
    }

    /// What a reader copies, if the stamps keep it.
    pub fn read(&self, rid: Rid, granules: Range<usize>) -> Option<Vec<u64>> {
        let words = self.words(granules.clone());
        self.stamps[granules].iter().all(|stamp| stamp.get() == rid.0).then_some(words)
    }

    pub fn words(&self, granules: Range<usize>) -> Vec<u64> {
        self.words[granules].iter().map(Cell::get).collect()
    }

    pub fn lock(&self, kind: Lock, tenure: u32, holder: u64) {
        self.locks.borrow_mut().insert((kind, tenure, holder));
    }

    pub fn unlock(&self, kind: Lock, holder: u64) {
        self.locks.borrow_mut().retain(|(other, _, of)| (*other, *of) != (kind, holder));
    }

    /// What locks of tenures before one say.
    pub fn elders(&self, tenure: u32) -> Elders {
        let locks = self.locks.borrow();
        let any = |kind| locks.iter().any(|(other, of, _)| *other == kind && *of < tenure);
        Elders { write: any(Lock::Writes), view: any(Lock::Views) }
    }
}

impl Stamps for Memory {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        Ok(self.stamps[granules(offset, len)].iter().map(Cell::get).max().unwrap_or(0))
    }

    fn tombstone(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        self.stamps[granules(offset, len)].iter().for_each(|stamp| stamp.set(stamp.get().max(rid.tombstone())));
        Ok(())
    }
}

/// The memory as one process has it, with a gate of its own.
pub struct Mapped {
    pub memory: Rc<Memory>,
    pub gate: RefCell<Gate<()>>,
    insiders: RefCell<Insiders>,
}

impl Mapped {
    pub fn new(memory: &Rc<Memory>, obeyed: Epoch) -> Rc<Mapped> {
        Rc::new(Mapped {
            memory: memory.clone(),
            gate: RefCell::new(Gate::new(obeyed.number)),
            insiders: RefCell::new(Insiders::new(obeyed)),
        })
    }

    /// Latest epoch that its owner was asked for.
    pub fn epoch(&self) -> Epoch {
        self.insiders.borrow().epoch()
    }
}

/// The same, for the machines.
pub struct Of(pub Rc<Mapped>);

impl Writes for Of {
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        self.0.gate.borrow_mut().fence(&*self.0.memory, rid, offset, len)
    }

    fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.0.gate.borrow_mut().raise_epoch(epoch)
    }

    fn retain_active(&self, ids: &mut Vec<u64>) {
        self.0.gate.borrow().retain_active(ids);
    }
}

impl Segment for Of {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        self.0.memory.max_stamp(offset, len)
    }

    fn raise_insiders(&self, asked: Epoch) -> bool {
        self.0.insiders.borrow_mut().raise(asked)
    }

    fn insiders_obey(&self, epoch: u16) -> bool {
        self.0.insiders.borrow().obey(epoch)
    }
}
