//! Distributions without a lock: an observation is two additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bounds of latencies, nanoseconds: 1-2-5 from 1 us to 10 s.
pub const LATENCY_NS: &[u64] = &[
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// What a histogram is told in, and shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Told and shown in bytes.
    Bytes,
    /// Told in nanoseconds, shown in seconds.
    Seconds,
    /// Told in nanoseconds, shown in milliseconds.
    Milliseconds,
}

impl Unit {
    /// A value as it is shown.
    pub fn show(self, value: u64) -> f64 {
        match self {
            Unit::Bytes => value as f64,
            Unit::Seconds => value as f64 / 1e9,
            Unit::Milliseconds => value as f64 / 1e6,
        }
    }
}

/// Counts of values by their size.
#[derive(Debug)]
pub struct Histogram {
    unit: Unit,
    bounds: &'static [u64],
    /// One more than there are bounds: the last is for what is above all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// One reading of a [`Histogram`].
#[derive(Debug, Clone)]
pub struct Distribution {
    /// Unit of the rest.
    pub unit: Unit,
    /// Highest value that each count takes.
    pub bounds: &'static [u64],
    /// Per bound, and one for what is above all of them.
    pub counts: Vec<u64>,
    /// Of all values.
    pub sum: u64,
}

impl Histogram {
    /// Nothing observed; the bounds grow, and are in the unit that values are told in.
    pub fn new(unit: Unit, bounds: &'static [u64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { unit, bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Of how long something takes, in seconds.
    pub fn of_latencies() -> Histogram {
        Histogram::new(Unit::Seconds, LATENCY_NS)
    }

    /// Counts one value.
    pub fn observe(&self, value: u64) {
        let index = self.bounds.partition_point(|bound| *bound < value);
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Counts how long something took.
    pub fn took(&self, duration: Duration) {
        self.observe(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts what took from a moment until now.
    pub fn since(&self, start: Instant) {
        self.took(start.elapsed());
    }

    /// What has been observed so far.
    pub fn read(&self) -> Distribution {
        Distribution {
            unit: self.unit,
            bounds: self.bounds,
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_takes_what_is_as_large_as_itself_and_nothing_is_lost() {
        let histogram = Histogram::new(Unit::Bytes, &[10, 20]);
        for value in [0, 10, 11, 20, 21, u64::from(u32::MAX)] {
            histogram.observe(value);
        }
        let read = histogram.read();
        assert_eq!((read.counts, read.sum), (vec![2, 2, 2], 62 + u64::from(u32::MAX)));
    }

    #[test]
    fn latencies_begin_at_a_microsecond_and_grow() {
        assert_eq!(LATENCY_NS[0], 1000);
        assert!(LATENCY_NS.is_sorted_by(|a, b| a < b));
    }
}
