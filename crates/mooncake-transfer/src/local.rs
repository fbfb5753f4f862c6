//! The segments that this very process owns.
//!
//! A store that reads or writes its own segment, or that of another store in
//! the same process, needs neither socket nor second mapping. Its writes pass the
//! owner's gate; of its views the owner knows nothing, so that it is asked for an
//! epoch as a process is that maps the segment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use mooncake_memory::{SegmentMemory, forked};
use parking_lot::Mutex;

use crate::Uuid;
use crate::gate::Gate;
use crate::link::Watcher;
use crate::reign::Reign;
use crate::wake::Bell;

/// A segment that a server of this process serves.
#[derive(Debug)]
pub(crate) struct Served {
    pub memory: Arc<SegmentMemory>,
    pub access_key: u64,
    pub gate: Arc<Gate>,
    /// Being given back: no reads and no writes begin any more.
    pub removed: AtomicBool,
    /// Highest epoch that it has taken: nothing older is written here, and everybody who maps it has said so.
    pub taken: AtomicU16,
    pub insiders: Arc<Insiders>,
}

impl Served {
    /// Fresh memory: nothing older than the epoch can be there. [`Insiders::mounted`] says in which reign that is.
    pub(crate) fn new(memory: Arc<SegmentMemory>, access_key: u64, epoch: u16, bell: Arc<Bell>) -> Served {
        let settled = bell.clone();
        let state = Mutex::new(State { reign: Reign::numbered(epoch), ..State::default() });
        Served {
            insiders: Arc::new(Insiders { uuid: memory.uuid(), state, bell }),
            memory,
            access_key,
            gate: Gate::new(epoch, Box::new(move || settled.ring())),
            removed: AtomicBool::new(false),
            taken: AtomicU16::new(epoch),
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}

/// The links and views that stores of this process have in a segment of it.
#[derive(Debug)]
pub(crate) struct Insiders {
    uuid: Uuid,
    state: Mutex<State>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Latest reign of the segment's master, that those in it are asked for. A newcomer has nothing older to swear off.
    reign: Reign,
    each: HashMap<u64, Insider>,
}

#[derive(Debug)]
struct Insider {
    inside: Weak<Inside>,
    /// Latest reign that it obeys, and that it is asked for.
    obeyed: Reign,
    asked: Reign,
}

impl Insiders {
    pub(crate) fn enter(self: &Arc<Self>, watcher: &Arc<Watcher>) -> Arc<Inside> {
        let mut state = self.state.lock();
        let (number, began) = (state.next, state.reign);
        state.next += 1;
        let inside = Arc::new(Inside { insiders: self.clone(), number, watcher: watcher.clone() });
        state.each.insert(number, Insider { inside: Arc::downgrade(&inside), obeyed: began, asked: began });
        inside
    }

    /// The master that knows the segment is in this reign. Those who came before that was known go by its number until they
    /// are asked; no other master knows anything of the segment by then.
    pub(crate) fn mounted(&self, reign: Reign) {
        let mut state = self.state.lock();
        state.reign = state.reign.or_later(reign);
    }

    /// Latest reign that the segment was mounted in, or its owner asked to obey.
    pub(crate) fn reign(&self) -> Reign {
        self.state.lock().reign
    }

    /// Those who do not obey a reign yet, to be asked by [`Inside::ask`] without any lock.
    pub(crate) fn below(&self, asked: Reign) -> Vec<Arc<Inside>> {
        let mut state = self.state.lock();
        state.reign = state.reign.or_later(asked);
        let below = state.each.values_mut().filter(|insider| insider.obeyed.epoch < asked.epoch);
        below
            .filter_map(|insider| {
                insider.asked = insider.asked.or_later(asked);
                insider.inside.upgrade()
            })
            .collect()
    }

    /// Whether all of them have taken an epoch.
    pub(crate) fn obey(&self, epoch: u16) -> bool {
        self.state.lock().each.values().all(|insider| insider.obeyed.epoch >= epoch)
    }
}

/// One of them, as long as the link and the views that were made over it.
#[derive(Debug)]
pub(crate) struct Inside {
    insiders: Arc<Insiders>,
    number: u64,
    watcher: Arc<Watcher>,
}

impl Inside {
    pub(crate) fn uuid(&self) -> Uuid {
        self.insiders.uuid
    }

    /// See [`crate::Link::is_waited_for_in`].
    pub(crate) fn is_waited_for_in(&self, reign: Reign) -> bool {
        let state = self.insiders.state.lock();
        let insider = state.each.get(&self.number);
        insider.is_some_and(|Insider { obeyed, asked, .. }| {
            reign.knows_what_is_known_in(*obeyed) || reign.knows_what_is_known_in(*asked)
        })
    }

    /// Has its store asked. Called without any lock of the owner.
    pub(crate) fn ask(self: &Arc<Self>, reign: Reign) {
        self.watcher.ask_inside(self, reign);
    }

    /// Its store obeys the reign.
    pub(crate) fn confirm(&self, reign: Reign) {
        if let Some(insider) = self.insiders.state.lock().each.get_mut(&self.number) {
            insider.obeyed = insider.obeyed.or_later(reign);
        }
        self.insiders.bell.ring();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // In a forked child the parent's locks may be held for ever.
        if !forked() {
            self.insiders.state.lock().each.remove(&self.number);
            self.insiders.bell.ring();
        }
    }
}

static SERVED: LazyLock<Mutex<HashMap<Uuid, Weak<Served>>>> = LazyLock::new(Mutex::default);

pub(crate) fn announce(served: &Arc<Served>) {
    SERVED.lock().insert(served.memory.uuid(), Arc::downgrade(served));
}

pub(crate) fn withdraw(uuid: &Uuid) {
    if !forked() {
        SERVED.lock().remove(uuid);
    }
}

/// The segment, if this process owns it.
pub(crate) fn find(uuid: &Uuid) -> Option<Arc<Served>> {
    SERVED.lock().get(uuid)?.upgrade()
}
