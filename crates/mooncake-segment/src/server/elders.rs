//! Looks at the locks of processes that earlier owners of the memory let in (docs/safety.md, rule 26).

use std::time::{Duration, Instant};

use mooncake_memory::{TenureLocks, TenureUse};

use super::Shared;
use crate::machine::Elders;

/// Between two looks. A process that stands still may hold its locks for hours.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl Shared {
    /// When the locks are to be looked at again whatever happens; none where nothing waits for that.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let state = self.state.lock();
        let awaits = state.locks.keys().any(|uuid| state.owner.awaits_elders(uuid));
        awaits.then(|| Instant::now() + LOOK_INTERVAL)
    }

    /// Looks at them. What follows from it, [`Shared::check_promises`] says.
    pub(super) fn look_at_elders(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for (uuid, locks) in &state.locks {
            if state.owner.awaits_elders(uuid) {
                state.owner.elders_seen(uuid, seen(locks, state.owner.tenure(uuid)));
            }
        }
    }
}

fn seen(locks: &TenureLocks, tenure: u32) -> Elders {
    // What cannot be asked proves nothing.
    let any = |what| {
        locks.any_before(tenure, what).unwrap_or_else(|error| {
            tracing::error!(%error, "the locks of earlier users of kept memory cannot be looked at");
            true
        })
    };
    Elders { write: any(TenureUse::Writes), view: any(TenureUse::Views) }
}
