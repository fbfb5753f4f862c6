//! What the pages tell of this master, read as of one moment.

use crate::machine::segment_list::{self, Listed};
use crate::metrics::summary::{self, Figures};
use crate::metrics::{Reading, TierReading};
use crate::shared::Shared;

/// Everything.
pub fn read(shared: &Shared) -> Reading {
    let (stats, quarantine_age_us, tier_order_age_us) =
        shared.read(|core, now| (core.stats(), core.quarantine_age_us(now), core.tier_order_age_us(now)));
    let live = segment_list::list(shared).into_iter().filter(Listed::is_live);
    let tiers = shared.read(|core, now| core.tiers().map(|tier| TierReading::of(&tier, now)).collect());
    let segments = live.map(|segment| (segment.name, segment.used, segment.capacity)).collect();
    Reading {
        stats,
        quarantine_age_us,
        tier_order_age_us,
        segments,
        tiers,
        shell: shared.metrics.read(),
        log: shared.log.read(),
        epoch: shared.log.epoch().number.into(),
        lsn: shared.log.lsn(),
        connections: shared.connections.len() as u64,
        displaced: shared.connections.displaced(),
        peer_faults: shared.peers.faults(),
    }
}

/// The summary line, without a prefix, with the rates since the last periodic one.
pub fn summary_line(shared: &Shared) -> String {
    let previous = shared.summarized.lock();
    let stats = shared.read(|core, _| core.stats());
    summary::line(&Figures { stats, log: shared.log.stats(), shell: &shared.metrics }, &previous)
}
