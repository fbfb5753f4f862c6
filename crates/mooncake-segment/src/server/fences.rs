//! Fences and epochs, as a master asks for them (docs/safety.md, rules 7 and 18): see [`crate::machine::Owner`].

use mooncake_ids::SegmentUuid;

use super::{Fence, SegmentServer};
use crate::epoch::Epoch;
use crate::error::TwoEpochs;

impl SegmentServer {
    /// Shuts the writer of a placement out. True when that is done now;
    /// otherwise [`super::ServerEvents::fenced`] follows when it is. It never
    /// does where the extent carries a stamp that is newer than the placement:
    /// memory that turned, and the writer of the next placement there could not begin.
    pub fn fence(&self, fence: Fence) -> bool {
        let (done, later) = {
            let mut state = self.shared.state.lock();
            let mut out = Vec::new();
            let done = state.owner.fence(self.shared.now(), fence, &mut out);
            (done, state.carry_out(out))
        };
        // Without the lock: a handler of events may call this server.
        self.shared.report(later);
        if !done {
            // The acceptor must know when to cut, and poll for room to write.
            self.shared.waker.wake();
        }
        done
    }

    /// Obeys an epoch: refuses writes of older epochs from now on. Gives the
    /// segments that have nothing older under way; for the others
    /// [`super::ServerEvents::epoch_taken`] follows, once their lanes are
    /// drained or cut and every process that maps them, and every store of this one that reads them, has confirmed or
    /// is gone. May be asked again.
    ///
    /// Asked for another epoch of the number that it obeys already it takes nothing, and reports nothing of that number
    /// any more: a report says the number only, and either master would take it for its own.
    pub fn take_epoch(&self, asked: Epoch) -> Result<Vec<SegmentUuid>, TwoEpochs> {
        let (taken, later) = {
            let mut state = self.shared.state.lock();
            let mut out = Vec::new();
            // On an error `out` is empty: the owner takes an epoch number with one id only (docs/safety.md, rule 18).
            let taken = state.owner.take_epoch(self.shared.now(), asked, &mut out)?;
            (taken, state.carry_out(out))
        };
        self.shared.report(later);
        // As with a fence. Whether a segment still waits is not looked at: a wake for nothing does no harm.
        self.shared.waker.wake();
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use mooncake_ids::Rid;
    use mooncake_memory::{SegmentMemory, SegmentOptions, Source};

    use super::*;
    use crate::server::{ServerEvents, ServerOptions};

    struct Report(Sender<Rid>);

    impl ServerEvents for Report {
        fn fenced(&self, _: SegmentUuid, rid: Rid) {
            let _ = self.0.send(rid);
        }
        fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
    }

    #[test]
    fn a_write_that_stamps_over_its_fence_is_tombstoned_again() {
        let (sender, fenced) = channel();
        let options = ServerOptions { unix: false, ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
        let server = SegmentServer::start(options, Box::new(Report(sender))).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        let served = server.shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
        let rid = Rid::new(1, 1);
        let mapping = memory.mapping();
        let writing = served.gate.admit(mapping, rid, 0, 4096, None).unwrap();
        let fence = Fence { uuid: memory.uuid(), rid, offset: 0, len: 4096, writer: 1, writer_done: false };
        assert!(!server.fence(fence));
        // Admitted before the fence, stamps after it.
        mapping.write(rid, 0, &[Source::new(&[1; 4096])]).unwrap();
        assert!(fenced.recv_timeout(Duration::from_millis(400)).is_err(), "own threads are not cut but waited for");
        drop(writing);
        assert_eq!(fenced.recv_timeout(Duration::from_secs(2)), Ok(rid));
        assert!(mapping.check_stamps(Rid(rid.tombstone()), 0, 4096).unwrap());
    }

    #[test]
    fn an_extent_with_a_stamp_that_its_writer_cannot_have_made_does_not_come_back() {
        let (sender, fenced) = channel();
        let options = ServerOptions { unix: false, ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1) };
        let server = SegmentServer::start(options, Box::new(Report(sender))).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        let served = server.shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
        let (rid, mapping) = (Rid::new(1, 1), memory.mapping());
        let fence = Fence { uuid: memory.uuid(), rid, offset: 0, len: 4096, writer: 1, writer_done: true };
        mapping.write(Rid(rid.0 | 1 << 30), 3072, &[Source::new(&[1; 1024])]).unwrap();
        assert!(!server.fence(fence), "whoever is placed there next could not write");
        assert!(server.fence(Fence { len: 3072, ..fence }));
        // The same when it is found behind a writer that was waited for.
        let slow = Rid(rid.0 + 2);
        let writing = served.gate.admit(mapping, slow, 8192, 4096, None).unwrap();
        assert!(!server.fence(Fence { rid: slow, offset: 8192, ..fence }));
        mapping.write(Rid(rid.0 | 1 << 30), 8192, &[Source::new(&[1; 1024])]).unwrap();
        let whole = Rid(slow.0 + 2);
        let other = served.gate.admit(mapping, whole, 16384, 4096, None).unwrap();
        assert!(!server.fence(Fence { rid: whole, offset: 16384, ..fence }));
        drop((writing, other));
        assert_eq!(fenced.recv_timeout(Duration::from_secs(2)), Ok(whole));
        assert!(fenced.recv_timeout(Duration::from_millis(100)).is_err(), "the marred one never is");
    }
}
