//! What outlasts a master: its folder with the log, and the witnesses of logs on a host.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use mooncake_core::{Epoch, Record};
use mooncake_master::machine::start::{Found, Seen, Witnessed};

use crate::memory::ledger::Ledger;
use crate::snapshots::Snapshot;
use crate::world::{HostId, ProcessId, World};

/// A master's folder. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Folder {
    log: Rc<RefCell<Option<Log>>>,
    has_lost_tail: Rc<Cell<bool>>,
    /// How often a master has begun from a snapshot.
    from_snapshots: Rc<Cell<u64>>,
}

/// A log.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub id: u64,
    /// Records of each frame; the first one has LSN 1.
    pub frames: Vec<Vec<Record>>,
    /// Boot under which its last file was begun.
    pub last_boot: [u8; 16],
    /// The last snapshot, of some LSN that frames come up to.
    pub snapshot: Option<Snapshot>,
}

impl Folder {
    /// So many frames at the end are lost.
    pub fn lose_tail(&self, frames: u64) {
        if let Some(log) = self.log.borrow_mut().as_mut() {
            self.has_lost_tail.set(self.has_lost_tail.get() || frames > 0);
            let left = log.frames.len().saturating_sub(frames as usize);
            log.frames.truncate(left);
            log.snapshot.take_if(|snapshot| snapshot.lsn > left as u64);
        }
    }

    /// Has the truth know what the log says.
    pub(crate) fn tell(&self, ledger: &Ledger) {
        let log = self.log.borrow();
        ledger.found(log.iter().flat_map(|log| log.frames.iter().flatten()), self.has_lost_tail.get());
    }

    /// How many extents the log says were proven free, how many epochs it has begun, and how often a snapshot was of
    /// use.
    pub(crate) fn history(&self) -> (u64, u64, u64) {
        let log = self.log.borrow();
        let of = |which: fn(&Record) -> bool| {
            log.iter().flat_map(|log| log.frames.iter().flatten()).filter(|record| which(record)).count() as u64
        };
        (
            of(|record| matches!(record, Record::Released(_))),
            of(|record| matches!(record, Record::Epoch(_))),
            self.from_snapshots.get(),
        )
    }

    /// The log is gone, as with the disk that it was on.
    pub fn wipe(&self) {
        self.has_lost_tail.set(true);
        *self.log.borrow_mut() = None;
    }

    /// A copy, as a backup has it.
    pub fn copy(&self) -> Folder {
        let log = self.log.borrow().clone();
        Folder {
            log: Rc::new(RefCell::new(log)),
            has_lost_tail: Rc::new(Cell::new(true)),
            from_snapshots: Rc::default(),
        }
    }

    /// Number of frames.
    pub fn frames(&self) -> u64 {
        self.log.borrow().as_ref().map_or(0, |log| log.frames.len() as u64)
    }

    /// A master begins with what is there, having looked at a snapshot.
    pub(crate) fn check_snapshot(&self) {
        if let Some(Log { frames, snapshot: Some(snapshot), .. }) = &*self.log.borrow() {
            snapshot.check(frames);
            self.from_snapshots.set(self.from_snapshots.get() + 1);
        }
    }

    pub(crate) fn read(&self) -> Option<Log> {
        self.log.borrow().clone()
    }

    pub(crate) fn begin(&self, id: u64, boot: [u8; 16]) {
        let mut log = self.log.borrow_mut();
        let log = log.get_or_insert(Log { id, frames: Vec::new(), last_boot: boot, snapshot: None });
        log.last_boot = boot;
    }

    pub(crate) fn keep(&self, snapshot: Snapshot) {
        self.log.borrow_mut().as_mut().expect("begun").snapshot = Some(snapshot);
    }

    pub(crate) fn append(&self, records: Vec<Record>) {
        self.log.borrow_mut().as_mut().expect("begun").frames.push(records);
    }
}

impl Log {
    /// What a start reads of it: of frames that its snapshot covers nothing.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        let covered = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.lsn as usize);
        let snapshot = self.snapshot.iter().flat_map(|snapshot| &snapshot.records);
        snapshot.chain(self.frames[covered..].iter().flatten())
    }

    /// What a start finds of it.
    pub fn found(&self) -> Found {
        let epoch = self.frames.iter().flatten().fold(Epoch::default(), Epoch::after);
        Found { last_lsn: self.frames.len() as u64, epoch, last_boot: Some(self.last_boot) }
    }
}

/// A machine: its boot, and the witnesses there. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its number.
    pub id: HostId,
    inner: Rc<HostInner>,
}

#[derive(Debug)]
struct HostInner {
    boot: Cell<[u8; 16]>,
    witnesses: RefCell<BTreeMap<u64, Witness>>,
}

#[derive(Debug)]
struct Witness {
    seen: Seen,
    holder: Option<ProcessId>,
}

impl Host {
    /// A machine that has just been started.
    pub fn new(world: &World, id: HostId) -> Host {
        let host = Host { id, inner: Rc::new(HostInner { boot: Cell::default(), witnesses: RefCell::default() }) };
        host.boot(world);
        host
    }

    /// The machine is started again: nothing is left of what only its memory held. Its processes must have ended.
    pub fn boot(&self, world: &World) {
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&world.number().to_le_bytes());
        boot[8] = self.id.0;
        self.inner.boot.set(boot);
        self.inner.witnesses.borrow_mut().clear();
    }

    /// Which boot this is.
    pub fn boot_id(&self) -> [u8; 16] {
        self.inner.boot.get()
    }

    /// The witness of a log, if there is one; it is held where another process that lives has it.
    pub(crate) fn witness(&self, world: &World, log_id: u64) -> Option<Witnessed> {
        let witnesses = self.inner.witnesses.borrow();
        let witness = witnesses.get(&log_id)?;
        let held = witness.holder.is_some_and(|holder| world.is_alive(holder));
        Some(Witnessed { seen: witness.seen, held })
    }

    /// A master begins to keep the witness of a log, in the place of any other.
    pub(crate) fn keep_witness(&self, log_id: u64, holder: ProcessId, seen: Seen) {
        self.inner.witnesses.borrow_mut().insert(log_id, Witness { seen, holder: Some(holder) });
    }

    /// What a master stores in its witness, as long as that is its own.
    pub(crate) fn store_witness(&self, log_id: u64, holder: ProcessId, seen: Seen) {
        if let Some(witness) = self.inner.witnesses.borrow_mut().get_mut(&log_id)
            && witness.holder == Some(holder)
        {
            witness.seen = seen;
        }
    }

    /// The witness of a log is gone.
    pub fn forget_witness(&self, folder: &Folder) {
        if let Some(log) = folder.read() {
            self.inner.witnesses.borrow_mut().remove(&log.id);
        }
    }
}
