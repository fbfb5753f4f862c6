//! Distributions without a lock: an observation is two additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bounds of latencies, nanoseconds: 1-2-5 from 1 us to 10 s.
const LATENCY_NS: &[u64] = &[
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
    /// Told in nanoseconds, shown in microseconds.
    Microseconds,
}

impl Unit {
    /// A value as it is shown.
    pub fn show(self, value: u64) -> f64 {
        match self {
            Unit::Bytes => value as f64,
            Unit::Seconds => value as f64 / 1e9,
            Unit::Milliseconds => value as f64 / 1e6,
            Unit::Microseconds => value as f64 / 1e3,
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

impl Distribution {
    /// Nothing observed.
    pub fn nothing(unit: Unit, bounds: &'static [u64]) -> Distribution {
        Distribution { unit, bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Adds what was observed elsewhere, with the same bounds.
    pub fn add(&mut self, other: &Distribution) {
        debug_assert_eq!((self.unit, self.bounds), (other.unit, other.bounds));
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// What was observed since an earlier reading of the same histogram.
    pub fn since(&self, then: &Distribution) -> Distribution {
        debug_assert_eq!((self.unit, self.bounds), (then.unit, then.bounds));
        let counts = self.counts.iter().zip(&then.counts).map(|(now, then)| now.saturating_sub(*then)).collect();
        Distribution { counts, sum: self.sum.saturating_sub(then.sum), ..*self }
    }

    /// How many values were observed.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The bound that this share of the values, 0 to 1, stays within; `None` when it is above all bounds, or without
    /// values.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut count = 0;
        let mut buckets = self.bounds.iter().zip(&self.counts);
        buckets
            .find(|(_, here)| {
                count += **here;
                count >= wanted
            })
            .map(|(bound, _)| *bound)
    }
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
    fn distributions_add_up_and_tell_what_most_stay_within() {
        let histogram = Histogram::new(Unit::Microseconds, &[1_000, 5_000]);
        (0..98).for_each(|_| histogram.observe(800));
        let mut read = histogram.read();
        histogram.observe(4_000);
        histogram.observe(9_000);
        assert_eq!((read.quantile(0.5), read.quantile(1.0)), (Some(1_000), Some(1_000)));
        read = histogram.read();
        assert_eq!((read.quantile(0.98), read.quantile(0.99), read.quantile(1.0)), (Some(1_000), Some(5_000), None));
        read.add(&histogram.read());
        assert_eq!((read.count(), read.sum), (200, 2 * histogram.read().sum));
        assert_eq!(Distribution::nothing(Unit::Bytes, &[1]).quantile(0.5), None);
    }

    #[test]
    fn latencies_begin_at_a_microsecond_and_grow() {
        assert_eq!(LATENCY_NS[0], 1000);
        assert!(LATENCY_NS.is_sorted_by(|a, b| a < b));
    }
}
