//! Fences and epochs: proof that nothing of an old writer can still land.
//!
//! A fence is done when the writes through this process that passed the gate
//! before it have ended (a lane that does not end by itself is cut), and when
//! every process of the writer's session that may write the memory directly has
//! said so over its attach connection or is gone by its pidfd. A closed
//! connection proves nothing.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mooncake_memory::{Mapping, uuid_text};

use super::fence_list::PendingFence;
use super::{Fence, SegmentServer, Shared, State};
use crate::Uuid;
use crate::error::TwoReigns;
use crate::reign::Reign;

/// How long a lane in mid-write may finish by itself.
const GRACE: Duration = Duration::from_millis(200);

pub(super) struct PendingEpoch {
    uuid: Uuid,
    epoch: u16,
    writing: Vec<u64>,
    cut_at: Option<Instant>,
}

impl PendingEpoch {
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }
}

/// What became true, to be reported without the lock.
pub(super) enum Done {
    Fenced(Uuid, u64),
    EpochTaken(u16, Uuid),
}

impl SegmentServer {
    /// Shuts the writer of a placement out. True when that is done now;
    /// otherwise [`super::ServerEvents::fenced`] follows when it is. It never
    /// does where the extent carries a stamp that is newer than the placement:
    /// memory that turned, and whoever is placed there next could not write.
    pub fn fence(&self, fence: Fence) -> bool {
        let mut state = self.shared.state.lock();
        let Some(served) = state.segments.get(&fence.uuid).cloned() else {
            // No memory, nothing that could land.
            return true;
        };
        let mapping = served.memory.mapping();
        let Ok(writing) = served.gate.fence(mapping, fence.rid, fence.offset, fence.len) else {
            tracing::error!(
                uuid = uuid_text(&fence.uuid),
                rid = fence.rid,
                offset = fence.offset,
                len = fence.len,
                "fence of an extent that is not in the segment"
            );
            return true;
        };
        // Asked a second time (the master restarted): one answer is enough.
        if state.fences.is_pending(&fence) {
            if fence.writer_done {
                self.shared.bell.ring();
            }
            return false;
        }
        let id = state.next_id();
        let State { attached, fences, reign, .. } = &mut *state;
        let writers = attached.iter_mut().filter(|(_, attach)| attach.writes_for(fence.writer, &fence.uuid));
        let mut writers: Vec<_> = if fence.writer_done { Vec::new() } else { writers.collect() };
        let asked: Vec<u64> = writers.iter().map(|(attach_id, _)| **attach_id).collect();
        if writing.is_empty() && asked.is_empty() {
            return !is_marred(mapping, &fence);
        }
        let cut_at = (!writing.is_empty()).then(|| Instant::now() + GRACE);
        fences.insert(id, PendingFence { fence, writing, asked, cut_at });
        for (attach_id, attach) in &mut writers {
            attach.ask_fence(id);
            attach.put_questions(**attach_id, fences, reign.epoch);
        }
        drop(state);
        // The door must know when to cut, and poll for room to write.
        self.shared.bell.ring();
        false
    }

    /// Obeys a reign: refuses writes of older epochs from now on. Gives the
    /// segments that have nothing older under way; for the others
    /// [`super::ServerEvents::epoch_taken`] follows, once their lanes are
    /// drained or cut and every process that maps them, and every store of this one that reads them, has confirmed or is
    /// gone. May be asked again.
    ///
    /// In another reign of the epoch that it obeys already it does nothing, and of that epoch nothing is reported any more:
    /// a report says the number only, and either master would take it for its own.
    pub fn take_epoch(&self, asked: Reign) -> Result<Vec<Uuid>, TwoReigns> {
        let epoch = asked.epoch;
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        if asked.clashes_with(state.reign) {
            state.epochs.retain(|pending| pending.epoch != epoch);
            return Err(TwoReigns { asked, obeyed: state.reign });
        }
        state.reign = state.reign.or_later(asked);
        let mut done = Vec::new();
        let mut insiders = Vec::new();
        for (uuid, served) in &state.segments {
            let writing = served.gate.raise_epoch(epoch);
            let mut open = !writing.is_empty();
            for attach in state.attached.values_mut().filter(|attach| attach.uuid() == *uuid) {
                open |= attach.ask_epoch(asked);
            }
            insiders.extend(served.insiders.below(asked));
            open |= !served.insiders.obey(epoch);
            state.epochs.retain(|pending| pending.uuid != *uuid || pending.epoch > epoch);
            if open {
                let cut_at = (!writing.is_empty()).then(|| Instant::now() + GRACE);
                state.epochs.push(PendingEpoch { uuid: *uuid, epoch, writing, cut_at });
            } else {
                served.taken.fetch_max(epoch, Ordering::AcqRel);
                done.push(*uuid);
            }
        }
        drop(guard);
        insiders.into_iter().for_each(|inside| inside.ask(asked));
        self.shared.bell.ring();
        Ok(done)
    }
}

impl Shared {
    /// Looks at every unfinished promise again and reports those that are kept.
    pub(super) fn settle(&self) {
        let done = settle_locked(&mut self.state.lock());
        for done in done {
            match done {
                Done::Fenced(uuid, rid) => self.events.fenced(uuid, rid),
                Done::EpochTaken(epoch, uuid) => self.events.epoch_taken(epoch, uuid),
            }
        }
    }

    /// When a lane is to be cut next.
    pub(super) fn next_cut(&self) -> Option<Instant> {
        let state = self.state.lock();
        let epochs = state.epochs.iter().filter_map(|pending| pending.cut_at);
        epochs.chain(state.fences.next_cut()).min()
    }
}

fn settle_locked(state: &mut State) -> Vec<Done> {
    let now = Instant::now();
    let mut done = Vec::new();
    let State { segments, attached, fences, epochs, .. } = state;
    fences.look_at_writes(|pending| {
        let Some(served) = segments.get(&pending.fence.uuid) else { return true };
        served.gate.retain_active(&mut pending.writing);
        cut_when_due(&served.gate, &pending.writing, &mut pending.cut_at, now);
        pending.writing.is_empty()
    });
    for fence in fences.take_proven() {
        let Fence { uuid, rid, offset, len, .. } = fence;
        if let Some(served) = segments.get(&uuid) {
            let mapping = served.memory.mapping();
            // Those that were waited for may have stamped over the first tombstone.
            if let Err(e) = mapping.tombstone(rid, offset, len) {
                tracing::error!(uuid = uuid_text(&uuid), rid, "second tombstone: {e}");
            }
            if is_marred(mapping, &fence) {
                continue;
            }
        }
        done.push(Done::Fenced(uuid, rid));
    }
    epochs.retain_mut(|pending| {
        let Some(served) = segments.get(&pending.uuid) else { return false };
        served.gate.retain_active(&mut pending.writing);
        cut_when_due(&served.gate, &pending.writing, &mut pending.cut_at, now);
        let silent = attached.values().any(|a| a.uuid() == pending.uuid && a.epoch() < pending.epoch);
        if !pending.writing.is_empty() || silent || !served.insiders.obey(pending.epoch) {
            return true;
        }
        served.taken.fetch_max(pending.epoch, Ordering::AcqRel);
        done.push(Done::EpochTaken(pending.epoch, pending.uuid));
        false
    });
    done
}

/// Whether a stamp is newer than the tombstone. In a reign an extent that is being fenced is nobody else's, so nobody has
/// written that. One that was released long ago, and is asked for again, needs no second answer; and one that another had
/// when the log lost its end comes back with the epoch.
fn is_marred(mapping: &Mapping, fence: &Fence) -> bool {
    let Fence { uuid, rid, offset, len, .. } = *fence;
    match mapping.max_stamp(offset, len) {
        Ok(found) if found > rid | 1 => {
            let (uuid, found) = (uuid_text(&uuid), format_args!("{found:#x}"));
            tracing::warn!(
                uuid,
                rid,
                offset,
                len,
                found,
                "an extent carries a newer stamp; if it is in quarantine it stays there for this epoch"
            );
            true
        }
        _ => false,
    }
}

fn cut_when_due(gate: &crate::gate::Gate, writing: &[u64], cut_at: &mut Option<Instant>, now: Instant) {
    if writing.is_empty() {
        *cut_at = None;
    } else if cut_at.is_some_and(|at| at <= now) {
        // Once is enough: the lane ends as soon as its thread sees it.
        gate.cut(writing);
        *cut_at = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    use mooncake_memory::{SegmentMemory, SegmentOptions, Source};

    use super::*;
    use crate::server::{ServerEvents, ServerOptions};

    struct Report(Sender<u64>);

    impl ServerEvents for Report {
        fn fenced(&self, _: Uuid, rid: u64) {
            let _ = self.0.send(rid);
        }
        fn epoch_taken(&self, _: u16, _: Uuid) {}
    }

    #[test]
    fn a_write_that_stamps_over_its_fence_is_tombstoned_again() {
        let (sender, fenced) = channel();
        let options = ServerOptions { unix: false, ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
        let server = SegmentServer::start(options, Box::new(Report(sender))).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        let served = server.shared.state.lock().segments[&memory.uuid()].clone();
        let rid = 1 << 48 | 2;
        let mapping = memory.mapping();
        let writing = served.gate.admit(mapping, rid, 0, 4096, None).unwrap();
        let fence = Fence { uuid: memory.uuid(), rid, offset: 0, len: 4096, writer: 1, writer_done: false };
        assert!(!server.fence(fence));
        // Admitted before the fence, stamps after it.
        mapping.write(rid, 0, &[Source::new(&[1; 4096])]).unwrap();
        assert!(fenced.recv_timeout(Duration::from_millis(400)).is_err(), "own threads are not cut but waited for");
        drop(writing);
        assert_eq!(fenced.recv_timeout(Duration::from_secs(2)), Ok(rid));
        assert!(mapping.check_stamps(rid | 1, 0, 4096).unwrap());
    }

    #[test]
    fn an_extent_with_a_stamp_that_its_writer_cannot_have_made_does_not_come_back() {
        let (sender, fenced) = channel();
        let options = ServerOptions { unix: false, ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
        let server = SegmentServer::start(options, Box::new(Report(sender))).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        let served = server.shared.state.lock().segments[&memory.uuid()].clone();
        let (rid, mapping) = (1 << 48 | 2, memory.mapping());
        let fence = Fence { uuid: memory.uuid(), rid, offset: 0, len: 4096, writer: 1, writer_done: true };
        mapping.write(rid | 1 << 30, 3072, &[Source::new(&[1; 1024])]).unwrap();
        assert!(!server.fence(fence), "whoever is placed there next could not write");
        assert!(server.fence(Fence { len: 3072, ..fence }));
        // The same when it is found behind a writer that was waited for.
        let slow = rid + 2;
        let writing = served.gate.admit(mapping, slow, 8192, 4096, None).unwrap();
        assert!(!server.fence(Fence { rid: slow, offset: 8192, ..fence }));
        mapping.write(rid | 1 << 30, 8192, &[Source::new(&[1; 1024])]).unwrap();
        let whole = slow + 2;
        let other = served.gate.admit(mapping, whole, 16384, 4096, None).unwrap();
        assert!(!server.fence(Fence { rid: whole, offset: 16384, ..fence }));
        drop((writing, other));
        assert_eq!(fenced.recv_timeout(Duration::from_secs(2)), Ok(whole));
        assert!(fenced.recv_timeout(Duration::from_millis(100)).is_err(), "the marred one never is");
    }
}
