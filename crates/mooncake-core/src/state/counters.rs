//! What is counted while it happens.

/// What has happened since the start of this process, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys asked for by existence queries.
    pub exists_keys: u64,
    /// Of these, found.
    pub exists_hits: u64,
    /// Keys looked up by gets.
    pub lookup_keys: u64,
    /// Of these, found.
    pub lookup_hits: u64,
    /// Of these, on a tier alone.
    pub tier_hits: u64,
    /// Bytes of these.
    pub tier_hit_bytes: u64,
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
    /// Of those without room, the ones of which that was the last word: their caller does not ask again.
    pub put_failed_full: u64,
    /// Of those with another put under way, the same.
    pub put_failed_busy: u64,
    /// Puts ended well.
    pub puts_committed: u64,
    /// Puts aborted by their writer; Mooncake's metric calls them revoked.
    pub puts_aborted: u64,
    /// Puts ended by a writer after they were no more, or while the owners of their replicas were away.
    pub puts_superseded: u64,
    /// Puts whose deadline passed.
    pub puts_expired: u64,
    /// Objects evicted.
    pub evicted_objects: u64,
    /// Bytes of their replicas.
    pub evicted_bytes: u64,
    /// Objects that left memory without loss: a Live tier had them.
    pub evicted_clean_objects: u64,
    /// Objects that were lost to eviction, though there was a tier: not written in time.
    pub evicted_unwritten_objects: u64,
    /// Bytes of their replicas.
    pub evicted_unwritten_bytes: u64,
    /// Objects that owners were asked to write to a tier.
    pub tier_orders: u64,
    /// Objects that were not ordered, as the tier has as many records as it may have.
    pub tier_orders_refused: u64,
    /// Objects that were not ordered, as what is left of the budget of writes is for those that were read.
    pub tier_orders_spared: u64,
    /// Orders that their owners did not answer in time.
    pub tier_orders_expired: u64,
    /// Objects that came to a tier.
    pub tier_written_objects: u64,
    /// Their bytes.
    pub tier_written_bytes: u64,
    /// Objects that left a tier as their file was given up.
    pub tier_dropped_objects: u64,
    /// Their bytes.
    pub tier_dropped_bytes: u64,
    /// Promotions that were begun.
    pub promotions_begun: u64,
    /// Of these, whole copies that their objects have.
    pub promotions_done: u64,
    /// Their bytes.
    pub promoted_bytes: u64,
    /// Promotions whose owner could not read the record, or write the copy.
    pub promotions_failed: u64,
    /// Promotions whose object had left when they were through.
    pub promotions_cancelled: u64,
    /// Promotions that their owners did not answer in time.
    pub promotions_expired: u64,
    /// Reads of objects that had not been read often enough to be promoted.
    pub promotions_rarely_read: u64,
    /// Objects that were not promoted for want of room.
    pub promotions_without_room: u64,
    /// Objects that were not promoted, as too many were waiting for it.
    pub promotions_too_many: u64,
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
    /// Epochs begun in this run.
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
