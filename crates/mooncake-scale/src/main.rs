//! Measures how long a pool of many objects holds its master's lock.

use std::path::PathBuf;

use clap::Parser;
use mooncake_scale::cases::CASES;
use mooncake_scale::pool::{Pool, Size};
use mooncake_scale::{Figures, log_in};

/// Measures how long a master of many objects, segments and clients holds the lock of its core, with its log, in one
/// process and without memory behind the segments.
#[derive(Debug, Parser)]
struct Options {
    /// Objects, with keys of 64 bytes; they fill the pool.
    #[arg(long, default_value_t = 10_000_000)]
    objects: u64,
    /// Segments, each of a client of its own.
    #[arg(long, default_value_t = 1_000)]
    segments: u64,
    /// Replicas of each object.
    #[arg(long, default_value_t = 1)]
    replicas: u32,
    /// Folder for the log; without one nothing is written, though all is made ready for it.
    #[arg(long)]
    log: Option<PathBuf>,
    /// How often all of it is done: the median of each figure is shown.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Compact the log beside a client that puts, instead: how long that takes, and what it needs of memory. Needs a folder.
    #[arg(long, requires = "log")]
    compaction: bool,
    /// Figures as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    mooncake_memory::join_freed_blocks_at_once();
    let Options { objects, segments, replicas, log, runs, compaction, json } = Options::parse();
    if let Some(log) = log.as_ref().filter(|_| compaction) {
        let mut pool = Pool::new(Size { objects, segments, replicas }, log_in(Some(log))?);
        pool.fill();
        let compaction = mooncake_scale::compaction::measure(pool, log)?;
        match json {
            true => println!("{}", serde_json::to_string_pretty(&compaction)?),
            false => println!("{compaction}"),
        }
        return Ok(());
    }
    let mut all = Vec::with_capacity(runs);
    for run in 1..=runs {
        let log = log.as_ref().map(|log| log.join(format!("run-{run}")));
        let mut pool = Pool::new(Size { objects, segments, replicas }, log_in(log.as_deref())?);
        pool.fill();
        CASES.iter().for_each(|case| case(&mut pool));
        all.push(pool.holds);
    }
    let figures = Figures::of(&all);
    if json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!("{figures}");
    }
    Ok(())
}
