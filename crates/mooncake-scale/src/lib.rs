//! How long a pool of many objects, segments and clients holds its master's lock. Everybody's calls wait while one of them
//! holds it.

use std::fmt;
use std::path::Path;

use mooncake_master::log::{Folder, Log, LogError, Sink};
use serde::Serialize;

use crate::holds::Holds;

pub mod cases;
pub mod holds;
pub mod memory;
pub mod pool;

/// A log to write to.
pub fn log_in(folder: Option<&Path>) -> Result<Log, LogError> {
    let sink = folder.map(|path| Sink::open(Folder::open(path)?, 1, 0, [7; 16], None)).transpose()?;
    Ok(Log::new(1, 0, sink, false))
}

/// The longest holds. Of several runs that did the same the median of each: a machine that stands still for a moment counts in
/// one of them.
#[derive(Debug, Serialize)]
pub struct Figures(pub Vec<Figure>);

/// Of one kind of operation.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// What it is.
    pub operation: &'static str,
    /// How often it was done.
    pub count: u64,
    /// The longest, microseconds on the processor.
    pub cpu_us: f64,
    /// The longest, microseconds that others waited.
    pub wall_us: f64,
    /// All of them on average, microseconds on the processor.
    pub mean_us: f64,
    /// The most that one left behind: records, messages, and keys of requests that it answered.
    pub steps: usize,
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
        let combined = first.iter().map(|Figure { operation, count, .. }| {
            let all = of(operation);
            let median_of = |value: fn(&Figure) -> f64| median(all.iter().map(|figure| value(figure)).collect());
            Figure {
                operation,
                count: *count,
                cpu_us: median_of(|figure| figure.cpu_us),
                wall_us: median_of(|figure| figure.wall_us),
                mean_us: median_of(|figure| figure.mean_us),
                steps: all.iter().map(|figure| figure.steps).max().unwrap_or(0),
            }
        });
        Figures(combined.collect())
    }

    fn of_run(holds: &Holds) -> Vec<Figure> {
        let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
        let figure = |(operation, longest): (&'static str, holds::Longest)| Figure {
            operation,
            count: longest.count,
            cpu_us: micros(longest.cpu),
            wall_us: micros(longest.wall),
            mean_us: micros(longest.sum) / longest.count as f64,
            steps: longest.steps,
        };
        holds.iter().map(figure).collect()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<52} {:>8} {:>12} {:>10} {:>10} {:>6}",
            "the core's lock is held for", "holds", "longest, us", "wall, us", "mean, us", "steps"
        )?;
        for Figure { operation, count, cpu_us, wall_us, mean_us, steps } in &self.0 {
            let over = if *cpu_us > 1_000.0 { " *" } else { "" };
            writeln!(f, "{operation:<52} {count:>8} {cpu_us:>12.0} {wall_us:>10.0} {mean_us:>10.1} {steps:>6}{over}")?;
        }
        Ok(())
    }
}
