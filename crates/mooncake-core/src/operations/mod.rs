//! What is done to the pool, one file a kind of operation.

pub(crate) mod clear;
pub(crate) mod clearing;
pub(crate) mod departure;
pub(crate) mod ending;
pub(crate) mod epochs;
pub(crate) mod invariants;
pub(crate) mod kept;
pub(crate) mod listed_views;
pub(crate) mod lookup;
pub(crate) mod membership;
pub(crate) mod once;
pub(crate) mod orders;
pub(crate) mod owner;
pub(crate) mod promote;
pub(crate) mod put_end;
pub(crate) mod put_start;
pub(crate) mod reclaim;
pub(crate) mod remove;
pub(crate) mod room;
pub(crate) mod shared_tiers;
pub(crate) mod stats;
pub(crate) mod telling;
pub(crate) mod tick;
pub(crate) mod tiers;
pub(crate) mod waiting;
pub(crate) mod why_full;
