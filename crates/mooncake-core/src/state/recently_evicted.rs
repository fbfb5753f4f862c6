//! Keys that an existence query found and that were evicted since: a load that misses one of them was misled.

use std::collections::{BTreeSet, VecDeque};

use crate::ensure::ensure;

/// Most keys remembered.
const EVICTED_MAX: usize = 8_192;

/// Hashes of keys, the oldest forgotten first.
#[derive(Default)]
pub(crate) struct RecentlyEvicted {
    order: VecDeque<u64>,
    set: BTreeSet<u64>,
}

impl RecentlyEvicted {
    pub fn add(&mut self, hash: u64) {
        if self.set.insert(hash) {
            self.order.push_back(hash);
            if self.order.len() > EVICTED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.set.remove(&oldest);
            }
        }
    }

    /// What is in order is in the set, and not too much of it.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (order, set) = (self.order.len(), self.set.len());
        ensure!(
            order == set && set <= EVICTED_MAX,
            "{set} keys of at most {EVICTED_MAX} evicted lately, {order} in their order"
        );
        Ok(())
    }

    pub fn contains(&self, hash: u64) -> bool {
        !self.set.is_empty() && self.set.contains(&hash)
    }
}
