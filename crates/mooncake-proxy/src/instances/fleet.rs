//! The instances: two groups, to which some are added and from which some are removed while requests go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::instances::address::InstanceAddress;
use crate::instances::instance::{Instance, Kind};

/// All instances.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    here: RwLock<Vec<Arc<Instance>>>,
    /// Removed, with requests under way.
    leaving: RwLock<Vec<Arc<Instance>>>,
    last: AtomicU32,
}

impl Fleet {
    /// Adds an instance; none if the group has it.
    pub fn add(&self, kind: Kind, address: InstanceAddress) -> Option<Arc<Instance>> {
        let mut here = self.here.write();
        if here.iter().any(|one| one.kind == kind && one.address.authority() == address.authority()) {
            return None;
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let instance = Arc::new(Instance::new(number, kind, address));
        here.push(instance.clone());
        Some(instance)
    }

    /// Takes an instance out: it gets no more requests, and ends the requests that it has. None if the group does not
    /// have it.
    pub fn remove(&self, kind: Kind, address: &InstanceAddress) -> Option<Arc<Instance>> {
        let mut here = self.here.write();
        let at = here.iter().position(|one| one.kind == kind && one.address.authority() == address.authority())?;
        let instance = here.remove(at);
        let mut leaving = self.leaving.write();
        leaving.retain(|one| one.under_way() > 0);
        leaving.push(instance.clone());
        Some(instance)
    }

    /// The instances of a kind that may be asked, save some: the well ones. If none is well, the ones that answer their
    /// checks all the same: requests that every instance answers with an error must not end the service for all others.
    pub fn available(&self, kind: Kind, without: &[u32]) -> Vec<Arc<Instance>> {
        let here = self.here.read();
        let fit = |one: &&Arc<Instance>| one.kind == kind && !without.contains(&one.number);
        let well: Vec<_> = here.iter().filter(fit).filter(|one| one.is_well()).cloned().collect();
        if !well.is_empty() {
            return well;
        }
        here.iter().filter(fit).filter(|one| one.is_proven.load(Ordering::Relaxed)).cloned().collect()
    }

    /// Whether one of a kind is well.
    pub fn has_well(&self, kind: Kind) -> bool {
        self.here.read().iter().any(|one| one.kind == kind && one.is_well())
    }

    /// All that have not been removed.
    pub fn all(&self) -> Vec<Arc<Instance>> {
        self.here.read().clone()
    }

    /// Removed instances that have requests under way.
    pub fn leaving(&self) -> Vec<Arc<Instance>> {
        self.leaving.read().iter().filter(|one| one.under_way() > 0).cloned().collect()
    }
}
