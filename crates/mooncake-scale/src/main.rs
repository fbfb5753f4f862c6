//! Measures how long a pool of many objects holds its master's lock.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::Parser;
use mooncake_scale::Figures;
use mooncake_scale::cases::CASES;
use mooncake_scale::control::Control;
use mooncake_scale::memory::{self, Phases};
use mooncake_scale::pool::{Pool, Size, log_in};
use mooncake_scale::tiers::{self, Places};

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
    /// Folder for the log. Without one there is no log, and its records are not made.
    #[arg(long)]
    log: Option<PathBuf>,
    /// How often all of it is done: what is longest in each of the runs at the same place counts as the longest, and of
    /// the other figures the median.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Compact the log beside a client that puts, instead: how long that takes, and what it needs of memory. Needs a
    /// folder.
    #[arg(long, requires = "log")]
    compaction: bool,
    /// Figures as JSON.
    #[arg(long)]
    json: bool,
    /// Shows the memory that the pool takes instead, at what rate it fills, and with a log how long a restart reads it.
    #[arg(long)]
    memory: bool,
    /// Shows what objects that lie there cost the master's memory and a restart, instead. Needs a folder.
    #[arg(long, requires = "log", value_name = "WHERE")]
    places: Option<Places>,
    /// Only reads back the log that an earlier run with `--memory` has left in this folder.
    #[arg(long, value_name = "FOLDER")]
    recover: Option<PathBuf>,
}

/// Walks of the control behind a case: as many as it had holds, but not more.
const WALKS: usize = 2_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    mooncake_os::keep_frees_short();
    let Options { objects, segments, replicas, log, runs, compaction, json, memory, places, recover } =
        Options::parse();
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
    if let Some(folder) = recover {
        let phase = memory::recovered(&folder)?;
        match json {
            true => println!("{}", serde_json::to_string(&phase)?),
            false => println!("{}", Phases(vec![phase])),
        }
        return Ok(());
    }
    if let (Some(places), Some(log)) = (places, &log) {
        let phases = Phases(tiers::measure(objects, places, log)?);
        match json {
            true => println!("{}", serde_json::to_string_pretty(&phases)?),
            false => println!("{phases}"),
        }
        return Ok(());
    }
    if memory {
        let phases = memory::live(Size { objects, segments, replicas }, log.as_deref())?;
        match json {
            true => println!("{}", serde_json::to_string_pretty(&phases)?),
            false => println!("{phases}"),
        }
        return Ok(());
    }
    let (mut all, mut control) = (Vec::with_capacity(runs), Control::new());
    for run in 1..=runs {
        let log = log.as_ref().map(|log| log.join(format!("run-{run}")));
        let mut pool = Pool::new(Size { objects, segments, replicas }, log_in(log.as_deref())?);
        pool.fill();
        for case in CASES {
            let before = pool.holds.count();
            case(&mut pool);
            let walks = (pool.holds.count() - before).min(WALKS);
            (0..walks).for_each(|_| control.walk(&mut pool.holds));
        }
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
