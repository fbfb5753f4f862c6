//! Figures for metrics and operators.

use crate::core::Core;
use crate::ids::Time;

/// Everything that is counted. Bytes are of Live segments unless said otherwise; an object that cannot be seen is not
/// counted.
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
    /// Segments whose owner is there.
    pub segments_live: u64,
    /// Segments whose owner is away.
    pub segments_hidden: u64,
    /// Live segments whose owner has yet to obey the epoch.
    pub segments_closed: u64,
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
    /// Keys asked for by existence queries.
    pub exists_keys: u64,
    /// Of these, found.
    pub exists_hits: u64,
    /// Keys looked up by gets.
    pub lookup_keys: u64,
    /// Of these, found.
    pub lookup_hits: u64,
    /// Lookups that missed what an existence query had found, as it was evicted between.
    pub lookup_then_miss: u64,
    /// Objects evicted in spite of their protection.
    pub protection_broken: u64,
    /// Keys of puts that were answered.
    pub put_keys: u64,
    /// Of these, placed.
    pub put_placed: u64,
    /// There already.
    pub put_exists: u64,
    /// Another put was under way.
    pub put_busy: u64,
    /// No room.
    pub put_full: u64,
    /// Too large.
    pub put_too_large: u64,
    /// Refused for their key or size.
    pub put_refused: u64,
    /// Puts ended well.
    pub puts_committed: u64,
    /// Puts given up by their writer.
    pub puts_revoked: u64,
    /// Puts ended by a writer after they were no more, or while the owners of their replicas were away.
    pub puts_superseded: u64,
    /// Puts whose deadline passed.
    pub puts_expired: u64,
    /// Objects evicted.
    pub evicted_objects: u64,
    /// Bytes of their replicas.
    pub evicted_bytes: u64,
    /// Objects removed by request.
    pub removed_objects: u64,
    /// Objects of which replicas were dropped by request.
    pub cleared_objects: u64,
    /// Replicas found bad by their owners.
    pub replicas_bad: u64,
    /// Extents that came back from quarantine.
    pub fences_done: u64,
    /// Fences that owners were asked for.
    pub fences_asked: u64,
    /// Replicas that readers reported bad.
    pub replicas_reported: u64,
    /// Of these, what their owners found to be good.
    pub replicas_cleared: u64,
    /// Views taken.
    pub pins_taken: u64,
    /// Times that a put needed more room than there was.
    pub evictions_attempted: u64,
    /// Of these, those that got it by evicting.
    pub evictions_successful: u64,
    /// Reigns begun in this run.
    pub epoch_raises: u64,
    /// Sessions begun.
    pub sessions_opened: u64,
    /// Sessions whose anchor came back.
    pub sessions_resumed: u64,
    /// Times that a session went away.
    pub sessions_lost: u64,
    /// Sessions over as they closed, or did nothing before they left.
    pub sessions_closed: u64,
    /// Sessions over as their process was proven gone.
    pub sessions_died: u64,
    /// Sessions over as they were away for too long.
    pub sessions_expired: u64,
    /// Segments mounted.
    pub segments_mounted: u64,
    /// Segments that are Gone.
    pub segments_gone: u64,
    /// Segments whose owner got less memory than it announced.
    pub segments_cut: u64,
    /// Mutations that came again and got the reply that they had had.
    pub replies_repeated: u64,
    /// Mutations of more things than clients of this version ask about at a time.
    pub large_requests: u64,
    /// Messages about what is no more, or not the sender's: ignored.
    pub stale_messages: u64,
}

/// The counting part of [`Stats`].
pub(crate) type Counters = Stats;

impl Core {
    /// All figures as of now.
    pub fn stats(&self) -> Stats {
        let mut stats = self.counts.clone();
        stats.keys = self.objects.visible_len(&self.segments);
        for segment in self.segments.iter() {
            let view = segment.view();
            stats.quarantined_bytes += view.quarantined;
            if segment.live {
                stats.segments_live += 1;
                stats.segments_closed += u64::from(!view.open && !view.leaving);
                stats.capacity_bytes += view.capacity;
                stats.used_bytes += view.used;
                stats.pinned_bytes += view.pinned;
            } else {
                stats.segments_hidden += 1;
            }
        }
        stats.quarantined_extents = self.quarantine.len() as u64;
        stats.unfinished_bytes = self.reservations.bytes();
        stats.replaced_bytes = self.objects.replaced_bytes;
        stats.unfinished_puts = self.reservations.len() as u64;
        stats.sessions = self.sessions.len() as u64;
        stats.sessions_away = self.sessions.iter().filter(|(_, session)| session.away.is_some()).count() as u64;
        stats.pins = self.pins.views();
        stats.protected_objects = self.objects.protected_len().into();
        stats.soft_pinned_objects = self.objects.soft_len() as u64;
        stats.hard_pinned_objects = self.objects.hard_pinned;
        stats.tickets = self.tickets.len() as u64;
        stats
    }

    /// How long the oldest extent in quarantine has been there, microseconds; 0 without one.
    pub fn quarantine_age_us(&self, now: Time) -> u64 {
        self.quarantine.oldest().map_or(0, |since| now.0.saturating_sub(since.0))
    }
}
