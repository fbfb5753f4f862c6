//! The segments that this very process owns.
//!
//! A store that reads or writes its own segment, or that of another store in
//! the same process, needs neither socket nor second mapping.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use mooncake_memory::{SegmentMemory, forked};
use parking_lot::Mutex;

use crate::Uuid;
use crate::gate::Gate;

/// A segment that a server of this process serves.
#[derive(Debug)]
pub(crate) struct Served {
    pub memory: Arc<SegmentMemory>,
    pub access_key: u64,
    pub gate: Arc<Gate>,
    /// Being given back: no reads and no writes begin any more.
    pub removed: AtomicBool,
}

impl Served {
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
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
