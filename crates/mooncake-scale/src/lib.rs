//! How long a pool of many objects, segments and clients holds its master's lock. Everybody's calls wait while one of
//! them holds it.

#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;

use crate::holds::Holds;

pub mod cases;
pub mod compaction;
pub mod control;
pub mod holds;
pub mod memory;
pub mod pool;
pub mod thread;
pub mod tiers;

/// The longest holds. Of several runs that did the same the longest that recurs, and the median of the other figures: a
/// machine that stands still for a moment counts in one of them.
#[derive(Debug, Serialize)]
pub struct Figures(pub Vec<Figure>);

/// Of one kind of operation.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// What it is.
    pub operation: &'static str,
    /// How often it was done.
    pub count: u64,
    /// The longest that each of the runs had at the same place, microseconds on the processor.
    pub cpu_us: f64,
    /// The longest of all runs, microseconds on the processor.
    pub single_us: f64,
    /// What all but one of a thousand take at most, microseconds on the processor.
    pub p999_us: f64,
    /// Page faults in the longest one.
    pub faults: u64,
    /// How often another thread took the processor from the longest one.
    pub preempted: u64,
    /// The longest, microseconds that others waited.
    pub wall_us: f64,
    /// All of them on average, microseconds on the processor.
    pub mean_us: f64,
    /// The most that one left behind: records, messages, and keys of requests that it answered.
    pub steps: usize,
    /// The most entries of the core's tables that one looked at, each as often as it did.
    pub touched: u32,
}

impl Figures {
    /// Of what was measured in each run.
    pub fn of(runs: &[Holds]) -> Figures {
        let figures: Vec<Vec<Figure>> = runs.iter().map(Figures::of_run).collect();
        let Some(first) = figures.first() else { return Figures(Vec::new()) };
        let of = |operation: &str| -> Vec<&Figure> {
            figures.iter().filter_map(|run| run.iter().find(|figure| figure.operation == operation)).collect()
        };
        let median = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
        let combined = first.iter().map(|Figure { operation, count, .. }| {
            let all = of(operation);
            let kinds: Vec<&holds::Kind> = runs.iter().filter_map(|run| run.of(operation)).collect();
            let median_of = |value: fn(&Figure) -> f64| median(all.iter().map(|figure| value(figure)).collect());
            Figure {
                operation,
                count: *count,
                cpu_us: micros(holds::Kind::recurring(&kinds)),
                single_us: all.iter().map(|figure| figure.single_us).fold(0.0, f64::max),
                p999_us: median_of(|figure| figure.p999_us),
                faults: median_of(|figure| figure.faults as f64) as u64,
                preempted: median_of(|figure| figure.preempted as f64) as u64,
                wall_us: median_of(|figure| figure.wall_us),
                mean_us: median_of(|figure| figure.mean_us),
                steps: all.iter().map(|figure| figure.steps).max().unwrap_or(0),
                touched: all.iter().map(|figure| figure.touched).max().unwrap_or(0),
            }
        });
        Figures(combined.collect())
    }

    fn of_run(holds: &Holds) -> Vec<Figure> {
        let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
        let figure = |(operation, kind): (&'static str, &holds::Kind)| Figure {
            operation,
            count: kind.cpu.len() as u64,
            cpu_us: micros(kind.longest),
            single_us: micros(kind.longest),
            p999_us: micros(kind.p999()),
            faults: kind.events.faults,
            preempted: kind.events.preempted,
            wall_us: micros(kind.wall),
            mean_us: micros(kind.sum()) / kind.cpu.len() as f64,
            steps: kind.steps,
            touched: kind.touched,
        };
        holds.iter().map(figure).collect()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<60} {:>7} {:>11} {:>10} {:>6} {:>5} {:>9} {:>8} {:>9} {:>6} {:>8}",
            "the core's lock is held for",
            "holds",
            "longest, us",
            "single, us",
            "faults",
            "taken",
            "p99.9, us",
            "mean, us",
            "wall, us",
            "steps",
            "touched"
        )?;
        for figure in &self.0 {
            let Figure { operation, count, cpu_us, single_us, p999_us, faults, preempted, .. } = figure;
            let Figure { wall_us, mean_us, steps, touched, .. } = figure;
            let over = if *cpu_us > 1_000.0 { " *" } else { "" };
            writeln!(
                f,
                "{operation:<60} {count:>7} {cpu_us:>11.0} {single_us:>10.0} {faults:>6} {preempted:>5} {p999_us:>9.0} \
                 {mean_us:>8.1} {wall_us:>9.0} {steps:>6} {touched:>8}{over}"
            )?;
        }
        Ok(())
    }
}
