//! What the pool did in the last minutes, so that a page that is opened after an incident shows it: a sample of the
//! counters each 2 s, for five minutes, and of failed puts each minute, for an hour.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mooncake_core::Stats;
use mooncake_metrics::{Distribution, INTERVALS, Latency, SAMPLE_EVERY, Samples, seconds_between};
use mooncake_wire::RequestKind;
use serde::Serialize;

use crate::log::LogReading;
use crate::metrics::ShellReading;

/// Failed puts are told of an hour.
const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: usize = 60;

/// What has been counted since the start.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Totals {
    /// Keys looked up by gets.
    pub gets: u64,
    /// Of these, found.
    pub get_hits: u64,
    /// Of these, on a tier alone.
    pub tier_hits: u64,
    /// Bytes of what was found.
    pub got_bytes: u64,
    /// Keys of existence queries.
    pub exists: u64,
    /// Of these, found.
    pub exists_hits: u64,
    /// Gets that missed what an existence query had found.
    pub lookup_then_miss: u64,
    /// Objects stored.
    pub puts: u64,
    /// Bytes that got room.
    pub put_bytes: u64,
    /// Keys of puts that found no room, and whose callers gave up.
    pub put_no_room: u64,
    /// Keys of puts that can never fit.
    pub put_too_large: u64,
    /// Both, and those that were refused for their size or a cap.
    pub put_failures: u64,
    /// Objects evicted.
    pub evicted_objects: u64,
    /// Bytes of their replicas.
    pub evicted_bytes: u64,
    /// Of the objects, those that were to come to a tier.
    pub evicted_unwritten_objects: u64,
    /// Objects removed by request.
    pub removed_objects: u64,
}

/// A second of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// The time that they are of.
    pub seconds: f64,
    /// See [`Totals`].
    pub gets: f64,
    /// See [`Totals`].
    pub get_hits: f64,
    /// See [`Totals`].
    pub tier_hits: f64,
    /// See [`Totals`].
    pub got_bytes: f64,
    /// See [`Totals`].
    pub exists: f64,
    /// See [`Totals`].
    pub exists_hits: f64,
    /// See [`Totals`].
    pub lookup_then_miss: f64,
    /// See [`Totals`].
    pub puts: f64,
    /// See [`Totals`].
    pub put_bytes: f64,
    /// See [`Totals`].
    pub put_no_room: f64,
    /// See [`Totals`].
    pub put_too_large: f64,
    /// See [`Totals`].
    pub put_failures: f64,
    /// See [`Totals`].
    pub evicted_objects: f64,
    /// See [`Totals`].
    pub evicted_bytes: f64,
}

/// Why keys of puts were not stored, by the last word that their callers heard, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PutFailures {
    /// The time that they are of.
    pub seconds: f64,
    /// There was no room.
    pub no_room: u64,
    /// They can never fit.
    pub too_large: u64,
    /// Another put of the key was under way.
    pub busy: u64,
    /// Refused for their size or a cap.
    pub refused: u64,
}

/// What was so fast lately; none: there was nothing of that kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// Look-ups of gets.
    pub get: Option<Latency>,
    /// Existence queries.
    pub exists: Option<Latency>,
    /// Reserving room, with the wait for it.
    pub put_start: Option<Latency>,
    /// Committing.
    pub put_end: Option<Latency>,
    /// Writing to the log.
    pub log_append: Option<Latency>,
    /// Waiting for the log's disk.
    pub log_fsync: Option<Latency>,
}

/// Columns of the last five minutes, oldest first, a number for each interval; none: nothing was asked in it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Columns {
    /// Length of an interval.
    pub every_seconds: f64,
    /// At its end.
    pub used_bytes: Vec<u64>,
    /// A second.
    pub gets: Vec<f64>,
    /// 0 to 1.
    pub get_hit_ratio: Vec<Option<f64>>,
    /// A second.
    pub exists: Vec<f64>,
    /// 0 to 1.
    pub exists_hit_ratio: Vec<Option<f64>>,
    /// A second.
    pub puts: Vec<f64>,
    /// A second.
    pub got_bytes: Vec<f64>,
    /// A second.
    pub put_bytes: Vec<f64>,
    /// A second.
    pub evicted_bytes: Vec<f64>,
    /// Microseconds.
    pub get_p99_us: Vec<Option<f64>>,
    /// Microseconds, of reserving.
    pub put_p99_us: Vec<Option<f64>>,
}

/// All counters at one moment.
#[derive(Debug, Clone)]
pub struct Sample {
    at: Instant,
    used_bytes: u64,
    /// What has been counted.
    pub totals: Totals,
    put_failures: PutFailures,
    get: Distribution,
    exists: Distribution,
    put_start: Distribution,
    put_end: Distribution,
    log_append: Distribution,
    log_fsync: Distribution,
}

impl Sample {
    /// Of readings that were taken now.
    pub fn of(stats: &Stats, shell: &ShellReading, log: &LogReading, at: Instant) -> Sample {
        let counters = &stats.counters;
        let latency = |kinds: &[RequestKind]| {
            let (first, rest) = kinds.split_first().expect("each has a kind");
            rest.iter().fold(shell.latency(*first).clone(), |mut sum, kind| {
                sum.add(shell.latency(*kind));
                sum
            })
        };
        let put_failures = PutFailures {
            seconds: 0.0,
            no_room: counters.put_failed_full,
            too_large: counters.put_too_large,
            busy: counters.put_failed_busy,
            refused: counters.put_refused,
        };
        Sample {
            at,
            used_bytes: stats.used_bytes,
            totals: Totals {
                gets: counters.lookup_keys,
                get_hits: counters.lookup_hits,
                tier_hits: counters.tier_hits,
                got_bytes: shell.hit_bytes(),
                exists: counters.exists_keys,
                exists_hits: counters.exists_hits,
                lookup_then_miss: counters.lookup_then_miss,
                puts: counters.puts_committed,
                put_bytes: shell.placed_bytes(),
                put_no_room: counters.put_failed_full,
                put_too_large: counters.put_too_large,
                put_failures: counters.put_failed_full + counters.put_too_large + counters.put_refused,
                evicted_objects: counters.evicted_objects,
                evicted_bytes: counters.evicted_bytes,
                evicted_unwritten_objects: counters.evicted_unwritten_objects,
                removed_objects: counters.removed_objects,
            },
            put_failures,
            get: latency(&[RequestKind::Lookup, RequestKind::Pin]),
            exists: latency(&[RequestKind::Exists, RequestKind::Describe]),
            put_start: latency(&[RequestKind::PutStart, RequestKind::PutStartWaiting]),
            put_end: latency(&[RequestKind::PutEnd]),
            log_append: log.append.clone(),
            log_fsync: log.fsync.clone(),
        }
    }

    /// Rates since an earlier one.
    fn rates_since(&self, then: &Sample, seconds: f64) -> Rates {
        let rate = |of: fn(&Totals) -> u64| of(&self.totals).saturating_sub(of(&then.totals)) as f64 / seconds;
        Rates {
            seconds,
            gets: rate(|it| it.gets),
            get_hits: rate(|it| it.get_hits),
            tier_hits: rate(|it| it.tier_hits),
            got_bytes: rate(|it| it.got_bytes),
            exists: rate(|it| it.exists),
            exists_hits: rate(|it| it.exists_hits),
            lookup_then_miss: rate(|it| it.lookup_then_miss),
            puts: rate(|it| it.puts),
            put_bytes: rate(|it| it.put_bytes),
            put_no_room: rate(|it| it.put_no_room),
            put_too_large: rate(|it| it.put_too_large),
            put_failures: rate(|it| it.put_failures),
            evicted_objects: rate(|it| it.evicted_objects),
            evicted_bytes: rate(|it| it.evicted_bytes),
        }
    }

    fn latencies_since(&self, then: &Sample) -> Latencies {
        let latency = |of: fn(&Sample) -> &Distribution| Latency::between(of(then), of(self));
        Latencies {
            get: latency(|it| &it.get),
            exists: latency(|it| &it.exists),
            put_start: latency(|it| &it.put_start),
            put_end: latency(|it| &it.put_end),
            log_append: latency(|it| &it.log_append),
            log_fsync: latency(|it| &it.log_fsync),
        }
    }

    fn put_failures_since(&self, at: Instant, then: &PutFailures) -> PutFailures {
        let now = &self.put_failures;
        PutFailures {
            seconds: seconds_between(at, self.at),
            no_room: now.no_room.saturating_sub(then.no_room),
            too_large: now.too_large.saturating_sub(then.too_large),
            busy: now.busy.saturating_sub(then.busy),
            refused: now.refused.saturating_sub(then.refused),
        }
    }
}

/// The last samples.
#[derive(Debug)]
pub struct History {
    samples: Samples<Sample>,
    /// Failed puts, one more than there are minutes, oldest first.
    minutes: VecDeque<(Instant, PutFailures)>,
}

impl Default for History {
    fn default() -> History {
        History { samples: Samples::of(INTERVALS), minutes: VecDeque::new() }
    }
}

impl History {
    /// Takes one; they come each [`SAMPLE_EVERY`].
    pub fn take(&mut self, sample: Sample) {
        let is_due = self.minutes.back().is_none_or(|(at, _)| sample.at.saturating_duration_since(*at) >= MINUTE);
        if is_due {
            if self.minutes.len() > MINUTES {
                self.minutes.pop_front();
            }
            self.minutes.push_back((sample.at, sample.put_failures));
        }
        self.samples.take(sample.at, sample);
    }

    /// Since the last sample, for which the core was asked; none before the first.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.samples.last_taken().map(|at| now.saturating_duration_since(at))
    }

    /// Rates and latencies of the last 10 s, up to now.
    pub fn recent(&self, now: &Sample) -> (Rates, Latencies) {
        let Some((seconds, then)) = self.samples.recent(now.at) else { return Default::default() };
        (now.rates_since(then, seconds), now.latencies_since(then))
    }

    /// Failed puts of the last hour, up to now.
    pub fn put_failures(&self, now: &Sample) -> PutFailures {
        self.minutes.front().map_or(now.put_failures, |(at, then)| now.put_failures_since(*at, then))
    }

    /// The last five minutes.
    pub fn columns(&self) -> Columns {
        let mut columns = Columns { every_seconds: SAMPLE_EVERY.as_secs_f64(), ..Columns::default() };
        let ratio = |hits: f64, of: f64| (of > 0.0).then(|| hits / of);
        for (then, now, seconds) in self.samples.intervals() {
            let rates = now.rates_since(then, seconds);
            let p99 = |of: fn(&Sample) -> &Distribution| Latency::between(of(then), of(now)).map(|one| one.p99);
            columns.used_bytes.push(now.used_bytes);
            columns.gets.push(rates.gets);
            columns.get_hit_ratio.push(ratio(rates.get_hits, rates.gets));
            columns.exists.push(rates.exists);
            columns.exists_hit_ratio.push(ratio(rates.exists_hits, rates.exists));
            columns.puts.push(rates.puts);
            columns.got_bytes.push(rates.got_bytes);
            columns.put_bytes.push(rates.put_bytes);
            columns.evicted_bytes.push(rates.evicted_bytes);
            columns.get_p99_us.push(p99(|it| &it.get));
            columns.put_p99_us.push(p99(|it| &it.put_start));
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use mooncake_core::Counters;

    use super::*;
    use crate::metrics::Metrics;

    /// A sample of so many seconds after a start, with so many keys looked up, half of them found.
    fn sample(began: Instant, seconds: u64, keys: u64, metrics: &Metrics) -> Sample {
        let counters =
            Counters { lookup_keys: keys, lookup_hits: keys / 2, put_failed_full: keys, ..Counters::default() };
        let stats = Stats { counters, used_bytes: keys, ..Stats::default() };
        Sample::of(&stats, &metrics.read(), &LogReading::default(), began + Duration::from_secs(seconds))
    }

    #[test]
    fn rates_are_of_the_last_ten_seconds_and_columns_of_five_minutes() {
        let (began, metrics, mut history) = (Instant::now(), Metrics::default(), History::default());
        let nothing = history.recent(&sample(began, 0, 0, &metrics));
        assert_eq!(nothing, Default::default());
        (0..400).for_each(|nth| history.take(sample(began, 2 * nth, 40 * nth, &metrics)));
        let (rates, latencies) = history.recent(&sample(began, 798, 40 * 399, &metrics));
        assert_eq!((rates.seconds, rates.gets, rates.get_hits), (10.0, 20.0, 10.0));
        assert_eq!(latencies, Latencies::default(), "nothing was asked");
        let columns = history.columns();
        assert_eq!((columns.gets.len(), columns.used_bytes.len(), columns.get_p99_us.len()), (150, 150, 150));
        assert_eq!((columns.gets[0], columns.get_hit_ratio[149]), (20.0, Some(0.5)));
        assert_eq!((columns.exists_hit_ratio[0], columns.get_p99_us[0]), (None, None));
        assert_eq!(columns.used_bytes[149], 40 * 399);
    }

    #[test]
    fn puts_that_failed_are_told_of_an_hour() {
        let (began, metrics, mut history) = (Instant::now(), Metrics::default(), History::default());
        for nth in 0..3_600 {
            history.take(sample(began, 2 * nth, nth, &metrics));
        }
        let failures = history.put_failures(&sample(began, 7_200, 3_600, &metrics));
        assert_eq!((failures.seconds, failures.no_room), (3_660.0, 1_830));
    }

    #[test]
    fn latencies_are_of_what_was_asked_lately() {
        let (began, metrics, mut history) = (Instant::now(), Metrics::default(), History::default());
        metrics.answered(RequestKind::Lookup, Instant::now() - Duration::from_secs(1));
        history.take(sample(began, 0, 0, &metrics));
        (0..100).for_each(|_| metrics.answered(RequestKind::Pin, Instant::now() - Duration::from_micros(1_500)));
        let (_, latencies) = history.recent(&sample(began, 2, 0, &metrics));
        assert_eq!(latencies.get, Some(Latency { p50: 2_000.0, p99: 2_000.0 }));
        assert_eq!(latencies.exists, None);
    }
}
