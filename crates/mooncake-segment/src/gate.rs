//! The gate of a segment in this process, behind its lock.
//!
//! [`machine::Gate`] decides. The owner has one gate per segment for its lanes and
//! its own writes; a peer that maps a segment has one for its writes there.

use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{CopyError, Mapping};
use parking_lot::Mutex;

use crate::machine::{self, Denied, Stamps};

/// Called when a write ends while a caller waits for the end of some write.
pub(crate) type OnEnd = Box<dyn Fn() + Send + Sync>;

/// The connection over which a write comes.
pub(crate) trait WriterConnection: Send + Sync {
    /// Ends it. What has been received may still be stored until its worker notices: the gate knows when.
    fn cut(&self);
}

pub(crate) struct Gate {
    /// A write over a lane has that; one by a thread of this process has none.
    state: Mutex<machine::Gate<Option<Arc<dyn WriterConnection>>>>,
    on_end: OnEnd,
}

/// A write that passed the gate. Dropped when nothing of it can land any more.
pub(crate) struct Admitted {
    gate: Arc<Gate>,
    id: u64,
}

impl Stamps for Mapping {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        Mapping::max_stamp(self, offset, len)
    }

    fn tombstone(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        Mapping::tombstone(self, rid, offset, len)
    }
}

impl Gate {
    pub(crate) fn new(least_epoch: u16, on_end: OnEnd) -> Arc<Gate> {
        Arc::new(Gate { state: Mutex::new(machine::Gate::new(least_epoch)), on_end })
    }

    /// See [`machine::Gate::admit`].
    pub(crate) fn admit(
        self: &Arc<Self>,
        mapping: &Mapping,
        rid: Rid,
        offset: u64,
        len: u64,
        lane: Option<Arc<dyn WriterConnection>>,
    ) -> Result<Admitted, Denied> {
        let id = self.state.lock().admit(mapping, rid, offset, len, lane)?;
        Ok(Admitted { gate: self.clone(), id })
    }

    /// See [`machine::Gate::fence`].
    pub(crate) fn fence(&self, mapping: &Mapping, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        self.state.lock().fence(mapping, rid, offset, len)
    }

    /// See [`machine::Gate::raise_epoch`].
    pub(crate) fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.state.lock().raise_epoch(epoch)
    }

    /// See [`machine::Gate::close`].
    pub(crate) fn close(&self) -> Vec<u64> {
        self.state.lock().close()
    }

    /// See [`machine::Gate::retain_active`].
    pub(crate) fn retain_active(&self, ids: &mut Vec<u64>) {
        self.state.lock().retain_active(ids);
    }

    /// Cuts the lanes of the listed writes. Writes by this process's own
    /// threads have none: they end by themselves, at memory speed.
    pub(crate) fn cut(&self, ids: &[u64]) {
        self.state.lock().writers(ids).flatten().for_each(|lane| lane.cut());
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let tell = self.gate.state.lock().ended(self.id);
        if tell {
            (self.gate.on_end)();
        }
    }
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("active", &self.state.lock().active()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mooncake_memory::{SegmentMemory, SegmentOptions};

    use super::*;

    #[test]
    fn a_fence_is_told_of_the_end_of_the_write_that_it_waits_for() {
        let memory = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
        let mapping = memory.mapping();
        let rings = Arc::new(AtomicUsize::new(0));
        let waker = rings.clone();
        let ring = move || {
            waker.fetch_add(1, Ordering::SeqCst);
        };
        let gate = Gate::new(1, Box::new(ring));
        let rid = Rid::new(1, 1);
        drop(gate.admit(mapping, rid, 0, 4096, None).unwrap());
        assert_eq!(rings.load(Ordering::SeqCst), 0, "none waits for it");
        let write = gate.admit(mapping, rid, 0, 4096, None).unwrap();
        let mut writing = gate.fence(mapping, rid, 0, 4096).unwrap();
        assert_eq!(writing, [write.id]);
        drop(write);
        gate.retain_active(&mut writing);
        assert!(writing.is_empty() && rings.load(Ordering::SeqCst) == 1);
        let refused = gate.admit(mapping, rid, 0, 4096, None);
        assert!(matches!(refused, Err(Denied::Superseded { found }) if found == rid.tombstone()));
    }
}
