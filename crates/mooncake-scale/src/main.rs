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
    /// Figures as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Options { objects, segments, replicas, log, json } = Options::parse();
    let mut pool = Pool::new(Size { objects, segments, replicas }, log_in(log.as_deref())?);
    pool.fill();
    for case in CASES {
        case(&mut pool);
    }
    let figures = Figures::of(&pool.holds);
    if json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!("{figures}");
    }
    Ok(())
}
