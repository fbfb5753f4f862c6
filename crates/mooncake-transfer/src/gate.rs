//! Who is writing where in a segment, in this process.
//!
//! A write passes the gate before its first byte: its rid must not be lower
//! than a stamp that it would cover. A fence stamps the tombstone and takes the
//! list of writes that passed before it, under the same lock, so every write is
//! either refused by the tombstone or waited for. The owner has one gate per
//! segment for its lanes and its own writes; a peer that maps a segment has one
//! for its writes there.

use std::sync::Arc;

use mooncake_memory::{CopyError, Mapping};
use parking_lot::Mutex;

use crate::server::LaneControl;
use crate::wire::epoch_of;

/// Called when a write ends that somebody waits for.
pub(crate) type Settled = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Gate {
    state: Mutex<State>,
    settled: Settled,
}

#[derive(Default)]
struct State {
    next: u64,
    least_epoch: u16,
    closed: bool,
    watched: bool,
    active: Vec<Active>,
}

struct Active {
    id: u64,
    rid: u64,
    offset: u64,
    end: u64,
    lane: Option<Arc<LaneControl>>,
}

/// Why a write may not begin.
#[derive(Debug)]
pub(crate) enum Denied {
    /// A newer stamp, or a tombstone, covers part of the extent.
    Superseded { found: u64 },
    /// Its epoch is over.
    OldEpoch { least: u16 },
    /// Another write of the extent is under way.
    Busy,
    /// The segment is being given back.
    Closed,
    /// The extent is not in the segment.
    Copy(CopyError),
}

/// A write that passed the gate. Dropped when nothing of it can land any more.
pub(crate) struct Admitted {
    gate: Arc<Gate>,
    id: u64,
}

impl Gate {
    pub(crate) fn new(least_epoch: u16, settled: Settled) -> Arc<Gate> {
        Arc::new(Gate { state: Mutex::new(State { least_epoch, ..State::default() }), settled })
    }

    /// Lets a write begin. The caller stamps the extent next.
    pub(crate) fn admit(
        self: &Arc<Self>,
        mapping: &Mapping,
        rid: u64,
        offset: u64,
        len: u64,
        lane: Option<Arc<LaneControl>>,
    ) -> Result<Admitted, Denied> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Denied::Closed);
        }
        if epoch_of(rid) < state.least_epoch {
            return Err(Denied::OldEpoch { least: state.least_epoch });
        }
        let found = mapping.max_stamp(offset, len).map_err(Denied::Copy)?;
        if found > rid {
            return Err(Denied::Superseded { found });
        }
        let end = offset + len;
        if state.active.iter().any(|other| other.offset < end && offset < other.end) {
            return Err(Denied::Busy);
        }
        let id = state.next;
        state.next += 1;
        state.active.push(Active { id, rid, offset, end, lane });
        Ok(Admitted { gate: self.clone(), id })
    }

    /// Refuses the rid from now on and names the writes of it, or of older
    /// ones, that are still under way in its extent. When they have ended, the
    /// caller writes the tombstone once more: they may have stamped over it.
    pub(crate) fn fence(&self, mapping: &Mapping, rid: u64, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        let mut state = self.state.lock();
        mapping.tombstone(rid, offset, len)?;
        let end = offset.saturating_add(len);
        let tombstone = rid | 1;
        let ids = state.active.iter().filter(|w| w.rid <= tombstone && w.offset < end && offset < w.end);
        let ids: Vec<u64> = ids.map(|write| write.id).collect();
        state.watched |= !ids.is_empty();
        Ok(ids)
    }

    /// Refuses older epochs from now on and names their writes still under way.
    pub(crate) fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        let mut state = self.state.lock();
        state.least_epoch = state.least_epoch.max(epoch);
        let ids: Vec<u64> = state.active.iter().filter(|w| epoch_of(w.rid) < epoch).map(|w| w.id).collect();
        state.watched |= !ids.is_empty();
        ids
    }

    /// Refuses every write from now on and names those still under way.
    pub(crate) fn close(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        state.closed = true;
        state.watched |= !state.active.is_empty();
        state.active.iter().map(|write| write.id).collect()
    }

    /// Drops from a list the writes that have ended.
    pub(crate) fn retain_active(&self, ids: &mut Vec<u64>) {
        let state = self.state.lock();
        ids.retain(|id| state.active.iter().any(|write| write.id == *id));
    }

    /// Cuts the lanes of the listed writes. Writes by this process's own
    /// threads have none: they end by themselves, at memory speed.
    pub(crate) fn cut(&self, ids: &[u64]) {
        let state = self.state.lock();
        for write in state.active.iter().filter(|write| ids.contains(&write.id)) {
            if let Some(lane) = &write.lane {
                lane.cut();
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.active.retain(|write| write.id != self.id);
        let tell = state.watched;
        state.watched &= !state.active.is_empty();
        drop(state);
        if tell {
            (self.gate.settled)();
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("active", &self.state.lock().active.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mooncake_memory::{SegmentMemory, SegmentOptions};

    use super::*;

    #[test]
    fn a_write_is_either_refused_by_the_fence_or_waited_for() {
        let memory = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
        let mapping = memory.mapping();
        let rings = Arc::new(AtomicUsize::new(0));
        let bell = rings.clone();
        let ring = move || {
            bell.fetch_add(1, Ordering::SeqCst);
        };
        let gate = Gate::new(1, Box::new(ring));
        let rid = |counter: u64| 1 << 48 | counter << 1;
        let admit = |rid, offset, len| gate.admit(mapping, rid, offset, len, None);

        let first = admit(rid(5), 0, 8192).unwrap();
        assert!(matches!(admit(rid(6), 8191, 1), Err(Denied::Busy)));
        let beside = admit(rid(6), 8192, 1024).unwrap();
        let mut writing = gate.fence(mapping, rid(5), 4096, 1024).unwrap();
        assert_eq!(writing, [first.id]);
        assert!(admit(rid(4), 16384, 1024).is_ok(), "elsewhere an older one may write");
        drop(beside);
        gate.retain_active(&mut writing);
        assert_eq!(writing.len(), 1);
        drop(first);
        gate.retain_active(&mut writing);
        assert!(writing.is_empty() && rings.load(Ordering::SeqCst) > 0);
        assert!(matches!(admit(rid(5), 0, 8192), Err(Denied::Superseded { found }) if found == rid(5) | 1));
        let newer = admit(rid(6), 0, 8192).unwrap();
        assert!(gate.fence(mapping, rid(5), 0, 8192).unwrap().is_empty(), "a newer write is not the fenced one");

        assert_eq!(gate.raise_epoch(2), [newer.id]);
        assert!(matches!(admit(rid(9), 65536, 1), Err(Denied::OldEpoch { least: 2 })));
        assert_eq!(gate.close(), [newer.id]);
        assert!(matches!(admit(3 << 48, 65536, 1), Err(Denied::Closed)));
        drop(newer);
        let before = rings.load(Ordering::SeqCst);
        assert!(gate.close().is_empty() && before == rings.load(Ordering::SeqCst));
    }
}
