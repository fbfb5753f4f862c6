//! The segments that this very process owns.
//!
//! A store that reads or writes its own segment, or that of another store in
//! the same process, needs neither socket nor second mapping. Its writes pass the
//! owner's gate; what its views hold back is [`machine::Insiders`]' to know.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{CopyError, SegmentMemory};
use mooncake_os::forked;
use parking_lot::Mutex;

use crate::epoch::Epoch;
use crate::gate::Gate;
use crate::link_events::{Asked, EpochQuestion, LinkEvents};
use crate::machine::{self, Segment, Writes};
use mooncake_os::Waker;

/// A segment that a server of this process serves.
#[derive(Debug)]
pub(crate) struct Served {
    pub memory: Arc<SegmentMemory>,
    pub access_key: u64,
    pub gate: Arc<Gate>,
    /// Being given back: no reads and no writes begin any more.
    pub removed: AtomicBool,
    pub insiders: Arc<Insiders>,
}

impl Served {
    /// Nothing older than the epoch can come there any more. Of fresh memory [`Insiders::mounted`] says in which epoch
    /// that is.
    pub(crate) fn new(memory: Arc<SegmentMemory>, access_key: u64, epoch: Epoch, waker: Arc<Waker>) -> Served {
        let write_ended = waker.clone();
        let machine = machine::Insiders::new(epoch);
        let state = Mutex::new(State { machine, each: HashMap::new() });
        Served {
            insiders: Arc::new(Insiders { uuid: memory.uuid(), state, waker }),
            memory,
            access_key,
            gate: Gate::new(epoch.number, Box::new(move || write_ended.wake())),
            removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}

// What the owner's book asks of it.
impl Writes for Arc<Served> {
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        self.gate.fence(self.memory.mapping(), rid, offset, len)
    }

    fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.gate.raise_epoch(epoch)
    }

    fn retain_active(&self, ids: &mut Vec<u64>) {
        self.gate.retain_active(ids);
    }
}

impl Segment for Arc<Served> {
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        self.memory.mapping().max_stamp(offset, len)
    }

    fn raise_insiders(&self, asked: Epoch) -> bool {
        self.insiders.state.lock().machine.raise(asked)
    }

    fn insiders_obey(&self, epoch: u16) -> bool {
        self.insiders.state.lock().machine.obey(epoch)
    }
}

/// The links and views that stores of this process have in a segment of it: [`machine::Insiders`], and where to ask
/// them.
#[derive(Debug)]
pub(crate) struct Insiders {
    uuid: SegmentUuid,
    state: Mutex<State>,
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct State {
    machine: machine::Insiders,
    each: HashMap<u64, Weak<Insider>>,
}

impl Insiders {
    pub(crate) fn enter(self: &Arc<Self>, events: &Arc<dyn LinkEvents>) -> Arc<Insider> {
        let mut state = self.state.lock();
        let number = state.machine.enter();
        let insider = Arc::new(Insider { insiders: self.clone(), number, events: events.clone() });
        state.each.insert(number, Arc::downgrade(&insider));
        insider
    }

    /// See [`machine::Insiders::mounted`].
    pub(crate) fn mounted(&self, epoch: Epoch) {
        self.state.lock().machine.mounted(epoch);
    }

    /// See [`machine::Insiders::epoch`].
    pub(crate) fn epoch(&self) -> Epoch {
        self.state.lock().machine.epoch()
    }

    /// The stores that do not obey an epoch yet, to be asked by [`Insider::ask`] without any lock.
    pub(crate) fn below(&self, asked: Epoch) -> Vec<Arc<Insider>> {
        let state = self.state.lock();
        state.machine.below(asked).filter_map(|number| state.each.get(&number)?.upgrade()).collect()
    }
}

/// One of them, as long as the link and the views that were made over it.
pub(crate) struct Insider {
    insiders: Arc<Insiders>,
    number: u64,
    events: Arc<dyn LinkEvents>,
}

impl Insider {
    /// See [`crate::Link::is_waited_for_in`].
    pub(crate) fn is_waited_for_in(&self, epoch: Epoch) -> bool {
        self.insiders.state.lock().machine.is_waited_for_in(self.number, epoch)
    }

    /// Has its store asked. Called without any lock of the owner.
    pub(crate) fn ask(self: &Arc<Self>, epoch: Epoch) {
        let asked: Weak<Insider> = Arc::downgrade(self);
        self.events.take_epoch(EpochQuestion::new(asked, self.insiders.uuid, epoch));
    }
}

// An insider confirms at once: its writes pass the owner's own gate, which knows those under way.
impl Asked for Insider {
    fn confirm(&self, epoch: Epoch) {
        self.insiders.state.lock().machine.confirm(self.number, epoch);
        self.insiders.waker.wake();
    }
}

impl Drop for Insider {
    fn drop(&mut self) {
        // In a forked child the parent's locks may be held for ever.
        if !forked() {
            let mut state = self.insiders.state.lock();
            state.machine.leave(self.number);
            state.each.remove(&self.number);
            drop(state);
            self.insiders.waker.wake();
        }
    }
}

impl std::fmt::Debug for Insider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Insider")
            .field("insiders", &self.insiders)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

static SERVED: LazyLock<Mutex<HashMap<SegmentUuid, Weak<Served>>>> = LazyLock::new(Mutex::default);

pub(crate) fn announce(served: &Arc<Served>) {
    SERVED.lock().insert(served.memory.uuid(), Arc::downgrade(served));
}

pub(crate) fn withdraw(uuid: &SegmentUuid) {
    if !forked() {
        SERVED.lock().remove(uuid);
    }
}

/// The segment, if this process owns it.
pub(crate) fn find(uuid: &SegmentUuid) -> Option<Arc<Served>> {
    SERVED.lock().get(uuid)?.upgrade()
}

#[cfg(test)]
mod tests {
    use mooncake_memory::{Destination, Source};

    use super::*;
    use crate::link::fixture::{Quiet, owner};
    use crate::{LinkOptions, Links, TransferError};
    use mooncake_os::Deadline;

    #[test]
    fn links_that_ended_leave_nothing_behind_at_their_owner() {
        let (_server, memory, address) = owner(1 << 20, Quiet);
        let links = Links::new(LinkOptions::new(1), Box::new(Quiet)).unwrap();
        let served = find(&memory.uuid()).unwrap();
        let deadline = Deadline::at(std::time::Instant::now() + std::time::Duration::from_secs(5));
        let link = links.link(&address, &deadline).unwrap();
        let crc = link.write(Rid::new(1, 1), 0, &[Source::new(&[5; 64])], &deadline).unwrap();
        let views = [(); 2].map(|()| link.view(Rid::new(1, 1), 0, 64, Some(crc)).unwrap().unwrap());
        assert_eq!(served.insiders.state.lock().each.len(), 1);
        links.close();
        drop(link);
        assert_eq!(served.insiders.below(Epoch::numbered(2)).len(), 1, "it is asked on account of its views");
        drop(views);
        assert!(served.insiders.state.lock().each.is_empty());
        assert!(served.insiders.below(Epoch::numbered(2)).is_empty());
        assert!(served.raise_insiders(Epoch::numbered(2)), "nobody is waited for");
    }

    #[test]
    fn a_segment_of_this_process_that_is_removed_is_neither_read_nor_written_nor_viewed() {
        let (server, memory, address) = owner(1 << 20, Quiet);
        let links = Links::new(LinkOptions::new(1), Box::new(Quiet)).unwrap();
        let deadline = Deadline::at(std::time::Instant::now() + std::time::Duration::from_secs(5));
        let (rid, link) = (Rid::new(1, 1), links.link(&address, &deadline).unwrap());
        let crc = link.write(rid, 0, &[Source::new(&[5; 64])], &deadline).unwrap();
        let report = || {
            let report = link.report();
            (report.bytes_read, report.bytes_written)
        };
        assert_eq!(report(), (0, 64));
        let mut back = [0; 64];
        link.read(rid, 0, &mut [Destination::new(&mut back)], Some(crc), &deadline).unwrap();
        assert_eq!((back, report()), ([5; 64], (64, 64)));
        let view = link.view(rid, 0, 32, None).unwrap().unwrap();
        assert_eq!((&*view, report()), (&[5; 32][..], (96, 64)));

        assert!(server.remove(memory.uuid()));
        let gone = |error| matches!(error, TransferError::Gone { .. });
        let mut destination = [0; 64];
        assert!(gone(link.read(rid, 0, &mut [Destination::new(&mut destination)], None, &deadline).unwrap_err()));
        let e = link.write(Rid(rid.0 + 2), 4096, &[Source::new(&[5; 64])], &deadline).unwrap_err();
        assert!(e.settled && gone(e.error));
        assert!(gone(link.view(rid, 0, 64, None).unwrap_err()));
        assert_eq!((&*view, report()), (&[5; 32][..], (96, 64)), "a view outlives it");
    }
}
