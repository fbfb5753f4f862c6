//! What counters were a while ago, so that a page can tell rates, and show what was before it was opened.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::histogram::Distribution;

/// Between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// Intervals of five minutes.
pub const INTERVALS: usize = 150;

/// Rates and latencies of now are of what came behind the sample that is so many from the end: 10 to 12 s.
const RECENT: usize = 6;

/// Half of the requests, and 99 of 100, took no longer, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Half of them. What is longer than all bounds counts as the last of them.
    pub p50: f64,
    /// 99 of 100 of them.
    pub p99: f64,
}

impl Latency {
    /// Of what a histogram of times observed between two readings; none: nothing.
    pub fn between(then: &Distribution, now: &Distribution) -> Option<Latency> {
        let between = now.since(then);
        let most = between.bounds.last().copied().unwrap_or(0);
        let bound = |share| between.quantile(share).unwrap_or(most) as f64 / 1e3;
        (between.count() > 0).then(|| Latency { p50: bound(0.5), p99: bound(0.99) })
    }
}

/// The time that a rate is of, seconds. What is counted in less than half an interval is no rate of thousands.
pub fn seconds_between(then: Instant, now: Instant) -> f64 {
    now.saturating_duration_since(then).max(SAMPLE_EVERY / 2).as_secs_f64()
}

/// The last samples of something that is read each [`SAMPLE_EVERY`].
#[derive(Debug)]
pub struct Samples<S> {
    /// Oldest first, one more than there are intervals.
    samples: VecDeque<(Instant, S)>,
    intervals: usize,
}

/// Of what rates of now need.
impl<S> Default for Samples<S> {
    fn default() -> Samples<S> {
        Samples::of(RECENT - 1)
    }
}

impl<S> Samples<S> {
    /// Keeps so many intervals.
    pub fn of(intervals: usize) -> Samples<S> {
        Samples { samples: VecDeque::new(), intervals }
    }

    /// Takes one.
    pub fn take(&mut self, at: Instant, sample: S) {
        if self.samples.len() > self.intervals {
            self.samples.pop_front();
        }
        self.samples.push_back((at, sample));
    }

    /// When the last one was taken.
    pub fn last_taken(&self) -> Option<Instant> {
        self.samples.back().map(|(at, _)| *at)
    }

    /// The one that rates of now are since, with the time since then, seconds.
    pub fn recent(&self, now: Instant) -> Option<(f64, &S)> {
        let at = self.samples.len().saturating_sub(RECENT);
        self.samples.get(at).map(|(then, sample)| (seconds_between(*then, now), sample))
    }

    /// Those that rates of now are of.
    pub fn latest(&self) -> impl Iterator<Item = &S> {
        self.samples.iter().skip(self.samples.len().saturating_sub(RECENT)).map(|(_, sample)| sample)
    }

    /// Begin, end and length in seconds of each interval, oldest first.
    pub fn intervals(&self) -> impl Iterator<Item = (&S, &S, f64)> {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        pairs.map(|((then, before), (now, after))| (before, after, seconds_between(*then, *now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    #[test]
    fn rates_are_of_the_last_ten_seconds_and_as_many_intervals_are_kept_as_were_asked_for() {
        let (began, mut samples) = (Instant::now(), Samples::of(INTERVALS));
        assert!(samples.recent(began).is_none());
        (0..400_u32).for_each(|nth| samples.take(began + nth * SAMPLE_EVERY, nth));
        let now = began + 399 * SAMPLE_EVERY;
        assert_eq!(samples.recent(now), Some((10.0, &394)));
        assert_eq!((samples.intervals().count(), samples.last_taken()), (150, Some(now)));
        assert_eq!(samples.intervals().next(), Some((&249, &250, 2.0)));
    }

    #[test]
    fn what_is_counted_in_a_moment_is_no_rate_of_thousands_and_no_more_is_kept_than_rates_need() {
        let (began, mut samples) = (Instant::now(), Samples::default());
        samples.take(began, 0);
        assert_eq!(samples.recent(began), Some((1.0, &0)));
        (1..9).for_each(|nth| samples.take(began + nth * SAMPLE_EVERY, nth));
        assert_eq!(samples.recent(began + 8 * SAMPLE_EVERY), Some((10.0, &3)));
        assert_eq!(samples.intervals().count(), RECENT - 1);
    }

    #[test]
    fn latencies_are_of_what_came_between_and_none_of_nothing() {
        let histogram = Histogram::of_latencies();
        histogram.took(Duration::from_secs(1));
        let then = histogram.read();
        assert_eq!(Latency::between(&then, &histogram.read()), None);
        (0..100).for_each(|_| histogram.took(Duration::from_micros(1_500)));
        assert_eq!(Latency::between(&then, &histogram.read()), Some(Latency { p50: 2_000.0, p99: 2_000.0 }));
        (0..9).for_each(|_| histogram.took(Duration::from_secs(100)));
        let above = Latency::between(&then, &histogram.read()).unwrap();
        assert_eq!((above.p50, above.p99), (2_000.0, 10_000_000.0), "the last bound");
    }
}
