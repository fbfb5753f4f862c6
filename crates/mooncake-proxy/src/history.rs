//! What the proxy did in the last five minutes: rates of now, and columns for charts.

use std::time::Instant;

use mooncake_metrics::{Distribution, INTERVALS, Latency, SAMPLE_EVERY, Samples};
use serde::Serialize;

use crate::counts::{Times, Totals};

/// All counters at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub at: Instant,
    pub totals: Totals,
    pub times: Times,
    /// Under way, and waiting.
    pub requests: (usize, usize),
}

/// What was counted, a second. See [`Totals`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// The time that they are of.
    pub seconds: f64,
    pub requests: f64,
    pub ok: f64,
    pub refused: f64,
    pub failed: f64,
    pub attempts_failed: f64,
    pub decode_only: f64,
    pub broke_off: f64,
    pub cancelled: f64,
    pub rejected: f64,
}

/// What took so long lately; none: there was nothing of that kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Latencies {
    /// From a request to its turn.
    pub queued: Option<Latency>,
    /// For a prompt to be computed.
    pub prefill: Option<Latency>,
    /// From a request to the first byte of its answer.
    pub first_byte: Option<Latency>,
    /// From a request to the end of its answer.
    pub whole: Option<Latency>,
}

/// Columns of the last five minutes, oldest first, a number for each interval; none: nothing was asked in it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Columns {
    /// Length of an interval.
    every_seconds: f64,
    /// A second.
    requests: Vec<f64>,
    /// A second.
    failed: Vec<f64>,
    /// At its end.
    running: Vec<usize>,
    /// At its end.
    waiting: Vec<usize>,
    first_byte_p50_us: Vec<Option<f64>>,
    first_byte_p99_us: Vec<Option<f64>>,
    prefill_p99_us: Vec<Option<f64>>,
}

impl Sample {
    fn rates_since(&self, then: &Sample, seconds: f64) -> Rates {
        let rate = |of: fn(&Totals) -> u64| of(&self.totals).saturating_sub(of(&then.totals)) as f64 / seconds;
        Rates {
            seconds,
            requests: rate(|it| it.requests),
            ok: rate(|it| it.ok),
            refused: rate(|it| it.refused),
            failed: rate(|it| it.failed),
            attempts_failed: rate(|it| it.attempts_failed),
            decode_only: rate(|it| it.decode_only),
            broke_off: rate(|it| it.broke_off),
            cancelled: rate(|it| it.cancelled),
            rejected: rate(|it| it.rejected),
        }
    }

    fn latency_since(&self, then: &Sample, of: fn(&Times) -> &Distribution) -> Option<Latency> {
        Latency::between(of(&then.times), of(&self.times))
    }
}

/// The last samples.
#[derive(Debug)]
pub(crate) struct History(Samples<Sample>);

impl Default for History {
    fn default() -> History {
        History(Samples::of(INTERVALS))
    }
}

impl History {
    /// Takes one; they come each [`SAMPLE_EVERY`].
    pub fn take(&mut self, sample: Sample) {
        self.0.take(sample.at, sample);
    }

    /// Rates and latencies of the last 10 s, up to now.
    pub fn recent(&self, now: &Sample) -> (Rates, Latencies) {
        let Some((seconds, then)) = self.0.recent(now.at) else { return Default::default() };
        let latencies = Latencies {
            queued: now.latency_since(then, |it| &it.queued),
            prefill: now.latency_since(then, |it| &it.prefill),
            first_byte: now.latency_since(then, |it| &it.first_byte),
            whole: now.latency_since(then, |it| &it.whole),
        };
        (now.rates_since(then, seconds), latencies)
    }

    /// Whether requests waited at each of the last samples: a queue that is empty now and then is no problem.
    pub fn has_long_waits(&self) -> bool {
        let mut waiting = self.0.latest().map(|sample| sample.requests.1).peekable();
        waiting.peek().is_some() && waiting.all(|waiting| waiting > 0)
    }

    /// The last five minutes.
    pub fn columns(&self) -> Columns {
        let mut columns = Columns { every_seconds: SAMPLE_EVERY.as_secs_f64(), ..Columns::default() };
        for (then, now, seconds) in self.0.intervals() {
            let rates = now.rates_since(then, seconds);
            let first_byte = now.latency_since(then, |it| &it.first_byte);
            columns.requests.push(rates.requests);
            columns.failed.push(rates.failed);
            columns.running.push(now.requests.0);
            columns.waiting.push(now.requests.1);
            columns.first_byte_p50_us.push(first_byte.map(|latency| latency.p50));
            columns.first_byte_p99_us.push(first_byte.map(|latency| latency.p99));
            columns.prefill_p99_us.push(now.latency_since(then, |it| &it.prefill).map(|latency| latency.p99));
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::counts::Counts;

    #[test]
    fn rates_and_times_are_of_what_came_lately_and_columns_of_each_interval() {
        let (began, counts, mut history) = (Instant::now(), Counts::default(), History::default());
        let sample = |nth: u32, counts: &Counts| Sample {
            at: began + nth * SAMPLE_EVERY,
            totals: counts.totals(),
            times: counts.times(),
            requests: (nth as usize, 0),
        };
        counts.first_byte(SAMPLE_EVERY);
        for nth in 0..=5 {
            history.take(sample(nth, &counts));
            counts.answered(if nth == 3 { StatusCode::BAD_GATEWAY } else { StatusCode::OK }, SAMPLE_EVERY);
            counts.first_byte(SAMPLE_EVERY / 100);
        }
        let (rates, latencies) = history.recent(&sample(5, &counts));
        assert_eq!((rates.seconds, rates.requests, rates.ok, rates.failed), (10.0, 0.6, 0.5, 0.1));
        assert_eq!(latencies.first_byte, Some(Latency { p50: 25_000.0, p99: 25_000.0 }), "the one of 2 s is old");
        assert_eq!(latencies.prefill, None);
        let columns = history.columns();
        assert_eq!((columns.requests, columns.failed), (vec![0.5; 5], vec![0.0, 0.0, 0.0, 0.5, 0.0]));
        assert!(!history.has_long_waits());
        for nth in 6..=11 {
            history.take(Sample { requests: (1, 1), ..sample(nth, &counts) });
            assert_eq!(history.has_long_waits(), nth == 11);
        }
        assert_eq!((columns.running, columns.first_byte_p99_us[0]), (vec![1, 2, 3, 4, 5], Some(25_000.0)));
    }
}
