//! What each way of scheduling makes of a trace: `schedule [--instances N] [--tokens-per-second N] [--cache-tokens N]
//! [--remembered BYTES] [--speed FACTOR] TRACE.jsonl`, or `-` for standard input.

use std::error::Error;
use std::io::{BufRead, BufReader, Read};

use mooncake_proxy::Scheduling;
use mooncake_proxy::routing::simulation::{Arrival, Town, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let mut town = Town { instances: 8, tokens_per_second: 8_000, cache_tokens: 1_000_000, remembered: 4_000_000 };
    let (mut path, mut speed) = (None, 1.0);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match &*arg {
            "--instances" => town.instances = value()?.parse()?,
            "--tokens-per-second" => town.tokens_per_second = value()?.parse()?,
            "--cache-tokens" => town.cache_tokens = value()?.parse()?,
            "--remembered" => town.remembered = value()?.parse()?,
            "--speed" => speed = value()?.parse()?,
            _ => path = Some(arg),
        }
    }
    let path = path.ok_or("which trace?")?;
    let file: Box<dyn Read> =
        if path == "-" { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(path)?) };
    let mut trace = Vec::new();
    for line in BufReader::new(file).lines() {
        let mut one: Arrival = serde_json::from_str(&line?)?;
        one.timestamp = (one.timestamp as f64 / speed) as u64;
        trace.push(one);
    }
    println!("{} prompts, {} instances", trace.len(), town.instances);
    println!(
        "| scheduling | found in the instance's cache | busiest by mean | mean s | p50 s | p99 s \
         |\n|---|---|---|---|---|---|"
    );
    for scheduling in Scheduling::ALL {
        let outcome = simulate(&trace, town, scheduling);
        println!(
            "| {} | {:.1} % | {:.2} | {:.2} | {:.2} | {:.2} |",
            scheduling.name(),
            outcome.hit_ratio * 100.0,
            outcome.imbalance,
            outcome.mean.as_secs_f64(),
            outcome.p50.as_secs_f64(),
            outcome.p99.as_secs_f64(),
        );
    }
    Ok(())
}
