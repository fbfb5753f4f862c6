//! What the pool is: objects, segments, sessions, reservations, and what else is known of them.

pub(crate) mod changes;
pub(crate) mod comparing;
pub(crate) mod counters;
pub(crate) mod departure;
pub(crate) mod endings;
pub(crate) mod extents;
pub(crate) mod gone_segments;
pub(crate) mod group;
pub(crate) mod index;
pub(crate) mod live_counts;
pub(crate) mod maxima;
pub(crate) mod object;
pub(crate) mod objects;
pub(crate) mod pin;
pub(crate) mod placement;
pub(crate) mod quarantine;
pub(crate) mod recently_evicted;
pub(crate) mod recheck;
pub(crate) mod removals_under_way;
pub(crate) mod reservation;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod snapshot_walk;
pub(crate) mod tellings;
pub(crate) mod waiting_put;
pub(crate) mod watermark;
