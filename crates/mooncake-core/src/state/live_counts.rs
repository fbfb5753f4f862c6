//! What all Live segments come to, for the figures of the pool: counted as each of them changes.

use crate::state::segment::Segment;

/// What Live segments come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LiveCounts {
    pub segments: u64,
    /// Those that are being unmounted.
    pub leaving: u64,
    /// Granules that they can hold.
    pub total: u64,
    /// Granules in use, for whatever reason.
    pub used: u64,
    /// Granules under readers' views or hard pins.
    pub pinned: u64,
}

impl LiveCounts {
    /// Nothing, of one that is not Live.
    pub fn of(segment: &Segment) -> LiveCounts {
        if !segment.live {
            return LiveCounts::default();
        }
        LiveCounts {
            segments: 1,
            leaving: u64::from(segment.leaves.is_some()),
            total: u64::from(segment.extents.total()),
            used: u64::from(segment.used()),
            pinned: u64::from(segment.pinned),
        }
    }

    /// One counts as so much now, and counted as `before`.
    pub fn replace(&mut self, before: LiveCounts, now: LiveCounts) {
        self.segments = self.segments - before.segments + now.segments;
        self.leaving = self.leaving - before.leaving + now.leaving;
        self.total = self.total - before.total + now.total;
        self.used = self.used - before.used + now.used;
        self.pinned = self.pinned - before.pinned + now.pinned;
    }

    /// A segment has changed, and counts as something else.
    pub fn recount(&mut self, segment: &mut Segment) {
        let now = LiveCounts::of(segment);
        self.replace(std::mem::replace(&mut segment.counted, now), now);
    }
}
