//! Lanes without work, of all pools of a store: so many at most, and none for long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::process::{Resource, getrlimit};

use super::tcp_lane::Lane;
use crate::protocol::frames::LANE_REUSED;

/// Most of them where the process may have descriptors enough.
const IDLE_LANES_MAX: usize = 1024;

/// How many idle lanes there are, and how many there may be.
#[derive(Debug, Default)]
pub(super) struct IdleLanes {
    count: AtomicUsize,
    most: OnceLock<usize>,
}

/// A lane that waits for its next request.
#[derive(Debug)]
pub(super) struct IdleLane {
    lane: Lane,
    since: Instant,
    place: Place,
}

#[derive(Debug)]
struct Place(Arc<IdleLanes>);

impl IdleLanes {
    /// Keeps a lane, unless there are enough.
    pub(super) fn keep(self: &Arc<Self>, lane: Lane) -> Option<IdleLane> {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.clone());
        (before < self.most()).then(|| IdleLane { lane, since: Instant::now(), place })
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn most(&self) -> usize {
        *self.most.get_or_init(|| {
            // The rest of the descriptors is for lanes at work, and for the program that this is part of.
            let share = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
            usize::try_from(share).map_or(IDLE_LANES_MAX, |share| share.min(IDLE_LANES_MAX))
        })
    }
}

impl IdleLane {
    /// Whether its owner has not hung up.
    pub(super) fn is_alive(&self) -> bool {
        self.lane.is_alive()
    }

    /// Whether it is not to be used again: see [`LANE_REUSED`].
    pub(super) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= LANE_REUSED
    }

    #[cfg(test)]
    pub(super) fn left_at(&mut self, since: Instant) {
        self.since = since;
    }

    pub(super) fn check_out(self) -> Lane {
        drop(self.place);
        self.lane
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}
