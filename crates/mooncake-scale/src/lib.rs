//! How long a pool of many objects, segments and clients holds its master's lock. Everybody's calls wait while one of them
//! holds it.

use std::fmt;
use std::path::Path;

use mooncake_master::log::{Folder, Log, LogError, Sink};
use serde::Serialize;

use crate::holds::Holds;

pub mod cases;
pub mod holds;
pub mod pool;

/// A log to write to.
pub fn log_in(folder: Option<&Path>) -> Result<Log, LogError> {
    let sink = folder.map(|path| Sink::open(Folder::open(path)?, 1, 0, [7; 16], None)).transpose()?;
    Ok(Log::new(1, 0, sink, false))
}

/// The longest holds.
#[derive(Debug, Serialize)]
pub struct Figures(Vec<Figure>);

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
}

impl Figures {
    /// Of what was measured.
    pub fn of(holds: &Holds) -> Figures {
        let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
        let figure = |(operation, longest): (&'static str, holds::Longest)| Figure {
            operation,
            count: longest.count,
            cpu_us: micros(longest.cpu),
            wall_us: micros(longest.wall),
            mean_us: micros(longest.sum) / longest.count as f64,
        };
        Figures(holds.iter().map(figure).collect())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<52} {:>8} {:>12} {:>12} {:>10}",
            "the core's lock is held for", "holds", "longest, us", "wall, us", "mean, us"
        )?;
        for Figure { operation, count, cpu_us, wall_us, mean_us } in &self.0 {
            let over = if *cpu_us > 1_000.0 { " *" } else { "" };
            writeln!(f, "{operation:<52} {count:>8} {cpu_us:>12.0} {wall_us:>12.0} {mean_us:>10.1}{over}")?;
        }
        Ok(())
    }
}
