//! Figures for metrics and operators.

use crate::core::Core;
use crate::ids::Time;
use crate::operations::tiers::TierState;
use crate::state::counters::Counters;
use mooncake_ids::GRANULE;

/// Everything that is told of the pool. Bytes are of Live segments unless said otherwise; an object that cannot be seen
/// is not counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Visible objects.
    pub keys: u64,
    /// Capacity of the Live segments.
    pub capacity_bytes: u64,
    /// Bytes of them in use for whatever reason, in whole granules.
    pub used_bytes: u64,
    /// Bytes under readers' views or hard pins.
    pub pinned_bytes: u64,
    /// Bytes in quarantine, on all segments.
    pub quarantined_bytes: u64,
    /// Extents in quarantine, on all segments.
    pub quarantined_extents: u64,
    /// Bytes in unfinished puts.
    pub unfinished_bytes: u64,
    /// Bytes of values that unfinished puts are to replace, which stay until those end.
    pub replaced_bytes: u64,
    /// Unfinished puts.
    pub unfinished_puts: u64,
    /// Sessions that are not over.
    pub sessions: u64,
    /// Those of them that are away.
    pub sessions_away: u64,
    /// Those of them that have lost their process, and wait for an heir.
    pub sessions_bereft: u64,
    /// Segments whose owner is there.
    pub segments_live: u64,
    /// Segments whose owner is away.
    pub segments_hidden: u64,
    /// Live segments whose owner has yet to obey the epoch.
    pub segments_closed: u64,
    /// Tiers whose objects can be read.
    pub tiers_live: u64,
    /// Those of them that their sessions have beside their own, and do not write.
    pub tiers_adopted: u64,
    /// Tiers whose owner is away.
    pub tiers_hidden: u64,
    /// Live tiers that take no orders.
    pub tiers_refusing: u64,
    /// Most bytes of the Live tiers' files.
    pub tier_capacity_bytes: u64,
    /// Objects that Live tiers have.
    pub tier_objects: u64,
    /// Objects with a replica in memory, whether its owner is there or not.
    pub memory_objects: u64,
    /// Bytes of these objects.
    pub tier_bytes: u64,
    /// Bytes that their owners were asked to write and have not answered.
    pub tier_ordered_bytes: u64,
    /// Bytes in memory of objects that no tier has, on segments that have a tier near them.
    pub tier_unwritten_bytes: u64,
    /// Promotions under way.
    pub promotions: u64,
    /// Views over objects.
    pub pins: u64,
    /// Objects that an existence query found a moment ago.
    pub protected_objects: u64,
    /// Objects with a soft pin that has not lapsed.
    pub soft_pinned_objects: u64,
    /// Objects with a hard pin.
    pub hard_pinned_objects: u64,
    /// Parked requests.
    pub tickets: u64,
    /// What has been counted since the start.
    pub counters: Counters,
}

impl Core {
    /// What has been counted since the start; nothing is walked for it.
    pub fn counters(&self) -> &Counters {
        &self.counts
    }

    /// All figures as of now.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats { counters: self.counts.clone(), ..Stats::default() };
        stats.keys = self.objects.visible_len(&self.segments);
        stats.memory_objects = self.objects.in_memory();
        let bytes = |granules: u64| granules * GRANULE;
        let (live, open) = (self.segments.live_counts(), self.segments.open().len() as u64);
        stats.quarantined_bytes = bytes(self.segments.held().quarantined);
        stats.segments_live = live.segments;
        stats.segments_hidden = self.segments.len() as u64 - live.segments;
        // All that are open are Live, and do not leave.
        stats.segments_closed = live.segments - live.leaving - open;
        stats.capacity_bytes = bytes(live.total);
        stats.used_bytes = bytes(live.used);
        stats.pinned_bytes = bytes(live.pinned);
        stats.quarantined_extents = self.quarantine.len() as u64;
        stats.unfinished_bytes = self.reservations.bytes();
        stats.replaced_bytes = self.objects.replaced_bytes;
        stats.unfinished_puts = self.reservations.puts() as u64;
        stats.sessions = self.sessions.len() as u64;
        stats.sessions_away = self.sessions.iter().filter(|(_, session)| session.away.is_some()).count() as u64;
        stats.sessions_bereft = self.sessions.iter().filter(|(_, session)| session.bereft.is_some()).count() as u64;
        stats.promotions = self.reservations.promotions().count as u64;
        for tier in self.tiers() {
            if tier.state != TierState::Live {
                stats.tiers_hidden += 1;
                continue;
            }
            stats.tiers_live += 1;
            stats.tiers_adopted += u64::from(tier.is_adopted);
            stats.tiers_refusing += u64::from(tier.window == 0);
            // What is adopted, or left, has room of the tiers beside it.
            stats.tier_capacity_bytes += if tier.is_adopted || tier.is_left { 0 } else { tier.capacity };
            stats.tier_objects += tier.records;
            stats.tier_bytes += tier.bytes;
            stats.tier_ordered_bytes += tier.ordered;
        }
        if stats.tiers_live > 0 {
            stats.tier_unwritten_bytes = self.unwritten_bytes();
        }
        stats.pins = self.pins.views();
        stats.protected_objects = self.objects.protected_len().into();
        stats.soft_pinned_objects = self.objects.soft_len() as u64;
        stats.hard_pinned_objects = self.objects.hard_pinned;
        stats.tickets = self.tickets.len() as u64;
        stats
    }

    /// What would be lost with memory though it has a tier near it.
    fn unwritten_bytes(&self) -> u64 {
        let segments = self.segments.numbers().filter_map(|number| self.segments.get(number));
        let is_near_a_tier = |session, host| {
            let mut near = self.tiers.near(session, host);
            near.any(|number| self.tiers.get(number).is_some_and(|tier| !tier.is_adopted))
        };
        let near = segments.filter(|segment| segment.live && is_near_a_tier(segment.session, segment.host));
        near.map(|segment| self.objects.unwritten_on(segment.number)).sum()
    }

    /// How long the order that owners of tiers have owed an answer to for longest has been given, microseconds; 0
    /// without one.
    pub fn tier_order_age_us(&self, now: Time) -> u64 {
        self.tiers.oldest_order().map_or(0, |since| now.0.saturating_sub(since.0))
    }

    /// How long the oldest extent in quarantine has been there, microseconds; 0 without one.
    pub fn quarantine_age_us(&self, now: Time) -> u64 {
        self.quarantine.oldest().map_or(0, |since| now.0.saturating_sub(since.0))
    }
}
