//! What the master is told of the disks of this store's tiers: what they did, for its metrics, and what they may have.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mooncake_ids::TierUuid;
use mooncake_tier::io_counts::Operations;
use mooncake_tier::medium::folder::{Engine, Folder};
use mooncake_tier::owner::{TierOwner, Usage};
use mooncake_wire::message::{TierOperations, TierStats, anchor_up, tier_stats};

use crate::session::control::Control;

/// How often it is told at most.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A master that answered a beat within that time is there.
const MASTER_HEARD_WITHIN: Duration = Duration::from_secs(2);

/// What was told last, and when.
#[derive(Debug, Default)]
pub(super) struct Figures {
    told: BTreeMap<TierUuid, TierStats>,
    told_at: Option<Instant>,
}

impl Figures {
    /// Tells of these tiers of an owner what is new, if it is time to. Adopted ones lie on the same disk, and are used
    /// in the same way. `unknown_folders` lie beside them: the own tier's figure, which has a capacity.
    pub fn tell(
        &mut self,
        control: &Control,
        (owner, engine): (&TierOwner<Folder>, Engine),
        tiers: impl Iterator<Item = TierUuid>,
        unknown_folders: u64,
    ) {
        // What is told while the master is away would wait for it, and come before the tier is mounted anew.
        let is_heard = control.reachability.silence(control.now()) < MASTER_HEARD_WITHIN;
        if !is_heard || !self.are_due(Instant::now()) {
            return;
        }
        for uuid in tiers {
            let news = owner.usage(uuid).and_then(|usage| {
                let beside = if usage.capacity.is_some() { unknown_folders } else { 0 };
                self.news(uuid, engine, usage, beside)
            });
            if let Some(stats) = news {
                control.tell(anchor_up::Body::TierStats(stats));
            }
        }
    }

    /// Whether the time has come to tell what is new. Then it has not for a while.
    fn are_due(&mut self, now: Instant) -> bool {
        let are_due = self.told_at.is_none_or(|at| now.saturating_duration_since(at) >= TELL_EVERY);
        if are_due {
            self.told_at = Some(now);
        }
        are_due
    }

    /// What is to be told of a tier, if it is not what was told last.
    fn news(&mut self, tier: TierUuid, engine: Engine, usage: Usage, unknown_folders: u64) -> Option<TierStats> {
        let stats = TierStats { unknown_folders, ..message(tier, engine, usage) };
        (self.told.insert(tier, stats.clone()).as_ref() != Some(&stats)).then_some(stats)
    }

    /// The master knows nothing of a tier that it has mounted anew, or has no more.
    pub fn forget(&mut self, tier: TierUuid) {
        self.told.remove(&tier);
    }
}

fn message(tier: TierUuid, engine: Engine, usage: Usage) -> TierStats {
    let Usage { bytes, capacity, lacks_room, totals } = usage;
    let operations = |Operations { count, micros, failed }: Operations| Some(TierOperations { count, micros, failed });
    let [read_for_lanes, read_for_promotions, read_for_kept, read_for_rechecks, read_for_proofs] = totals.read_bytes;
    let [written_ordered, written_kept, written_rest] = totals.written_bytes;
    let engine = match engine {
        Engine::Ring => tier_stats::Engine::IoUring,
        Engine::Threads => tier_stats::Engine::Threads,
    };
    TierStats {
        tier: tier.0.to_vec().into(),
        engine: engine as i32,
        used_bytes: bytes,
        capacity_bytes: capacity.unwrap_or(0),
        reads: operations(totals.reads),
        writes: operations(totals.writes),
        syncs: operations(totals.syncs),
        bad_records: totals.bad_records,
        read_for_lanes,
        read_for_promotions,
        read_for_kept,
        read_for_rechecks,
        read_for_proofs,
        written_ordered,
        written_kept,
        written_rest,
        lacks_room,
        unknown_folders: 0,
    }
}

#[cfg(test)]
mod tests {
    use mooncake_tier::io_counts::IoTotals;

    use super::*;

    #[test]
    fn what_has_changed_is_told_once_a_second_and_all_of_it_after_a_mount() {
        let (mut figures, tier, began) = (Figures::default(), TierUuid([1; 16]), Instant::now());
        let due = [0, 300, 999, 1_000, 1_500, 2_000].map(|ms| figures.are_due(began + Duration::from_millis(ms)));
        assert_eq!(due, [true, false, false, true, false, true]);
        let totals = IoTotals { bad_records: 3, read_bytes: [1, 2, 3, 4, 5], ..IoTotals::default() };
        let usage = Usage { bytes: 7, capacity: Some(90), lacks_room: false, totals };
        let said = figures.news(tier, Engine::Ring, usage, 0).unwrap();
        assert_eq!((said.used_bytes, said.bad_records, said.read_for_kept), (7, 3, 3));
        assert_eq!((said.engine(), said.capacity_bytes), (tier_stats::Engine::IoUring, 90));
        assert!(figures.news(tier, Engine::Ring, usage, 0).is_none());
        assert!(figures.news(tier, Engine::Ring, usage, 1).is_some_and(|said| said.unknown_folders == 1));
        let short = Usage { lacks_room: true, ..usage };
        assert!(figures.news(tier, Engine::Ring, short, 1).is_some_and(|said| said.lacks_room));
        let more = Usage { bytes: 8, ..usage };
        assert!(figures.news(tier, Engine::Ring, more, 0).is_some());
        assert!(figures.news(TierUuid([2; 16]), Engine::Threads, more, 0).is_some(), "another one");
        figures.forget(tier);
        assert!(figures.news(tier, Engine::Ring, more, 0).is_some());
        // Another writer has come, and has half of what there is.
        let said = figures.news(tier, Engine::Ring, Usage { capacity: Some(45), ..more }, 0);
        assert_eq!(said.map(|said| said.capacity_bytes), Some(45));
        let said = figures.news(tier, Engine::Ring, Usage { capacity: None, ..more }, 0);
        assert_eq!(said.map(|said| said.capacity_bytes), Some(0), "one that is adopted");
    }
}
